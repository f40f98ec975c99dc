"""Several replicas behind one port: all of them work, and any of them, or their parent, may die."""

import asyncio
import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

import grpc
import psycopg
import pytest

from progressor import errors
from progressor.api.server.binding import BIND_KEY, bind, check_free, reserved
from progressor.sdk import BYTES, Client, NamespaceConfig, Reply
from tests.support.builders import make_namespace
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.process import NAME, Supervised, gone, kill, running_supervisor
from tests.support.postgres.cluster import wait_until_no_server
from tests.support.processor.scripted import Answer, Hang, ScriptedProcessor
from tests.support.storage.store import create_namespace

CLIENTS = 16
"""Each with a connection of its own: one in 32,768 times all of them go to one of two replicas."""

PROCESSES = [f"p{number}" for number in range(CLIENTS)]
NAMES = {f"{NAME}-1", f"{NAME}-2"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Two replicas behind one port, a processor, and clients that have a connection each."""

    supervisor: Supervised
    database: str
    processor: ScriptedProcessor
    clients: list[Client]

    def hold(self, processes: Iterable[str]) -> asyncio.Event:
        """Have the processor answer for these only once the event is set."""
        released = asyncio.Event()
        for process in processes:
            self.processor.on_process(process, Hang(released), Answer())
        return released

    async def in_hand(
        self, group: asyncio.TaskGroup, processes: Sequence[str]
    ) -> tuple[asyncio.Event, list["asyncio.Task[Reply]"]]:
        """Have each client start one of these, which is answered by its name once released."""
        released = self.hold(processes)
        starts = [
            group.create_task(client.start(process, process.encode(), idempotency_key=process))
            for client, process in zip(self.clients, processes, strict=True)
        ]
        await self.processor.received(CLIENTS, seconds=PATIENCE_SECONDS)
        return released, starts

    async def carriers(self) -> dict[str, str]:
        """Return which replica has the step of a process in hand, by process."""
        async with await psycopg.AsyncConnection.connect(self.database) as connection:
            rows = await connection.execute(
                "SELECT process_id, name FROM progressor.running"
                " JOIN progressor.replicas USING (replica_id)"
            )
            return dict(await rows.fetchall())

    async def unsettled(self) -> int:
        """Return how many tasks wait or run."""
        async with await psycopg.AsyncConnection.connect(self.database) as connection:
            rows = await connection.execute(
                "SELECT (SELECT count(*) FROM progressor.running)"
                " + (SELECT count(*) FROM progressor.schedule)"
            )
            found = await rows.fetchone()
        assert found is not None
        return int(found[0])


@contextlib.asynccontextmanager
async def open_scene(database: str) -> AsyncIterator[Scene]:
    async with (
        running_supervisor(
            {"database.dsn": database, "server.drain_timeout_seconds": "30"}
        ) as supervisor,
        # Where replicas are killed, a step may still be with the processor when it is asked again.
        ScriptedProcessor(one_at_a_time=False) as processor,
        contextlib.AsyncExitStack() as stack,
    ):
        address = await supervisor.serving_address()
        clients = [
            await stack.enter_async_context(
                Client(address, namespace="n", codec=BYTES, timeout=PATIENCE_SECONDS)
            )
            for _ in range(CLIENTS)
        ]
        namespace = NamespaceConfig(name="n", processor_targets=(processor.target,))
        await clients[0].namespaces.create(namespace)
        yield Scene(supervisor=supervisor, database=database, processor=processor, clients=clients)


async def test_both_replicas_carry_what_comes_in_by_the_one_port(own_database: str) -> None:
    async with open_scene(own_database) as scene, asyncio.TaskGroup() as group:
        released, starts = await scene.in_hand(group, PROCESSES)
        carriers = await scene.carriers()
        released.set()
        answers = [await start for start in starts]

        assert set(carriers.values()) == NAMES
        assert [answer.response for answer in answers] == [name.encode() for name in PROCESSES]
        assert len(scene.supervisor.logged("engine listening")) == 1
        assert len(scene.supervisor.logged("engine serves")) == 1


async def test_sigterm_lets_all_replicas_finish_what_they_have_in_hand(own_database: str) -> None:
    async with open_scene(own_database) as scene, asyncio.TaskGroup() as group:
        released, starts = await scene.in_hand(group, PROCESSES)
        scene.supervisor.terminate()
        for name in NAMES:
            await scene.supervisor.log_record("draining", replica=name)
        released.set()
        answers = [await start for start in starts]

        assert await scene.supervisor.left() == 0
        assert [answer.response for answer in answers] == [name.encode() for name in PROCESSES]
        assert await scene.unsettled() == 0


async def test_a_killed_replica_is_replaced_and_costs_no_answer(own_database: str) -> None:
    async with open_scene(own_database) as scene, asyncio.TaskGroup() as group:
        released, starts = await scene.in_hand(group, PROCESSES)
        carriers = await scene.carriers()

        async def ask(number: int, client: Client) -> None:
            """Make requests before, during and after the death of a replica."""
            for turn in range(10):
                process = f"{number}-{turn}"
                await client.start(process, idempotency_key="start")
                answer = await client.call(process, b"again", idempotency_key="call")
                assert answer.response == b"again"

        asking = [
            group.create_task(ask(number, client)) for number, client in enumerate(scene.clients)
        ]
        victim = scene.supervisor.replicas()[f"{NAME}-1"]
        kill(victim)
        died = await scene.supervisor.log_record(
            "replica exited; restarting it", replica=f"{NAME}-1"
        )
        released.set()
        answers = [await start for start in starts]
        for each in asking:
            await each
        await scene.supervisor.log_record("replica serves again", replica=f"{NAME}-1")

        assert died["exit_code"] == -signal.SIGKILL
        assert f"{NAME}-1" in carriers.values()
        assert [answer.response for answer in answers] == [name.encode() for name in PROCESSES]
        assert scene.supervisor.replicas()[f"{NAME}-1"] != victim
        assert await scene.unsettled() == 0


async def test_nothing_is_left_of_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with running_supervisor({"database.data_directory": str(data)}) as supervisor:
        address = await supervisor.serving_address()
        processes = supervisor.replicas()
        # One that is stopped cannot notice anything by itself.
        os.kill(processes[f"{NAME}-2"], signal.SIGSTOP)

        kill(supervisor.pid)

        assert set(processes) == NAMES
        for process in processes.values():
            await gone(process)
        await asyncio.to_thread(wait_until_no_server, data)
        await check_free(address)


async def test_a_second_signal_ends_all_at_once(own_database: str) -> None:
    async with open_scene(own_database) as scene, asyncio.TaskGroup() as group:
        scene.hold(["p"])
        start = group.create_task(_end_of(scene.clients[0].start("p")))
        await scene.processor.received(1, seconds=PATIENCE_SECONDS)
        processes = scene.supervisor.replicas()

        code = await scene.supervisor.terminate_repeatedly()

        assert code == -signal.SIGTERM
        for process in processes.values():
            await gone(process)
        for client in scene.clients:
            await client.close()
        await start


async def test_a_paused_start_pauses_once_and_before_any_other_replica_starts(
    own_database: str,
) -> None:
    create_namespace(own_database, make_namespace("n"))
    async with running_supervisor({"database.dsn": own_database}, "--paused") as supervisor:
        address = await supervisor.serving_address()
        async with Client(address, namespace="n", timeout=PATIENCE_SECONDS) as client:
            found = await client.namespaces.get("n")
            await client.namespaces.resume("n")
            await client.namespaces.create(NamespaceConfig(name="m", processor_targets=("a:1",)))
            for name, process in supervisor.replicas().items():
                kill(process)
                await supervisor.log_record("replica serves again", replica=name)
        async with Client(address, namespace="n", timeout=PATIENCE_SECONDS) as client:
            pauses = [it.pause async for it in client.namespaces.list()]
        events = [it["event"] for it in supervisor.records]
        [paused] = supervisor.logged("namespaces paused at the start")
        [first, _, *_] = supervisor.logged("connected to PostgreSQL")

    assert found.pause is not None
    assert (found.pause.reason, found.pause.author) == ("serve --paused", f"{NAME}-1")
    assert (paused["namespaces"], pauses) == (["n"], [None, None])
    assert first["replica"] == f"{NAME}-1"
    before = events[: events.index("namespaces paused at the start")]
    assert before.count("connected to PostgreSQL") == 1


async def _end_of(request: object) -> None:
    with contextlib.suppress(errors.ProgressorError):
        await request  # type: ignore[misc]


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"server.tls_certificate": "/nowhere", "server.tls_key": "/nowhere"}, "tls_certificate"),
        ({"server.bind": "192.0.2.1:0", "access.enabled": "true"}, "server.bind"),
        ({"server.bind": "127.0.0.1:7420,unix:/tmp/none"}, "server.workers"),
    ],
)
async def test_a_wrong_setting_ends_the_supervisor_with_one_error(
    database: str, settings: dict[str, str], key: str
) -> None:
    async with running_supervisor({"database.dsn": database, **settings}) as supervisor:
        code = await supervisor.left()
        printed = supervisor.text.splitlines()

    assert code == 2
    assert [key in line for line in printed if line.startswith("error: ")] == [True]


async def test_a_port_of_somebody_else_is_refused_by_its_key(database: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        address = f"127.0.0.1:{stranger.getsockname()[1]}"
        async with running_supervisor(
            {"database.dsn": database, "server.bind": address}
        ) as supervisor:
            assert await supervisor.left() == 2
            assert "server.bind" in supervisor.text.splitlines()[0]


async def test_the_port_is_held_against_everybody_but_those_that_share_it() -> None:
    async with reserved("127.0.0.1:0") as address:
        one, other = (grpc.aio.server(options=[("grpc.so_reuseport", 1)]) for _ in range(2))
        for server in (one, other):
            assert bind(server, address, None) == address
            await server.start()
            await server.stop(None)

        with pytest.raises(errors.ConfigError, match=BIND_KEY):
            await check_free(address)
        with pytest.raises(errors.ConfigError, match=BIND_KEY):
            async with reserved(address):
                pass
    await check_free(address)


async def test_a_supervisor_warns_of_too_many_connections(database: str) -> None:
    settings = {"database.dsn": database, "database.front_connections_max": "1000"}
    async with running_supervisor(settings) as supervisor:
        warning = await supervisor.log_record(
            "the replicas may need more connections than PostgreSQL allows"
        )

    assert warning["wanted"] == 2 * (1000 + 6 + 3 + 2)
    assert warning["allowed"] < 1000
    assert "server.workers" in warning["keys"]


def test_a_member_without_a_parent_ends() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "progressor.cli.engine.replica_process", "orphan"],
        stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=PATIENCE_SECONDS,
    )  # fmt: skip

    assert (ended.returncode, ended.stdout, ended.stderr) == (1, b"", b"")
