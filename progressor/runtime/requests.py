"""Requests: where they come in, become tasks, and where their callers wait for the replies.

A slot for the step is reserved before the request is admitted, so that a free process runs it at
once. A task that admission leased runs even if its caller goes away.
"""

import asyncio
import collections
import dataclasses
import datetime as dt
import functools
from collections.abc import Mapping

from progressor import errors
from progressor.domain.processes.admission import Admission, Import, Request, Verdict
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.process import ProcessKey, ProcessStatus
from progressor.domain.processes.reply import ProcessEnd, Receipt, Reply, response_of, result_of
from progressor.domain.processes.task import TaskResult, TaskType
from progressor.domain.quotas.quotas import NO_QUOTAS
from progressor.runtime.core.context import Context
from progressor.runtime.core.rates import Rates
from progressor.runtime.core.slots import Slots
from progressor.runtime.effects.dispatcher import EffectDispatcher
from progressor.runtime.effects.replies import Replies, Waiter
from progressor.storage.namespaces.namespaces import Namespaces
from progressor.storage.postgres import attempt
from progressor.storage.processes.admissions import Admissions, Admitted, Entry
from progressor.storage.processes.processes import Processes
from progressor.storage.processes.results import Results
from progressor.telemetry.traces.spans import UNTRACED, Span

_RETRY_AFTER = dt.timedelta(milliseconds=500)
_RETRY_PAUSED_AFTER = dt.timedelta(seconds=5)

REFUSED_IN_PAUSE = frozenset({TaskType.INIT, TaskType.CALL, TaskType.NOTIFY})
"""What a paused namespace may refuse. Repairs are admitted, since operators prepare them."""


