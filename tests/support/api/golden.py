"""Golden messages: what every function between protobuf and values makes of fixed inputs.

The functions are found by their type hints: public, in a module of `ROOMS`, with a message among
their arguments or as their result. Each is called with inputs that depend on nothing but the fields
of the types (their numbers and their order), so that both sides stay the same for as long as the
wire does; some of the inputs are invalid, and then the violations are what is kept.

``python -m tests.support.api.golden`` writes the files anew, after a change that is meant. Look at
the difference before committing it.
"""

import collections.abc
import dataclasses
import datetime as dt
import enum
import importlib
import inspect
import pkgutil
import types
import typing
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.internal.containers import RepeatedCompositeFieldContainer
from google.protobuf.message import Message

from progressor import errors
from progressor.domain.gates.constraint import Version
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.task import TaskType
from progressor.processor import codec as processor_codec
from progressor.sdk.codec.codecs import Codec, JsonCodec, Typed
from progressor.sdk.values.graph import Graph
from progressor.v1 import processor_service_pb2
from progressor.wire.shapes import Shape, Violations

FOLDER = Path(__file__).parents[2] / "golden"
ROOMS = ("progressor.api", "progressor.processor", "progressor.sdk", "progressor.wire")
VARIANTS = 12
"""Of each function's input: all there, nothing there, then a mixture, with one field amiss in
some."""

_FULL, _EMPTY, _FIRST_AMISS = 0, 1, 8
_NOON = dt.datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=dt.UTC)
_TEXTS = {
    "namespace": "orders",
    "name": "orders-2",
    "processor_targets": "host:50051",
    "version": "1.10.2",
    "expression": "*/5 * * * *",
    "time_zone": "Europe/Berlin",
    "process_id_template": "report-{instant}",
    "job_id_template": "job-{instant}",
    "page_token": "",
    "predecessors": "",
}


class Source:
    """Fixed values for one variant, each chosen by the path of its field."""

    def __init__(self, variant: int) -> None:
        self.variant = variant

    def pick(self, path: str, count: int) -> int:
        """Return a number below `count`, the same at every call."""
        if self.variant < _FIRST_AMISS and count < VARIANTS:
            return (zlib.crc32(path.encode()) % count + self.variant) % count
        return zlib.crc32(f"{path}#{self.variant}".encode()) % count

    def has(self, path: str) -> bool:
        if self.variant in {_FULL, _EMPTY}:
            return self.variant == _FULL
        return zlib.crc32(f"{path}?{self.variant}".encode()) % 4 > 0

    def is_amiss(self, path: str) -> bool:
        return self.variant >= _FIRST_AMISS and self.pick(f"{path}!", 6) == 0


def message_of(kind: type[Message], source: Source, path: str, depth: int = 0) -> Message:
    message = kind()
    chosen = {
        oneof.name: oneof.fields[source.pick(f"{path}.{oneof.index}", len(oneof.fields))]
        for oneof in kind.DESCRIPTOR.oneofs
    }
    for field in kind.DESCRIPTOR.fields:
        place = f"{path}.{field.number}"
        oneof = field.containing_oneof
        if oneof is not None and chosen[oneof.name] is not field:
            continue
        if depth < 6 and (_is_named(field) or source.has(place)):
            _fill(message, field, source, place, depth)
    if source.variant < _FIRST_AMISS:
        _fit(message, source.variant)
    return message


