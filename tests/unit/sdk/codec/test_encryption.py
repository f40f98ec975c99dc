"""Encrypted payloads: what they hide, what they bind, and what is said when they cannot be read."""

import base64
import itertools
import os
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from progressor.sdk import (
    BYTES,
    JSON,
    DecryptionError,
    Encrypted,
    KeyNotFoundError,
    Keys,
    Processor,
    Step,
)
from progressor.sdk.codec.codecs import for_request
from progressor.sdk.codec.envelope import MAGIC, NONCE_BYTES, header_of, is_encrypted, opened
from progressor.v1 import processor_service_pb2 as pb
from progressor.v1 import types_pb2

OLD, NEW = os.urandom(32), os.urandom(32)
SECRET = "a payload that nobody else may read"


def codec(**keys: bytes) -> Encrypted:
    return Encrypted(JSON, keys=Keys(keys or {"old": OLD}))


@given(st.binary(), st.text("abcXYZ019", min_size=1, max_size=64))
@example(MAGIC, "a")
def test_what_was_encrypted_is_decrypted(payload: bytes, key_id: str) -> None:
    sealing = Encrypted(BYTES, keys=Keys({key_id: OLD}))

    sealed = sealing.encode(payload)

    assert sealing.decode(sealed, bytes) == payload
    assert is_encrypted(sealed) == bool(payload)


def test_a_payload_is_not_in_its_ciphertext_and_no_two_are_alike() -> None:
    one, other = codec().encode(SECRET), codec().encode(SECRET)

    assert SECRET.encode() not in one
    assert one != other
    assert opened(one).key_id == "old"


def test_none_stays_empty() -> None:
    assert codec().encode(None) == b""
    assert codec().decode(b"") is None


@given(st.data())
def test_any_changed_bit_is_noticed(data: st.DataObject) -> None:
    sealed = bytearray(codec().encode(SECRET))
    at = data.draw(st.integers(len(MAGIC), len(sealed) - 1))
    sealed[at] ^= 1 << data.draw(st.integers(0, 7))

    with pytest.raises(DecryptionError):
        codec().decode(bytes(sealed))


@given(st.integers(0, 70))
def test_a_payload_that_is_cut_off_is_an_error(length: int) -> None:
    sealed = codec().encode("a")
    with pytest.raises((DecryptionError, ValueError)):
        codec().decode(sealed[: min(length, len(sealed) - 1)] or b"x")


def test_a_payload_cannot_be_passed_off_as_one_of_another_key() -> None:
    """Even where two ids have the same key, since the header is bound."""
    sealed = codec(old=OLD).encode(SECRET)
    moved = header_of("new") + sealed[len(header_of("old")) :]

    with pytest.raises(DecryptionError, match="'new'"):
        codec(new=OLD).decode(moved)


def test_a_later_envelope_is_not_taken_for_a_damaged_key() -> None:
    sealed = codec().encode(SECRET)

    with pytest.raises(DecryptionError, match="later release"):
        codec().decode(MAGIC + b"\x02" + sealed[len(MAGIC) + 1 :])


def test_a_missing_key_is_named_and_no_key_is_shown() -> None:
    with pytest.raises(KeyNotFoundError) as caught:
        codec(new=NEW).decode(codec(old=OLD).encode(SECRET))

    assert str(caught.value) == "no key with the id 'old' in the keys of this program"
    with pytest.raises(DecryptionError) as wrong:
        codec(old=NEW).decode(codec(old=OLD).encode(SECRET))
    shown = f"{wrong.value!r}{caught.value!r}{codec()!r}{Keys({'old': OLD})!r}"
    for key in (OLD, NEW):
        assert repr(key)[2:-1] not in shown
        assert key.hex() not in shown
        assert base64.b64encode(key).decode() not in shown


