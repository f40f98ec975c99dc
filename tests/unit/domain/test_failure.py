"""The message of a group of failures."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from progressor.domain.processes.failure import MESSAGE_CHARACTERS_MAX, normalized

ID = "o-17"


@pytest.mark.parametrize(
    ("message", "group"),
    [
        ("KeyError: 'amount'", "KeyError: *"),
        ("can't bill o-17: it's 3rd attempt", "can't bill *: it's *rd attempt"),
        ("o-17 is not o-170", "* is not o-*"),
        ("no-17, o-17_a, o-17.o-17", "no-*, o-*_a, *.*"),
        ("declined at 2026-11-27T06:54:04.12+00:00 (10.5 s)", "declined at * (* s)"),
        ("request 3f2504e0-4f89-11d3-9a0c-0305e82c3301 of deadbee1", "request * of *"),
        ("no key 9f86d081884c7d659a2feaa0c55ad015_thumb.png", "no key *.png"),
        ("<Order object at 0x7f12ab>", "<Order object at *>"),
        ("no file /var/lib/app/x.json or ../a/b, and/or 'a b'", "no file * or *, and/or *"),
        ("get https://pay.example.com:8443/v1?id=9 failed", "get * failed"),
        ("key 01HZXK3V5Y9QWERTYASDF of\n  a batch", "key * of a batch"),
        ("step timeout of 30 s exceeded, 10 attempts", "step timeout of * s exceeded, * attempts"),
        ("x " * 300, ("x " * 100)[:199] + "…"),
        ("", ""),
    ],
)
def test_what_differs_between_failures_is_no_part_of_their_group(message: str, group: str) -> None:
    assert normalized(message, ID) == group


def test_a_long_message_is_normalized_in_time() -> None:
    for piece in ("a-", "0", "'", "/a", "abcdef01-", "a.", "2026-11-27T"):
        assert len(normalized(piece * 100_000, ID)) <= MESSAGE_CHARACTERS_MAX


@given(st.text("0afZ-_'/:.,T~", max_size=4), st.integers(1, 1000), st.text("1_g'/-", max_size=2))
@example("a", 900, "_v2")
@example("a", 128, "1")
def test_a_run_that_almost_matches_is_normalized_in_time(piece: str, count: int, end: str) -> None:
    assert len(normalized(f"1{piece * count}{end}", ID)) <= MESSAGE_CHARACTERS_MAX


def test_a_message_without_a_process_is_normalized_too() -> None:
    assert normalized("declined 7 times", "") == "declined * times"