def _fit(message: Any, variant: int) -> None:  # noqa: C901, PLR0912  # a case for each type
    """Take away what contradicts itself, in half of the variants."""
    if variant % 2:
        return
    match message.DESCRIPTOR.name:
        case "NodeSpec":
            for field in ("predecessors", "process_id", "constraints"):
                message.ClearField(field)
        case "ScheduleSpec":
            message.ClearField("end_at")
            message.catch_up_window.FromSeconds(60 + variant)
            message.jitter.FromSeconds(variant)
            if message.WhichOneof("times") is None:
                message.interval.every.FromSeconds(60)
        case "ScheduledStart" | "ScheduledCall" | "ScheduledNotify":
            message.constraints.ClearField("run_at")
            message.history_range.ClearField("after")
        case "IntervalTimes":
            message.every.FromSeconds(90 + variant)
        case "PutRequest":
            message.status = (2, 3, 4)[variant // 2 % 3]
            given = {2: ("timer",), 3: ("detail", "corrupted_by_type"), 4: ("result",)}
            for field in ("timer", "detail", "corrupted_by_type", "result"):
                if field not in given[message.status]:
                    message.ClearField(field)
            if message.status == 2:
                message.timer.ClearField("constraints")
        case "BackfillScheduleRequest":
            message.since.FromDatetime(_NOON - dt.timedelta(days=1 + variant))
            message.until.FromDatetime(_NOON - dt.timedelta(hours=1))
        case _:
            pass


def _is_named(field: Any) -> bool:
    # Without these, nothing else of a request would be looked at.
    return field.name in {"namespace", "process_id", "job_id", "gate", "schedule_id", "name"}


def _fill(message: Message, field: Any, source: Source, place: str, depth: int) -> None:
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        _fill_map(getattr(message, field.name), field, source, place)
        return
    if field.is_repeated:
        count = 1 + source.pick(place, 2)
        items = [_scalar_or_message(field, source, f"{place}.{i}", depth) for i in range(count)]
        for number, item in enumerate(items):
            if field.name == "nodes":
                item.name += f"-{number}"
        getattr(message, field.name).extend(items)
        return
    value = _scalar_or_message(field, source, place, depth)
    if isinstance(value, Message):
        getattr(message, field.name).CopyFrom(value)
        getattr(message, field.name).SetInParent()
    else:
        setattr(message, field.name, value)


def _fill_map(pairs: Any, field: Any, source: Source, place: str) -> None:
    inner = field.message_type
    assert inner is not None, "a map has entries"
    value = inner.fields_by_name["value"]
    keys = ("call", "timeout") if value.message_type is not None else ("b", "a")
    for key in keys:
        if value.message_type is not None:
            pairs[key].CopyFrom(_scalar_or_message(value, source, f"{place}.{key}", 3))
        else:
            text = f"{key}-value"
            pairs[key] = text.encode() if value.type == value.TYPE_BYTES else text


def _scalar_or_message(  # noqa: C901, PLR0911  # a case for each type
    field: Any, source: Source, place: str, depth: int
) -> Any:
    kinds = FieldDescriptor
    inner = field.message_type
    if inner is not None:
        return _message(field, source, place, depth)
    if field.enum_type is not None:
        numbers = [value.number for value in field.enum_type.values]
        return 77 if source.is_amiss(place) else numbers[source.pick(place, len(numbers))]
    if field.type == kinds.TYPE_STRING:
        if source.is_amiss(place):
            return "a\nb\0" + "x" * source.pick(place, 3) * 300
        return _TEXTS.get(field.name, f"{field.name}-{source.pick(place, 50)}")
    if field.type == kinds.TYPE_BYTES:
        if source.is_amiss(place):
            return b"\0\xff" * (1 + source.pick(place, 3000))
        return b'"%d"' % source.pick(place, 50)
    if field.type == kinds.TYPE_BOOL:
        return source.has(f"{place}=")
    if field.type in {kinds.TYPE_DOUBLE, kinds.TYPE_FLOAT}:
        least = 1 if field.name == "coefficient" else 0
        return -1.5 if source.is_amiss(place) else least + 0.25 * source.pick(place, 4)
    return -1 - source.pick(place, 2) * 2_000_000 if source.is_amiss(place) else _count(place)


def _count(place: str) -> int:
    return zlib.crc32(place.encode()) % 5 + 1


def _message(field: Any, source: Source, place: str, depth: int) -> Message:
    inner = field.message_type
    assert inner is not None, "only called for fields of messages"
    kind: type[Message] = inner._concrete_class
    message: Any = kind()
    amiss = source.is_amiss(place)
    match inner.full_name:
        case "google.protobuf.Timestamp":
            message.FromDatetime(_NOON + dt.timedelta(seconds=source.pick(place, 10_000)))
            if amiss:
                message.seconds, message.nanos = ((10**14, 0), (0, -5))[source.pick(place, 2)]
        case "google.protobuf.Duration":
            message.FromMilliseconds(1500 + 1000 * source.pick(place, 10_000))
            if amiss:
                message.seconds = (-1, 10**12)[source.pick(place, 2)]
                message.nanos = 0
        case "google.protobuf.Struct":
            message.update({"a": [1, 2.5, None, True], "b": {"c": "\0" if amiss else "d"}})
        case "google.protobuf.FieldMask":
            message.paths.extend(["step_timeout", "history", *(["revision"] if amiss else [])])
        case "google.protobuf.Any":
            pass
        case _:
            return message_of(kind, source, place, depth + 1)
    return typing.cast("Message", message)


def value_of(hint: Any, source: Source, path: str) -> Any:  # noqa: PLR0911  # as above
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return value_of(args[0], source, path)
    if origin in {typing.Union, types.UnionType}:
        return _member(args, source, path)
    if origin is typing.Literal:
        return args[source.pick(path, len(args))]
    if origin is type:
        kinds = typing.get_args(args[0]) or args
        return kinds[source.pick(path, len(kinds))]
    if isinstance(origin, type) and issubclass(origin, collections.abc.Mapping):
        return _mapping(args, source, path)
    if isinstance(origin, type) and (
        issubclass(origin, collections.abc.Sequence) or origin is collections.abc.Iterable
    ):
        return _items(origin, args, source, path)
    return _plain(origin or hint, source, path)


def _member(members: tuple[Any, ...], source: Source, path: str) -> Any:
    if type(None) in members and not source.has(path):
        return None
    there = [member for member in members if member is not type(None)]
    return value_of(there[source.pick(path, len(there))], source, path)


def _mapping(args: tuple[Any, ...], source: Source, path: str) -> Any:
    if not source.has(path):
        return {}
    if args[1] in {object, Any}:
        return {"a": [1, 2.5, None, True], "b": {"c": "d"}}
    kinds = args[0]
    keys = list(kinds)[1:3] if isinstance(kinds, enum.EnumType) else ["b", "a"]
    return {key: value_of(args[1], source, f"{path}.{key}") for key in keys}


def _items(origin: type, args: tuple[Any, ...], source: Source, path: str) -> Any:
    if origin is tuple and args[-1] is not ...:
        return tuple(value_of(arg, source, f"{path}.{i}") for i, arg in enumerate(args))
    if args == (int,) and origin is not list and not source.has(path):
        return ()
    count = source.pick(path, 3) if source.has(path) else 0
    return tuple(value_of(args[0], source, f"{path}.{i}") for i in range(count))


def _plain(kind: Any, source: Source, path: str) -> Any:  # noqa: C901, PLR0911, PLR0912  # as above
    if kind in {Any, object} or isinstance(kind, typing.TypeVar):
        return {"n": source.pick(path, 9)} if source.has(path) else None
    if kind is Version:
        return Version((1, source.pick(path, 20)))
    if kind is Codec:
        return JsonCodec()
    if kind is Violations:
        return Violations()
    if kind is Graph:
        graph = Graph()
        first = graph.node("first", args={"n": 1})
        graph.node("second", after=first)
        return graph
    if issubclass(kind, Message):
        return message_of(kind, source, path)
    if issubclass(kind, enum.Enum):
        members = list(kind)
        return members[source.pick(path, len(members))]
    if issubclass(kind, bool):
        return source.has(path)
    if issubclass(kind, int):
        return _count(path) if source.has(path) else 0
    if issubclass(kind, float):
        return _count(path) * 1.5
    if issubclass(kind, str):
        return f"text-{source.pick(path, 50)}" if source.variant != _EMPTY else ""
    if issubclass(kind, bytes):
        return b'"%d"' % source.pick(path, 50) if source.has(path) else b""
    if issubclass(kind, dt.datetime):
        return _NOON + dt.timedelta(seconds=source.pick(path, 10_000))
    if issubclass(kind, dt.timedelta):
        return dt.timedelta(milliseconds=1500 + source.pick(path, 10_000_000))
    return _record(kind, source, path)


def _record(kind: type, source: Source, path: str) -> Any:
    hints = typing.get_type_hints(kind)
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind) if field.init]
    else:
        assert issubclass(kind, msgspec.Struct | tuple), f"no values of {kind} are known"
        names = list(
            kind.__struct_fields__ if issubclass(kind, msgspec.Struct) else kind._fields  # type: ignore[attr-defined]
        )
    return kind(
        **{
            name: value_of(hints[name], source, f"{path}.{place}")
            for place, name in enumerate(names)
        }
    )


