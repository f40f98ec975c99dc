"""Break everything, again and again, under load: is anything lost? python -m tests.chaos ..."""

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.chaos import bulks, judges
from tests.chaos.bulks import BulkClient, BulkNotes
from tests.chaos.faults import commit
from tests.chaos.load import jobs, messages
from tests.chaos.load.actors import steps
from tests.chaos.load.actors.client import ACTOR_CLIENTS, FLOOD_CLIENTS, ActorClient
from tests.chaos.load.actors.lives import Lives
from tests.chaos.load.clients import Caller
from tests.chaos.load.connections import Connections, Notes
from tests.chaos.load.job_clients import JOB_CLIENTS, JobClient, JobNotes
from tests.chaos.load.message_client import MessageClient
from tests.chaos.load.process_pool import ProcessPool
from tests.chaos.load.processor import NAMESPACE
from tests.chaos.plan import Fault, calm_seconds, plan
from tests.chaos.report import Committed, lines, summary
from tests.chaos.scene import Scene, open_scene

_SECONDS_MIN = 20.0
_CALLERS = 24


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    add = parser.add_argument
    add("--minutes", type=float, default=1.0, help="of load, faults in all but its ends [1]")
    add("--seed", type=int, default=1, help="decides what breaks, and what is asked [1]")
    add("--replicas", type=int, default=3, help="engines on the one database [3]")
    add("--callers", type=int, default=_CALLERS, help=f"at once [{_CALLERS}]")
    add("--standby", action="store_true", help="PostgreSQL has one, which is stopped and promoted")
    add("--json", type=Path, help="append the report to this file as a line of JSON")
    add("--keep", type=Path, help="leave logs and journals in this directory, which is empty")
    arguments = parser.parse_args()
    if arguments.keep is not None and arguments.keep.exists() and any(arguments.keep.iterdir()):
        # Journals are appended to, and a seed calls its requests by the same names again.
        parser.error(f"--keep: {arguments.keep} is not empty")
    return arguments


