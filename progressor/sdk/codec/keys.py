"""The keys of encrypted payloads: from a file, an environment variable, or a function."""

import base64
import json
import os
import stat
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from progressor.sdk.codec.codecs import KeyNotFoundError
from progressor.sdk.codec.envelope import check_key_id
from progressor.wire.tls import Reloaded, TlsFileError, read

KEY_BYTES = 32


class Keys:
    """AES-256 keys by their ids. The first one encrypts, all of them decrypt.

    An id is 1 to 64 letters, digits, dots, hyphens and underscores, such as "2026-11". It is stored
    with each payload and is not secret.
    """

    _latest: Callable[[], Mapping[str, bytes]]
    _place: str

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        """Take keys of 32 bytes.

        Raises:
            ValueError: There are none, or an id or a key is not valid; the message has no key.
        """
        found = _checked(keys.items(), "keys")
        self._place, self._latest = "the keys of this program", lambda: found

    @classmethod
    def from_file(cls, path: str | Path) -> "Keys":
        """Read keys from a TOML file, or a JSON file (``.json``); the first one encrypts.

        ::

            [keys]
            "2026-11" = "32 random bytes as base64"
            "2026-08" = "…"

        The file is reloaded within a second of a change. If it cannot be used, the last keys stay
        in use, and the log says why. Its mode must be 0600, or 0640 if root owns it.

        Raises:
            ValueError: The file cannot be used; the message says why, and has no key.
        """
        file = Path(path).expanduser()
        content = Reloaded((file,), lambda: _read_file(file), name="keys")
        content.load()
        return _LatestKeys(content.latest, str(file))

    @classmethod
    def from_environment(cls, variable: str) -> "Keys":
        """Read keys from a variable such as ``2026-11:BASE64,2026-08:BASE64``.

        Raises:
            ValueError: The variable is not set, or cannot be used; the message has no key.
        """
        place = f"the environment variable {variable}"
        text = os.environ.get(variable, "")
        pairs = (it.strip().partition(":") for it in text.split(",") if it.strip())
        keys = _checked(((name, _key_of(key, place)) for name, _, key in pairs), place)
        return _LatestKeys(lambda: keys, place)

    @classmethod
    def from_function(
        cls, fetch: Callable[[str], bytes], *, encrypt_with: str | Callable[[], str]
    ) -> "Keys":
        """Call a function for each key when it is first needed, as for a key management service.

        Args:
            fetch: Returns the 32 bytes of the key with an id; raises LookupError if there is none.
                It may be called in any thread, including that of the event loop, which it blocks.
            encrypt_with: The id of the key that encrypts, or a function that returns it, called for
                each payload.
        """
        return _FetchedKeys(fetch, encrypt_with)

    def encrypting(self) -> tuple[str, bytes]:
        """Return the id of the key that encrypts, and the key."""
        return next(iter(self._latest().items()))

    def decrypting(self, key_id: str) -> bytes:
        """Return the key with an id; KeyNotFoundError if there is none."""
        key = self._latest().get(key_id)
        if key is None:
            raise KeyNotFoundError(key_id, self._place)
        return key


class _LatestKeys(Keys):
    """Keys that may change between calls."""

    def __init__(self, latest: Callable[[], Mapping[str, bytes]], place: str) -> None:
        self._latest, self._place = latest, place


class _FetchedKeys(Keys):
    """Keys from a function, each fetched once."""

    def __init__(self, fetch: Callable[[str], bytes], current: str | Callable[[], str]) -> None:
        self._fetch, self._current = fetch, current
        self._fetched: dict[str, bytes] = {}  # bounded by the number of keys

    def encrypting(self) -> tuple[str, bytes]:
        current = self._current
        key_id = check_key_id(current if isinstance(current, str) else current())
        return key_id, self.decrypting(key_id)

    def decrypting(self, key_id: str) -> bytes:
        if key_id not in self._fetched:
            try:
                key = self._fetch(key_id)
            except LookupError as error:
                raise KeyNotFoundError(key_id, "what the function returns") from error
            self._fetched |= _checked([(key_id, key)], "the function")
        return self._fetched[key_id]


def _read_file(file: Path) -> Mapping[str, bytes]:
    _check_mode(file)
    text = (read("keys", file) or b"").decode("utf-8", errors="replace")
    try:
        table = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
    except ValueError:
        # Without the original message, which may quote a key.
        form = "JSON" if file.suffix == ".json" else "TOML"
        raise TlsFileError("keys", f"{file}: is not {form}") from None
    keys = table.get("keys") if isinstance(table, dict) else None
    if not isinstance(keys, dict):
        raise TlsFileError("keys", f"{file}: must have a table [keys]")
    try:
        return _checked(((name, _key_of(key, file)) for name, key in keys.items()), file)
    except ValueError as error:
        raise TlsFileError("keys", str(error)) from None


def _check_mode(file: Path) -> None:
    try:
        status = file.stat()
    except OSError as error:
        raise TlsFileError("keys", f"{file}: {error.strerror}") from error
    allowed = 0o640 if status.st_uid == 0 and os.geteuid() != 0 else 0o600
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077 & ~allowed:
        why = f"{file}: others can read it (mode {mode:04o}); it must be at most {allowed:04o}"
        raise TlsFileError("keys", why)


def _key_of(text: object, place: object) -> bytes:
    try:
        return base64.b64decode(text if isinstance(text, str) else "", validate=True)
    except ValueError:
        message = f"{place}: a key is not base64"
        raise ValueError(message) from None


def _checked(keys: Iterable[tuple[str, bytes]], place: object) -> Mapping[str, bytes]:
    """Return valid keys; errors name their ids and lengths."""
    found: dict[str, bytes] = {}
    for key_id, key in keys:
        check_key_id(key_id)
        if key_id in found:
            message = f"{place}: the id {key_id!r} occurs twice"
            raise ValueError(message)
        if len(key) != KEY_BYTES:
            message = f"{place}: the key {key_id!r} must have {KEY_BYTES} bytes, got {len(key)}"
            raise ValueError(message)
        found[key_id] = key
    if not found:
        message = f"{place}: must have a key"
        raise ValueError(message)
    return MappingProxyType(found)