def shown(value: Any) -> str:  # noqa: C901, PLR0911, PLR0912  # as above
    """Return a value as text: equal for equal values, and the same at every run."""
    match value:
        case Message():
            return f"<{text_format.MessageToString(value, as_one_line=True)}>"
        case enum.Enum():
            return f"{type(value).__name__}.{value.name}"
        case dt.datetime():
            return value.isoformat()
        case dt.timedelta():
            return f"{value.total_seconds()}s"
        case Version():
            return str(value)
        case Violations():
            return f"[{'; '.join(map(_violation, value._found))}]"
        case type():
            return value.__name__
        case Graph():
            return ", ".join(f"{each!r} of {each.args!r}" for each in value)
        case Mapping():
            return "{" + ", ".join(sorted(f"{shown(k)}: {shown(value[k])}" for k in value)) + "}"
        case str() | bytes():
            return _short(value)
        case _ if dataclasses.is_dataclass(value):
            return _fields(value, [field.name for field in dataclasses.fields(value)])
        case msgspec.Struct():
            return _fields(value, value.__struct_fields__)
        case tuple() if hasattr(value, "_fields"):
            return _fields(value, value._fields)
        case Sequence() | Iterator() | RepeatedCompositeFieldContainer():
            return "[" + ", ".join(map(shown, value)) + "]"
        case _ if callable(value):  # a change of a namespace
            return shown(value(Namespace(name="before", processor_targets=("before:1",))))
        case JsonCodec():
            return "JsonCodec()"
        case _:
            return repr(value)