def test_keys_rotate_by_adding_switching_and_removing() -> None:
    steps = [
        codec(old=OLD),
        codec(old=OLD, new=NEW),
        codec(new=NEW, old=OLD),
        codec(new=NEW),
    ]

    for before, after in itertools.pairwise(steps):
        assert after.decode(steps[2].encode(SECRET)) == SECRET
        if after is not steps[3]:
            assert after.decode(before.encode(SECRET)) == SECRET
    assert [opened(it.encode(SECRET)).key_id for it in steps] == ["old", "old", "new", "new"]


def test_plain_payloads_are_read_only_if_that_is_asked_for() -> None:
    lenient = Encrypted(JSON, keys=Keys({"old": OLD}), accept_plain=True)

    assert lenient.decode(JSON.encode(SECRET)) == SECRET
    assert lenient.decode(codec().encode(SECRET)) == SECRET
    with pytest.raises(ValueError, match="not encrypted"):
        codec().decode(JSON.encode(SECRET))


def test_a_repeated_request_has_the_same_bytes_and_no_other_request_has() -> None:
    def sent(value: object, *scope: str, key: str = "key", **keys: bytes) -> bytes:
        return for_request(codec(**keys), key, *scope).encode(value)

    first = sent(SECRET, "orders", "o1")

    assert sent(SECRET, "orders", "o1") == first
    others = [
        sent(SECRET, "orders", "o2"),
        sent(SECRET, "orders", "o1", key="other"),
        sent(SECRET, "orders", "o1", old=NEW),
        sent(SECRET + ".", "orders", "o1"),
        # The same key by another id, which is other associated data.
        for_request(Encrypted(JSON, keys=Keys({"renamed": OLD})), "key", "orders", "o1").encode(
            SECRET
        ),
        codec().encode(SECRET),
        sent(SECRET, "orders", "o1", key=""),
    ]
    nonces = {opened(it).nonce for it in (first, *others)}
    assert len(nonces) == 1 + len(others)
    assert {len(it) for it in nonces} == {NONCE_BYTES}
    assert codec().decode(first) == SECRET


def test_types_are_checked_by_the_other_codec() -> None:
    assert codec().unreadable(complex) == JSON.unreadable(complex) is not None
    assert codec().unwritable(complex) == JSON.unwritable(complex) is not None


async def answer(
    payloads: Encrypted, *, args: bytes = b"", state: bytes = b""
) -> pb.ProcessResponse:
    orders = Processor("orders", state=str, codec=payloads, version=2)

    @orders.upgrade(1)
    def upgrade(state: str) -> str:
        return state

    @orders.call
    async def call(step: Step[str]) -> str:
        return f"{step.args_as(str | None)} {step.state}"

    request = pb.ProcessRequest()
    request.process.aux_state = state
    request.task.type, request.task.args = types_pb2.TASK_TYPE_CALL, args
    with ThreadPoolExecutor() as threads:
        return await orders.answer(request, threads)


@pytest.mark.parametrize("place", ["args", "state"])
async def test_a_step_waits_for_its_key_as_for_a_processor_that_is_away(place: str) -> None:
    sealed = codec(new=NEW).encode(SECRET)

    refused = (await answer(codec(old=OLD), **{place: sealed})).failure

    assert refused.code == grpc.StatusCode.UNAVAILABLE.value[0]
    assert refused.reason == KeyNotFoundError.reason
    assert "'new'" in refused.message


@pytest.mark.parametrize("place", ["args", "state"])
async def test_a_payload_that_was_changed_fails_the_attempt_and_breaks_nothing_yet(
    place: str,
) -> None:
    sealed = bytearray(codec().encode(SECRET))
    sealed[-1] ^= 1

    failed = (await answer(codec(), **{place: bytes(sealed)})).failure

    assert failed.code == grpc.StatusCode.UNKNOWN.value[0], "a failure that is retried"
    assert (failed.reason, SECRET in failed.message) == ("DecryptionError", False)


async def test_a_caller_that_sends_plain_args_is_rejected() -> None:
    answered = await answer(codec(), args=JSON.encode(SECRET))

    assert answered.reject.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert "not encrypted" in answered.reject.message
