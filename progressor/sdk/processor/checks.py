"""Checks before the first step: the type of the state, handlers, missing awaits.

A missing await is found in the source of a handler. A finding is certain: the name resolves without
running code, and the coroutine is not used where it is created. A coroutine that is passed on,
stored or returned may be awaited elsewhere.
"""

import ast
import builtins
import dataclasses
import inspect
import operator
import textwrap
import typing
from collections.abc import Callable, Iterator
from types import EllipsisType, FunctionType
from typing import Any, Self, TypeAlias, TypeGuard

from progressor.sdk.codec.codecs import CheckedCodec, Codec
from progressor.sdk.codec.kinds import name_of

_Chain: TypeAlias = tuple[ast.AST, ...]

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_USELESS = (
    ast.Expr,
    ast.If,
    ast.While,
    ast.Assert,
    ast.Compare,
    ast.BinOp,
    ast.UnaryOp,
    ast.Subscript,
    ast.FormattedValue,
    ast.AugAssign,
)
_OF_COROUTINES = frozenset({"close", "send", "throw"})
_ASKING = frozenset({"args_as", "results_as"})
_REQUESTS = frozenset({"once", "extend"})
_UNKNOWN: Any = object()


def name_of_handler(handler: object) -> str:
    """Return the name of a handler for errors and warnings."""
    return str(getattr(handler, "__qualname__", None) or repr(handler))


def check_state(kind: object, codec: Codec, owner: str) -> None:
    """Raise TypeError unless the codec can write and read the type of a state."""
    if kind is Any or not isinstance(codec, CheckedCodec):
        return
    why = codec.unreadable(kind)
    if why is not None:
        message = f"{owner}: the state cannot be a `{name_of(kind)}`: {why}"
        raise TypeError(message)


def check_handler(handler: Callable[..., object], codec: Codec, owner: str) -> None:
    """Raise TypeError unless a handler can answer a step."""
    problem = _form_of(handler) or _returned_by(handler, codec)
    if problem is not None:
        message = f"{owner} {problem}"
        raise TypeError(message)


def check_source(handler: Callable[..., object], codec: Codec, owner: str) -> None:
    """Raise TypeError if a handler lacks an `await`, or requests what the codec cannot read.

    `Step.keep_alive` needs an ``async with`` as other requests need an `await`.
    """
    source = _Source.of(handler)
    for call, chain in () if source is None else _calls(source.definition):
        assert source is not None, "there are calls"
        is_asked = _is_of_step(call.func, source.step) and call.func.attr in _REQUESTS
        if _is_of_step(call.func, source.step) and _is_not_entered(call.func.attr, chain):
            called = f"{ast.unparse(call.func)}(...) with `async with`"
            message = f"{owner} must enter {called} {source.place(call)}{_how_to_await(handler)}"
            raise TypeError(message)
        is_coroutine = is_asked or _is_coroutine_function(call.func, source.function)
        if is_coroutine and _is_lost(chain, source.step):
            how = _how_to_await(handler, is_asked=is_asked)
            called = f"{ast.unparse(call.func)}(...)"
            message = f"{owner} must await {called} {source.place(call)}{how}"
            raise TypeError(message)
        kind = _type_requested(call, source)
        if kind is not _UNKNOWN and isinstance(codec, CheckedCodec):
            why = codec.unreadable(kind)
            if why is not None:
                message = f"{owner} requests a `{name_of(kind)}` {source.place(call)}: {why}"
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """A handler that is a function, with its source and the name of its argument."""

    function: FunctionType
    definition: ast.FunctionDef | ast.AsyncFunctionDef
    step: str

    @classmethod
    def of(cls, handler: Callable[..., object]) -> Self | None:
        """Return the source of a handler; None: it has none, or is a lambda."""
        function = inspect.unwrap(getattr(handler, "__func__", handler))
        if not isinstance(function, FunctionType):
            return None
        try:
            definition = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
        except (OSError, TypeError, SyntaxError):
            return None
        if not isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef):
            return None
        names = [it.arg for it in (*definition.args.posonlyargs, *definition.args.args)]
        names = names[1:] if inspect.ismethod(handler) else names
        return cls(function=function, definition=definition, step=names[0] if names else "")

    def place(self, call: ast.Call) -> str:
        """Return the file and line of a call."""
        code = self.function.__code__
        return f"({code.co_filename}, line {code.co_firstlineno + call.lineno - 1})"


