"""Checks before the first step: the type of the state, handlers, missing awaits."""

import inspect
import typing
from collections.abc import Callable
from typing import Any

from progressor.sdk.codec.codecs import CheckedCodec, Codec
from progressor.sdk.codec.kinds import name_of
from progressor.sdk.processor.handler_source import forgotten_await, types_asked


def name_of_handler(handler: object) -> str:
    """Return the name of a handler for errors and warnings."""
    return str(getattr(handler, "__qualname__", None) or repr(handler))


def check_state(kind: object, codec: Codec, owner: str) -> None:
    """Check that the codec can write and read the type of a state.

    Raises:
        TypeError: It cannot; the message names the `owner` and the type.
    """
    if kind is Any or not isinstance(codec, CheckedCodec):
        return
    why = codec.unreadable(kind)
    if why is not None:
        message = f"{owner}: the state cannot be a `{name_of(kind)}`: {why}"
        raise TypeError(message)


def check_handler(handler: Callable[..., object], codec: Codec, owner: str) -> None:
    """Check that a handler can answer a step.

    Raises:
        TypeError: It is not a function of one argument, yields, or returns a type that the codec
            cannot write; the message begins with the `owner`.
    """
    problem = _form_of(handler) or _returned_by(handler, codec)
    if problem is not None:
        message = f"{owner} {problem}"
        raise TypeError(message)


def check_source(handler: Callable[..., object], codec: Codec, owner: str) -> None:
    """Check that a handler lacks no `await`, and requests only types that the codec can read.

    Raises:
        TypeError: It does not; the message begins with the `owner` and names file and line.
    """
    call = forgotten_await(handler)
    if call is not None:
        how = "" if inspect.iscoroutinefunction(handler) else "; make the handler `async def`"
        message = f"{owner} must await {call}{how}"
        raise TypeError(message)
    if not isinstance(codec, CheckedCodec):
        return
    for kind, place in types_asked(handler):
        why = codec.unreadable(kind)
        if why is not None:
            message = f"{owner} requests a `{name_of(kind)}` {place}: {why}"
            raise TypeError(message)


def _form_of(handler: Callable[..., object]) -> str | None:
    if not callable(handler):
        return f"must be a function, got {handler!r}"
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        return "must return its response, not yield it"
    try:
        signature = inspect.signature(handler)
    except ValueError:  # a builtin without a signature
        return None
    try:
        signature.bind(None)
    except TypeError:
        return f"must take one argument, the step, got {signature}"
    return None


def _returned_by(handler: Callable[..., object], codec: Codec) -> str | None:
    if not isinstance(codec, CheckedCodec):
        return None
    try:
        hints = typing.get_type_hints(handler)
    except (TypeError, NameError, AttributeError, SyntaxError):  # not annotated, or not resolvable
        return None
    found = codec.unwritable(hints.get("return", Any))
    return None if found is None else f"cannot return a `{name_of(found[0])}`: {found[1]}"
