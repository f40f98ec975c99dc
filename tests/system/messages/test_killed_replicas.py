"""A replica is killed between the settlement of steps and the delivery of their messages."""

from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest
import pytest_asyncio

from progressor.v1 import messages_pb2
from progressor.v1.processor_service_pb2 import ProcessResponse
from tests.support.engine.points import eventually
from tests.support.engine.process import running_process
from tests.support.engine.replica import SETTINGS as QUICK
from tests.support.engine.replica import Env, Replica, open_env, running_replica
from tests.support.processor.scripted import Answer

pytestmark = pytest.mark.asyncio(loop_scope="module")

SENDERS, MESSAGES = 5, 4
_LOCK = """
    SELECT FROM progressor.processes WHERE (namespace, process_id) = (%s, %s) FOR UPDATE"""


def sending(number: int) -> ProcessResponse:
    return ProcessResponse(
        messages=[
            messages_pb2.Message(
                kind=messages_pb2.MESSAGE_KIND_NOTIFY,
                process_id="receiver",
                args=b"%d %d" % (number, place),
                reply="r",
            )
            for place in range(MESSAGES)
        ]
    )


@pytest_asyncio.fixture(loop_scope="module")
async def survivor(database: str) -> AsyncIterator[Replica]:
    async with running_replica(database, QUICK) as replica:
        yield replica


async def test_another_replica_delivers_each_message_once_and_in_order(
    survivor: Replica, database: str, tmp_path: Path
) -> None:
    async with open_env(survivor) as env:
        await env.running("receiver")
        async with (
            await psycopg.AsyncConnection.connect(database) as holder,
            running_process(database, tmp_path) as victim,
            env.client_at(victim.address) as there,
        ):
            await holder.execute(
                _LOCK,
                (env.namespace, "receiver"),
            )
            for number in range(SENDERS):
                name = f"sender-{number}"
                env.processor.on_process(name, Answer(sending(number)), Answer())
                await there.start(name)
            # Its deliveries wait for the lock of the receiver.
            victim.kill()
            await victim.left()
            await holder.rollback()

        async def all_answered() -> bool:
            return all(
                [len(await replies_of(env, number)) == MESSAGES for number in range(SENDERS)]
            )

        await eventually(all_answered)
        requests = [
            request.task.args.split()
            for request in env.asked_for("receiver")
            if request.task.args and request.task.attempt == 1
        ]
        for number in range(SENDERS):
            places = [int(place) for sender, place in requests if int(sender) == number]
            assert places == [*range(MESSAGES)]
            assert await replies_of(env, number) == [*range(1, MESSAGES + 1)]


async def replies_of(env: Env, number: int) -> list[int]:
    """Return the numbers of the messages that were answered, by the replies that have run."""
    return [
        request.task.reply.number
        for request in env.asked_for(f"sender-{number}")
        if request.task.HasField("reply") and request.task.attempt == 1
    ]
