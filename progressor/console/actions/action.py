"""What an action is."""

import dataclasses
import datetime as dt
import shlex
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

from progressor import errors
from progressor.console.visits.visit import Ask
from progressor.domain.access.rights import Right


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of a form; ``name`` is also that of the request's field, by which errors name it.

    ``kind`` "key": hidden, and another one each time the form is shown, so that sending one form
    twice has the effect of once. ``choice_words``: what to call the choices, if not themselves.
    """

    name: str
    label: str
    kind: Literal["text", "lines", "number", "instant", "choice", "flag", "key", "hidden"] = "text"
    help: str = ""
    is_required: bool = False
    choices: tuple[str, ...] = ()
    choice_words: Mapping[str, str] = dataclasses.field(default_factory=dict)
    initial: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Entered:
    """What a visitor has entered into the form of an action, about the object of a page."""

    ask: Ask
    values: Mapping[str, str]

    @property
    def namespace(self) -> str:
        return self.ask.place.get("namespace", "")

    @property
    def name(self) -> str:
        return self.ask.name

    def text(self, field: str) -> str:
        return self.values.get(field, "").strip()

    def whole(self, field: str, lowest: int, highest: int) -> int:
        """Return the whole number in a field.

        Raises:
            InvalidRequestError: It is none, or out of range.
        """
        text = self.text(field)
        wrong = f"must be a whole number from {lowest:,} to {highest:,}, got {text!r}"
        if not (text.isascii() and text.isdecimal() and len(text) <= len(str(highest))):
            raise invalid(field, wrong)
        if not lowest <= int(text) <= highest:
            raise invalid(field, wrong)
        return int(text)

    def instant(self, field: str) -> dt.datetime | None:
        """Return the instant in a field, of UTC if it names no zone; None: the field is empty.

        Raises:
            InvalidRequestError: It is none.
        """
        text = self.text(field)
        try:
            found = dt.datetime.fromisoformat(text) if text else None
        except ValueError as error:
            example = "2026-01-31T12:00:00Z"
            raise invalid(field, f"must be an instant such as {example}, got {text!r}") from error
        return found if found is None or found.tzinfo else found.replace(tzinfo=dt.UTC)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Something that a visitor can do from a page.

    ``warning``: what cannot be undone; the visitor types the name of the object to confirm it. ""
    where it can. ``run`` does it and returns what to say then, in `Done`. ``command`` returns the
    words of the command that does the same. ``fits`` returns whether it makes sense for what a page
    shows, so that it is offered. ``confirmed`` returns what the visitor has to type. ``initial``
    returns what fields begin with, by what the page shows.
    """

    name: str
    word: str
    explanation: str
    right: Right
    fields: tuple[Field, ...] = ()
    warning: str = ""
    run: Callable[[Entered], Awaitable["Done"]]
    command: Callable[[Entered], tuple[str, ...]]
    fits: Callable[[Mapping[str, Any]], bool] = lambda _facts: True
    confirmed: Callable[[Ask], str] = lambda ask: ask.name
    initial: Callable[[Mapping[str, Any]], Mapping[str, str]] = lambda _facts: {}


@dataclasses.dataclass(frozen=True, slots=True)
class Done:
    """What an action did: a text to translate, and its values; ``address`` is where to go then."""

    text: str
    values: Mapping[str, str] = dataclasses.field(default_factory=dict)
    address: str = ""


def invalid(field: str, description: str) -> errors.InvalidRequestError:
    return errors.InvalidRequestError(errors.FieldViolation(field, description))


def command_line(action: Action, entered: Entered) -> str:
    """Return the command that does what a form does, to be pasted into a shell."""
    words = " ".join(shlex.quote(it) for it in ("progressor", *action.command(entered)))
    return f"{words}{entered.ask.options.command_options}"
