"""Templates, in each language, and what all of them can use."""

import datetime as dt
import functools
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import jinja2
from markupsafe import Markup

from progressor.console.rendering.looks import LOOKS, look_of
from progressor.console.rendering.payloads import is_cut, payload_text
from progressor.console.rendering.terms import term_of
from progressor.console.rendering.times import times_of
from progressor.console.words.words import LANGUAGES, Words, mark
from progressor.sdk.values.processes import ProcessStatus, WaitCause
from progressor.telemetry.logs.printable import printable

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


# It compiles a template when that is first rendered, once for all consoles of this process.
@functools.cache
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
        times=times_of,
        payload=payload_text,
        is_cut=is_cut,
        term=term_of,
        printable=printable,
        instant=_instant,
        setting=functools.partial(setting_text, words),
        number=words.number,
        duration=words.duration,
        iso=_iso,
        code=lambda number: _CODES.get(number, str(number)),
    )
    environment.globals.update(
        LOOKS=LOOKS,
        LANGUAGES=LANGUAGES,
        STATUSES=tuple(ProcessStatus),
        CAUSES=tuple(WaitCause),
        new_key=lambda: secrets.token_hex(16),
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


def setting_text(words: Words, value: object, no_value: str) -> str:
    """Return the value of a setting for people; `no_value`: the text, to translate, for None."""
    match value:
        case None:
            return words(no_value)
        case bool():
            return words(mark("yes")) if value else words(mark("no"))
        case dt.timedelta():
            return words.duration(value)
        case int() | float():
            return words.number(value)
        case tuple():
            return ", ".join(printable(str(it)) for it in value)
        case _:
            return printable(str(value))
