"""The SDK as pages, from its signatures and docstrings."""

import enum
import inspect
import re
import textwrap
import typing
from collections.abc import Iterator, Mapping

from progressor import sdk
from progressor.sdk import testing
from progressor.sdk.client.resource import Resource

FOLDER = "reference/sdk"

_PAGES = {
    "client": "Clients",
    "processor": "Processors",
    "values": "Values",
    "errors": "Exceptions",
    "testing": "Testing",
}
_WIDTH = 88
_STARS: Mapping[object, int] = {
    inspect.Parameter.VAR_POSITIONAL: 1,
    inspect.Parameter.VAR_KEYWORD: 2,
}
_MODULES = re.compile(r"\b(?:[a-z_]+\.)+(?=[A-Za-z])")
_WRAPPED = re.compile(r"^(?:Exchange|Listing)\[(.*)\]$")
_UNPACKED = re.compile(r"\*<class '([\w.]+)'>")
_ADDRESS = re.compile(r"<[^<>]* at 0x[0-9a-f]+>|<built-in[^>]*>")
_LITERAL = re.compile(r"^(.*)::\n\n((?:    .*\n?|\n)+)", re.MULTILINE)
_SECTION = re.compile(r"^(Args|Returns|Raises|Yields):\n((?:    .*\n?|\n)+)", re.MULTILINE)
_ITEM = re.compile(r"^    (\S[^:\n]*): ((?:.*\n?)(?:        .*\n?)*)", re.MULTILINE)


def pages() -> dict[str, str]:
    things: dict[str, list[str]] = {page: [] for page in _PAGES}
    for name in sorted(sdk.__all__, key=str.lower):
        thing = getattr(sdk, name)
        things[_page_of(thing)].append(_thing(name, thing))
    things["testing"] = [_thing(each, getattr(testing, each)) for each in sorted(testing.__all__)]
    return {
        f"{FOLDER}/{page}.md": "\n\n".join([_head(page), *sections]) + "\n"
        for page, sections in things.items()
    }


def _head(page: str) -> str:
    module = "progressor.sdk.testing" if page == "testing" else "progressor.sdk"
    return (
        f"# {_PAGES[page]}\n\n"
        "<!-- written from the docstrings by `python -m tests.unit.test_readme` -->\n\n"
        f"All of this is imported from `{module}`. [The Python SDK](../sdk.md) is the introduction."
    )


def _page_of(thing: object) -> str:
    if isinstance(thing, type) and issubclass(thing, Exception) and not _is_raised_by_users(thing):
        return "errors"
    module = getattr(thing, "__module__", "")
    if isinstance(thing, type) and issubclass(thing, Resource):
        return "client"
    return "processor" if module.startswith("progressor.sdk.processor.") else "values"


def _is_raised_by_users(thing: type) -> bool:
    return thing.__module__.startswith("progressor.sdk.processor.")


def _thing(name: str, thing: object) -> str:
    heading = f"## {name}"
    if isinstance(thing, type):
        return "\n\n".join([heading, *filter(None, _class(name, thing))])
    if inspect.isfunction(thing):
        return "\n\n".join([heading, _signature(name, thing), markdown(thing)])
    return f"{heading}\n\n```text\n{name} = {_short(repr(thing))}\n```"


def _class(name: str, thing: type) -> Iterator[str]:
    if issubclass(thing, enum.Enum):
        yield markdown(thing)
        yield ", ".join(f"`{each.name}`" for each in thing) + "."
        return
    if issubclass(thing, Exception) and not _is_raised_by_users(thing):
        yield f"A `{thing.__bases__[0].__name__}`."
        yield markdown(thing)
        return
    yield _signature(name, thing)
    yield markdown(thing).replace("**Arguments:**", "**Arguments of the methods:**")
    yield _arguments(getattr(thing, "__init__", None))
    if name.startswith("Sync"):
        return
    for base in _public_bases(thing):
        yield f"It has all methods of [{base}](#{base.lower()}) too."
    members = dict(_members(thing))
    attributes = {
        key: each.fget for key, each in members.items() if isinstance(each, property) and each.fget
    }
    if attributes:
        lines = [f"- `{key}`: {_one_line(attribute)}" for key, attribute in attributes.items()]
        yield "\n".join(lines)
    for key, member in members.items():
        function = getattr(thing, key)
        if key not in attributes and callable(function):
            yield f"### {name}.{key}"
            yield _signature(key, function, is_async=_is_async(member))
            yield markdown(function)