@dataclasses.dataclass(slots=True, eq=False)
class _Waiting:
    result: Waiter
    task_id: int | None = None


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class _Ticket(_Waiting):
    """A request on its way: resolved with its admission, then with its result."""

    request: Request
    admitted: asyncio.Future[Admission]
    came_at: float
    charged: bool
    """Whether it was taken from a quota."""
    audit: str | None = dataclasses.field(default_factory=attempt.current)
    span: Span = UNTRACED
    """Of its way into the database."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    admissions: Admissions
    slots: Slots
    replies: Replies
    results: Results
    processes: Processes
    namespaces: Namespaces
    effects: EffectDispatcher
    rates: Rates
    context: Context
    _callers: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    """How many wait here, by namespace: one that hangs takes no room from another."""

    async def ask(self, request: Request, *, timeout: float | None) -> Reply:
        """Admit a request and return its reply; if the caller is cancelled, the task continues.

        Raises:
            DeadlineExceededError: `timeout` seconds have passed; the task continues.
            RequestError: Admission refused it, or the task did not finish.
            StorageUnavailableError: Without an idempotency key, it may have been accepted.
        """
        namespace = await self.namespaces.lookup(request.key.namespace)
        charged = await self._charge(request, namespace)
        self._enter(namespace)
        try:
            ticket = self._submit(request, namespace, charged=charged)
            deadline = _expire_after(timeout, ticket)
            try:
                result = await ticket.result
            finally:
                if deadline is not None:
                    deadline.cancel()
                if ticket.task_id is not None:
                    self.replies.forget(ticket.task_id, ticket.result)
        finally:
            self._callers[namespace.name] -= 1
        return _reply(request.key, result, deduplicated=_is_duplicate(ticket))

    async def accept(self, request: Request) -> Receipt:
        """Admit a request and return once its task is durable; raises what `ask` raises."""
        namespace = await self.namespaces.lookup(request.key.namespace)
        charged = await self._charge(request, namespace)
        request = dataclasses.replace(request, waits=False)
        ticket = self._submit(request, namespace, charged=charged)
        admission = await ticket.admitted
        assert admission.task_id is not None, "an admitted request has a task"
        return Receipt(task_id=admission.task_id, deduplicated=_is_duplicate(ticket))

    async def await_task(self, key: ProcessKey, task: int | str, *, timeout: float | None) -> Reply:
        """Return the reply of a task named by id or idempotency key; raises what `ask` raises."""
        loop = asyncio.get_running_loop()
        begun_at = loop.time()
        namespace = await self.namespaces.lookup(key.namespace)
        self._enter(namespace)
        try:
            found = await self.results.await_task(key, task)
            if isinstance(found, TaskResult):
                return _reply(key, found, deduplicated=True)
            # Finding the task counts too, or the caller would be gone before the reply.
            left = None if timeout is None else timeout - (loop.time() - begun_at)
            result = await self._result_of(key, found, left)
        finally:
            self._callers[namespace.name] -= 1
        return _reply(key, result, deduplicated=True)

    async def _result_of(self, key: ProcessKey, task_id: int, timeout: float | None) -> TaskResult:
        waiting = _Waiting(asyncio.get_running_loop().create_future(), task_id)
        deadline = _expire_after(timeout, waiting)
        try:
            self.replies.expect(task_id, key, waiting.result)
            self.context.observers.tell("awaited", task_id=task_id, key=key)
            return await waiting.result
        finally:
            if deadline is not None:
                deadline.cancel()
            self.replies.forget(task_id, waiting.result)

    async def await_process(
        self, key: ProcessKey, *, until_finished: bool, timeout: float | None
    ) -> bytes:
        """Return the result of a process once it has ended.

        Raises:
            ProcessNotFoundError: There is none.
            StateError: It did not complete; see `reply.result_of`. `until_finished`: a process in
                error has not ended.
            DeadlineExceededError: `timeout` seconds have passed.
        """
        loop = asyncio.get_running_loop()
        begun_at = loop.time()
        namespace = await self.namespaces.lookup(key.namespace)
        self._enter(namespace)
        try:
            end = await self.results.await_process(key, until_finished=until_finished)
            if not end.ends_wait(until_finished=until_finished):
                left = None if timeout is None else timeout - (loop.time() - begun_at)
                end = await self._end_of(key, end, left, until_finished=until_finished)
        finally:
            self._callers[namespace.name] -= 1
        return result_of(key, end)

    async def _end_of(
        self, key: ProcessKey, begun: ProcessEnd, timeout: float | None, *, until_finished: bool
    ) -> ProcessEnd:
        waiter: asyncio.Future[ProcessEnd] = asyncio.get_running_loop().create_future()
        self.replies.ends.expect(key, begun, waiter, until_finished=until_finished)
        self.context.observers.tell("process_awaited", key=key)
        try:
            async with asyncio.timeout(timeout):
                return await waiter
        except TimeoutError:
            awaited = f"process {key.process_id!r}"
            raise errors.DeadlineExceededError(None, awaited) from None
        finally:
            self.replies.ends.forget(begun, waiter)

    async def recover(self, key: ProcessKey, *, retries: bool) -> int | None:
        await self.namespaces.lookup(key.namespace)
        recovery, effects = await self.processes.recover(key, retries=retries)
        self.effects.apply(effects)
        if recovery.verdict is not Verdict.ACCEPTED:
            raise _refusal(key, None, Admission(verdict=recovery.verdict))
        return recovery.task_id

    async def put(self, process: Import) -> Receipt:
        """Import a process; its timer is due from then on."""
        namespace = await self.namespaces.lookup(process.key.namespace)
        charged = await self._charge(process, namespace)
        put, effects = await self.processes.put(process)
        self.effects.apply(effects)
        if charged and put.verdict is Verdict.DUPLICATE:
            self.rates.give_back(namespace, process)
        if put.verdict not in {Verdict.ACCEPTED, Verdict.DUPLICATE}:
            admission = Admission(verdict=put.verdict)
            raise _refusal(process.key, process.idempotency_key, admission)
        if put.verdict is Verdict.ACCEPTED:
            self.context.measures.imported(process)
        assert put.task_id is not None, "an import has a task"
        return Receipt(task_id=put.task_id, deduplicated=put.verdict is Verdict.DUPLICATE)

    async def remove(self, key: ProcessKey) -> None:
        """Delete a process; callers who wait for its tasks get ProcessRemovedError."""
        await self.namespaces.lookup(key.namespace)
        came_at = self.context.clock.monotonic()
        self.effects.apply(await self.processes.remove(key))
        self.context.measures.removed(key, self.context.clock.monotonic() - came_at)

    async def halt(self, key: ProcessKey, detail: str) -> None:
        """Put a process into error; callers who wait for its tasks get ProcessFailedError."""
        await self.namespaces.lookup(key.namespace)
        self.effects.apply(await self.processes.halt(key, detail))

    async def terminate(self, key: ProcessKey, reason: str) -> None:
        """Finish a process; callers who wait for its tasks get ProcessFinishedError."""
        await self.namespaces.lookup(key.namespace)
        self.effects.apply(await self.processes.halt(key, reason, ProcessStatus.FINISHED))

    async def cancel(self, key: ProcessKey, task: int | str) -> int:
        """Cancel a task that has not ended, and return its id; its callers get an error."""
        await self.namespaces.lookup(key.namespace)
        task_id, effects = await self.processes.cancel(key, task)
        self.effects.apply(effects)
        return task_id

    async def _charge(self, request: Request | Import, namespace: Namespace) -> bool:
        """Take a request from the quotas of its namespace; return whether it was taken.

        Raises:
            QuotaExceededError: One is used up, and the request is not a repeated one.
        """
        if namespace.quotas == NO_QUOTAS:
            return False
        try:
            return self.rates.take(namespace, request)
        except errors.QuotaExceededError:
            key = request.idempotency_key
            if key is None or not await self.processes.has_task(request.key, key):
                raise
            return False

    def _submit(self, request: Request, namespace: Namespace, *, charged: bool) -> _Ticket:
        pause = namespace.pause
        if pause is not None and pause.refuses_requests and request.task_type in REFUSED_IN_PAUSE:
            raise errors.NamespacePausedError(namespace.name, pause.reason, _RETRY_PAUSED_AFTER)
        if request.task_type is TaskType.INIT and _after(request) > 0:
            # A process that does not exist yet has no events.
            raise errors.EventNotFoundError(request.key.process_id, _after(request))
        loop = asyncio.get_running_loop()
        ticket = _Ticket(
            request=request,
            admitted=loop.create_future(),
            result=loop.create_future(),
            came_at=self.context.clock.monotonic(),
            charged=charged,
        )
        self._admit(ticket, namespace)
        return ticket

    def _admit(self, ticket: _Ticket, namespace: Namespace) -> None:
        # A task with constraints is leased once it has passed them.
        run = ticket.request.constraints is None and self.slots.reserve(namespace)
        ticket.span = self.context.tracing.admission(ticket.request)
        expires_after = self.context.lease_of(namespace)
        open_max = namespace.quotas.open_processes or None
        entry = Entry(
            ticket.request, run, expires_after, ticket.span.on_sent, open_max, ticket.audit
        )
        try:
            admission = self.admissions.submit(entry)
        except errors.ProgressorError as error:
            ticket.span.fail(error.reason)
            ticket.span.end()
            if run:
                self.slots.give_back(namespace.name)
            raise
        admission.add_done_callback(functools.partial(self._admitted, ticket, namespace, run))

    def _admitted(
        self,
        ticket: _Ticket,
        namespace: Namespace,
        reserved: bool,  # noqa: FBT001  bound by partial
        future: asyncio.Future[Admitted],
    ) -> None:
        """Continue after an admission, even if its caller is gone."""
        error, admission = future.exception(), None
        if error is None:
            admission, effects = future.result()
            self.effects.apply(effects)
        if ticket.span is not UNTRACED:
            _end(ticket.span, admission, error)
        if admission is not None and admission.running is not None:
            assert reserved, "a task was leased without a slot"
            self.slots.start(admission.running)
        elif reserved:
            self.slots.give_back(namespace.name)
        if error is not None:
            _fail(ticket, error)
        elif admission is not None:
            self._resolve(ticket, namespace, admission)

    def _resolve(self, ticket: _Ticket, namespace: Namespace, admission: Admission) -> None:
        if admission.verdict in {Verdict.ACCEPTED, Verdict.DUPLICATE}:
            self._await_result(ticket, namespace, admission)
        elif admission.verdict is Verdict.GONE:
            # Removed between the attempt to create it and the look at it: it can be created now.
            try:
                self._admit(ticket, namespace)
            except errors.ProgressorError as refused:
                _fail(ticket, refused)
        elif admission.verdict is Verdict.QUOTA_EXCEEDED:
            _fail(ticket, self.rates.full(namespace))
        else:
            request = ticket.request
            refusal = _refusal(
                request.key, request.idempotency_key, admission, after=_after(request)
            )
            _fail(ticket, refusal)

    def _await_result(self, ticket: _Ticket, namespace: Namespace, admission: Admission) -> None:
        assert admission.task_id is not None, "an admitted request has a task"
        ticket.task_id = admission.task_id
        self.context.measures.admitted(
            ticket.request, admission.verdict, self.context.clock.monotonic() - ticket.came_at
        )
        if ticket.charged and admission.verdict is Verdict.DUPLICATE:
            self.rates.give_back(namespace, ticket.request)
        self.context.observers.tell("admitted", task_id=admission.task_id, key=ticket.request.key)
        if admission.due_now:
            self.slots.mark_backlog(namespace.name)
        if not ticket.admitted.done():
            ticket.admitted.set_result(admission)
        if admission.ended is not None:
            if not ticket.result.done():
                ticket.result.set_result(admission.ended)
        elif ticket.request.waits and not ticket.result.done():
            self.replies.expect(admission.task_id, ticket.request.key, ticket.result)

    def _enter(self, namespace: Namespace) -> None:
        """Count a caller who waits, if there is room for one more."""
        if self._callers[namespace.name] >= namespace.waiting_callers_max:
            what = f"{namespace.waiting_callers_max} callers wait"
            raise errors.OverloadedError(what, _RETRY_AFTER)
        self._callers[namespace.name] += 1


def _expire_after(timeout: float | None, waiting: _Waiting) -> asyncio.TimerHandle | None:
    """End a wait after a timeout; a scope of asyncio.timeout would cost five times as much."""
    if timeout is None:
        return None
    return asyncio.get_running_loop().call_later(timeout, _expire, waiting)


def _expire(waiting: _Waiting) -> None:
    if not waiting.result.done():
        waiting.result.set_exception(errors.DeadlineExceededError(waiting.task_id))


def _is_duplicate(ticket: _Ticket) -> bool:
    return ticket.admitted.done() and ticket.admitted.result().verdict is Verdict.DUPLICATE


def _reply(key: ProcessKey, result: TaskResult, *, deduplicated: bool) -> Reply:
    return Reply(
        task_id=result.task_id,
        task_type=result.task_type,
        response=response_of(key, result),
        deduplicated=deduplicated,
    )


def _end(span: Span, admission: Admission | None, error: BaseException | None) -> None:
    if admission is not None:
        span.admitted(admission)
    elif error is not None:
        name = type(error).__name__
        span.fail(error.reason if isinstance(error, errors.ProgressorError) else name)
    span.end()


def _fail(ticket: _Ticket, error: BaseException) -> None:
    for future in (ticket.admitted, ticket.result):
        if not future.done():
            future.set_exception(error)
        # A caller that does not wait for this request has no use for its error.
        if not future.cancelled():
            future.exception()


def _after(request: Request) -> int:
    return 0 if request.history_range is None else request.history_range.after


def _refusal(
    key: ProcessKey, idempotency_key: str | None, admission: Admission, *, after: int = 0
) -> errors.RequestError:
    namespace, process_id, verdict = key.namespace, key.process_id, admission.verdict
    if verdict is Verdict.PROCESS_FAILED:
        process, error = admission.process, admission.failure
        assert process is not None, "the verdict comes with the process"
        failure = errors.StepFailure(
            broken_by=process.corrupted_by,
            code=None if error is None else error.code,
            reason=None if error is None else error.reason,
        )
        return errors.ProcessFailedError(process_id, process.detail or "", failure=failure)
    gate_namespace = admission.gate_namespace or namespace
    refusals: Mapping[Verdict, errors.RequestError] = {
        Verdict.KEY_REUSED: errors.IdempotencyKeyReusedError(process_id, idempotency_key or ""),
        Verdict.NAMESPACE_NOT_FOUND: errors.NamespaceNotFoundError(namespace),
        Verdict.PROCESS_NOT_FOUND: errors.ProcessNotFoundError(namespace, process_id),
        Verdict.PROCESS_ALREADY_EXISTS: errors.ProcessAlreadyExistsError(namespace, process_id),
        Verdict.PROCESS_IS_RUNNING: errors.ProcessIsRunningError(process_id),
        Verdict.NOTHING_TO_RETRY: errors.NothingToRetryError(process_id),
        Verdict.PROCESS_FINISHED: errors.ProcessFinishedError(process_id),
        Verdict.EVENT_NOT_FOUND: errors.EventNotFoundError(process_id, after),
        Verdict.GATE_NOT_FOUND: errors.GateNotFoundError(gate_namespace, admission.gate or ""),
    }
    assert verdict in refusals, f"{verdict} is not a refusal"
    return refusals[verdict]
