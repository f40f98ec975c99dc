"""Jobs as files, which `JOB_FORMAT` shows: a JSON or TOML document becomes the graph to submit.

Errors name the place in the file: ``job.toml: nodes.deploy.after[0]: 'biuld' is not a node of …``.
"""

import base64
import contextlib
import dataclasses
import datetime as dt
import functools
import graphlib
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NoReturn, TypeAlias, TypeVar

import msgspec
from cyclopts import CycloptsError, convert

from progressor import errors
from progressor.cli.input.options import (
    ConstraintsInput,
    bad_input,
    checked_metadata,
    file_bytes,
    instant_of,
    parsed,
)
from progressor.domain.processes.policy import RetryPolicy
from progressor.sdk.values.constraints import Constraints
from progressor.sdk.values.graph import Graph, NodeOptions
from progressor.sdk.values.namespaces import ZombiePolicy

JOB_FORMAT = """\
A *.toml file is read as TOML, any other as JSON; - reads JSON from standard input.

  job_id = "release-7"           # or --id
  deadline = "2h"                # from now, or an instant; or --deadline
  context = { user = "u" }       # passed on to every node
  metadata = { team = "core" }   # of the job's process, see list --metadata

  [nodes.build]                  # a node, by its name
  args = { ref = "main" }        # any JSON; or args_text, or args_base64

  [nodes.deploy]
  after = ["build"]              # the nodes that must be done first
  wants_results = true           # its first step gets their results
  namespace = "deployments"      # the namespace whose processor runs it
  process_id = "deploy-7"        # the id of its process
  target = "host-3:7500"         # the only processor target that may run it
  zombie_policy = "fail"         # or "retry"; overrides that of the namespace

  [nodes.deploy.constraints]     # as the options of start
  gates = ["db=1"]
  order = "db=1.10"
  run_at = "2026-01-31T12:00:00Z"
  priority = 1
  hold = "process"

  [nodes.deploy.retry]           # overrides the policy of the namespace
  attempts_max = 3
  initial_interval = "1s"
  interval_max = "1m"
  elapsed_max = "1h"
  coefficient = 2
  jitter = 0.2
  non_retryable_reasons = ["BAD_CARD"]

In JSON: {"job_id": "release-7", "nodes": {"build": {"args": {"ref": 1}}, …}}
Durations are written as 30s, 10m or 2h."""

Deadline: TypeAlias = dt.datetime | dt.timedelta
Value = TypeVar("Value")

_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_Duration = str | float | None
_JSON = json.JSONEncoder(
    default=lambda value: value.isoformat(), allow_nan=False, separators=(",", ":")
)
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_NODE = re.compile(r"\bnodes\[(\d+)\]")
# msgspec's messages, with the place at the end.
_PROBLEM = re.compile(r"(.*?)(?: - at `\$\.?(.*)`)?", re.DOTALL)
_FIELD = re.compile(r"Object (?:contains (unknown)|missing required) field `(.*)`", re.DOTALL)


class _ConstraintsTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    gates: tuple[str, ...] = ()
    order: str | None = None
    run_at: str | None = None
    priority: _Int32 | None = None
    hold: Literal["task", "process"] | None = None


class _RetryTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    initial_interval: _Duration = None
    interval_max: _Duration = None
    elapsed_max: _Duration = None
    coefficient: float | None = None
    jitter: float | None = None
    attempts_max: _Int32 | None = None
    non_retryable_reasons: tuple[str, ...] | None = None


class _NodeTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    # Raw: numbers keep all their digits.
    args: msgspec.Raw = msgspec.Raw()
    args_text: str | None = None
    args_base64: str | None = None
    after: tuple[str, ...] = ()
    namespace: str = ""
    process_id: str = ""
    target: str = ""
    wants_results: bool = False
    zombie_policy: Literal["retry", "fail"] | None = None
    constraints: _ConstraintsTable | None = None
    retry: _RetryTable | None = None


