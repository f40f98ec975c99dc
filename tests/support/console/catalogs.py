"""The catalogs of the console's languages, and the texts in its code that they translate.

``python -m tests.support.console.catalogs`` brings them up to date: texts that are gone leave, new
ones come without a translation, which a test then asks for.
"""

import functools
import sys
from pathlib import Path

import jinja2
from babel.messages.catalog import Catalog
from babel.messages.extract import extract_from_dir
from babel.messages.pofile import read_po, write_po

from progressor.console.words.words import CATALOGS, LANGUAGES

CONSOLE = CATALOGS.parents[1]
TEMPLATES = CONSOLE / "templates"
TRANSLATED = tuple(it for it in LANGUAGES if it != "en")
_METHODS = [("**.py", "python"), ("templates/**.html", "jinja2")]
# As the templates are read: with `silent` one that cannot be would have no texts.
_OPTIONS = {
    "templates/**.html": {
        "extensions": "jinja2.ext.i18n",
        "trim_blocks": "true",
        "lstrip_blocks": "true",
        "silent": "false",
        "newstyle_gettext": "true",
    }
}
_KEYWORDS = {"_": None, "gettext": None, "ngettext": (1, 2), "mark": None, "plural": (1, 2)}


def extracted() -> Catalog:
    """Return every text in the code and the templates."""
    found = Catalog()
    for _, _, message, _, _ in extract_from_dir(
        CONSOLE,
        method_map=_METHODS,
        options_map=_OPTIONS,
        keywords=_KEYWORDS,
    ):
        found.add(message)
    return found


@functools.cache
def catalog(language: str) -> Catalog:
    """Return what is translated into a language."""
    path = CATALOGS / f"{language}.po"
    if not path.exists():
        return Catalog(locale=language)
    with path.open("rb") as file:
        return read_po(file, locale=language)


def update(language: str) -> int:
    """Write a catalog anew, and return how many texts have no translation."""
    known, fresh = catalog(language), Catalog(locale=language, fuzzy=False, header_comment="#")
    missing = 0
    for message in extracted():
        if not message.id:
            continue
        found = known.get(message.id)
        text = found.string if found is not None and not found.fuzzy else ""
        fresh.add(message.id, text)
        missing += not all(text if isinstance(text, (list, tuple)) else [text])
    CATALOGS.mkdir(exist_ok=True)
    with (CATALOGS / f"{language}.po").open("wb") as file:
        write_po(file, fresh, width=100, omit_header=True, sort_output=True)
    return missing


def markup(template: Path) -> str:
    """Return the HTML of a template itself, with `…` for values, and without what it translates."""
    environment = jinja2.Environment(extensions=["jinja2.ext.i18n"], autoescape=True)
    block, is_translated, found = "", False, list[str]()
    for _, kind, text in environment.lex(template.read_text(encoding="utf-8")):
        if kind == "block_begin":
            block = ""
        elif kind == "name" and not block:
            block = text
            is_translated = text in {"trans", "pluralize"}
        elif kind == "variable_begin":
            found.append("…")
        elif kind == "data" and not is_translated:
            found.append(text)
    return "".join(found)


def main() -> int:
    missing = {language: update(language) for language in TRANSLATED}
    for language, count in missing.items():
        print(f"{language}: {count} texts without a translation")  # noqa: T201  # a command
    return 0


if __name__ == "__main__":
    sys.exit(main())
