"""The house rules that no other tool holds: clocks, broad catches, loose tasks, sizes, headers."""

import ast
import dataclasses
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "progressor"
FILE_LINES_MAX = 800
FUNCTION_LINES_MAX = 70

READERS_OF_THE_CLOCK = {
    "clock.py": "the one place",
    "engine/engine.py": "composition root",
    "engine/cell.py": "as above: what there is for each database",
    "engine/wiring.py": "as above: its parts, put together",
    "example/rollout.py": "what a user writes, who wants a night",
    "sdk/client/client.py": "default of an argument that a user may give",
    "sdk/processor/processor.py": "compares with the deadline of an attempt that still runs",
    "sdk/processor/links.py": "spreads the repeats of many steps",
}
BROAD_CATCHERS = {
    "runtime/core/context.py": "the next scan sees the same rows",
    "api/calls/interceptors.py": "turns a bug into INTERNAL",
    "engine/cell.py": "what breaks one of several cells is logged, and the others go on",
    "api/calls/guarded.py": "records that a request has failed, by a bug too, and raises it again",
    "sdk/processor/blocking.py": "hands every error to the coroutine that it times",
    "sdk/processor/processor.py": "turns whatever the user's code raises into a failed step",
    "sdk/processor/requests.py": "ends a step whose result a codec of the user's cannot encode",
    "sdk/processor/versions.py": "says in which upgrade the user's code raised an error",
    "sdk/testing/snapshots.py": "names each state on which the user's code raises an error",
    "sdk/processor/streaming.py": "turns a bug in one step of a stream into its answer",
    "storage/doctor/doctor.py": "hands every error of a run to those who wait for it",
    "storage/commit/group_read.py": "what is raised for a batch that is read costs one item",
    "telemetry/metrics/otlp.py": "a value that the exporter cannot encode costs one push",
    "telemetry/traces/span_queue.py": "a bug of the exporter costs one batch",
}
TASKS_WITHOUT_GROUP = {
    "console/live.py": "the last watcher of a page ends its task, and a bug in one ends no other",
    "console/visits/logins.py": "its waiter may leave, and a renewal goes on for seconds at most",
    "console/serving.py": "the context waits for it; a group would wrap what its body raises",
    "sdk/processor/requests.py": "a group would wrap what the user's block raises",
    "sdk/transport/session.py": "a client has no task group; `close` ends its tasks",
}
CLOCKS = re.compile(r"(dt|datetime)(\.datetime)?\.(now|utcnow|today)|time\.time(_ns)?|random\.\w+")
SQL_NAME = re.compile(r"^CREATE (OR REPLACE )?FUNCTION (\w+)", re.MULTILINE)
SQL_LOCK = re.compile(r"FOR (NO KEY UPDATE|UPDATE|KEY SHARE)|LOCK TABLE")


@dataclasses.dataclass(frozen=True, slots=True)
class Module:
    """One of our files, with its path from the package."""

    name: str
    lines: tuple[str, ...]
    tree: ast.Module

    def places(self, *nodes: ast.AST) -> list[str]:
        """Return where nodes stand, as `file:line`."""
        return [f"{self.name}:{getattr(node, 'lineno', 0)}" for node in nodes]


@functools.cache
def modules() -> tuple[Module, ...]:
    """Return every file of the package but the generated ones."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith("v1/"):
            text = path.read_text()
            found.append(Module(name, tuple(text.splitlines()), ast.parse(text)))
    return tuple(found)


def calls(module: Module, method: str) -> Iterator[ast.Call]:
    """Yield the calls of a function or method by its name."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else _text(function)
            if name == method:
                yield node


