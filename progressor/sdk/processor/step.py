"""The argument of a handler: a process, its task, and what the handler changes."""

import contextlib
import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import grpc
from typing_extensions import TypeForm, Unpack

from progressor.domain.processes.event import HistoryRange
from progressor.domain.processes.intent import TIMER_NAME_BYTES_MAX, TIMERS_MAX
from progressor.domain.processes.message import Sender
from progressor.sdk.codec.codecs import Codec, Payload, decoded
from progressor.sdk.codec.kinds import ANYTHING, Decoded, name_of
from progressor.sdk.codec.wire import (
    Seconds,
    instant_from_wire,
    object_from_wire,
    object_to_wire,
    optional,
)
from progressor.sdk.processor.links import NoLink, StepLink
from progressor.sdk.processor.messages import add_message
from progressor.sdk.processor.requests import (
    KEEP_ALIVE_SECONDS,
    BlockingRequests,
    StepRequests,
)
from progressor.sdk.processor.verdicts import Reject
from progressor.sdk.processor.versions import StateVersions
from progressor.sdk.values.constraints import Constraints
from progressor.sdk.values.graph import Deadline, Graph, due_to_wire, nodes_to_wire
from progressor.sdk.values.jobs import NodeOutcome, read_outcome, results_of
from progressor.sdk.values.messages import MessageKind, MessageOptions
from progressor.sdk.values.processes import (
    Event,
    NewTimer,
    ProcessStatus,
    TaskType,
    read_event,
    timer_to_wire,
)
from progressor.sdk.values.replies import MessageReply, read_reply
from progressor.v1 import nodes_pb2
from progressor.v1 import processor_service_pb2 as pb
from progressor.v1 import types_pb2 as types
from progressor.wire.fields import id_faults
from progressor.wire.messages import SENDER

State = TypeVar("State")

_UNREAD: Payload = object()

_WITHOUT_CALLER = frozenset({TaskType.TIMEOUT, TaskType.JOIN, TaskType.REPLY})


def check_timer_name(name: str) -> None:
    """Raise ValueError for a name that a timer cannot have, TypeError if it is not a str."""
    if not isinstance(name, str):
        problem = f"the name of a timer must be a str, got {name!r}; a delay is `after=`"
        raise TypeError(problem)
    faults = "; ".join(id_faults(name, TIMER_NAME_BYTES_MAX))
    if faults:
        message = f"the name of a timer {faults}: {name[:TIMER_NAME_BYTES_MAX]!r}"
        raise ValueError(message)


