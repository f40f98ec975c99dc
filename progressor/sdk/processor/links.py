"""How a running step reaches the engine: on a stream, by StepService, or not at all."""

import asyncio
import dataclasses
import datetime as dt
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from google.protobuf import message
from google.rpc import status_pb2

from progressor import errors
from progressor.internal.v1 import frames_pb2
from progressor.sdk.codec.wire import duration_to_wire, instant_from_wire
from progressor.sdk.processor.verdicts import Fail
from progressor.sdk.transport.connection import Connection, Endpoint
from progressor.sdk.transport.exchange import Exchange
from progressor.sdk.transport.failures import EngineUnavailableError, error_of_status
from progressor.sdk.transport.security import Security, Tls, Token
from progressor.v1 import processor_service_pb2 as pb
from progressor.v1 import step_service_pb2 as step_service

Answer = TypeVar("Answer")
Answer_co = TypeVar("Answer_co", covariant=True)

SERVICE_TIMEOUT = dt.timedelta(seconds=10)
"""For one request to StepService; it is repeated while the step runs."""

PROBE_SECONDS_MAX, PROBE_SECONDS_MIN = 5.0, 1.0
"""How long an engine that has not answered is tried before a step is retried."""

_PROBE = dt.timedelta(microseconds=1)
"""An extension that changes nothing, since a deadline is never moved to an earlier instant."""

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 2.0

_REPEATED = (
    errors.StorageUnavailableError,
    errors.OverloadedError,
    errors.ShuttingDownError,
    errors.ReplicaStoppedError,
    errors.DeadlineExceededError,
    EngineUnavailableError,
)

_log = logging.getLogger(__name__)


