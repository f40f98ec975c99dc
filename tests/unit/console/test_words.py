"""The languages: complete catalogs, and no text that people read outside of them."""

import re
from html.parser import HTMLParser

import pytest
from babel.messages.catalog import Message

from progressor.console.words.words import LANGUAGES, Words
from tests.support.console.catalogs import TEMPLATES, TRANSLATED, catalog, extracted, markup

_PLACEHOLDER = re.compile(r"%\((\w+)\)s")
_READ = {"title", "aria-label", "placeholder", "alt", "data-live", "data-paused", "data-away"}
_LETTERS = re.compile(r"[^\W\d_]{2,}")
_NAMES = {"progressor", "key=value", "Enter"}
"""Of things, in no language."""

_QUERY = re.compile(r"[a-z_&]+=[a-z_&=]*")
"""A part of an address, from a macro."""


def _ids(messages: list[Message]) -> set[str]:
    return {it.id if isinstance(it.id, str) else it.id[0] for it in messages if it.id}


def _texts(message: Message) -> list[str]:
    text = message.string or ""
    return [text] if isinstance(text, str) else list(text)


@pytest.mark.parametrize("language", TRANSLATED)
def test_a_catalog_has_every_text_and_no_other(language: str) -> None:
    wanted, found = _ids(list(extracted())), _ids(list(catalog(language)))
    assert (wanted - found, found - wanted) == (set(), set()), "run make words, and translate"


@pytest.mark.parametrize("language", TRANSLATED)
def test_a_translation_has_all_forms_and_the_same_values(language: str) -> None:
    forms = catalog(language).num_plurals
    for message in catalog(language):
        if not message.id:
            continue
        texts = _texts(message)
        assert not message.fuzzy, message.id
        assert len(texts) == (1 if isinstance(message.id, str) else forms), message.id
        originals = [message.id] if isinstance(message.id, str) else list(message.id)
        # "every day" needs no number where a language has that form for one alone.
        most = {it for text in originals for it in _PLACEHOLDER.findall(text)}
        least = set(_PLACEHOLDER.findall(originals[0]))
        assert set(_PLACEHOLDER.findall(texts[-1])) == most, message.id
        for text in texts:
            assert text.strip(), f"{message.id!r} has no translation"
            assert least <= set(_PLACEHOLDER.findall(text)) <= most, message.id
            assert "%(" not in (text % dict.fromkeys(most, "x") if most else text), message.id


@pytest.mark.parametrize(
    ("language", "words"),
    [("de", ["1 Prozess", "2 Prozesse", "5 Prozesse", "21 Prozesse"]),
     ("ru", ["1 процесс", "2 процесс", "5 процесс", "21 процесс"]),
     ("zh", ["1 个", "2 个", "5 个", "21 个"])],
)  # fmt: skip
def test_a_count_has_the_form_of_its_language(language: str, words: list[str]) -> None:
    one, many = "%(number)s process matches.", "%(number)s processes match."
    said = Words(language)
    shown = [said.plural(one, many, count, number=count) for count in (1, 2, 5, 21)]
    assert all(it in text for it, text in zip(words, shown, strict=True)), shown
    assert len({re.sub(r"\d+", "", it) for it in shown}) == {"de": 2, "ru": 3, "zh": 1}[language]


def _is_name(text: str) -> bool:
    is_command = text.startswith("progressor ")
    return text in _NAMES or is_command or bool(_QUERY.fullmatch(text))


class _Reader(HTMLParser):
    """Collects what people read of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def handle_starttag(self, _tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.texts += [value or "" for name, value in attrs if name in _READ]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.mark.parametrize(
    "name", sorted(str(it.relative_to(TEMPLATES)) for it in TEMPLATES.rglob("*.html"))
)
def test_a_template_has_no_text_outside_of_catalogs(name: str) -> None:
    reader = _Reader()
    reader.feed(markup(TEMPLATES / name))
    reader.close()
    found = [it.strip(" ·\n") for text in reader.texts for it in text.split("…")]
    assert [it for it in found if _LETTERS.search(it) and not _is_name(it)] == []


def test_every_language_is_offered_in_its_own_words() -> None:
    assert list(LANGUAGES) == ["en", *TRANSLATED]
