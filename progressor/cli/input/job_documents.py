"""Jobs as files: a JSON or TOML document becomes the graph to submit.

`progressor.cli.jobs.format` shows a whole one. Nodes stand in any order in a file; they are sent so
that each stands behind all that it comes after. What is wrong is told with its place, as in
``job.toml: nodes.deploy.after[0]: 'biuld' is not a node of the file``.
"""

import base64
import contextlib
import dataclasses
import datetime as dt
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from cyclopts import CycloptsError, convert

from progressor import errors
from progressor.cli.input.file_tables import FileTable, read_table
from progressor.cli.input.inputs import ConstraintsInput, checked_metadata, instant_of
from progressor.domain.processes.policy import RetryPolicy
from progressor.sdk.values.constraints import Constraints
from progressor.sdk.values.graph import Graph, NodeOptions
from progressor.sdk.values.namespaces import ZombiePolicy

Deadline: TypeAlias = dt.datetime | dt.timedelta

_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_NODE = re.compile(r"\bnodes\[(\d+)\]")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobDocument:
    """What a file says of a job.

    ``graph`` has its nodes in the order in which they are sent; ``places`` says where in the file
    each of them stands. ``job_id`` "": the file has none.
    """

    job_id: str
    graph: Graph
    deadline: Deadline | None
    context: Mapping[str, str]
    metadata: Mapping[str, Any] | None
    places: Mapping[str, str]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Spec:
    """A node as the file has it, and where."""

    table: FileTable
    args: bytes
    after: tuple[str, ...]
    options: NodeOptions


def read_job(path: str) -> JobDocument:
    """Return the job of a file, of standard input for ``-``.

    Raises:
        InvalidRequestError: It cannot be read, or a place in it is wrong, which is named.
    """
    top = read_table(path, option="FILE")
    if "nodes" not in top:
        raise top.wrong("there must be a table of nodes", "nodes")
    nodes = top.table("nodes")
    specs = {name: _spec(nodes.table(name)) for name in nodes.keys}
    if not specs:
        raise top.wrong("has no node", "nodes")
    job = JobDocument(
        graph=_graph(nodes, specs),
        job_id=top.take("job_id", str, ""),
        deadline=top.read("deadline", deadline_of),
        context=top.take("context", dict[str, str], {}),
        metadata=_metadata(top),
        places={name: nodes.name_of(name) for name in specs},
    )
    top.check_empty()
    return job


@contextlib.contextmanager
def placed(document: JobDocument | None) -> Iterator[None]:
    """Have what an engine refuses of a job named by its place in the file, if there is one.

    Raises:
        InvalidRequestError: The one that came, with other fields.
    """
    try:
        yield
    except errors.InvalidRequestError as error:
        if document is None:
            raise
        places = [document.places[node.name] for node in document.graph]
        violations = (
            errors.FieldViolation(_place(it.field, places), it.description)
            for it in error.violations
        )
        raise errors.InvalidRequestError(*violations) from error


def _place(field: str, places: Sequence[str]) -> str:
    found = _NODE.search(field)
    if found is None or int(found[1]) >= len(places):
        return field
    rest = field[found.end() :]
    for wire, ours in (("predecessors", "after"), ("retry_policy", "retry")):
        rest = rest.replace(f".{wire}", f".{ours}")
    return f"{places[int(found[1])]}{rest}"


def _metadata(top: FileTable) -> dict[str, Any] | None:
    found = top.take("metadata", dict[str, Any], {})
    try:
        return checked_metadata(found) or None
    except ValueError as error:
        raise top.wrong(str(error), "metadata") from error


def deadline_of(value: object) -> Deadline:
    """Return an instant, or a duration from now on, of its text; or of a number of seconds.

    Raises:
        ValueError: It is neither.
    """
    found: Deadline | None = _duration_or_none(value)
    if found is None:
        try:
            found = instant_of(str(value))
        except ValueError:
            message = (
                f"{value!r} is neither a duration as 2h nor an instant as 2026-01-31T12:00:00Z"
            )
            raise ValueError(message) from None
    return found


def _spec(table: FileTable) -> _Spec:
    spec = _Spec(
        table=table,
        args=_args(table),
        after=table.take("after", tuple[str, ...], ()),
        options=_options(table),
    )
    table.check_empty()
    return spec


