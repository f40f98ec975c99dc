"""What clients sent and saw, as values, and the invariants that hold it against the database.

A process of these histories is one append list and one register. Each request carries an
*element*, an id of its own, and a *deed*: what the processor is to do. A step that succeeds appends
the element as an event, writes it with the new length into aux_state, and answers with the length
and the last elements before it. So every answer says where in the list it stands.

What a client could see of a request:

==========  =====================================================================
Done        the answer came
Accepted    it is durable, and will be done, or cancelled with the rest of the line
Refused     the reason came
Unknown     no word came: it was done, will be done, or never
==========  =====================================================================

`merged` makes one operation of all that was asked and seen of one element: repetitions under the
same idempotency key, those who awaited it, and those who cancelled it. Only a start that was
rejected leaves no key behind: repetitions of one may each have been done. `linear.py` asks whether
an order explains the operations; here `broken_promises` asks whether the database has them exactly
once.

A task that breaks its process may succeed when it is run again; then it appends an element of its
own (`again`), and that step is an operation beside the one that broke the process.
"""

import collections
import dataclasses
import enum
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

TAIL = 5
"""How many of the elements before its own an answer tells."""


class Kind(enum.StrEnum):
    """The kind of operation. TICK, RERUN, BIRTH and EXPIRY are events, not requests."""

    START = "start"
    CALL = "call"
    NOTIFY = "notify"
    REPAIR = "repair"
    SIMPLE_REPAIR = "simple_repair"
    RETRY = "retry"
    PUT = "put"
    REMOVE = "remove"
    AWAIT = "await"
    CANCEL = "cancel"
    LOOK = "look"
    TICK = "tick"  # a timer's step
    RERUN = "rerun"  # a step of a task that is run again
    BIRTH = "birth"  # a start was admitted, and its init task not yet settled
    EXPIRY = "expiry"  # a timer that removes


class Deed(enum.StrEnum):
    """What the processor is to do with a request, beside appending its element."""

    APPEND = "append"
    TIMER = "timer"  # ... and set a timer
    EXPIRE = "expire"  # ... and set a timer that removes the process
    COMPLETE = "complete"
    REMOVE = "remove"
    REJECT = "reject"  # appends nothing
    FAIL = "fail"  # appends nothing, and breaks the process


ENDING_DEEDS = frozenset({Deed.EXPIRE, Deed.REMOVE})


@dataclasses.dataclass(frozen=True, slots=True)
class Appended:
    """The answer of a step: the list's length with its own element, and some of those before.

    ``first`` is the list's first element; "": not told.
    """

    length: int
    before: tuple[str, ...]
    first: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Again:
    """The answer of a task that had broken its process, and has succeeded when run again."""

    element: str


@dataclasses.dataclass(frozen=True, slots=True)
class Sight:
    """What a reader saw at one instant. `status` "": not told; `elements` None: only how many."""

    status: str
    length: int
    elements: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Revived:
    """The answer of SimpleRepair: whether a timer runs again, or the process is simply running."""

    timer: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Done:
    """The answer came; None where it says nothing."""

    result: Appended | Again | Sight | Revived | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Accepted:
    """It is durable."""


@dataclasses.dataclass(frozen=True, slots=True)
class Refused:
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Unknown:
    why: str = ""


Outcome = Done | Accepted | Refused | Unknown

_AGAIN = ".again."


def again(element: str, run: int) -> str:
    """Return the element that a request appends in a later run of its task."""
    return f"{element}{_AGAIN}{run}"


def is_again(element: str) -> bool:
    return _AGAIN in element


def requested(element: str) -> str:
    """Return the element of the request that has appended an element, in whatever run."""
    return element.partition(_AGAIN)[0]


REJECTED, FAILED, REPAIR_FAILED = "REJECTED", "PROCESS_FAILED", "REPAIR_FAILED"
NOT_FOUND, REMOVED = "PROCESS_NOT_FOUND", "PROCESS_REMOVED"
CANCELLED, GATE_NOT_FOUND = "TASK_CANCELLED", "GATE_NOT_FOUND"

GONE = frozenset({NOT_FOUND, REMOVED})
"""Said also to the repetition of a request that was done before the process went."""