def task_groups(module: Module) -> set[str]:
    """Return the names that stand for a TaskGroup: entered, or said to be one."""
    names: set[str] = set()
    for node in ast.walk(module.tree):
        match node:
            case ast.withitem(
                context_expr=ast.Call(func=function), optional_vars=ast.expr() as name
            ):
                if _text(function) == "asyncio.TaskGroup":
                    names.add(_text(name))
            case ast.arg(arg=argument, annotation=ast.expr() as annotation):
                if "asyncio.TaskGroup" in _text(annotation):
                    names.add(argument)
            case ast.AnnAssign(target=target, annotation=annotation):
                if "asyncio.TaskGroup" in _text(annotation):
                    names.add(_text(target))
            case _:
                pass
    return names


def uses_clock(node: ast.AST) -> bool:
    """Tell whether a node reads a clock or draws from chance without a seed of its own."""
    if not isinstance(node, ast.Attribute):
        return False
    text = _text(node)
    return text != "random.Random" and CLOCKS.fullmatch(text) is not None


def test_only_the_named_files_read_a_clock_or_draw_by_chance() -> None:
    found = [
        place
        for module in modules()
        if module.name not in READERS_OF_THE_CLOCK
        for place in module.places(*(each for each in ast.walk(module.tree) if uses_clock(each)))
    ]

    assert found == []


def test_only_composition_roots_make_a_source_of_chance() -> None:
    made = {
        module.name
        for module in modules()
        for call in calls(module, "Random")
        if _text(call.func) == "random.Random"
    }

    assert made <= READERS_OF_THE_CLOCK.keys()


def test_only_the_named_files_catch_everything() -> None:
    found = {
        module.name: module.places(node)
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or _text(node.type) in {"Exception", "BaseException"})
    }

    assert found.keys() <= BROAD_CATCHERS.keys(), found


def test_nothing_swallows_a_cancellation() -> None:
    found = [
        place
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ExceptHandler)
        and node.type is not None
        and "CancelledError" in _text(node.type)
        and not any(isinstance(each, ast.Raise) for each in ast.walk(node))
        for place in module.places(node)
    ]

    assert found == []


def test_no_task_is_made_outside_a_group() -> None:
    found = [
        place
        for module in modules()
        if module.name not in TASKS_WITHOUT_GROUP
        for call in calls(module, "create_task")
        if not isinstance(call.func, ast.Attribute)
        or _text(call.func.value) not in task_groups(module)
        for place in module.places(call)
    ]

    assert found == []


@pytest.mark.parametrize("function", ["ensure_future", "gather"])
def test_no_future_is_left_to_itself(function: str) -> None:
    found = [place for module in modules() for place in module.places(*calls(module, function))]

    assert found == []


def test_every_task_has_a_name() -> None:
    found = [
        place
        for module in modules()
        for call in calls(module, "create_task")
        if not any(keyword.arg == "name" for keyword in call.keywords)
        for place in module.places(call)
    ]

    assert found == []


def test_no_file_is_too_long() -> None:
    found = {
        module.name: len(module.lines) for module in modules() if len(module.lines) > FILE_LINES_MAX
    }

    assert found == {}


def test_no_function_is_too_long() -> None:
    found = {
        f"{module.name}:{node.name}": node.end_lineno - node.lineno + 1
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
    }

    assert found == {}


@pytest.mark.parametrize(
    "path",
    sorted(
        path for path in (ROOT / "priv/functions").rglob("*.sql") if path.parent.name != "types"
    ),
    ids=lambda path: path.stem,
)
def test_a_sql_function_says_what_it_does_what_it_locks_and_what_it_returns(path: Path) -> None:
    text = path.read_text()
    header = text[: text.index("CREATE ")].splitlines()
    sections = [line for line in header if line.startswith(("-- Locks: ", "-- Returns: "))]

    assert SQL_NAME.findall(text) == [("", path.stem)]
    assert all(line == "--" or line.startswith("-- ") for line in header)
    assert len(header[0]) > len("-- what")
    assert not header[0].startswith(("-- Locks", "-- Returns"))
    said = [line.split(":")[0] for line in sections]
    assert said == sorted({*said})
    assert "-- Locks" in said or not SQL_LOCK.search(text)
    assert "-- Returns" in said or "RETURNS void" in text


def _text(node: ast.AST) -> str:
    return ast.unparse(node)
