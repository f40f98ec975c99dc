"""Commands about operations on many processes: bulk retry, repair, …, list, show, watch, stop."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import functools
import getpass
import re
import shlex
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Annotated, TypeVar

from cyclopts import Group, Parameter
from cyclopts.types import Int32
from rich.console import RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from progressor import errors
from progressor.cli.input.filters import FilterInput, filter_text
from progressor.cli.input.options import (
    PAGE_MAX,
    EngineOptions,
    PayloadInput,
    Scope,
    bad_input,
    check_limit,
    client_of,
    first,
    option,
)
from progressor.cli.input.question import confirmed
from progressor.cli.output import (
    Column,
    ExitCode,
    SafeConsole,
    command_text,
    duration_text,
    facts,
    instant_text,
    more_note,
    one_line,
    pause_text,
    show,
    status_text,
    table,
)
from progressor.domain.processes.policy import Pause
from progressor.domain.views.bulk import OPERATIONS
from progressor.sdk.client.bulk import (
    BulkItem,
    BulkKind,
    BulkOperation,
    BulkPreview,
    BulkResult,
    BulkState,
)
from progressor.sdk.client.client import Client
from progressor.sdk.transport.failures import EngineUnavailableError
from progressor.sdk.values.processes import Process

T = TypeVar("T")

_LOOK_SECONDS = 0.5

_STEPS_SECONDS = 10.0
"""How long the end of an operation waits for the steps that it requested."""

_REQUESTS = frozenset({BulkKind.RETRY, BulkKind.REPAIR, BulkKind.NOTIFY})
"""What is only requested when a process has a result."""

_UNLIMITED = "unlimited"
_RATE = re.compile("[1-9][0-9]{0,6}")

Limit = Annotated[int, option("The maximum number to print.")]
Every = Annotated[
    bool, Parameter(name="--all", negative="", help="All processes, instead of a filter.")
]


@Parameter(name="*", group=Group("Operation", sort_key=3))
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BulkInput:
    """How the operation is carried out."""

    why: Annotated[str, option("Why, for the record; for terminate, the reason of each end.")] = ""
    rate: Annotated[str, option(f"Processes per second, or {_UNLIMITED}.")] = "100"
    failed_share: Annotated[
        float, option("Stop when more than this share of the last results are failures.")
    ] = 0.1
    failed_window: Annotated[Int32, option("How many of the last results these are.")] = 100
    follow_matching: Annotated[
        bool, option("Also take up processes that match later, each once, until it is stopped.")
    ] = False
    id: Annotated[str | None, option("The id of the operation; a random one by default.")] = None
    yes: Annotated[bool, option("Start without a preview and without asking.")] = False
    dry_run: Annotated[
        bool, option("Only print what matches; the exit code is 1 if nothing does.")
    ] = False
    detach: Annotated[bool, option("Return once it has started, instead of watching it.")] = False

    @property
    def rate_max(self) -> int | None:
        if self.rate == _UNLIMITED:
            return None
        if not _RATE.fullmatch(self.rate):
            raise bad_input("--rate", f"must be 1 to 9,999,999 or {_UNLIMITED}, got {self.rate!r}")
        return int(self.rate)


_OPERATIONS: Mapping[str, Column[BulkOperation]] = {
    "operation": lambda it: one_line(it.operation_id),
    "kind": lambda it: _words(it.kind),
    "state": lambda it: it.state.value,
    "matched": lambda it: f"{it.matched_count:,}",
    "applied": lambda it: f"{it.done_count:,}",
    "skipped": lambda it: f"{it.skipped_count:,}",
    "failed": lambda it: f"{it.failed_count:,}",
    "created": lambda it: instant_text(it.created_at),
    "processes": lambda it: one_line(_scope(it)),
    "by": lambda it: one_line(it.author),
    "why": lambda it: one_line(it.reason),
}
_ITEMS: Mapping[str, Column[BulkItem]] = {
    "": lambda it: str(it.item),
    "namespace": lambda it: it.namespace,
    "process": lambda it: one_line(it.process_id),
    "result": lambda it: it.result.value,
    "reason": lambda it: it.reason,
    "task": lambda it: "" if it.task_id is None else str(it.task_id),
    "at": lambda it: instant_text(it.ended_at),
}
_SAMPLE: Mapping[str, Column[Process]] = {
    "namespace": lambda it: it.namespace,
    "process": lambda it: one_line(it.process_id),
    "status": lambda it: status_text(it.status),
    "status since": lambda it: instant_text(it.status_changed_at),
    "detail": lambda it: one_line(it.detail),
}


async def retry(
    *,
    processes: FilterInput = FilterInput(),
    how: BulkInput = BulkInput(),
    scope: Scope = Scope(),
) -> ExitCode:
    """Run the task that broke each matching process again, with all its attempts."""
    return await _run(BulkKind.RETRY, processes, how, scope)


async def simple_repair(
    *,
    processes: FilterInput = FilterInput(),
    how: BulkInput = BulkInput(),
    scope: Scope = Scope(),
) -> ExitCode:
    """Repair each matching process without its processor."""
    return await _run(BulkKind.SIMPLE_REPAIR, processes, how, scope)


async def repair(
    *,
    processes: FilterInput = FilterInput(),
    payload: PayloadInput = PayloadInput(),
    how: BulkInput = BulkInput(),
    scope: Scope = Scope(),
) -> ExitCode:
    """Repair each matching process by its processor."""
    return await _run(BulkKind.REPAIR, processes, how, scope, payload.payload())


async def notify(
    *,
    processes: FilterInput = FilterInput(),
    payload: PayloadInput = PayloadInput(),
    how: BulkInput = BulkInput(),
    scope: Scope = Scope(),
) -> ExitCode:
    """Notify each matching process: send it a call without waiting for its response."""
    return await _run(BulkKind.NOTIFY, processes, how, scope, payload.payload())


async def cancel(
    *,
    processes: FilterInput = FilterInput(),
    how: BulkInput = BulkInput(),
    scope: Scope = Scope(),
) -> ExitCode:
    """Cancel the task that runs, or else the one that comes first, of each matching process."""
    return await _run(BulkKind.CANCEL, processes, how, scope)


async def terminate(
    *,
    processes: FilterInput = FilterInput(),
    every: Every = False,
    how: BulkInput = BulkInput(),
    scope: Scope = Scope(),
) -> ExitCode:
    """End each matching process, and keep its record."""
    _check_all(processes, how, every=every)
    if not (how.why.strip() or how.dry_run):
        raise bad_input("--why", "must be given: it is the reason of each end")
    return await _run(BulkKind.TERMINATE, processes, how, scope)


async def remove(
    *,
    processes: FilterInput = FilterInput(),
    every: Every = False,
    how: BulkInput = BulkInput(),
    scope: Scope = Scope(),
) -> ExitCode:
    """Delete each matching process."""
    _check_all(processes, how, every=every)
    return await _run(BulkKind.REMOVE, processes, how, scope)


async def list_operations(*, limit: Limit = 100, options: EngineOptions = EngineOptions()) -> None:
    """Print the operations, newest first."""
    check_limit(limit)
    async with client_of(options) as client:
        found, more = await first(limit, client.bulk.list(page_size=min(PAGE_MAX, limit + 1)))
        pause = await _pause_of(client)
    document = {"operations": found, "more": more, "pause": pause}
    notes = (*more_note(limit, more=more), *_pause_notes(pause, options))
    show(document, table(_OPERATIONS, found), *notes, as_json=options.json)


async def show_operation(operation_id: str, /, *, options: EngineOptions = EngineOptions()) -> None:
    """Print an operation and its progress."""
    async with client_of(options) as client:
        bulk = await client.bulk.get(operation_id, count_outcomes=True)
        await _show(client, bulk, options)


async def watch(operation_id: str, /, *, options: EngineOptions = EngineOptions()) -> ExitCode:
    """Watch an operation until it ends.

    The exit code is 0 if it is done, nothing failed, and none of its processes is in error.
    """
    async with client_of(options) as client:
        bulk = await _watched(client, await client.bulk.get(operation_id), options)
    return _end(bulk, options)


async def stop(
    operation_id: str,
    /,
    *,
    why: Annotated[str, option("Why, for the record.")] = "stopped from the command line",
    options: EngineOptions = EngineOptions(),
) -> None:
    """Stop an operation; the processes that it has changed stay changed."""
    async with client_of(options) as client:
        before = await client.bulk.get(operation_id)
        bulk = await client.bulk.stop(operation_id, why)
    note = ["It had ended before."] if before.has_ended else []
    show(bulk, _facts(bulk), *note, as_json=options.json)


async def results(
    operation_id: str,
    /,
    *,
    failed: Annotated[bool, option("Only the processes that could not be changed.")] = False,
    limit: Limit = 100,
    options: EngineOptions = EngineOptions(),
) -> None:
    """Print the processes of an operation, each with its result."""
    check_limit(limit)
    async with client_of(options) as client:
        bulk = await client.bulk.get(operation_id)
        listing = client.bulk.results(
            operation_id, failed=failed, page_size=min(PAGE_MAX, limit + 1)
        )
        found, more = await first(limit, listing)
    document = {"results": found, "more": more}
    columns = dict(_ITEMS)
    columns["result"] = lambda it: (
        _done(bulk.kind) if it.result is BulkResult.DONE else it.result.value
    )
    show(document, table(columns, found), *more_note(limit, more=more), as_json=options.json)


async def _run(
    kind: BulkKind, processes: FilterInput, how: BulkInput, scope: Scope, args: bytes = b""
) -> ExitCode:
    rate_max, wanted = how.rate_max, processes.options(scope.namespace)
    async with client_of(scope) as client:
        if how.dry_run or not how.yes:
            if scope.json and not how.dry_run:
                raise bad_input("--yes", "must be given with --json")
            preview = await client.bulk.preview(kind, **wanted)
            what = f"{_words(kind)} {filter_text(wanted)}"
            show(preview, *_preview(what, preview, rate_max), as_json=scope.json)
            if not (preview.matched_count or how.follow_matching):
                return ExitCode.FAILED
            if how.dry_run:
                return ExitCode.DONE
            if not await confirmed("Start?"):
                return ExitCode.FAILED
        bulk = await client.bulk.start(
            kind,
            args,
            operation_id=how.id,
            reason=how.why,
            author=_author(),
            rate_max=rate_max,
            failed_share_max=how.failed_share,
            failed_window=how.failed_window,
            follow=how.follow_matching,
            **wanted,
        )
        if how.detach:
            await _show(client, bulk, scope)
            return ExitCode.DONE
        bulk = await _watched(client, bulk, scope)
    return _end(bulk, scope)


async def _watched(client: Client, bulk: BulkOperation, options: EngineOptions) -> BulkOperation:
    """Return an operation when it has ended, with its outcomes; draw its progress on a terminal."""
    console = SafeConsole(stderr=True, highlight=False)
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.fields[failed]}"), TimeRemainingColumn(),
        console=console, disable=not console.is_terminal or options.json,
    )  # fmt: skip
    pause: Pause | None = None
    try:
        with progress:
            bar = progress.add_task(_words(bulk.kind), total=None, failed="")
            while not bulk.has_ended:
                # In a pause a bar would stand still without a word.
                before, pause = pause, await _pause_of(client)
                if pause != before and not options.json:
                    for note in [*_pause_notes(pause, options)] or ["operations are resumed"]:
                        console.print(note, soft_wrap=True)
                await asyncio.sleep(_LOOK_SECONDS)
                bulk = await _patiently(client.bulk.get, bulk.operation_id, options.timeout)
                progress.update(
                    bar,
                    total=None if bulk.state is BulkState.MATCHING else bulk.matched_count,
                    completed=bulk.ended_count,
                    failed=f"{bulk.failed_count:,} failed" if bulk.failed_count else "",
                )
    except asyncio.CancelledError:
        operation_id = shlex.quote(bulk.operation_id)
        sys.stderr.write(
            f"\noperation {operation_id} continues\n"
            f"  watch it: progressor bulk watch {operation_id}{options.again}\n"
            f"  stop it:  progressor bulk stop {operation_id}{options.again}\n"
        )
        raise
    return await _outcomes(client, bulk.operation_id, options)


async def _outcomes(client: Client, operation_id: str, options: EngineOptions) -> BulkOperation:
    """Return an operation that has ended; wait a while for the steps that it requested."""
    loop = asyncio.get_running_loop()
    look = functools.partial(client.bulk.get, count_outcomes=True)
    gives_up_at = loop.time() + _STEPS_SECONDS
    bulk = await _patiently(look, operation_id, options.timeout)
    while bulk.waiting_count and loop.time() < gives_up_at:
        await asyncio.sleep(_LOOK_SECONDS)
        bulk = await _patiently(look, operation_id, options.timeout)
    return bulk


async def _patiently(look: Callable[[str], Awaitable[T]], operation_id: str, seconds: float) -> T:
    """Return an operation; while the engine is unavailable, look again for so many seconds."""
    loop = asyncio.get_running_loop()
    gives_up_at = loop.time() + seconds
    while loop.time() < gives_up_at:
        with contextlib.suppress(
            EngineUnavailableError, errors.StorageUnavailableError, errors.ShuttingDownError
        ):
            return await look(operation_id)
        await asyncio.sleep(_LOOK_SECONDS)
    return await look(operation_id)


async def _show(client: Client, bulk: BulkOperation, options: EngineOptions) -> None:
    pause = None if bulk.has_ended or options.json else await _pause_of(client)
    notes = (*_hints(bulk, options), *_pause_notes(pause, options))
    show(bulk, _facts(bulk), *notes, as_json=options.json)


def _end(bulk: BulkOperation, options: EngineOptions) -> ExitCode:
    show(bulk, _facts(bulk), *_hints(bulk, options), as_json=options.json)
    is_done = bulk.state is BulkState.DONE and not (bulk.failed_count or bulk.error_count)
    return ExitCode.DONE if is_done and bulk.matched_count else ExitCode.FAILED


def _check_all(processes: FilterInput, how: BulkInput, *, every: bool) -> None:
    if every == (processes == FilterInput()) or (how.dry_run and not every):
        return
    if every:
        raise bad_input("--all", "must not be given with a filter")
    raise bad_input("--all", "must be given where no filter is: all processes match")


def _preview(what: str, preview: BulkPreview, rate_max: int | None) -> list[RenderableType]:
    count = f"{'about ' if preview.is_estimate else ''}{preview.matched_count:,}"
    noun = "process matches" if preview.matched_count == 1 else "processes match"
    shown: list[RenderableType] = [f"{what}: {count if preview.matched_count else 'no'} {noun}"]
    if rate_max is not None and preview.matched_count:
        seconds = preview.matched_count / rate_max
        shown.append(f"takes about {_rounded(seconds)} at {rate_max:,} per second")
    if preview.sample:
        shown += ["", table(_SAMPLE, preview.sample), ""]
    return shown


def _hints(bulk: BulkOperation, options: EngineOptions) -> Iterator[RenderableType]:
    if bulk.failed_count:
        operation_id = shlex.quote(bulk.operation_id)
        words = f"failed processes: progressor bulk results --failed {operation_id}{options.again}"
        yield command_text(words)
    if bulk.error_count:
        where = f" -n {bulk.filter.namespace}" if bulk.filter.namespace else ""
        yield command_text(f"why they are in error: progressor failures{where}{options.again}")


async def _pause_of(client: Client) -> Pause | None:
    """Return the pause of all operations; None also if the caller may not know."""
    with contextlib.suppress(errors.ProgressorError):
        return (await client.namespaces.get(OPERATIONS)).pause
    return None


def _pause_notes(pause: Pause | None, options: EngineOptions) -> Iterator[RenderableType]:
    if pause is not None:
        yield Text(f"No operation goes on, all are paused: {pause_text(pause)}", style="yellow")
        yield command_text(f"resume them: progressor namespace resume {OPERATIONS}{options.again}")


def _rounded(seconds: float) -> str:
    return duration_text(dt.timedelta(seconds=max(1, round(seconds))))


def _facts(bulk: BulkOperation) -> RenderableType:
    return facts(
        {
            "operation": one_line(bulk.operation_id),
            "kind": _words(bulk.kind),
            "processes": _scope(bulk),
            "state": bulk.state.value,
            "because": one_line(bulk.stop_reason),
            "matched": f"{bulk.matched_count:,}",
            _done(bulk.kind): f"{bulk.done_count:,}",
            "not ended yet": f"{bulk.waiting_count:,}" if bulk.waiting_count else "",
            "in error now": f"{bulk.error_count:,}" if bulk.error_count else "",
            "skipped": f"{bulk.skipped_count:,}" if bulk.skipped_count else "",
            "failed": f"{bulk.failed_count:,}" if bulk.failed_count else "",
            "rate": _UNLIMITED if bulk.rate_max is None else f"{bulk.rate_max:,} per second",
            "by": one_line(bulk.author),
            "why": one_line(bulk.reason),
            "follows": "what matches later" if bulk.follow else "",
            "created": instant_text(bulk.created_at),
            "ended": instant_text(bulk.ended_at),
        }
    )


def _scope(bulk: BulkOperation) -> str:
    names = (it.name for it in dataclasses.fields(bulk.filter))
    return filter_text({name: getattr(bulk.filter, name) for name in names})


def _done(kind: BulkKind) -> str:
    return "requested" if kind in _REQUESTS else "done"


def _words(kind: BulkKind) -> str:
    return kind.value.replace("_", " ")


def _author() -> str:
    """Return user@host; the parts that the system does not know are left out."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        user = ""
    return f"{user}@{socket.gethostname()}"[:200]