def _say(line: object) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class _Run:
    def __init__(self, scene: Scene, arguments: argparse.Namespace) -> None:
        self._scene = scene
        self._arguments = arguments
        self._notes = Notes()
        self._job_notes = JobNotes()
        self._lives = Lives()
        self._bulk_notes = BulkNotes()
        self._committed: list[Committed] = []
        self._pool = ProcessPool(arguments.seed)
        self._begun_at = 0.0

    async def play(self) -> dict[str, Any]:
        arguments, scene = self._arguments, self._scene
        seconds = max(_SECONDS_MIN, 60.0 * arguments.minutes)
        ended_at, done_after, undone = await self._load(seconds)
        judgement = await asyncio.to_thread(
            judges.judge,
            scene,
            self._notes,
            self._job_notes,
            self._lives.all,
            self._bulk_notes,
            faults=[(each.began_at, each.ended_at) for each in self._committed],
            settled_at=time.monotonic(),
            undone=undone,
        )
        if judgement.findings or arguments.keep is not None:
            self._keep_operations()
        return summary(
            self._committed,
            self._notes,
            judgement,
            begun_at=self._begun_at,
            ended_at=ended_at,
            done_after=done_after,
        )

    async def _load(self, seconds: float) -> tuple[float, float, list[str]]:
        """Return when the load ended, how long what was due took then, and what got stuck."""
        scene, ending, seed = self._scene, asyncio.Event(), self._arguments.seed
        connections = self._connections(seed)
        # Another seed than the callers', whose choices would be others.
        job_connections = self._connections(~seed, namespace=jobs.NAMESPACE)
        message_connections = self._connections(seed, namespace=messages.NAMESPACE)
        actor_connections = self._connections(seed, namespace=steps.NAMESPACE)
        bulk_connections = self._connections(seed, namespace=bulks.NAMESPACE)
        clients: list[Caller | JobClient | MessageClient | ActorClient | BulkClient] = [
            Caller(number, connections=connections, pool=self._pool, notes=self._notes, seed=seed)
            for number in range(self._arguments.callers)
        ]
        clients += [
            JobClient(
                number,
                connections=job_connections,
                notes=self._notes,
                job_notes=self._job_notes,
                seed=seed,
            )
            for number in range(JOB_CLIENTS)
        ]
        clients.append(MessageClient(connections=message_connections, notes=self._notes, seed=seed))
        clients.append(
            BulkClient(
                connections=bulk_connections,
                notes=self._notes,
                bulk_notes=self._bulk_notes,
                seed=seed,
            )
        )
        clients += [
            ActorClient(
                number,
                connections=actor_connections,
                lives=self._lives,
                notes=self._notes,
                seed=seed,
            )
            for number in range(FLOOD_CLIENTS + ACTOR_CLIENTS)
        ]
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(scene.watch(), name="watch")
            async with asyncio.TaskGroup() as running:
                self._begun_at = time.monotonic()
                for client in clients:
                    running.create_task(client.run(ending))
                await self._break_all(plan(seed, seconds, standby=self._arguments.standby))
                fixed_after = time.monotonic() - self._begun_at
                await self._sleep_until(max(seconds, fixed_after + calm_seconds(seconds)))
                ended_at = time.monotonic()
                ending.set()
            for each in (
                connections, job_connections, message_connections, actor_connections,
                bulk_connections,
            ):  # fmt: skip
                await each.close()
            done_after, undone = await judges.all_done(scene, self._notes)
            watch.cancel()
        return ended_at, done_after, undone

    def _connections(self, seed: int, *, namespace: str = NAMESPACE) -> Connections:
        return Connections(
            self._scene.addresses,
            [relay.target for relay in self._scene.relays],
            notes=self._notes,
            seed=seed,
            namespace=namespace,
        )

    def _keep_operations(self) -> None:
        """Leave what clients saw beside the logs, a line each, by process."""
        seen = sorted(
            (operation.process_id, operation.sent_at, str(operation))
            for operation in self._notes.operations
        )
        text = "".join(f"{process_id}: {line}\n" for process_id, _, line in seen)
        (self._scene.directory / "operations.txt").write_text(text, encoding="utf-8")

    async def _break_all(self, faults: tuple[Fault, ...]) -> None:
        """Commit each fault at its time, or as soon as what it breaks has been fixed."""
        async with asyncio.TaskGroup() as group:
            for fault in faults:
                await self._sleep_until(fault.at)
                group.create_task(self._commit(fault), name=str(fault))

    async def _commit(self, fault: Fault) -> None:
        _say(f"{time.monotonic() - self._begun_at:8.2f} s  {fault}")
        began_at, ended_at = await commit(self._scene, fault)
        _say(f"{ended_at - self._begun_at:8.2f} s  #{fault.number} is over")
        self._committed.append(Committed(fault=fault, began_at=began_at, ended_at=ended_at))

    async def _sleep_until(self, second: float) -> None:
        await asyncio.sleep(max(0.0, self._begun_at + second - time.monotonic()))


async def _main(arguments: argparse.Namespace, directory: Path) -> dict[str, Any]:
    _say(f"seed {arguments.seed}, {arguments.minutes:g} minutes; logs in {directory}")
    async with open_scene(
        directory,
        replica_count=arguments.replicas,
        seed=arguments.seed,
        standby=arguments.standby,
    ) as scene:
        played = await _Run(scene, arguments).play()
    return {"seed": arguments.seed, "minutes": arguments.minutes, **played}


def main() -> int:
    arguments = _arguments()
    directory = arguments.keep or Path(tempfile.mkdtemp(prefix="progressor-chaos-"))
    directory.mkdir(parents=True, exist_ok=True)
    document = asyncio.run(_main(arguments, directory))
    for line in lines(document):
        _say(line)
    if arguments.json is not None:
        with arguments.json.open("a", encoding="utf-8") as file:
            file.write(json.dumps(document) + "\n")
    if document["passed"] and arguments.keep is None:
        shutil.rmtree(directory)
    return 0 if document["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