class Step(Generic[State]):
    """One task on one process.

    The engine saves everything that the handler does to a step in one transaction, and nothing if
    the handler raises an exception. Payloads are decoded when they are read.

    `set_timer` and `unset_timer` can be combined with everything else; of each timer the last
    change counts, and the other timers continue. Of `remove`, `complete` and `start_nodes` only the
    last one counts. A process that is removed or finished has no timers.
    """

    __slots__ = (
        "_args",
        "_codec",
        "_expect_reply",
        "_history",
        "_link",
        "_nodes",
        "_request",
        "_requests",
        "_response",
        "_state",
        "_state_type",
        "_versions",
    )

    def __init__(  # noqa: PLR0913  # what a processor gives each step
        self,
        request: pb.ProcessRequest,
        response: pb.ProcessResponse,
        *,
        codec: Codec,
        state_type: Payload = Any,
        versions: StateVersions | None = None,
        link: StepLink | None = None,
        expect_reply: Callable[[str], None] | None = None,
    ) -> None:
        self._request, self._response = request, response
        self._codec, self._state_type, self._versions = codec, state_type, versions
        self._link, self._expect_reply = link, expect_reply
        self._requests: StepRequests | None = None
        self._args = self._state = self._history = self._nodes = _UNREAD

    @property
    def namespace(self) -> str:
        """The namespace of the process."""
        return self._request.process.namespace

    @property
    def process_id(self) -> str:
        """The id that the client chose for the process."""
        return self._request.process.process_id

    @property
    def status(self) -> ProcessStatus:
        """The status before this step: init, running or, in a repair, error."""
        return ProcessStatus.from_number(self._request.process.status)

    @property
    def detail(self) -> str:
        """Why the process is in error; "" otherwise."""
        return self._request.process.detail

    @property
    def last_event_id(self) -> int:
        """The number of events of the process; `history` may have fewer."""
        return self._request.process.last_event_id

    @property
    def task_id(self) -> int:
        """The id of the task, the same in each attempt: a key for idempotent side effects."""
        return self._request.task.task_id

    @property
    def type(self) -> TaskType:
        """Why the task exists."""
        return TaskType.from_number(self._request.task.type)

    @property
    def timer_name(self) -> str:
        """The name of the timer that runs; "" for the timer without a name, and in other tasks."""
        return self._request.task.timer_name

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._request.task.attempt

    @property
    def token(self) -> int:
        """The fencing token: it grows with each lease, so a store can refuse a smaller one."""
        return self._request.task.token

    @property
    def epoch(self) -> int:
        """The lineage of the database: it grows when a standby takes over or a backup is restored.

        Steps that had been saved may run again then, as new tasks with greater tokens.
        """
        return self._request.epoch

    @property
    def scheduled_at(self) -> dt.datetime:
        """When the task was due."""
        return instant_from_wire(self._request.task.scheduled_at)

    @property
    def deadline(self) -> dt.datetime:
        """When the engine gives this step up; `extend` moves it."""
        return instant_from_wire(self._request.deadline)

    @property
    def context(self) -> Mapping[str, str]:
        """The context that the caller passed."""
        return self._request.task.caller_context

    @property
    def sender(self) -> Sender | None:
        """The process whose step has sent this call, notify or start; in a reply, who answers.

        None: a client has sent it, or no one, as with a timer; or no one answers, since the message
        was refused.
        """
        task = self._request.task
        return SENDER.read(task.sender) if task.HasField("sender") else None

    @property
    def trace_context(self) -> Mapping[str, str]:
        """The W3C trace context of this step; its span is current while the handler runs."""
        return self._request.task.trace_context

    @property
    def args(self) -> Payload:
        """The args of the caller, or of `set_timer`; None: none. See `args_as`."""
        if self._args is _UNREAD:
            self._args = self.args_as(Any)
        return self._args

    def args_as(self, kind: TypeForm[Decoded]) -> Decoded:
        """Return the args as a `kind`, as in ``order = step.args_as(Order)``.

        If they may be missing, use ``Order | None``.

        Raises:
            Reject: The args are not a `kind`: the caller gets INVALID_ARGUMENT.
            ValueError: The args are not a `kind`, and the task has no caller.
        """
        try:
            return decoded(self._codec, self._request.task.args, kind)
        except ValueError as error:
            if self.type in _WITHOUT_CALLER:
                raise
            message = f"args cannot be read: {error}"
            raise Reject(
                message, code=grpc.StatusCode.INVALID_ARGUMENT, reason="INVALID_ARGS"
            ) from error

    @property
    def state(self) -> State:
        """The state of the process; None, whatever its type, until a step has set one.

        Assign to save it: ``step.state = state``. A change inside the value is not saved. A value
        that cannot be read back as the processor's state type raises TypeError.

        A state of an older version is upgraded when it is read, see `Processor.upgrade`, and
        assigning it saves it with the processor's version.
        """
        if self._state is _UNREAD:
            process = self._request.process
            if self._versions is None:
                self._state = self._codec.decode(process.aux_state, self._state_type)
            else:
                self._state = self._versions.read(process.aux_state, process.state_version)
        state: State = self._state
        return state

    @state.setter
    def state(self, state: State) -> None:
        data = self._codec.encode(state)
        if data and self._state_type is not Any:
            self._expect_readable(data)
        self._response.aux_state = data
        if self._versions is not None:
            self._response.state_version = self._versions.version
        self._state = state

    @property
    def metadata(self) -> dict[str, Payload]:
        """A JSON object by which `Client.list` can filter. Assign to save it."""
        decided = self._response.HasField("metadata")
        return object_from_wire((self._response if decided else self._request.process).metadata)

    @metadata.setter
    def metadata(self, metadata: Mapping[str, Payload]) -> None:
        self._response.metadata.CopyFrom(object_to_wire(metadata))

    @property
    def history(self) -> tuple[Event, ...]:
        """The events that came with this step, as many as the namespace or request specifies."""
        if self._history is _UNREAD:
            self._history = tuple(read_event(event, self._codec) for event in self._request.history)
        history: tuple[Event, ...] = self._history
        return history

    @property
    def nodes(self) -> Mapping[str, NodeOutcome]:
        """The outcomes of nodes, by name.

        In a join: of all nodes of the job, in the order in which they were added. In the first step
        of a node with ``wants_results``: of its predecessors. Otherwise empty.
        """
        if self._nodes is _UNREAD:
            self._nodes = {
                it.name: read_outcome(it, self._codec) for it in self._request.task.nodes
            }
        outcomes: Mapping[str, NodeOutcome] = self._nodes
        return outcomes

    @property
    def results(self) -> dict[str, Payload]:
        """The results of the `nodes` that are done, by name. See `results_as`."""
        return self.results_as(Any)

    def results_as(self, kind: TypeForm[Decoded]) -> dict[str, Decoded]:
        """Return `results`, each as a `kind`, as in ``step.results_as(int).values()``.

        Raises:
            ValueError: A result is not a `kind`; the message names its node.
        """
        outcomes: dict[str, nodes_pb2.NodeOutcome] = {
            it.name: it for it in self._request.task.nodes
        }
        return results_of(outcomes, self._codec, kind)

    @property
    def reply(self) -> MessageReply[Payload]:
        """The answer to a message, in a reply handler. See `reply_as`."""
        return self.reply_as(Any)

    def reply_as(self, kind: TypeForm[Decoded]) -> MessageReply[Decoded]:
        """Return the answer to a message, with the response as a `kind`.

        Raises:
            ValueError: The response is not a `kind`, or this is not a reply.
        """
        if self.type is not TaskType.REPLY:
            message = f"step.reply is only in a reply; this is a {self.type}"
            raise ValueError(message)
        return read_reply(self._request.task.reply, self._codec, kind)

    def emit(
        self,
        event: Payload,
        *,
        format_version: int = 0,
        metadata: Mapping[str, Payload] | None = None,
    ) -> None:
        """Append an event to the history."""
        message = types.NewEvent(
            payload=self._codec.encode(event),
            format_version=format_version,
            metadata=optional(object_to_wire, metadata),
        )
        self._response.events.append(message)

    def set_timer(  # noqa: PLR0913  # the wire's own options, keyword-only
        self,
        name: str = "",
        *,
        after: Seconds | None = None,
        at: dt.datetime | None = None,
        remove: bool = False,
        args: Payload = None,
        history: HistoryRange | None = None,
        step_timeout: Seconds | None = None,
        constraints: Constraints | None = None,
    ) -> None:
        """Set a timer of the process, which replaces that of its name; it runs a timeout handler.

        A process can have 32 timers. The earliest runs first.

        Args:
            name: At most 64 bytes; "" is the timer without a name.
            after: The delay from the end of this step, in seconds or a timedelta. Without `after`
                and `at` the timer is due now.
            at: The due time, an aware datetime.
            remove: Remove the process when the timer is due, instead of running the handler.
            args: For the timeout handler.
            history: How much history it receives; None: as the namespace is configured.
            step_timeout: How long the handler may take, in seconds or a timedelta; None: the
                namespace's step timeout.
            constraints: What else must hold before it may run; without `run_at`, and not with
                `remove`.

        Raises:
            ValueError: Both `after` and `at` are given, or `at` has no time zone; or the name is
                invalid, or this step sets more than 32 timers.
        """
        timer = NewTimer(
            after=after,
            at=at,
            remove=remove,
            args=args,
            history=history,
            step_timeout=step_timeout,
            constraints=constraints,
        )
        message = timer_to_wire(timer, self._codec)
        if name != "":
            self._change_timer(name, set=message)
        else:
            self._response.set_timer.CopyFrom(message)

    def unset_timer(self, name: str = "") -> None:
        """Cancel a timer of the process, if it has one of this name.

        Raises:
            ValueError: The name is invalid.
        """
        if name:
            self._change_timer(name, unset=pb.UnsetTimer())
        else:
            self._response.unset_timer.SetInParent()

    def _change_timer(self, name: str, **change: Any) -> None:  # noqa: ANN401  # of the oneof
        check_timer_name(name)
        kept = [it for it in self._response.timers if it.name != name]
        changes = [*kept, pb.TimerChange(name=name, **change)]
        if sum(it.HasField("set") for it in changes) > TIMERS_MAX:
            message = f"a process can have at most {TIMERS_MAX} timers"
            raise ValueError(message)
        del self._response.timers[:]
        self._response.timers.extend(changes)

    def remove(self) -> None:
        """Remove the process with all its tasks and events; the caller still gets the answer."""
        self._response.remove.SetInParent()

    def complete(self, result: Payload = None) -> None:
        """Finish the process with a result; it accepts no more calls."""
        self._response.complete.CopyFrom(pb.Complete(result=self._codec.encode(result)))

    def start_nodes(self, graph: Graph, *, deadline: Deadline | None = None) -> None:
        """Start the nodes of a graph, each as a process; the join handler runs when all have ended.

        The process becomes the leader of a job. If it already leads one, the nodes are added to
        that job, and can come after its nodes, given by name. The timer continues, unless this step
        replaces or cancels it.

        Args:
            graph: The nodes; the processor's codec encodes their args.
            deadline: When the job fails if it has not ended: an aware datetime, or seconds or a
                timedelta from the end of this step; None: unchanged.

        Raises:
            ValueError: The graph is empty, or `deadline` has no time zone.
        """
        action = nodes_pb2.StartNodes(
            nodes=nodes_to_wire(graph, self._codec), **due_to_wire(deadline)
        )
        self._response.start_nodes.CopyFrom(action)

    def start(
        self,
        process_id: str,
        args: Payload = None,
        *,
        metadata: Mapping[str, Payload] | None = None,
        **options: Unpack[MessageOptions],
    ) -> None:
        """Start a process after this step, as a message; see `notify`.

        Args:
            process_id: The id of the new process.
            args: For its init handler, encoded by this processor's codec.
            metadata: A JSON object by which `Client.list` can filter.
            options: See `MessageOptions`.

        Raises:
            TypeError: An option is unknown.
            ValueError: An id is invalid, the processor has no handler for the `reply`, or the step
                sends more than 100 messages.
        """
        self._send(MessageKind.START, process_id, args, options, metadata)

    def notify(
        self, process_id: str, args: Payload = None, **options: Unpack[MessageOptions]
    ) -> None:
        """Notify a process after this step.

        The message is saved with the step, and delivered exactly once. Messages of this process to
        one receiver arrive in their order; a receiver in error gets them when it runs again. The
        trace of this process lists a message that is refused.

        Args:
            process_id: The id of the receiver; it may be this process.
            args: For its notify handler, encoded by this processor's codec.
            options: See `MessageOptions`.

        Raises:
            TypeError: An option is unknown.
            ValueError: An id is invalid, the processor has no handler for the `reply`, or the step
                sends more than 100 messages.
        """
        self._send(MessageKind.NOTIFY, process_id, args, options)

    def call(
        self, process_id: str, args: Payload = None, **options: Unpack[MessageOptions]
    ) -> None:
        """Call a process after this step, as a message; see `notify`.

        Args:
            process_id: The id of the receiver; it may be this process.
            args: For its call handler, encoded by this processor's codec.
            options: See `MessageOptions`.

        Raises:
            TypeError: An option is unknown.
            ValueError: An id is invalid, the processor has no handler for the `reply`, or the step
                sends more than 100 messages.
        """
        self._send(MessageKind.CALL, process_id, args, options)

    def _send(
        self,
        kind: MessageKind,
        process_id: str,
        args: Payload,
        options: MessageOptions,
        metadata: Mapping[str, Payload] | None = None,
    ) -> None:
        add_message(self._response, kind, process_id, args, options, self._codec, metadata=metadata)
        reply = options.get("reply")
        if reply is not None and self._expect_reply is not None:
            self._expect_reply(reply)

    async def once(
        self,
        key: str,
        function: Callable[..., Any],
        *args: Any,  # noqa: ANN401  # those of the function
        type: TypeForm[Decoded] = ANYTHING,  # noqa: A002  # as elsewhere in the SDK
    ) -> Decoded:
        """Run a function once in all attempts of this task, and return its result.

        The result is stored at once, before the rest of the step is saved. A later attempt, after
        an error of the handler, a crash or a retry, gets it and does not run the function. So the
        function runs again only if the processor or its connection is lost after it has returned
        and before its result is stored. A plain handler uses ``step.blocking.once``.

        Args:
            key: Of the result, unique within the task: 1 to 256 bytes. At most 256 per task. If
                the function raises an exception, the key can be used again.
            function: A coroutine function, or a plain one.
            args: For the function.
            type: Of the result.

        Raises:
            LeaseLostError: The engine has given this step up; the result is not stored.
            ValueError: The key is empty or too long, or this attempt has used it, or the task has
                256 results; the function is not run. Or the stored result is not of the `type`.
            Fail: The function has run, and its result can never be stored: the codec cannot encode
                it, or it is larger than the namespace allows for payloads, or the results of the
                task would have more than 16 MiB in all. The next attempt would run the function
                again, so there is none: the process breaks with the reason RESULT_NOT_STORED, even
                if the handler catches this and raises another exception.
            EngineUnavailableError: No engine answers at the `engine` address of the processor; the
                function is not run.
            RuntimeError: The processor has neither a stream nor the address of the engine; see
                `serve`.
        """
        return await self._asks().once(key, function, args, type)

    async def extend(self, seconds: Seconds) -> dt.datetime:
        """Move the deadline of this step to so many seconds from now; return the new deadline.

        It is earlier where the namespace's ``step_timeout_max`` ends the step before, and it is
        never moved to an earlier instant. A plain handler uses ``step.blocking.extend``.

        Raises:
            LeaseLostError: The engine has given this step up.
            ValueError: `seconds` is not greater than 0.
            RuntimeError: As for `once`.
        """
        return await self._asks().extend(seconds)

    def keep_alive(
        self, every: Seconds = KEEP_ALIVE_SECONDS
    ) -> contextlib.AbstractAsyncContextManager[None]:
        """Give this step more time again and again while an ``async with`` block runs.

        Each time the deadline is moved to three times `every` from now, up to the namespace's
        ``step_timeout_max``. A lost lease ends the block with LeaseLostError. A plain handler uses
        ``with step.blocking.keep_alive()``.
        """
        return self._asks().keep_alive(every)

    @property
    def blocking(self) -> BlockingRequests:
        """`once`, `extend` and `keep_alive` for plain handlers, which cannot await."""
        return BlockingRequests(self._asks())

    def _asks(self) -> StepRequests:
        if self._requests is None:
            link = NoLink() if self._link is None else self._link
            self._requests = StepRequests(self._request, self._codec, link)
        return self._requests

    def _expect_readable(self, state: bytes) -> None:
        """Raise TypeError for a state that the next step could not read."""
        try:
            self._codec.decode(state, self._state_type)
        except ValueError as error:
            message = f"step.state must be of type `{name_of(self._state_type)}`: {error}"
            raise TypeError(message) from error