_BINDING = frozenset({REJECTED, REPAIR_FAILED, CANCELLED})
"""The final answer to a request: repeating it gives the same answer."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One request and what was seen of it; instants in seconds on one monotonic clock.

    ``answered_at`` is infinite where no answer came. ``element`` is "" for requests without a
    payload. ``imported`` are the elements that Put brings.
    """

    process_id: str
    kind: Kind
    outcome: Outcome
    sent_at: float
    answered_at: float = math.inf
    element: str = ""
    deed: Deed = Deed.APPEND
    key: str = ""
    imported: tuple[str, ...] = ()

    def __str__(self) -> str:
        what = " ".join(filter(None, (self.kind, self.deed.removeprefix("append"), self.element)))
        return f"{self.sent_at:.3f} .. {self.answered_at:.3f} {what} -> {self.outcome}"

    @property
    def ends_process(self) -> bool:
        return self.kind in {Kind.REMOVE, Kind.EXPIRY} or self.deed in ENDING_DEEDS


def merged(operations: Iterable[Operation], *, settled_at: float = math.inf) -> list[Operation]:
    """Return one operation for each element, and all those without one.

    What was accepted, and of which nothing more was heard, is done or cancelled by `settled_at`,
    when everything due had been done. Readings that brought nothing are left out.
    """
    by_element: dict[tuple[str, str], list[Operation]] = {}
    whole: list[Operation] = []
    for operation in operations:
        if operation.element:
            asked = by_element.setdefault((operation.process_id, operation.element), [])
            asked.append(operation)
            rerun = _rerun(operation)
            if rerun is not None:
                by_element.setdefault((rerun.process_id, rerun.element), []).append(rerun)
        elif not (operation.kind is Kind.LOOK and isinstance(operation.outcome, Unknown)):
            whole.append(operation)
    whole.extend(_one(asked, settled_at) for asked in by_element.values())
    whole.extend(itertools.chain.from_iterable(map(_anew, by_element.values())))
    return whole