def _args(table: FileTable) -> bytes:
    given = [key for key in ("args", "args_text", "args_base64") if key in table]
    if len(given) > 1:
        raise table.wrong(f"only one of {given[0]} and {given[1]} can be given", given[1])
    text = table.take("args_text", str, "").encode()
    encoded = table.read("args_base64", lambda it: base64.b64decode(str(it), validate=True))
    return table.raw("args") or encoded or text


def _options(table: FileTable) -> NodeOptions:
    options = NodeOptions(
        namespace=table.take("namespace", str, ""),
        process_id=table.take("process_id", str, ""),
        target=table.take("target", str, ""),
        wants_results=table.take("wants_results", bool, default=False),
    )
    zombie_policy = table.optional("zombie_policy", Literal["retry", "fail"])
    if zombie_policy is not None:
        options["zombie_policy"] = ZombiePolicy(zombie_policy)
    if "constraints" in table:
        options["constraints"] = _constraints(table.table("constraints"))
    if "retry" in table:
        options["retry_policy"] = _retry(table.table("retry"))
    return options


def _constraints(table: FileTable) -> Constraints:
    given = ConstraintsInput(
        gate=table.take("gates", tuple[str, ...], ()),
        order=table.optional("order", str),
        run_at=table.optional("run_at", str),
        priority=table.optional("priority", _Int32),
        hold=table.optional("hold", Literal["task", "process"]),
    )
    table.check_empty()
    try:
        return given.constraints() or Constraints()
    except errors.InvalidRequestError as error:
        [violation] = error.violations
        key = {"--gate": "gates", "--order": "order", "--run-at": "run_at"}[violation.field]
        raise table.wrong(violation.description, key) from error


def _retry(table: FileTable) -> RetryPolicy:
    given = {
        "initial_interval": table.read("initial_interval", duration_of),
        "interval_max": table.read("interval_max", duration_of),
        "elapsed_max": table.read("elapsed_max", duration_of),
        "coefficient": table.optional("coefficient", float),
        "jitter": table.optional("jitter", float),
        "attempts_max": table.optional("attempts_max", _Int32),
        "non_retryable_reasons": table.optional("non_retryable_reasons", tuple[str, ...]),
    }
    table.check_empty()
    changes: dict[str, Any] = {key: it for key, it in given.items() if it is not None}
    return RetryPolicy(**changes)


def duration_of(value: object) -> dt.timedelta:
    """Return a duration of its text, or of a number of seconds.

    Raises:
        ValueError: It is none.
    """
    found = _duration_or_none(value)
    if found is None:
        message = f"{value!r} is not a duration as 30s, 10m or 2h"
        raise ValueError(message)
    return found


def _duration_or_none(value: object) -> dt.timedelta | None:
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return dt.timedelta(seconds=value)
        found = convert(dt.timedelta, [str(value)])
    except (CycloptsError, ValueError, OverflowError):
        return None
    assert isinstance(found, dt.timedelta), "what it was asked to convert to"
    return found


def _graph(nodes: FileTable, specs: Mapping[str, _Spec]) -> Graph:
    """Return the graph of nodes that may stand in any order in the file."""
    graph = Graph()
    for name in _in_order(specs):
        spec = specs[name]
        try:
            graph.node(name, spec.args, after=spec.after, **spec.options)
        except ValueError as error:
            raise nodes.wrong(str(error), name) from error
    return graph


def _in_order(specs: Mapping[str, _Spec]) -> list[str]:
    """Return names so that each stands behind all it comes after, else as they are in the file.

    Raises:
        InvalidRequestError: A name is not there, or nodes come after one another in a circle.
    """
    found: dict[str, None] = {}
    for start in specs:
        # What is looked at, each the reason for the next; with what each comes after.
        path = {} if start in found else {start: iter(specs[start].after)}
        while path:
            name = next(reversed(path))
            before = next(path[name], None)
            if before is None:
                found[name] = None
                del path[name]
            elif before not in specs:
                raise _misplaced(specs[name], before, f"{before!r} is not a node of the file")
            elif before in path:
                circle = [*path][[*path].index(before) :]
                words = " after ".join([*circle, before])
                raise _misplaced(specs[name], before, f"goes in a circle: {words}")
            elif before not in found:
                path[before] = iter(specs[before].after)
    return [*found]


def _misplaced(spec: _Spec, before: str, description: str) -> errors.InvalidRequestError:
    return spec.table.wrong(description, "after", f"[{spec.after.index(before)}]")
