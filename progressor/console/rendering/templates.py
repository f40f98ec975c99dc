"""Templates, in each language, and what all of them can use."""

import base64
import datetime as dt
import functools
import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import jinja2
import msgspec
from markupsafe import Markup

from progressor.console.rendering.looks import LOOKS, look_of
from progressor.console.words.words import LANGUAGES, Words
from progressor.sdk.codec.envelope import is_encrypted, opened
from progressor.telemetry.logs.printable import printable

PAYLOAD_BYTES_SHOWN = 20_000
_TEMPLATES = Path(__file__).parents[1] / "templates"
_CODES = {code.value[0]: code.name for code in grpc.StatusCode}


class Templates:
    """All templates; the texts in them are translated as they are rendered."""

    def __init__(self) -> None:
        self._environments = {language: _environment(language) for language in LANGUAGES}

    def render(self, template: str, words: Words, facts: Mapping[str, Any]) -> str:
        """Return a template rendered in a language and time zone."""
        environment = self._environments[words.language]
        return environment.get_template(template).render(facts, words=words)


def _environment(language: str) -> jinja2.Environment:
    words = Words(language)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.i18n"],
    )
    environment.install_gettext_translations(words.catalog, newstyle=True)  # type: ignore[attr-defined]  # of the extension
    environment.filters.update(
        look=look_of,
        payload=payload_text,
        printable=printable,
        instant=_instant,
        number=words.number,
        duration=words.duration,
        iso=_iso,
        code=lambda number: _CODES.get(number, str(number)),
    )
    environment.globals.update(
        LOOKS=LOOKS, LANGUAGES=LANGUAGES, new_key=lambda: secrets.token_hex(16)
    )
    return environment


@jinja2.pass_context
def _instant(context: jinja2.runtime.Context, instant: dt.datetime | None) -> str | Markup:
    """Return an instant for people, and for the script that says how long ago it was."""
    if instant is None:
        return ""
    words: Words = context["words"]
    return Markup('<time datetime="{}">{}</time>').format(_iso(instant), words.instant(instant))


def _iso(instant: dt.datetime) -> str:
    return instant.astimezone(dt.UTC).isoformat(timespec="milliseconds")


def payload_text(payload: object) -> str:
    """Return a payload as exact JSON, text or hex, cut if it is long."""
    if payload is None or payload == b"":
        return ""
    if isinstance(payload, (bytes, bytearray)):
        return _bytes_text(bytes(payload))
    return json.dumps(payload, ensure_ascii=False, indent=2, default=str)


def _bytes_text(data: bytes) -> str:
    if is_encrypted(data):
        with_key = _key_of(data)
        return f"🔒 {with_key} ({len(data):,})"
    shown = data[:PAYLOAD_BYTES_SHOWN]
    cut = "" if len(shown) == len(data) else f"\n… {len(data):,}"
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
        return msgspec.json.format(data, indent=2).decode()
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return text


@functools.lru_cache(maxsize=1000)
def _key_of(data: bytes) -> str:
    return opened(data).key_id