def contradictions(operations: Iterable[Operation]) -> Iterator[str]:
    """Yield what was answered in two ways, of all that was asked of one element."""
    answers: dict[tuple[str, str], set[str]] = collections.defaultdict(set)
    cancelled: set[tuple[str, str]] = set()
    for operation in operations:
        answer = _binding_answer(operation)
        if operation.element and answer:
            answers[operation.process_id, operation.element].add(answer)
        if operation.kind is Kind.CANCEL:
            cancelled.add((operation.process_id, operation.element))
    for (process_id, element), found in answers.items():
        # A cancelled task gives its key back: a repetition may have been done.
        if len(found - {CANCELLED}) > 1:
            yield f"{process_id}: {element} was answered in two ways: {sorted(found)}"
        if CANCELLED in found and (process_id, element) not in cancelled:
            yield f"{process_id}: {element} was cancelled, and no client asked for that"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StoredTask:
    """A task as the database has it; ``element`` is its request's, ``set_by`` its timer's.

    ``is_gated``: it has constraints, and comes when these let it.
    """

    task_id: int
    task_type: str
    status: str
    element: str = ""
    set_by: str = ""
    is_gated: bool = False

    @property
    def is_import(self) -> bool:
        """Whether it stands for an import, which no processor was asked for."""
        return self.task_type == "init" and not self.element


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StoredProcess:
    """A process as the database has it: its events as pairs of task and element, in order.

    ``register`` is what aux_state holds: the last element, and how many there are.
    """

    process_id: str
    status: str
    events: tuple[tuple[int, str], ...]
    tasks: tuple[StoredTask, ...]
    register: tuple[str, int] = ("", 0)
    corrupted_by: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One line of a processor's journal: a step that it was asked for, and what it decided.

    Of the list that it was shown there are the first element, the length, and the last elements.
    Ahead in a turn it was shown elements that may never have been saved.
    """

    process_id: str
    task_id: int
    task_type: str
    element: str
    deed: Deed
    at: float
    first: str = ""
    length: int = 0
    before: tuple[str, ...] = ()
    is_ahead: bool = False


def broken_promises(
    process: StoredProcess, operations: Sequence[Operation], journal: Sequence[Asked]
) -> Iterator[str]:
    """Yield how a process in the database is not what the answers promised."""
    elements = [element for _, element in process.events]
    invariants = (
        _nothing_twice(elements),
        _nothing_unasked(elements, operations, journal),
        _one_event_each(process),
        _everything_acknowledged(process, elements, operations),
        _register_follows(process, elements),
        _in_line(process),
        _timers_were_set(process, elements, operations),
        _asked_before(process, operations, journal),
    )
    for broken in itertools.chain.from_iterable(invariants):
        yield f"{process.process_id}: {broken}"


def _nothing_twice(elements: Sequence[str]) -> Iterator[str]:
    for element, count in collections.Counter(elements).items():
        if count > 1:
            yield f"{element} is {count} times in the history"


def _one_event_each(process: StoredProcess) -> Iterator[str]:
    """A step that succeeds brings one event, its own; another brings none, an import any number."""
    tasks = {task.task_id: task for task in process.tasks if not task.is_import}
    counts = collections.Counter(task_id for task_id, _ in process.events)
    imports = {task.task_id for task in process.tasks if task.is_import}
    for task_id, element in process.events:
        if task_id in imports:
            continue
        task = tasks.get(task_id)
        if task is None or task.status != "finished":
            status = "there is none" if task is None else task.status
            yield f"{element} is of task {task_id}, which has not succeeded: {status}"
        elif task.element not in {"", requested(element)}:
            yield f"task {task_id} of {task.element} has brought {element}"
    for task in tasks.values():
        count = counts[task.task_id]
        if count > 1:
            yield f"task {task.task_id} was settled {count} times"
        if count == 0 and task.status == "finished" and task.task_type != "remove":
            yield f"task {task.task_id} has succeeded, and brought nothing"


def _nothing_unasked(
    elements: Sequence[str], operations: Sequence[Operation], journal: Sequence[Asked]
) -> Iterator[str]:
    asked = {operation.element for operation in operations}
    asked.update(itertools.chain.from_iterable(operation.imported for operation in operations))
    asked.update(
        line.element for line in journal if line.task_type == "timeout" or is_again(line.element)
    )
    for element in elements:
        if element not in asked:
            yield f"{element} is in the history, and no client asked for it"


def _everything_acknowledged(
    process: StoredProcess, elements: Sequence[str], operations: Sequence[Operation]
) -> Iterator[str]:
    if any(operation.ends_process for operation in operations):
        return  # It may have lived before: linear.py has the word.
    tasks = {task.element: task for task in process.tasks if task.element}
    for operation in operations:
        if operation.element:
            yield from _acknowledged(operation, elements, tasks)


def _acknowledged(
    operation: Operation, elements: Sequence[str], tasks: Mapping[str, StoredTask]
) -> Iterator[str]:
    element, is_there = operation.element, operation.element in elements
    match operation.outcome:
        case Done(result) if operation.kind is Kind.PUT:
            assert result is None, f"an import answers nothing: {operation}"
            if tuple(elements[: len(operation.imported)]) != operation.imported:
                yield f"{element} was imported, and does not begin the history"
        case Done() if not is_there:
            yield f"{element} was acknowledged, and is lost"
        case Done(Appended(length, before)):
            if tuple(elements[max(0, length - 1 - TAIL) : length]) != (*before, element):
                yield f"{element} is not where its answer says: {length}, behind {before}"
        case Accepted():
            is_done = element in map(requested, elements)
            yield from _accepted(element, tasks.get(element), is_there=is_done)
        case Refused(reason) if is_there:
            yield f"{element} was refused by {reason}, and is in the history"
        case _:
            pass


def _accepted(element: str, task: StoredTask | None, *, is_there: bool) -> Iterator[str]:
    if task is None:
        yield f"{element} was accepted, and has no task"
    elif is_there is not (task.status == "finished"):
        yield f"{element} was accepted; its task is {task.status}, its event there: {is_there}"


def _register_follows(process: StoredProcess, elements: Sequence[str]) -> Iterator[str]:
    expected = (elements[-1] if elements else "", len(elements))
    if process.register != expected:
        yield f"aux_state is {process.register}, the history ends with {expected}"


def _in_line(process: StoredProcess) -> Iterator[str]:
    """Requests run in the order of their task ids.

    Timers and what has constraints run in between, and repairs before what is held.
    """
    requests = {
        task.task_id
        for task in process.tasks
        if task.task_type not in {"timeout", "repair"} and not task.is_gated
    }
    line = [task_id for task_id, _ in process.events if task_id in requests]
    for first, second in itertools.pairwise(line):
        if second < first:
            yield f"task {second} has its events behind those of task {first}"


def _timers_were_set(
    process: StoredProcess, elements: Sequence[str], operations: Sequence[Operation]
) -> Iterator[str]:
    timers = {task.set_by for task in process.tasks if task.set_by}
    for operation in operations:
        set_one = operation.deed is Deed.TIMER and operation.element in elements
        if set_one and operation.element not in timers:
            yield f"{operation.element} set a timer, and there is none"


def _asked_before(
    process: StoredProcess, operations: Sequence[Operation], journal: Sequence[Asked]
) -> Iterator[str]:
    """A step is not saved, nor a process broken, without its processor's word."""
    asked = {line.task_id for line in journal}
    failed = {line.task_id for line in journal if line.deed is Deed.FAIL}
    rejected = {line.task_id for line in journal if line.deed is Deed.REJECT}
    if any(operation.kind is Kind.PUT for operation in operations):
        asked.add(min(task.task_id for task in process.tasks))  # It stands for the import.
    for task in process.tasks:
        if task.status == "finished" and task.task_id not in asked:
            yield f"task {task.task_id} is finished, and no processor was asked"
        if task.status == "error" and task.task_id not in failed | rejected:
            yield f"task {task.task_id} is in error, and no processor failed or refused it"
    if process.status == "error" and process.corrupted_by not in failed:
        yield f"in error by task {process.corrupted_by}, which no processor failed"


