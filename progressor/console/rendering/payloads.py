"""Payloads for people: exact JSON, text or hex, cut where they are long."""

import base64
import json

import msgspec

from progressor.sdk.codec.codecs import DecryptionError
from progressor.sdk.codec.envelope import is_encrypted, opened
from progressor.telemetry.logs.printable import printable

PAYLOAD_BYTES_SHOWN = 20_000
_INDENTED_MAX = 10
"""How much longer a payload may become by indents; it is shown as it is otherwise."""


def payload_text(payload: object, bytes_max: int = PAYLOAD_BYTES_SHOWN) -> str:
    """Return a payload as exact JSON, text or hex, cut if it is long."""
    if payload is None or payload == b"":
        return ""
    if isinstance(payload, (bytes, bytearray)):
        return _bytes_text(bytes(payload), bytes_max)
    text = json.dumps(payload, ensure_ascii=False, indent=2, default=str)
    return text if len(text) <= bytes_max else f"{text[:bytes_max]}\n…"


def is_cut(payload: object, bytes_max: int = PAYLOAD_BYTES_SHOWN) -> bool:
    """Return whether `payload_text` shows less than all of a payload."""
    return isinstance(payload, bytes) and len(payload) > bytes_max


def _bytes_text(data: bytes, bytes_max: int) -> str:
    if is_encrypted(data) and (key_id := _key_of(data)):
        return f"🔒 {key_id} ({len(data):,})"
    shown = data[:bytes_max]
    cut = "" if len(shown) == len(data) else "\n…"
    try:
        text = shown.decode(errors="strict" if not cut else "ignore")
    except UnicodeDecodeError:
        return base64.b16encode(shown).decode().lower() + cut
    if not cut and text[:1] in {"{", "["}:
        text = _indented(data, text)
    return "\n".join(printable(line) for line in text.split("\n")) + cut


def _indented(data: bytes, text: str) -> str:
    # Formatted, not parsed: numbers and keys stay exactly as they are.
    try:
        found = msgspec.json.format(data, indent=2).decode()
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return text
    # The indents of what is nested deeply are the square of its size.
    return found if len(found) <= _INDENTED_MAX * len(text) else text


def _key_of(data: bytes) -> str:
    """Return the id of the key of an encrypted payload; "" if it only begins like one."""
    try:
        return opened(data).key_id
    except DecryptionError:
        return ""