class StepLink:
    """What a step can ask for while it runs. Both requests are safe to repeat, and are repeated."""

    @property
    def is_ready(self) -> bool:
        """Whether the engine is known to answer; False: `prepare` finds out."""
        return True

    is_lost = False
    """Whether the engine has given the step up."""

    scope: object = None
    """What else has processes of the same namespace and id, such as a rehearsal; None: nothing."""

    verdict: Fail | None = None
    """How the step ends whatever else its handler raises; None: as that says."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the server."""
        raise NotImplementedError

    async def prepare(self) -> None:
        """Raise an error, before a function runs, if its result could not be stored.

        Raises:
            EngineUnavailableError: No engine answers.
            LeaseLostError: The engine has given the step up, or this is another engine.
        """

    async def remember(self, key: str, value: bytes) -> bytes | None:
        """Store a memo; return the value that it has already, None: it is stored.

        Raises:
            LeaseLostError: The engine has given the step up; nothing is stored.
            InvalidRequestError: The key or the value exceeds a limit.
        """
        return await self._insist(lambda: self._remember(key, value))

    async def extend(self, by: dt.timedelta) -> dt.datetime:
        """Move the deadline to `by` from now; return it.

        Raises:
            LeaseLostError: The engine has given the step up.
            InvalidRequestError: `by` is not greater than 0.
        """
        return await self._insist(lambda: self._extend(by))

    def close(self) -> None:
        """Note that the step has ended."""

    def check(self) -> None:
        """Raise an error if nothing can be asked for."""
        if self.is_lost:
            raise errors.LeaseLostError

    def wait_for(self, asked: Coroutine[Any, Any, Answer]) -> Answer:
        """Return what a coroutine returns, from the thread of a plain handler."""
        return self.begin(asked).result()

    def begin(self, asked: Coroutine[Any, Any, Answer]) -> "Pending[Answer]":
        """Run a coroutine on the event loop, from the thread of a plain handler."""
        return asyncio.run_coroutine_threadsafe(asked, self.loop)

    def expect_thread(self) -> None:
        """Raise RuntimeError on the event loop, which cannot wait for itself."""
        if asyncio._get_running_loop() is not None:  # noqa: SLF001  # public, and None without one
            message = "step.blocking is for plain handlers; an async one awaits step.once and so on"
            raise RuntimeError(message)

    async def _remember(self, key: str, value: bytes) -> bytes | None:
        raise NotImplementedError

    async def _extend(self, by: dt.timedelta) -> dt.datetime:
        raise NotImplementedError

    async def _insist(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Ask until there is an answer; ends with the step, whose deadline the engine keeps."""
        pause = _FIRST_PAUSE_SECONDS
        while True:
            self.check()
            try:
                return await ask()
            except _REPEATED:
                await asyncio.sleep(pause * (1 - random.random() / 2))  # noqa: S311  jitter, not a secret
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


class Pending(Protocol[Answer_co]):
    """A `concurrent.futures.Future`, as far as it is used."""

    def result(self) -> Answer_co:
        """Wait for the result."""

    def cancel(self) -> bool:
        """Cancel what runs."""


class AskOnStream(Protocol):
    """A stream, as a link needs it."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Where it runs."""

    async def ask(self, call: frames_pb2.RawStepCall) -> frames_pb2.RawStepCallResult:
        """Return the result of a call, to which a call_id is given."""


class StreamLink(StepLink):
    """Asks on the stream of the step."""

    def __init__(self, stream: AskOnStream, step_id: int) -> None:
        self._stream, self._step_id = stream, step_id

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the stream."""
        return self._stream.loop

    async def _remember(self, key: str, value: bytes) -> bytes | None:
        asked = pb.RememberCall(key=key, value=value).SerializeToString()
        result = await self._ask(frames_pb2.RawStepCall(step_id=self._step_id, remember=asked))
        return _earlier(pb.RememberResult.FromString(result.remember))

    async def _extend(self, by: dt.timedelta) -> dt.datetime:
        asked = pb.ExtendCall(by=duration_to_wire(by)).SerializeToString()
        result = await self._ask(frames_pb2.RawStepCall(step_id=self._step_id, extend=asked))
        return instant_from_wire(pb.ExtendResult.FromString(result.extend).deadline)

    async def _ask(self, call: frames_pb2.RawStepCall) -> frames_pb2.RawStepCallResult:
        result = await self._stream.ask(call)
        if result.HasField("error"):
            try:
                status = status_pb2.Status.FromString(result.error)
            except message.DecodeError:
                status = status_pb2.Status(message="the error cannot be read")
            raise error_of_status(status)
        return result


class TurnLink(StreamLink):
    """Asks for a step of a turn, which runs before it has a lease.

    What it asks for waits until it has one, unless its turn is given up and the step is lost.
    """

    is_ready = False

    async def prepare(self) -> None:
        """Wait for the lease: a function whose result is to be stored must not run without."""
        await self.extend(_PROBE)
        self.is_ready = True


class GuestStream(AskOnStream, Protocol):
    """A stream that a step in a call of its own may use."""

    def admit(self) -> None:
        """Keep the stream, also in a drain, until `dismiss`."""

    def dismiss(self) -> None:
        """End what `admit` began."""


class FindStream(Protocol):
    """The streams of a server, as a link needs them."""

    async def find(self, name: str) -> GuestStream | None:
        """Return the stream of a name, which may be on its way; None: there is none."""


class GuestLink(StreamLink):
    """Asks for a step in a call of its own, on the stream that its engine names in the call."""

    def __init__(self, streams: FindStream, name: str, step_id: int) -> None:
        self._streams, self._name, self._step_id = streams, name, step_id
        self._loop = asyncio.get_running_loop()
        self._host: GuestStream | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the server."""
        return self._loop

    @property
    def is_ready(self) -> bool:
        """Whether the stream was found."""
        return self._host is not None

    async def prepare(self) -> None:
        """Find the stream."""
        found = await self._streams.find(self._name)
        if found is None:
            raise errors.LeaseLostError
        if self._host is None:
            found.admit()
            self._host = self._stream = found

    def close(self) -> None:
        """Leave the stream."""
        if self._host is not None:
            self._host.dismiss()

    async def _ask(self, call: frames_pb2.RawStepCall) -> frames_pb2.RawStepCallResult:
        if self._host is None:
            await self.prepare()
        return await super()._ask(call)


@dataclasses.dataclass(frozen=True, slots=True)
class EngineAddress:
    """The address of an engine, "host:port" or "unix:/path", for `serve`.

    ``tls`` and ``token`` are as of a `Client`.
    """

    target: str
    tls: Tls | None = None
    token: Token | None = dataclasses.field(default=None, repr=False)


class Engine:
    """The engine at an address, for all steps of a server."""

    def __init__(self, address: str | EngineAddress) -> None:
        """Connect with the first request."""
        if isinstance(address, str):
            address = EngineAddress(address)
        self.address = address.target
        self.is_ready = False
        """Whether the last request has succeeded."""
        self.why = "it does not answer"
        """Why the last request has failed."""
        self._has_warned = False
        self._connection = Connection(
            Endpoint(
                target=address.target,
                timeout=SERVICE_TIMEOUT,
                jitter=random.random,
                security=Security(address.target, address.tls, address.token),
            )
        )

    async def send(self, request: message.Message, read: Callable[[Any], Answer]) -> Answer:
        """Return the answer to one request, which is not repeated here."""
        try:
            answer = await self._connection.send(Exchange(request, read, None))
        except (errors.LeaseLostError, errors.InvalidRequestError):
            raise  # of this step alone
        except errors.ProgressorError as error:
            self.is_ready = False
            self.why = error.why if isinstance(error, EngineUnavailableError) else str(error)
            if not self._has_warned:
                self._has_warned = True
                _log.warning("requests of steps to the engine fail: %s", error)
            raise
        self.is_ready, self._has_warned = True, False
        return answer

    async def close(self) -> None:
        """Close the connection; requests in flight end with an error."""
        await self._connection.close()


class ServiceLink(StepLink):
    """Asks StepService."""

    def __init__(self, engine: Engine, request: pb.ProcessRequest) -> None:
        self._engine, self._loop = engine, asyncio.get_running_loop()
        process, task = request.process, request.task
        self._deadline = request.deadline
        self._lease: dict[str, Any] = {
            "namespace": process.namespace,
            "process_id": process.process_id,
            "task_id": task.task_id,
            "token": task.token,
        }

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the server."""
        return self._loop

    @property
    def is_ready(self) -> bool:
        """Whether the engine has answered the last request of any step."""
        return self._engine.is_ready

    async def prepare(self) -> None:
        """Make a request that changes nothing, repeated for a part of the step's time."""
        left = self._deadline.ToDatetime(dt.UTC) - dt.datetime.now(dt.UTC)
        seconds = min(max(left.total_seconds() / 2, PROBE_SECONDS_MIN), PROBE_SECONDS_MAX)
        try:
            async with asyncio.timeout(seconds):
                await self.extend(_PROBE)
        except errors.LeaseLostError:
            raise
        except (TimeoutError, errors.ProgressorError) as error:
            advice = "step.once has not run its function: check the argument `engine` of serve"
            why = f"{self._engine.why}; {advice}"
            raise EngineUnavailableError(self._engine.address, why) from error

    async def _remember(self, key: str, value: bytes) -> bytes | None:
        asked = step_service.RememberRequest(key=key, value=value, **self._lease)
        return await self._engine.send(asked, _earlier)

    async def _extend(self, by: dt.timedelta) -> dt.datetime:
        asked = step_service.ExtendRequest(by=duration_to_wire(by), **self._lease)
        return await self._engine.send(asked, lambda found: instant_from_wire(found.deadline))


class NoLink(StepLink):
    """Of a step that came in a call of its own, without a stream or the address of the engine."""

    def check(self) -> None:
        """Raise RuntimeError, which says what to do."""
        message = (
            "this step came in a call of its own: give the processor the address of the engine, "
            'with serve(..., engine="host:port"), to use step.once, step.extend and step.keep_alive'
        )
        raise RuntimeError(message)


def _earlier(found: Any) -> bytes | None:  # noqa: ANN401  # of the stream or of the service
    return found.earlier_value if found.HasField("earlier_value") else None