def _rerun(operation: Operation) -> Operation | None:
    """Return the step that an answer shows to have succeeded when its task was run again."""
    match operation.outcome:
        case Done(Again(element)):
            return dataclasses.replace(
                operation, kind=Kind.RERUN, element=element, deed=Deed.APPEND, outcome=Done()
            )
        case _:
            return None


def _one(asked: Sequence[Operation], settled_at: float) -> Operation:
    requests = [each for each in asked if each.kind not in {Kind.AWAIT, Kind.CANCEL}]
    assert requests, f"awaited or cancelled, and never asked: {asked[0]}"
    outcome, answered_at = _heard(asked, requests, settled_at)
    return dataclasses.replace(
        requests[0],
        outcome=outcome,
        sent_at=min(request.sent_at for request in requests),
        answered_at=answered_at,
    )


def _anew(asked: Sequence[Operation]) -> Iterator[Operation]:
    """Yield what repetitions of a start may have done once more.

    A start that was rejected leaves no process, and no key: a repetition may be rejected anew.
    """
    requests = [each for each in asked if each.kind is Kind.START and each.deed is Deed.REJECT]
    for operation in requests[1:]:
        yield dataclasses.replace(operation, outcome=Unknown("repeated"), answered_at=math.inf)


def _heard(
    asked: Sequence[Operation], requests: Sequence[Operation], settled_at: float
) -> tuple[Outcome, float]:
    in_order = sorted(asked, key=lambda each: each.answered_at)
    # What was cancelled gave its key back: a repetition may have been done nevertheless.
    answers = [each for each in in_order if isinstance(each.outcome, Done) or _binding_answer(each)]
    done = (each for each in answers if _binding_answer(each) != CANCELLED)
    answer = next(done, next(iter(answers), None))
    if answer is not None and _binding_answer(answer) == CANCELLED:
        is_free = len(requests) > 1
        return (
            (Unknown("repeated"), math.inf) if is_free else (Refused(CANCELLED), answer.answered_at)
        )
    if answer is not None:
        match answer.outcome:
            case Done(Again()):
                return Unknown("it broke the process, and was run again"), math.inf
            case outcome:
                return outcome, answer.answered_at
    refusals = [
        committed_
        for committed_ in in_order
        if isinstance(committed_.outcome, Refused) and committed_.kind is not Kind.CANCEL
    ]
    if any(isinstance(request.outcome, Accepted) for request in requests):
        return _heard_since(asked, refusals, settled_at)
    if refusals and all(isinstance(request.outcome, Refused) for request in requests):
        return refusals[0].outcome, refusals[0].answered_at
    # A repetition was refused: that does not say what became of the first.
    return Unknown("repeated" if refusals else ""), math.inf


def _heard_since(
    asked: Sequence[Operation], refusals: Sequence[Operation], settled_at: float
) -> tuple[Outcome, float]:
    awaited = [
        refusal for refusal in refusals if refusal.kind is Kind.AWAIT and not _is_gone(refusal)
    ]
    if awaited:
        return awaited[0].outcome, awaited[0].answered_at
    if any(each.kind is Kind.CANCEL and isinstance(each.outcome, Unknown) for each in asked):
        return Unknown("perhaps cancelled"), math.inf
    return Accepted(), settled_at


def _is_gone(operation: Operation) -> bool:
    return isinstance(operation.outcome, Refused) and operation.outcome.reason in GONE | {
        "TASK_NOT_FOUND"
    }


def _binding_answer(operation: Operation) -> str:
    if operation.kind is Kind.CANCEL:
        return CANCELLED if isinstance(operation.outcome, Done) else ""
    match operation.outcome:
        case Done(Appended() | Again() as result):
            return str(result)
        case Refused(reason) if reason in _BINDING:
            return reason
        case _:
            return ""
