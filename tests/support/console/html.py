"""Reads HTML as a browser without scripts does: elements, their texts, and forms to be sent."""

import dataclasses
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser

_EMPTY = {"meta", "link", "input", "br", "hr", "img", "wbr", "col", "source", "area"}


class Element:
    """An element of a page."""

    def __init__(self, tag: str, attributes: Mapping[str, str], parent: "Element | None") -> None:
        self.tag, self.attributes, self.parent = tag, attributes, parent
        self.children: list[Element | str] = []

    def __repr__(self) -> str:
        return f"<{self.tag} {dict(self.attributes)}> {self.text[:80]!r}"

    def __getitem__(self, attribute: str) -> str:
        return self.attributes[attribute]

    def get(self, attribute: str) -> str:
        """Return the value of an attribute; "" without it."""
        return self.attributes.get(attribute, "")

    @property
    def classes(self) -> set[str]:
        return set(self.get("class").split())

    @property
    def raw(self) -> str:
        """The text in it, with the space that it has."""
        return "".join(it if isinstance(it, str) else it.raw for it in self.children)

    @property
    def text(self) -> str:
        """The text in it, each run of space as one."""
        return " ".join(self.raw.split())

    def walk(self) -> "Iterator[Element]":
        """Yield it and all elements in it, in their order."""
        yield self
        for child in self.children:
            if isinstance(child, Element):
                yield from child.walk()

    def all(self, tag: str = "", class_: str = "", **attributes: str) -> "list[Element]":
        """Return the elements in it with a tag, a class and attributes; `_` stands for `-`."""
        wanted = {name.rstrip("_").replace("_", "-"): it for name, it in attributes.items()}
        return [
            it
            for it in self.walk()
            if it is not self
            and (not tag or it.tag == tag)
            and (not class_ or class_ in it.classes)
            and all(it.attributes.get(name) == value for name, value in wanted.items())
        ]

    def one(self, tag: str = "", class_: str = "", **attributes: str) -> "Element":
        """Return the only such element."""
        found = self.all(tag, class_, **attributes)
        assert len(found) == 1, f"{tag} {class_} {attributes}: {found} in {self.text[:2000]}"
        return found[0]

    def link(self, text: str) -> "Element":
        """Return the first link with a text."""
        found = next((it for it in self.all("a") if it.text == text), None)
        assert found is not None, f"no link {text!r} among {[it.text for it in self.all('a')]}"
        return found

    def rows(self) -> "list[list[str]]":
        """Return the texts of the cells of the bodies of all tables in it, row by row."""
        return [
            [cell.text for cell in row.walk() if cell.tag in {"th", "td"}]
            for body in self.all("tbody")
            for row in body.all("tr")
        ]

    def forms(self) -> "list[Form]":
        return [_form(it) for it in self.all("form")]

    def form(self, **fields: str) -> "Form":
        """Return the first form that has these values in its fields, as in ``do="retry"``."""
        found = next(
            (it for it in self.forms() if fields.items() <= it.fields.items()),
            None,
        )
        assert found is not None, f"no form with {fields} among {self.forms()}"
        return found


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A form, with the values that its fields have at first."""

    action: str
    method: str
    fields: Mapping[str, str]
    required: frozenset[str]


def _form(element: Element) -> Form:
    fields, required = {}, set()
    for it in element.walk():
        name = it.get("name")
        if not name or "disabled" in it.attributes:
            continue
        if "required" in it.attributes:
            required.add(name)
        if it.get("type") in {"checkbox", "radio"} and "checked" not in it.attributes:
            continue
        fields[name] = _value(it)
    method = element.get("method").lower() or "get"
    return Form(
        action=element.get("action"), method=method, fields=fields, required=frozenset(required)
    )


def _value(field: Element) -> str:
    if field.tag == "textarea":
        return field.raw
    if field.tag == "select":
        options = field.all("option")
        chosen = [it for it in options if "selected" in it.attributes] or options[:1]
        return next((it.attributes.get("value", it.text) for it in chosen), "")
    return field.attributes.get("value", "on" if field.get("type") == "checkbox" else "")


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root = self.open = Element("", {}, None)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs}, self.open)
        self.open.children.append(element)
        if tag not in _EMPTY:
            self.open = element

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _EMPTY:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.tag == tag, f"</{tag}> ends <{self.open.tag}>"
        assert self.open.parent is not None
        self.open = self.open.parent

    def handle_data(self, data: str) -> None:
        self.open.children.append(data)


def read_html(text: str) -> Element:
    """Return the root of a page, or of a part of one; each element must be closed."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    assert reader.open is reader.root, f"<{reader.open.tag}> is not closed"
    return reader.root
