"""The replica where a client awaits the end of a process is killed: another one tells the end."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from progressor import errors
from progressor.sdk import BYTES, Client
from progressor.v1.processor_service_pb2 import Complete
from tests.support.engine.points import PATIENCE_SECONDS, eventually
from tests.support.engine.process import ReplicaProcess
from tests.support.engine.replica import Env, Replica, answering
from tests.support.postgres.relay import Relay
from tests.support.storage.doctor.judge import judged_env

pytestmark = pytest.mark.asyncio(loop_scope="module")

_AWAITED_BY = """
    SELECT awaited_by FROM progressor.processes WHERE (namespace, process_id) = (%s, 'p')"""

ENDS = {
    "complete": ("the result", "the result"),
    "terminate": ("PROCESS_TERMINATED: no longer wanted",) * 2,
    "remove": ("PROCESS_REMOVED: ", "PROCESS_NOT_FOUND: "),
}
"""What is seen of each end: by who waits at another replica by then, and by who comes later."""


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


@contextlib.asynccontextmanager
async def victim_on(database: str, directory: Path) -> AsyncIterator[tuple[ReplicaProcess, int]]:
    """Run a replica in a process of its own; yield it and its port."""
    settings = {"database.dsn": database, "log.format": "json"}
    victim = ReplicaProcess(settings, log=directory / "engine.log")
    victim.address = "127.0.0.1:0"
    async with victim.running():
        served = await victim.log_record("engine serves")
        yield victim, port_of(served["addresses"][0])


async def seen(result: Awaitable[bytes]) -> str:
    try:
        return (await result).decode()
    except errors.ProgressorError as error:
        return f"{error.reason}: {getattr(error, 'detail', '')}"


async def end(env: Env, how: str) -> None:
    match how:
        case "complete":
            await env.client.call("p")
        case "terminate":
            await env.client.terminate("p", "no longer wanted")
        case _:
            await env.client.remove("p")


@pytest.mark.parametrize("is_away", [False, True], ids=["waits again", "comes later"])
@pytest.mark.parametrize("how", ENDS)
async def test_an_awaited_end_comes_from_another_replica(
    second_replica: Replica,
    database: str,
    observer: psycopg.Connection[Any],
    tmp_path: Path,
    how: str,
    is_away: bool,
) -> None:
    relay = Relay(None)

    def awaited_by() -> int:
        [(replica_ids,)] = observer.execute(_AWAITED_BY, [env.namespace]).fetchall()
        return len(replica_ids or ())

    async with judged_env(second_replica) as env, victim_on(database, tmp_path) as (victim, port):
        await env.running("p", answering(complete=Complete(result=b"the result")))
        await relay.start(port)
        async with Client(relay.target, namespace=env.namespace, codec=BYTES) as client:
            waiting = asyncio.ensure_future(seen(client.result("p", timeout=PATIENCE_SECONDS)))
            await eventually(lambda: awaited_by() == 1)
            victim.kill()
            await victim.left()
            await relay.stop()
            if is_away:
                await end(env, how)
            await relay.start(port_of(second_replica.address))
            if not is_away:
                await eventually(lambda: awaited_by() == 2)
                await end(env, how)
            assert await waiting == ENDS[how][is_away]
        await relay.stop()
