"""A processor's client without an engine around it: a task, channels and what to expect."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
from collections.abc import AsyncIterator, Mapping

from progressor.clock import SystemClock
from progressor.domain.processes.event import NewEvent
from progressor.domain.processes.intent import Failed, Intent, Outcome, Succeeded
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.task import RunningTask
from progressor.processor.channels import Channels
from progressor.processor.client import ProcessorClient
from progressor.processor.credentials import Credentials
from progressor.wire.tls import Reloaded
from tests.support.builders import make_key, make_process, make_task

TASK = make_task(process=make_process(key=make_key("order-1")), task_id=2, token=1)
ANSWERED = Succeeded(Intent(events=(NewEvent(payload=b"args"),), response=b"args"))


@contextlib.asynccontextmanager
async def running_channels(
    credentials: Mapping[str, Reloaded[Credentials]] = {},
) -> AsyncIterator[Channels]:
    channels = Channels(credentials=credentials)
    async with asyncio.TaskGroup() as group:
        group.create_task(channels.run())
        await asyncio.sleep(0)
        yield channels
        await channels.close()


class Asking:
    def __init__(self, channels: Channels, target: str, credentials: str = "") -> None:
        self.channels = channels
        self.namespace = Namespace(
            name="orders", processor_targets=(target,), processor_credentials=credentials
        )
        self._client = ProcessorClient(channels, SystemClock())

    def aim_at(self, *targets: str) -> None:
        self.namespace = dataclasses.replace(self.namespace, processor_targets=targets)

    async def ask(self, task: RunningTask = TASK, *, seconds: float = 10) -> Outcome:
        return await self._client.ask(
            task, (), namespace=self.namespace, timeout=dt.timedelta(seconds=seconds)
        )


def failed(code: int, reason: str, *, retryable: bool) -> Failed:
    """Return a failure whose message is "text"."""
    return Failed(code=code, reason=reason, message="text", retryable=retryable)


def wordless(outcome: Outcome) -> Failed:
    """Return a failure without the message, which is gRPC's or the system's own."""
    assert isinstance(outcome, Failed)
    return dataclasses.replace(outcome, message="text")


UNAVAILABLE = failed(14, "PROCESSOR_UNAVAILABLE", retryable=True)