def _arguments(thing: object) -> str:
    """Return what a docstring says of arguments and errors."""
    text = f"{inspect.getdoc(thing) or ''}\n" if inspect.isfunction(thing) else ""
    return _markdown("".join(each[0] for each in _SECTION.finditer(text)))


def _public_bases(thing: type) -> list[str]:
    return [each.__name__ for each in thing.__mro__[1:] if each.__name__ in sdk.__all__]


def _members(thing: type) -> Iterator[tuple[str, object]]:
    seen = set()
    inherited = _public_bases(thing)
    for base in thing.__mro__:
        if base.__module__.startswith("progressor") and base.__name__ not in inherited:
            for key, member in vars(base).items():
                is_shown = isinstance(member, property | classmethod | staticmethod)
                if not key.startswith("_") and not key.endswith("_wire") and key not in seen:
                    seen.add(key)
                    if is_shown or inspect.isfunction(member):
                        yield key, member


def _is_async(member: object) -> bool:
    return inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member)


def _signature(name: str, thing: object, *, is_async: bool = False) -> str:
    try:
        signature = inspect.signature(thing)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return f"```text\nclass {name}\n```"
    parameters = [_short(parameter) for parameter in _parameters(signature.parameters)]
    returned = signature.return_annotation
    result = "" if returned in {None, inspect.Signature.empty} else _short(_text(returned))
    wrapped = _WRAPPED.match(result)
    if wrapped is not None:
        is_many = result.startswith("Listing[")
        result = f"AsyncIterator[{wrapped[1]}]" if is_many else wrapped[1]
    kind = "class " if isinstance(thing, type) else "async " if is_async else ""
    arrow = f" -> {result}" if result and kind != "class " else ""
    line = f"{kind}{name}({', '.join(parameters)}){arrow}"
    if len(line) > _WIDTH:
        lines = "".join(f"    {parameter},\n" for parameter in parameters)
        line = f"{kind}{name}(\n{lines}){arrow}"
    return f"```text\n{line}\n```"


def _parameters(parameters: Mapping[str, inspect.Parameter]) -> Iterator[str]:
    is_keyword = False
    for parameter in parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword:
            is_keyword = True
            yield "*"
        stars = "*" * _STARS.get(parameter.kind, 0)
        is_keyword |= bool(stars)
        annotation = (
            "" if parameter.annotation is parameter.empty else f": {_text(parameter.annotation)}"
        )
        default = (
            "" if parameter.default is parameter.empty else f" = {_default(parameter.default)}"
        )
        yield f"{stars}{parameter.name}{annotation}{default}"


def _text(annotation: object) -> str:
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return annotation.__qualname__
    return annotation if isinstance(annotation, str) else repr(annotation)


def _default(value: object) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    return repr(value)


def _short(text: str) -> str:
    # Python 3.11 shows an Unpack[X] in another way than later ones.
    text = _UNPACKED.sub(r"Unpack[\1]", text)
    return _ADDRESS.sub("…", _MODULES.sub("", text)).replace("~", "").replace("TypeForm", "type")


def _one_line(thing: object) -> str:
    return _quoted(" ".join((inspect.getdoc(thing) or "").split()))


def markdown(thing: object) -> str:
    return _markdown(inspect.getdoc(thing) or "")


def _markdown(text: str) -> str:
    text = _LITERAL.sub(_literal, f"{text}\n")
    return _quoted(_SECTION.sub(_list, text)).strip()


def _literal(found: re.Match[str]) -> str:
    intro = f"{found[1]}:\n\n" if found[1].strip() else ""
    return f"{intro}```text\n{textwrap.dedent(found[2]).strip()}\n```\n\n"


def _list(found: re.Match[str]) -> str:
    title = "Arguments" if found[1] == "Args" else found[1]
    items = _ITEM.findall(found[2])
    if not items:
        return f"**{title}:** {' '.join(found[2].split())}\n\n"
    lines = [f"- `{name}`: {' '.join(words.split())}" for name, words in items]
    return "\n".join([f"**{title}:**", "", *lines, "", ""])


def _quoted(text: str) -> str:
    return re.sub(r"(?<!`)``(?!`)", "`", text)
