"""Where keys come from: what is accepted, what is reloaded, and that no error shows a key."""

import base64
import json
from pathlib import Path

import pytest

from progressor.sdk import KeyNotFoundError, Keys
from progressor.wire import tls

KEY, OTHER = bytes(range(100, 132)), bytes(range(150, 182))


def text(key: bytes) -> str:
    return base64.b64encode(key).decode()


def written(path: Path, content: str, mode: int = 0o600) -> Path:
    path.touch(mode=0o600)
    path.write_text(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("keys.toml", f'[keys]\n"b" = "{text(KEY)}"\n"a" = "{text(OTHER)}"\n'),
        ("keys.json", json.dumps({"keys": {"b": text(KEY), "a": text(OTHER)}})),
    ],
)
def test_the_first_key_of_a_file_encrypts(name: str, content: str, tmp_path: Path) -> None:
    keys = Keys.from_file(written(tmp_path / name, content))

    assert keys.encrypting() == ("b", KEY)
    assert keys.decrypting("a") == OTHER
    with pytest.raises(KeyNotFoundError, match=rf"'c' in .*{name}"):
        keys.decrypting("c")


def test_a_changed_file_is_used_and_a_bad_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tls, "LOOK_SECONDS", 0.0)
    path = written(tmp_path / "keys.toml", f'[keys]\na = "{text(KEY)}"')
    keys = Keys.from_file(path)

    written(path, f'[keys]\nb = "{text(OTHER)}"\na = "{text(KEY)}"')
    assert keys.encrypting() == ("b", OTHER)

    written(path, f'[keys]\nc = "{text(OTHER)}')
    for _ in range(3):
        assert keys.encrypting() == ("b", OTHER)
    (said,) = (it for it in caplog.records if it.levelname == "ERROR")
    assert text(OTHER)[:8] not in str(vars(said))


@pytest.mark.parametrize("mode", [0o604, 0o660, 0o644, 0o666])
def test_a_file_that_others_can_read_is_refused(mode: int, tmp_path: Path) -> None:
    path = written(tmp_path / "keys.toml", f'[keys]\na = "{text(KEY)}"', mode)

    with pytest.raises(ValueError, match=rf"others can read it \(mode {mode:04o}\)"):
        Keys.from_file(path)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (f'keys = "{text(KEY)}"', "must have a table"),
        (f'[keys]\na = "{text(KEY)}', "is not TOML"),
        ("[keys]", "must have a key"),
        (f'[keys]\na = "{text(KEY)[:-4]}"', "the key 'a' must have 32 bytes"),
        (f'[keys]\na = "{text(KEY)[:-1]}"', "is not base64"),
        (f'[keys]\n"a b" = "{text(KEY)}"', "id of a key"),
    ],
)
def test_a_file_that_cannot_be_used_says_why_without_a_key(
    content: str, why: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "keys.toml", content)

    with pytest.raises(ValueError, match=why) as caught:
        Keys.from_file(path)

    assert text(KEY)[:8] not in str(caught.value)
    assert str(path) in str(caught.value) or "id of a key" in str(caught.value)


def test_keys_come_from_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_KEYS", f"b:{text(KEY)}, a:{text(OTHER)}")

    keys = Keys.from_environment("ORDERS_KEYS")

    assert keys.encrypting() == ("b", KEY)
    assert keys.decrypting("a") == OTHER


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "must have a key"),
        (f"a:{text(KEY)},a:{text(OTHER)}", "'a' occurs twice"),
        (text(KEY), "is not base64|id of a key|32 bytes"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named_without_a_key(
    value: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORDERS_KEYS", value)

    with pytest.raises(ValueError, match=why) as caught:
        Keys.from_environment("ORDERS_KEYS")

    assert text(KEY)[:8] not in str(caught.value)


def test_a_function_is_asked_once_for_each_key() -> None:
    asked, current = [], ["a"]

    def fetch(key_id: str) -> bytes:
        asked.append(key_id)
        return {"a": KEY, "b": OTHER}[key_id]

    keys = Keys.from_function(fetch, encrypt_with=lambda: current[0])

    assert [keys.encrypting(), keys.encrypting()] == [("a", KEY)] * 2
    current[0] = "b"
    assert keys.encrypting() == ("b", OTHER)
    with pytest.raises(KeyNotFoundError, match="'c'"):
        keys.decrypting("c")
    assert asked == ["a", "b", "c"]


def test_a_key_of_a_function_must_be_one() -> None:
    with pytest.raises(ValueError, match="must have 32 bytes, got 3"):
        Keys.from_function(lambda _: b"abc", encrypt_with="a").encrypting()
