"""Page tokens: the key of the last item seen, opaque to callers, with a letter for each list."""

import base64
import dataclasses
import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from progressor import errors
from progressor.api.calls.validation import PageSize, check_id, check_namespace_name
from progressor.domain.access.rights import Binding, Role
from progressor.wire.fields import ID_BYTES_MAX, refuse
from progressor.wire.shapes import UNSENT, Field, Shape

Key = TypeVar("Key")
Item = TypeVar("Item")
M = TypeVar("M", bound=Message)

_FIELD = "page_token"
_TOKEN_CHARACTERS_MAX = 2 * ID_BYTES_MAX
_ID_MAX = 2**63 - 1
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Listing(Generic[Key]):
    """A request for at most `limit` items after the key `after`; no namespace: a list of all."""

    namespace: str = ""
    after: Key
    limit: PageSize


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PageTokens(Generic[Key]):
    """The tokens of one list, which begin with `letter`; `first` is the key before the first page.

    `key_of` returns the key in a text, or raises one of `_GARBLED`.
    """

    letter: str
    first: Key
    text_of: Callable[[Key], str]
    key_of: Callable[[str], Key]

    def write(self, key: Key) -> str:
        return encode(self.letter, self.text_of(key))

    def read(self, token: str, field: str = _FIELD) -> Key:
        """Return the key of the last item before the page, or refuse any other token."""
        if not token:
            return self.first
        try:
            return self.key_of(_decode(self.letter, token))
        except _GARBLED:
            refuse(field, "must be a page token that this list returned")

    @property
    def field(self) -> Field:
        return Field(read=lambda message, path, _: self.read(message.page_token, path + _FIELD))

    def listing(self, message_type: type[M]) -> Shape[Listing[Key], M]:
        has_namespace = "namespace" in message_type.DESCRIPTOR.fields_by_name
        return Shape(
            Listing,
            message_type,
            namespace=check_namespace_name if has_namespace else UNSENT,
            after=self.field,
        )

    def page(
        self, items: Sequence[Item], page_size: int, key: Callable[[Item], Key]
    ) -> tuple[Sequence[Item], str]:
        """Return at most `page_size` items and the token of the next page, "" for the last.

        One item more than `page_size` says that there is a next page.
        """
        page = items[:page_size]
        return page, self.write(key(page[-1])) if len(items) > page_size else ""


_GARBLED = (errors.InvalidRequestError, ValueError, OverflowError)


def _number_of(text: str, maximum: int) -> int:
    # 20 digits hold any of ours; int() refuses, or takes its time for, thousands of them.
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= maximum):  # noqa: PLR2004 - as above
        raise ValueError
    return int(text)


def _id_of(text: str) -> int:
    return _number_of(text, _ID_MAX)


def _name_of(text: str) -> str:
    check_namespace_name(text, _FIELD)
    return text


def _key_of(text: str) -> str:
    check_id(text, _FIELD)
    return text


def _dated_text(key: tuple[Any, ...]) -> str:
    created_at, *names = key
    return "/".join((str((created_at - _EPOCH) // _MICROSECOND), *names))


def _dated(*readers: Callable[[str], str]) -> Callable[[str], tuple[Any, ...]]:
    """Return what reads an instant and as many names as there are readers."""

    def key_of(text: str) -> tuple[Any, ...]:
        time, *names = text.split("/", len(readers))
        microseconds = _number_of(time.removeprefix("-"), _ID_MAX) * (-1 if time[:1] == "-" else 1)
        read = (reader(name) for reader, name in zip(readers, names, strict=True))
        return _EPOCH + microseconds * _MICROSECOND, *read

    return key_of


def _failure_text(key: tuple[int, dt.datetime, str]) -> str:
    broken_count, *dated = key
    return f"{broken_count}/{_dated_text(tuple(dated))}"


def _failure_key(text: str) -> tuple[int, dt.datetime, str]:
    broken_count, dated = text.split("/", 1)
    seen_at, failure_id = _dated(_key_of)(dated)
    return _id_of(broken_count), seen_at, failure_id


def _binding_text(binding: Binding) -> str:
    # A principal may have a slash; the others have none.
    return f"{binding.role}/{binding.namespace}/{binding.principal}"


def _binding_key(text: str) -> Binding:
    role, namespace, principal = text.split("/", 2)
    return Binding(principal=_key_of(principal), role=Role(role), namespace=_key_of(namespace))


def _audit_key(text: str) -> tuple[dt.datetime, int]:
    written_at, entry_id = _dated(_key_of)(text)
    return written_at, _id_of(entry_id)


TASKS = PageTokens(letter="t", first=0, text_of=str, key_of=_id_of)
REPLICAS = PageTokens(letter="r", first=0, text_of=str, key_of=_id_of)
NAMESPACES = PageTokens(letter="n", first="", text_of=str, key_of=_name_of)
GATES = PageTokens(letter="g", first="", text_of=str, key_of=_key_of)
SCHEDULES = PageTokens(letter="s", first="", text_of=str, key_of=_key_of)
PROCESSES: PageTokens[Any] = PageTokens(
    letter="p", first=None, text_of=_dated_text, key_of=_dated(_name_of, _key_of)
)
FAILURES: PageTokens[Any] = PageTokens(
    letter="f", first=None, text_of=_failure_text, key_of=_failure_key
)
JOBS: PageTokens[Any] = PageTokens(
    letter="j", first=None, text_of=_dated_text, key_of=_dated(_key_of)
)
BULKS: PageTokens[Any] = PageTokens(
    letter="b", first=None, text_of=_dated_text, key_of=_dated(_key_of)
)
BINDINGS: PageTokens[Any] = PageTokens(
    letter="a", first=None, text_of=_binding_text, key_of=_binding_key
)
ACCESS_TOKENS = PageTokens(letter="k", first="", text_of=str, key_of=_key_of)
AUDIT: PageTokens[Any] = PageTokens(
    letter="u",
    first=None,
    text_of=lambda place: _dated_text((place[0], str(place[1]))),
    key_of=_audit_key,
)
BULK_ITEMS = PageTokens(letter="i", first=0, text_of=str, key_of=_id_of)


def encode(letter: str, text: str) -> str:
    return base64.urlsafe_b64encode(f"{letter}{text}".encode()).decode().rstrip("=")


def _decode(letter: str, token: str) -> str:
    if len(token) > _TOKEN_CHARACTERS_MAX or not token.isascii():
        raise ValueError
    padded = token + "=" * (-len(token) % 4)
    # Both errors that this may raise are ValueErrors: binascii's own, and that of UTF-8.
    text = base64.b64decode(padded, altchars=b"-_", validate=True).decode()
    if not text.startswith(letter):
        raise ValueError
    return text[1:]