def _type_requested(call: ast.Call, source: _Source) -> Any:  # noqa: ANN401  # any object of the user's
    """Return the type that a handler requests of its step by a call."""
    match call:
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id=source.step), attr=name), args=[kind]
        ) if name in _ASKING:
            return _type(kind, source.function)
        case _:
            return _UNKNOWN


def _calls(definition: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[ast.Call, _Chain]]:
    """Yield each call in the body of a function, with the nodes around it, the innermost first."""
    stack: list[tuple[ast.AST, _Chain]] = [(it, ()) for it in reversed(definition.body)]
    while stack:  # ends with the source
        node, chain = stack.pop()
        if isinstance(node, _SCOPES):
            continue
        if isinstance(node, ast.Call):
            yield node, chain
        inner = (node, *chain)
        stack.extend((it, inner) for it in reversed(list(ast.iter_child_nodes(node))))


def _how_to_await(handler: Callable[..., object], *, is_asked: bool = True) -> str:
    if inspect.iscoroutinefunction(handler):
        return ""
    return "; make the handler `async def`" + (", or use step.blocking" if is_asked else "")


def _is_not_entered(attribute: str, chain: _Chain) -> bool:
    """Return whether the context manager of `Step.keep_alive` is never entered, or by `with`."""
    match chain:
        case (ast.withitem(), ast.With(), *_) | (ast.Expr() | ast.Await(), *_):
            return attribute == "keep_alive"
        case _:
            return False


def _is_lost(chain: _Chain, step: str) -> bool:
    """Return whether a coroutine inside these nodes is never awaited."""
    around, *outer = chain
    match around:
        case ast.BoolOp() | ast.IfExp():
            return _is_lost(tuple(outer), step)
        case ast.Attribute(attr=name):
            return name not in _OF_COROUTINES
        case ast.Assign(targets=targets):
            return any(_is_of_step(it, step) for it in targets)
        case ast.Call(func=callee):
            return _is_of_step(callee, step)
        case _:
            return isinstance(around, _USELESS)


def _is_of_step(expression: ast.expr, step: str) -> TypeGuard[ast.Attribute]:
    """Return whether this is an attribute of the step; none takes a coroutine."""
    match expression:
        case ast.Attribute(value=ast.Name(id=name)):
            return name == step
        case _:
            return False


def _is_coroutine_function(callee: ast.expr, function: FunctionType) -> bool:
    found = _resolved(callee, function)
    return inspect.iscoroutinefunction(getattr(found, "__func__", found))


def _resolved(expression: ast.expr, function: FunctionType) -> Any:  # noqa: ANN401  # as above
    """Return the object of a dotted name, without evaluating properties."""
    match expression:
        case ast.Name(id=name):
            return _named(name, function)
        case ast.Attribute(value=value, attr=name):
            owner = _resolved(value, function)
            return _UNKNOWN if owner is _UNKNOWN else inspect.getattr_static(owner, name, _UNKNOWN)
        case _:
            return _UNKNOWN


def _named(name: str, function: FunctionType) -> Any:  # noqa: ANN401  # as above
    code = function.__code__
    if name in code.co_varnames or name in code.co_cellvars:
        return _UNKNOWN
    if name in code.co_freevars:
        try:
            return (function.__closure__ or ())[code.co_freevars.index(name)].cell_contents
        except ValueError:  # not assigned yet
            return _UNKNOWN
    return function.__globals__.get(name, getattr(builtins, name, _UNKNOWN))


def _type(expression: ast.expr, function: FunctionType) -> Any:  # noqa: ANN401  # as above
    """Return the type of an expression of names, unions and parameters."""
    match expression:
        case ast.Constant(value=None | EllipsisType() as value):
            return value
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _made(operator.or_, _type(left, function), _type(right, function))
        case ast.Subscript(value=value, slice=parameters):
            items = parameters.elts if isinstance(parameters, ast.Tuple) else [parameters]
            found = [_type(it, function) for it in items]
            if any(it is _UNKNOWN for it in found):
                return _UNKNOWN
            return _made(operator.getitem, _type(value, function), tuple(found))
        case _:
            return _resolved(expression, function)


def _made(make: Callable[[Any, Any], object], first: object, second: object) -> object:
    """Return a type made of two types; anything else could run the user's code."""
    is_type = isinstance(first, type) or getattr(first, "__module__", "") in {"typing", "types"}
    if first is _UNKNOWN or second is _UNKNOWN or not (is_type or first is None):
        return _UNKNOWN
    try:
        return make(first, second)
    except TypeError:
        return _UNKNOWN