class _JobTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    nodes: dict[str, msgspec.Raw]
    job_id: str = ""
    deadline: str | float | None = None
    context: dict[str, str] = {}
    metadata: dict[str, Any] = {}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobDocument:
    """The job of a file, its nodes in the order in which they are sent, with their places in it."""

    job_id: str
    graph: Graph
    deadline: Deadline | None
    context: Mapping[str, str]
    metadata: Mapping[str, Any] | None
    places: Mapping[str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class _Place:
    """A place in a file, which error messages name."""

    file: str
    path: str = ""

    def __str__(self) -> str:
        return f"{self.file}: {self.path}" if self.path else self.file

    def at(self, inner: str) -> "_Place":
        if not inner or inner.startswith("[") or not self.path:
            return _Place(self.file, self.path + inner)
        return _Place(self.file, f"{self.path}.{inner}")

    def key(self, key: str) -> "_Place":
        return self.at(key if _BARE_KEY.fullmatch(key) else json.dumps(key, ensure_ascii=False))

    def wrong(self, description: str) -> errors.InvalidRequestError:
        return bad_input(str(self), description)

    def read(self, parse: Callable[[Any], Value], value: object) -> Value:
        return parsed(str(self), parse, value)

    def decode(self, document: bytes, table: type[Value]) -> Value:
        """Return a JSON document as a table; an error names the place in it."""
        try:
            return msgspec.json.decode(document, type=table)
        except RecursionError as error:
            raise self.wrong("is nested too deeply") from error
        except msgspec.ValidationError as error:
            found = _PROBLEM.fullmatch(str(error))
            assert found is not None, "the expression matches any text"
            words, place = found[1], self.at(found[2] or "")
            if field := _FIELD.fullmatch(words):
                problem = "unknown key" if field[1] else "must be given"
                raise place.key(field[2]).wrong(problem) from error
            raise place.wrong(f"{words[:1].lower()}{words[1:]}") from error


def read_job(path: str) -> JobDocument:
    """Return the job of a file, or of standard input for ``-``."""
    top = _Place("standard input" if path == "-" else path)
    table = top.decode(_json_of(path, top), _JobTable)
    place = top.key("nodes")
    if not table.nodes:
        raise place.wrong("must have at least one node")
    nodes = {
        name: place.key(name).decode(bytes(node), _NodeTable) for name, node in table.nodes.items()
    }
    deadline = table.deadline
    return JobDocument(
        graph=_graph(place, nodes),
        job_id=table.job_id,
        deadline=None if deadline is None else top.key("deadline").read(deadline_of, deadline),
        context=table.context,
        metadata=top.key("metadata").read(checked_metadata, table.metadata) or None,
        places={name: str(place.key(name)) for name in nodes},
    )


def _json_of(path: str, place: _Place) -> bytes:
    """Return a file as JSON: a ``.toml`` file is converted; a key must not occur twice."""
    text = file_bytes("FILE", path)
    is_toml = path.endswith(".toml")
    try:
        if is_toml:
            tables = tomllib.loads(text.decode())
            return _JSON.encode(tables).encode()
        json.loads(text, object_pairs_hook=_once, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise place.wrong(f"is not {'TOML' if is_toml else 'JSON'}: {error}") from error
    return text


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            message = f"duplicate key {key!r}"
            raise ValueError(message)
        found[key] = value
    return found


def _refuse(constant: str) -> NoReturn:
    message = f"{constant} is not a JSON number"
    raise ValueError(message)


@contextlib.contextmanager
def placed(document: JobDocument | None) -> Iterator[None]:
    """Name the places in the file, if there is one, in the engine's errors about a job."""
    try:
        yield
    except errors.InvalidRequestError as error:
        if document is None:
            raise
        places = [document.places[node.name] for node in document.graph]
        violations = (
            errors.FieldViolation(_place_of(it.field, places), it.description)
            for it in error.violations
        )
        raise errors.InvalidRequestError(*violations) from error


def _place_of(field: str, places: Sequence[str]) -> str:
    found = _NODE.search(field)
    if found is None or int(found[1]) >= len(places):
        return field
    rest = field[found.end() :]
    for wire, ours in (("predecessors", "after"), ("retry_policy", "retry")):
        rest = rest.replace(f".{wire}", f".{ours}")
    return f"{places[int(found[1])]}{rest}"


def deadline_of(value: object) -> Deadline:
    """Return a duration, as `duration_of` does, or an instant; ValueError: it is neither."""
    with contextlib.suppress(ValueError):
        return duration_of(value)
    with contextlib.suppress(ValueError):
        return instant_of(str(value))
    forms = "a duration such as 2h or an instant such as 2026-01-31T12:00:00Z"
    message = f"must be {forms}, got {value!r}"
    raise ValueError(message)


def duration_of(value: object) -> dt.timedelta:
    """Return a duration of its text, or of a number of seconds; ValueError: it is neither."""
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return dt.timedelta(seconds=value)
        found = convert(dt.timedelta, [str(value)])
    except (CycloptsError, ValueError, OverflowError):
        message = f"must be a duration such as 30s, 10m or 2h, got {value!r}"
        raise ValueError(message) from None
    assert isinstance(found, dt.timedelta), "converted to another type"
    return found


def _graph(place: _Place, nodes: Mapping[str, _NodeTable]) -> Graph:
    graph = Graph()
    for name in _in_order(place, nodes):
        node, here = nodes[name], place.key(name)
        args, options = _args(node, here), _options(node, here)
        try:
            graph.node(name, args, after=node.after, **options)
        except ValueError as error:
            raise here.wrong(str(error)) from error
    return graph


def _args(node: _NodeTable, place: _Place) -> bytes:
    forms = {
        "args": bool(bytes(node.args)),
        "args_text": node.args_text is not None,
        "args_base64": node.args_base64 is not None,
    }
    given = [key for key, is_given in forms.items() if is_given]
    if len(given) > 1:
        raise place.key(given[1]).wrong(f"cannot be combined with {given[0]}")
    if node.args_base64 is not None:
        decode = functools.partial(base64.b64decode, validate=True)
        return place.key("args_base64").read(decode, node.args_base64)
    return bytes(node.args) or (node.args_text or "").encode()


def _options(node: _NodeTable, place: _Place) -> NodeOptions:
    options = NodeOptions(
        namespace=node.namespace,
        process_id=node.process_id,
        target=node.target,
        wants_results=node.wants_results,
    )
    if node.zombie_policy is not None:
        options["zombie_policy"] = ZombiePolicy(node.zombie_policy)
    if node.constraints is not None:
        options["constraints"] = _constraints(node.constraints, place.key("constraints"))
    if node.retry is not None:
        options["retry_policy"] = _retry(node.retry, place.key("retry"))
    return options


def _constraints(table: _ConstraintsTable, place: _Place) -> Constraints:
    given = msgspec.structs.asdict(table)
    try:
        return ConstraintsInput(gate=given.pop("gates"), **given).constraints() or Constraints()
    except errors.InvalidRequestError as error:
        [violation] = error.violations
        key = {"--gate": "gates", "--order": "order", "--run-at": "run_at"}[violation.field]
        raise place.key(key).wrong(violation.description) from error


def _retry(table: _RetryTable, place: _Place) -> RetryPolicy:
    given: dict[str, Any] = {
        key: value for key, value in msgspec.structs.asdict(table).items() if value is not None
    }
    for key in ("initial_interval", "interval_max", "elapsed_max"):
        if key in given:
            given[key] = place.key(key).read(duration_of, given[key])
    return RetryPolicy(**given)


def _in_order(place: _Place, nodes: Mapping[str, _NodeTable]) -> list[str]:
    """Return the names in an order in which each follows its predecessors, else as in the file."""

    def wrong(name: str, before: str, description: str) -> errors.InvalidRequestError:
        here = place.key(name).key("after").at(f"[{nodes[name].after.index(before)}]")
        return here.wrong(description)

    for name, node in nodes.items():
        for before in node.after:
            if before not in nodes:
                raise wrong(name, before, f"{before!r} is not a node of the file")
    try:
        graphlib.TopologicalSorter({name: node.after for name, node in nodes.items()}).prepare()
    except graphlib.CycleError as error:
        # Each node of the list that comes with the error precedes the next.
        name, before, *others = reversed(error.args[1])
        words = f"forms a cycle: {' after '.join([name, before, *others])}"
        raise wrong(name, before, words) from error
    return _sorted(nodes)


def _sorted(nodes: Mapping[str, _NodeTable]) -> list[str]:
    """Return the names of nodes without cycles in the order that `_in_order` promises."""
    found: dict[str, None] = {}
    for start in nodes:
        # Nodes that wait for their predecessors, with those left to visit.
        path = [] if start in found else [(start, iter(nodes[start].after))]
        while path:
            name, left = path[-1]
            missing = next((it for it in left if it not in found), None)
            if missing is None:
                found[name] = None
                path.pop()
            else:
                path.append((missing, iter(nodes[missing].after)))
    return [*found]