def _violation(value: errors.FieldViolation) -> str:
    return f"{value.field}: {value.description}".replace("\n", " ").replace("\t", " ")


def _short(value: str | bytes) -> str:
    if len(value) <= 80:
        return repr(value)
    digest = zlib.crc32(value if isinstance(value, bytes) else value.encode())
    return f"{value[:20]!r}…{len(value)}/{digest:08x}"


def _fields(value: Any, names: Sequence[str]) -> str:
    inner = (f"{name}={shown(getattr(value, name))}" for name in names if name[0] != "_")
    return f"{type(value).__name__}({', '.join(inner)})"


def decode_outcome(
    response: processor_service_pb2.ProcessResponse, task_type: TaskType
) -> processor_codec.StepOutcome:
    """Return what the engine makes of a processor's response."""
    return processor_codec.decode_response(
        response.SerializeToString(),
        task_type=task_type,
        namespace="orders",
        payload_bytes_max=1000,
    )


def functions() -> dict[str, Callable[..., Any]]:
    """Return the functions under test by name: module and name."""
    found: dict[str, Callable[..., Any]] = {
        "progressor.processor.codec.decode_outcome": decode_outcome
    }
    for room in ROOMS:
        package = importlib.import_module(room)
        for info in pkgutil.walk_packages(package.__path__, f"{room}."):
            module = importlib.import_module(info.name)
            for name, function in inspect.getmembers(module, inspect.isfunction):
                is_own = function.__module__ == info.name and not name.startswith("_")
                if is_own and _is_codec(function):
                    found[f"{info.name}.{name}"] = function
            for name, method in inspect.getmembers(module, inspect.ismethod):
                is_own = f"\n{name} = " in inspect.getsource(module)
                if is_own and isinstance(method.__self__, Shape) and not name.startswith("_"):
                    found.setdefault(f"{info.name}.{name}", _function_of(method))
    return dict(sorted(found.items()))


def _function_of(method: Any) -> Callable[..., Any]:
    shape: Shape[Any, Any] = method.__self__
    context = Typed(JsonCodec()) if method.__name__ == "read" else JsonCodec()
    kinds = [shape._value_type, shape._message_type]

    def function(value: Any) -> Any:
        return method(value, context=context)

    function.__annotations__ = {"value": kinds[method.__name__ == "read"]}
    return function


