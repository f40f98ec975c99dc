"""Contexts: what a command takes from its context, and what it does not."""

import dataclasses
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from progressor.cli.input import contexts, login_tokens
from progressor.cli.input.options import EngineOptions
from progressor.cli.main import build_app, main
from progressor.wire.openid import Tokens

FILE = """
current = "prod"
[contexts.prod]
address = "engine.corp:7420"
tls = true
tls_ca = "/ca.pem"
token_file = "/prod.token"
[contexts.dev]
address = "127.0.0.1:1"
"""


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "deep" / "contexts.toml"
    monkeypatch.setenv("PROGRESSOR_CONTEXTS", str(found))
    return found


def _options(*arguments: str) -> EngineOptions:
    _, bound, _ = build_app().parse_args(
        ["get", "p", *arguments], exit_on_error=False, print_error=False
    )
    found = [it for it in bound.arguments.values() if isinstance(it, EngineOptions)]
    return found[0] if found else EngineOptions()


def _given(file: Path, text: str = FILE) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)


PROD = ("prod", "engine.corp:7420", True, Path("/ca.pem"), Path("/prod.token"))
NOTHING = (False, None, None)


@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        ("", {}, PROD),
        ("--context dev", {}, ("dev", "127.0.0.1:1", *NOTHING)),
        ("", {"PROGRESSOR_CONTEXT": "dev"}, ("dev", "127.0.0.1:1", *NOTHING)),
        ("--context prod", {"PROGRESSOR_CONTEXT": "dev"}, PROD),
        ("--token-file /t", {}, (*PROD[:4], Path("/t"))),
        ("", {"PROGRESSOR_TLS_CA": "/other.pem"}, (*PROD[:3], Path("/other.pem"), PROD[4])),
        ("--address engine.corp:7420", {}, PROD),
        # What proves the identity at one engine is sent to no other.
        ("--address other:1", {}, ("", "other:1", *NOTHING)),
        ("--context prod", {"PROGRESSOR_ADDRESS": "other:1"}, ("", "other:1", *NOTHING)),
    ],
)
def test_options_and_the_environment_win_over_the_context(
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: str,
    environment: dict[str, str],
    expected: tuple[Any, ...],
) -> None:
    _given(file)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    found = _options(*arguments.split())

    assert expected == (
        found.context, found.address, found.tls, found.tls_ca, found.token_file,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", ("https://decode.corp", Path("/decode.token"))),
        ("--decode-token-file /other", ("", Path("/other"))),
        ("--decode-url https://other", ("https://other", None)),
        ("--address other:1", ("", None)),
    ],
)
def test_a_token_for_an_endpoint_is_sent_to_no_other(
    file: Path, arguments: str, expected: tuple[str, Path | None]
) -> None:
    decode = 'decode_url = "https://decode.corp"\ndecode_token_file = "/decode.token"\n'
    _given(file, FILE.replace("[contexts.dev]", f"{decode}[contexts.dev]"))

    found = _options(*arguments.split())

    assert (found.decode_url, found.decode_token_file) == expected


def test_without_a_file_there_are_no_contexts() -> None:
    assert _options() == EngineOptions()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("current = ", "is not TOML"),
        ('current = "gone"', "has no context 'gone'; it has: none"),
        ("[contexts.a]\naddres = 1", "contexts.a.addres: is not a known key"),
        ("[contexts.a]\naddress = 1", "contexts.a.address: must be a string, got 1"),
        ('[contexts.a]\naddress = "x"', "contexts.a.address: must be host:port"),
        ("[contexts.A]", "contexts.A: must be 1 to 64 of"),
        ("contexts = 1", "contexts: must be a table"),
        ("other = 1", "unknown key: other"),
    ],
)
def test_what_is_wrong_is_named(
    file: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    _given(file, text)

    assert main(["get", "p"]) == 2
    assert said in capsys.readouterr().err


def test_contexts_are_added_used_and_removed(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parents[1])
    codes = [
        main(["context", "add", "a", "--address", "h:1", "--tls-ca", "ca.pem"]),
        main(["context", "add", "b", "--address", "h:2"]),
        main(["context", "add", "b", "--address", "h:3"]),
        main(["context", "add", "b", "--address", "h:3", "--replace"]),
        main(["context", "use", "b"]),
        main(["context", "remove", "b"]),
        main(["context", "use", "b"]),
        main(["context", "use", "a"]),
    ]

    assert codes == [0, 0, 2, 0, 0, 0, 2, 0]
    assert _options().tls_ca == file.parents[1] / "ca.pem"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert {it.name for it in file.parent.iterdir()} == {"contexts.lock", "contexts.toml"}
    assert "context 'b' already exists" in capsys.readouterr().err


def test_a_command_that_is_printed_names_its_context(file: Path) -> None:
    _given(file)

    assert _options("--token-file", "/t").again == " --context prod --token-file /t"


def test_two_changes_at_once_lose_nothing() -> None:
    other = threading.Thread(target=main, args=(["context", "add", "b", "--address", "h:2"],))

    def changed(known: contexts.Contexts) -> contexts.Contexts:
        other.start()
        other.join(0.1)  # it waits for this one
        return dataclasses.replace(known, by_name={"a": contexts.Context(address="h:1")})

    contexts.change(changed)
    other.join()

    assert set(contexts.read().by_name) == {"a", "b"}


def test_a_context_that_is_not_replaced_keeps_its_login(file: Path) -> None:
    _given(file)
    login_tokens.write("dev", Tokens(issuer="", expires_at=0, access_token="t"))

    assert main(["context", "add", "dev", "--replace", "--address", "no port"]) == 2
    assert main(["context", "add", "dev", "--address", "h:1"]) == 2
    assert login_tokens.read("dev") is not None
    assert main(["context", "add", "dev", "--replace", "--address", "h:1"]) == 0
    assert login_tokens.read("dev") is None


def test_a_file_behind_a_symbolic_link_is_changed_and_the_link_stays(
    file: Path, tmp_path: Path
) -> None:
    real = tmp_path / "dotfiles" / "contexts.toml"
    _given(real)
    file.parent.mkdir()
    file.symlink_to(real)

    contexts.change(lambda it: dataclasses.replace(it, current="dev"))

    assert file.is_symlink()
    assert contexts.read().current == "dev"
    assert real.read_text().startswith('current = "dev"')
    assert [it.name for it in real.parent.iterdir()] == ["contexts.toml"]