def _is_codec(function: Callable[..., Any]) -> bool:
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return False
    try:
        hints = typing.get_type_hints(function)
    except NameError:
        return False
    is_ours = any(_ours(hint) for hint in hints.values())
    return is_ours and not any(map(_is_foreign, hints.values()))


def _ours(hint: Any) -> bool:
    if isinstance(hint, type) and issubclass(hint, Message):
        return hint is not Message and hint.DESCRIPTOR.full_name.startswith("progressor.")
    return any(map(_ours, typing.get_args(hint)))


def _is_foreign(hint: Any) -> bool:
    """Tell whether it is of a type whose values are neither data nor ours to make."""
    origin = typing.get_origin(hint)
    if origin is collections.abc.Callable or hint is Message:
        return True
    kind = origin or hint
    plain = {Codec, Violations, Graph, Version}
    if isinstance(kind, type) and kind not in plain and kind.__module__.startswith("progressor"):
        is_data = dataclasses.is_dataclass(kind) or issubclass(
            kind, Message | enum.Enum | msgspec.Struct | tuple
        )
        if not is_data:
            return True
    return any(map(_is_foreign, typing.get_args(hint)))


def lines_of(name: str, function: Callable[..., Any]) -> Iterator[str]:
    """Yield a line for each variant: the inputs, and what comes of them."""
    hints = typing.get_type_hints(function)
    is_filling = hints.pop("return", None) is type(None)
    parameters = inspect.signature(function).parameters
    seen: set[str] = set()
    for variant in range(VARIANTS):
        arguments = {
            parameter: hints[parameter]()
            if is_filling and parameter == "message"
            else _argument(parameter, hints[parameter], Source(variant), str(place))
            for place, parameter in enumerate(parameters)
            if parameter not in {"kind", "caller"}  # who may see everything
        }
        given = shown(list(arguments.values()))
        if given in seen:
            continue
        seen.add(given)
        yield f"{name}\t{variant}\t{given}\t{_outcome(function, arguments, parameters)}"


def _argument(name: str, hint: Any, source: Source, path: str) -> Any:
    match name:
        case "field" | "prefix":
            return f"the.{name}"
        case "payload_bytes_max":
            return 1000
        case "page_size":
            return 1
        case "now":
            return _NOON
        case _ if typing.get_origin(hint) is RepeatedCompositeFieldContainer:
            return processor_service_pb2.ProcessRequest().history
        case _:
            return value_of(hint, source, path)


def _outcome(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    parameters: Mapping[str, inspect.Parameter],
) -> str:
    positional = [
        value
        for name, value in arguments.items()
        if parameters[name].kind is not inspect.Parameter.KEYWORD_ONLY
    ]
    named = {
        name: value
        for name, value in arguments.items()
        if parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
    }
    if "kind" in parameters and parameters["kind"].default is inspect.Parameter.empty:
        positional.append(Any)
    try:
        result = function(*positional, **named)
    except errors.InvalidRequestError as error:
        return "refused: " + "; ".join(_violation(violation) for violation in error.violations)
    # Not AssertionError: it is a message that no longer fits its value.
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    # A function that fills one of its arguments, or notes what is wrong in it.
    filled = [
        argument for argument in arguments.values() if isinstance(argument, Violations | Message)
    ]
    text = shown(result)
    if result is None or any(isinstance(each, Violations) for each in filled):
        text += f" and {shown(filled)}"
    return text


def texts() -> dict[str, str]:
    files: dict[str, list[str]] = {}
    for name, function in functions().items():
        module = name.rpartition(".")[0].removeprefix("progressor.")
        files.setdefault(f"{module}.txt", []).extend(lines_of(name.rpartition(".")[2], function))
    return {name: "\n".join(lines) + "\n" for name, lines in files.items()}


if __name__ == "__main__":
    for path in FOLDER.glob("*.txt"):
        path.unlink()
    for name, text in texts().items():
        (FOLDER / name).write_text(text)
