"""Several replicas on one database: answers find their callers, and nobody's step is lost."""

import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest
import pytest_asyncio
from grpc import StatusCode

from progressor.clock import SystemClock
from progressor.domain.process import ProcessKey, process_key
from progressor.domain.task import TaskResult, TaskStatus, TaskType
from progressor.processor.client import ProcessorClient
from progressor.sdk import ProcessStatus, RetryPolicy, ZombiePolicy
from progressor.storage.results import Results, Word
from progressor.v1.processor_service_pb2 import Complete, RemoveProcess
from progressor.worker.observer import Observers
from progressor.worker.replies import Replies
from tests.support.points import PATIENCE_SECONDS
from tests.support.processor import Answer, Hang
from tests.support.replica import (
    QUIET,
    Replica,
    Stage,
    answering,
    broken,
    open_stage,
    refusal,
    response,
    running_process,
    running_replica,
    timer,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

SAFETY_NET = "progressor.worker.replies._SAFETY_SECONDS"
LEASE_AND_SCANS = 5.0
"""Lease timeout (1 s) and a few scans (0.2 s each), with patience for a busy machine. Far less than
the step timeout of 30 s, by which a lost step would be found without leases."""


@pytest.fixture(scope="module")
def no_safety_net() -> Iterator[None]:
    """Keep the slow round over the waiting callers from ever finding an answer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SAFETY_NET, 3600.0)
        yield


class Trio:
    """Three replicas that never scan, on one database."""

    def __init__(self, *replicas: Replica) -> None:
        """Name them."""
        self.a, self.b, self.c = replicas


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def trio(database: str, no_safety_net: None) -> AsyncIterator[Trio]:  # noqa: ARG001
    async with (
        running_replica(database, QUIET) as a,
        running_replica(database, QUIET) as b,
        running_replica(database, QUIET) as c,
    ):
        yield Trio(a, b, c)
        assert [each.points.count("scan_found") for each in (a, b, c)] == [0, 0, 0]


@pytest_asyncio.fixture(loop_scope="module")
async def at_b(trio: Trio) -> AsyncIterator[Stage]:
    """Return a stage whose client talks to replica B, which carries what it starts."""
    async with open_stage(trio.b) as stage:
        yield stage


class TestAnswers:
    async def test_of_a_step_on_b_reach_the_caller_in_line_on_a_by_notification(
        self, trio: Trio, at_b: Stage
    ) -> None:
        hang, _ = await at_b.busy("p")
        async with at_b.client_at(trio.a.address) as on_a, asyncio.TaskGroup() as group:
            waiting = group.create_task(on_a.call("p", b"2"))
            await trio.a.points.wait("admitted", key=at_b.key("p"))
            hang.released.set()

        answer = waiting.result()
        assert answer.response == b"2"
        assert trio.a.points.count("reply_fetched", task_id=answer.task_id) == 1
        assert trio.b.points.count("settled", task_id=answer.task_id) == 1

    async def test_reach_await_task_on_a_third(self, trio: Trio, at_b: Stage) -> None:
        hang, _ = await at_b.busy("p")
        async with (
            at_b.client_at(trio.a.address) as on_a,
            at_b.client_at(trio.c.address) as on_c,
            asyncio.TaskGroup() as group,
        ):
            accepted = await on_a.call("p", b"2", accept_only=True)
            awaited = group.create_task(on_c.await_task("p", task_id=accepted.task_id))
            await trio.c.points.wait("awaited", key=at_b.key("p"))
            hang.released.set()

        assert awaited.result().response == b"2"
        assert trio.c.points.count("reply_fetched", task_id=accepted.task_id) == 1

    async def test_reach_callers_with_the_same_key_on_all_replicas(
        self, trio: Trio, at_b: Stage
    ) -> None:
        await at_b.running("p", hang := Hang())
        async with contextlib.AsyncExitStack() as clients, asyncio.TaskGroup() as group:
            calls = []
            for replica in (trio.a, trio.b, trio.c):
                client = await clients.enter_async_context(at_b.client_at(replica.address))
                before = replica.points.count("admitted", key=at_b.key("p"))
                calls.append(group.create_task(client.call("p", b"1", idempotency_key="k")))
                await replica.points.wait("admitted", before + 1, key=at_b.key("p"))
            await at_b.asked("p", 2)
            hang.released.set()
            await asyncio.wait(calls)

        assert len({(call.result().task_id, call.result().response) for call in calls}) == 1
        assert len(at_b.asked_for("p")) == 2

    async def test_a_hundred_starts_with_one_key_over_all_replicas_are_one_execution(
        self, trio: Trio, at_b: Stage
    ) -> None:
        async with contextlib.AsyncExitStack() as clients, asyncio.TaskGroup() as group:
            opened = [
                await clients.enter_async_context(at_b.client_at(replica.address))
                for replica in (trio.a, trio.b, trio.c)
            ]
            starts = [
                group.create_task(opened[n % 3].start("p", b"1", idempotency_key="k"))
                for n in range(100)
            ]
            await asyncio.wait(starts)

        answers = [start.result() for start in starts]
        assert {(answer.task_id, answer.response) for answer in answers} == {
            (answers[0].task_id, b"1")
        }
        assert sum(not answer.deduplicated for answer in answers) == 1
        assert len(at_b.asked_for("p")) == 1

    @pytest.mark.parametrize(
        ("ending", "reason"),
        [
            pytest.param(broken().response, "PROCESS_FAILED", id="breaks the process"),
            pytest.param(response(complete=Complete()), "PROCESS_FINISHED", id="completes it"),
            pytest.param(response(remove=RemoveProcess()), "PROCESS_REMOVED", id="removes it"),
        ],
    )
    async def test_reach_the_caller_on_a_also_where_the_step_on_b(
        self, trio: Trio, at_b: Stage, ending: Any, reason: str
    ) -> None:
        hang, _ = await at_b.busy("p", answer=ending)
        async with at_b.client_at(trio.a.address) as on_a, asyncio.TaskGroup() as group:
            waiting = group.create_task(refusal(on_a.call("p", b"2")))
            await trio.a.points.wait("admitted", key=at_b.key("p"))
            hang.released.set()

        assert waiting.result().reason == reason

    async def test_of_a_step_that_removes_its_process_reach_who_awaits_it_elsewhere(
        self, trio: Trio, at_b: Stage
    ) -> None:
        bye = response(response=b"bye", remove=RemoveProcess())
        hang, task_id = await at_b.busy("p", answer=bye)
        async with at_b.client_at(trio.a.address) as on_a, asyncio.TaskGroup() as group:
            awaited = group.create_task(on_a.await_task("p", task_id=task_id))
            await trio.a.points.wait("awaited", key=at_b.key("p"))
            hang.released.set()

        assert awaited.result().response == b"bye"

    async def test_are_found_when_the_listening_connection_was_cut(
        self, trio: Trio, at_b: Stage, database: str
    ) -> None:
        hang, _ = await at_b.busy("p")
        async with at_b.client_at(trio.a.address) as on_a, asyncio.TaskGroup() as group:
            waiting = group.create_task(on_a.call("p", b"2"))
            await trio.a.points.wait("admitted", key=at_b.key("p"))
            await cut_listener(database, trio.a)
            hang.released.set()

        assert waiting.result().response == b"2"


class EndedTasks:
    """Results of tasks that have all ended."""

    async def fetch(self, tasks: Mapping[int, ProcessKey]) -> list[TaskResult]:
        """Return an answer for each."""
        return [
            TaskResult(task_id=each, task_type=TaskType.CALL, status=TaskStatus.FINISHED)
            for each in tasks
        ]

    async def notify(self, ended: Mapping[int, list[int]]) -> None:
        """Tell nobody."""


async def no_notifications() -> AsyncIterator[Word]:
    await asyncio.Event().wait()
    yield Word()


@pytest.mark.usefixtures("no_safety_net")
async def test_a_caller_is_answered_whose_admission_is_told_after_the_answer_of_another() -> None:
    # Two callers joined one task in time; the second learns of it once the first has its answer.
    replies = Replies(
        results=EndedTasks(),
        listen=no_notifications,
        on_due=lambda: None,
        carried=lambda _task_id: False,
        clock=SystemClock(),
        observers=Observers(),
    )
    key = process_key("n", "p")
    first, second = (asyncio.get_running_loop().create_future() for _ in range(2))
    running = asyncio.ensure_future(replies.run())
    replies.expect(1, key, first)
    replies.deliver(TaskResult(task_id=1, task_type=TaskType.CALL, status=TaskStatus.FINISHED))
    replies.expect(1, key, second)
    async with asyncio.timeout(PATIENCE_SECONDS):
        result = await second
    running.cancel()

    assert first.done()
    assert result.task_id == 1


async def cut_listener(database: str, replica: Replica) -> None:
    """End the session in which a replica listens."""
    channel = f"LISTEN progressor_{replica.engine.replica_id}"
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
        await connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE query = %s",
            [channel],
        )


class TestRemoveOnAnotherReplica:
    async def test_tells_the_caller_in_line(self, trio: Trio, at_b: Stage) -> None:
        await at_b.busy("p")
        async with at_b.client_at(trio.a.address) as on_a, asyncio.TaskGroup() as group:
            waiting = group.create_task(refusal(on_a.call("p", b"2")))
            await trio.a.points.wait("admitted", key=at_b.key("p"))
            await at_b.client.remove("p")

        assert (waiting.result().code, waiting.result().reason) == (
            StatusCode.ABORTED,
            "PROCESS_REMOVED",
        )

    async def test_tells_the_caller_of_a_step_that_its_own_replica_carries(
        self, trio: Trio, at_b: Stage
    ) -> None:
        await at_b.running("p", Hang())
        async with at_b.client_at(trio.a.address) as on_a, asyncio.TaskGroup() as group:
            waiting = group.create_task(refusal(on_a.call("p", b"2", timeout=10)))
            await at_b.asked("p", 2)
            await at_b.client.remove("p")

        assert waiting.result().reason == "PROCESS_REMOVED"

    async def test_fences_off_the_step_in_flight(self, trio: Trio, at_b: Stage) -> None:
        hang, task_id = await at_b.busy("p")
        async with at_b.client_at(trio.a.address) as on_a:
            await on_a.remove("p")
            hang.released.set()
            await trio.b.points.wait("fenced", task_id=task_id)

            assert (await refusal(on_a.get("p"))).reason == "PROCESS_NOT_FOUND"


class TestSafetyNet:
    async def test_finds_answers_whose_notification_was_lost(
        self, trio: Trio, at_b: Stage, monkeypatch: pytest.MonkeyPatch, database: str
    ) -> None:
        async def lost(_results: Results, _ended: object) -> None:
            """Tell nobody."""

        monkeypatch.setattr(Results, "notify", lost)
        monkeypatch.setattr(SAFETY_NET, 0.1)
        async with running_replica(database, QUIET) as other:
            hang, _ = await at_b.busy("p")
            async with at_b.client_at(other.address) as elsewhere, asyncio.TaskGroup() as group:
                waiting = group.create_task(elsewhere.call("p", b"2"))
                await other.points.wait("admitted", key=at_b.key("p"))
                hang.released.set()

        assert trio.b.points.count("settled", task_id=waiting.result().task_id) == 1
        assert waiting.result().response == b"2"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def survivor(cluster: Any) -> AsyncIterator[Replica]:
    """Return a replica that scans, on a database of its own."""
    conninfo = cluster.create_database("progressor_template")
    async with running_replica(conninfo) as replica:
        yield replica
    cluster.drop_database(conninfo)


class TestAReplicaThatIsKilled:
    @staticmethod
    async def in_hand_of_the_killed(stage: Stage, directory: Path, *, behind: int = 0) -> int:
        """Have a replica killed with a call on ``p`` in hand, and some behind it; return its id."""
        dsn = stage.replica.engine.dsn
        async with (
            running_process(dsn, directory) as victim,
            stage.client_at(victim.address) as there,
        ):
            accepted = await there.call("p", b"1", accept_only=True)
            await stage.asked("p", 2)
            for number in range(behind):
                await there.call("p", b"behind %d" % number, accept_only=True)
            victim.kill()
        return accepted.task_id

    async def test_has_its_step_retried_by_another_within_the_lease(
        self, survivor: Replica, tmp_path: Path
    ) -> None:
        async with open_stage(survivor, one_at_a_time=False) as stage:
            await stage.running("p", Hang(), Answer())
            task_id = await self.in_hand_of_the_killed(stage, tmp_path)
            async with asyncio.timeout(LEASE_AND_SCANS):
                answer = await stage.client.await_task("p", task_id=task_id)

            first, second = (it.task for it in stage.asked_for("p")[1:])
            assert answer.response == b"1"
            assert (first.task_id, first.attempt) == (task_id, 1)
            assert (second.task_id, second.attempt) == (task_id, 2)
            assert second.token > first.token
            assert (await stage.client.get("p")).process.last_event_id == 1

    async def test_has_the_line_behind_its_step_kept_in_order(
        self, survivor: Replica, tmp_path: Path
    ) -> None:
        async with open_stage(survivor, one_at_a_time=False) as stage:
            await stage.running("p", Hang(), Answer())
            await self.in_hand_of_the_killed(stage, tmp_path, behind=3)
            await stage.settled("p", 5)

            history = (await stage.client.get("p")).history
            assert [event.payload for event in history] == [
                b"1",
                b"behind 0",
                b"behind 1",
                b"behind 2",
            ]

    async def test_breaks_the_process_as_a_zombie_where_the_policy_says_fail(
        self, survivor: Replica, tmp_path: Path
    ) -> None:
        async with open_stage(
            survivor, one_at_a_time=False, zombie_policy=ZombiePolicy.FAIL
        ) as stage:
            await stage.timed("p", Hang(), Answer())
            task_id = await self.in_hand_of_the_killed(stage, tmp_path, behind=1)
            status = await refusal(stage.client.await_task("p", task_id=task_id))

            snapshot = await stage.client.get("p")
            tasks = {task.task_id: task for task in (await stage.client.trace("p")).tasks}
            error = tasks[task_id].error
            assert (status.reason, status.metadata["detail"]) == (
                "PROCESS_FAILED",
                "zombie detected",
            )
            assert snapshot.process.status is ProcessStatus.ERROR
            assert snapshot.process.detail == "zombie detected"
            assert snapshot.process.corrupted_by == task_id
            assert (snapshot.timer, snapshot.waits) == (None, ())
            assert error is not None
            assert error.reason == "ZOMBIE"
            assert [str(task.status) for task in tasks.values()] == [
                TaskStatus.FINISHED,
                TaskStatus.CANCELLED,
                TaskStatus.ERROR,
                TaskStatus.CANCELLED,
            ]

    async def test_tells_the_callers_behind_the_zombie_on_other_replicas(
        self, survivor: Replica, tmp_path: Path
    ) -> None:
        async with open_stage(
            survivor, one_at_a_time=False, zombie_policy=ZombiePolicy.FAIL
        ) as stage:
            await stage.running("p", Hang())
            dsn = survivor.engine.dsn
            async with (
                running_process(dsn, tmp_path) as victim,
                stage.client_at(victim.address) as there,
            ):
                accepted = await there.call("p", b"1", accept_only=True)
                await stage.asked("p", 2)
                async with asyncio.TaskGroup() as group:
                    waiting = group.create_task(refusal(stage.client.call("p", b"2")))
                    await survivor.points.wait("admitted", 2, key=stage.key("p"))
                    victim.kill()

            status = waiting.result()
            assert status.reason == "PROCESS_FAILED"
            assert status.metadata["task_id"] == str(accepted.task_id)

    async def test_breaks_the_process_once_the_attempts_are_spent(
        self, survivor: Replica, tmp_path: Path
    ) -> None:
        async with open_stage(
            survivor, one_at_a_time=False, retry_policy=RetryPolicy(attempts_max=1)
        ) as stage:
            await stage.running("p", Hang(), Answer())
            task_id = await self.in_hand_of_the_killed(stage, tmp_path)
            await refusal(stage.client.await_task("p", task_id=task_id))

            process = (await stage.client.get("p")).process
            assert (process.status, process.detail) == (ProcessStatus.ERROR, "zombie detected")

    async def test_has_its_timers_fired_by_another(self, survivor: Replica, tmp_path: Path) -> None:
        async with open_stage(survivor) as stage:
            in_a_while = answering(set_timer=timer(1.0, args=b"tick"))
            stage.processor.on_process("p", in_a_while, answering(b"fired"))
            async with (
                running_process(survivor.engine.dsn, tmp_path) as victim,
                stage.client_at(victim.address) as there,
            ):
                await there.start("p")
                victim.kill()
            async with asyncio.timeout(LEASE_AND_SCANS):
                await stage.settled("p")

            assert stage.asked_for("p")[1].task.args == b"tick"

    async def test_has_a_process_in_init_started_by_another(
        self, survivor: Replica, tmp_path: Path
    ) -> None:
        async with open_stage(survivor, one_at_a_time=False) as stage:
            stage.processor.on_process("p", Hang(), Answer())
            async with (
                running_process(survivor.engine.dsn, tmp_path) as victim,
                stage.client_at(victim.address) as there,
            ):
                await there.start("p", b"1", idempotency_key="k", accept_only=True)
                await stage.asked("p")
                victim.kill()

            answer = await stage.client.start("p", b"1", idempotency_key="k")
            assert (answer.response, answer.deduplicated) == (b"1", True)


class TestAReplicaThatIsFrozen:
    async def test_cannot_settle_when_it_comes_back_late(
        self, survivor: Replica, tmp_path: Path
    ) -> None:
        async with open_stage(survivor, one_at_a_time=False) as stage:
            hang = Hang(response=response(b"late", aux_state=b"late", response=b"late"))
            await stage.running("p", hang, answering(b"in time", response=b"in time"))
            async with (
                running_process(survivor.engine.dsn, tmp_path) as frozen,
                stage.client_at(frozen.address) as there,
            ):
                accepted = await there.call("p", b"1", accept_only=True)
                await stage.asked("p", 2)
                frozen.freeze()
                answer = await stage.client.await_task("p", task_id=accepted.task_id)
                hang.released.set()
                frozen.thaw()
                # What it has in hand is settled, or refused, before it leaves.
                frozen.terminate()
                left = await frozen.left()

            snapshot = await stage.client.get("p")
            assert (left, answer.response) == (0, b"in time")
            assert [event.payload for event in snapshot.history] == [b"in time"]
            assert snapshot.process.state is None


class TestAStepThatOverruns:
    @pytest.fixture
    def never_heard(self, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
        """Keep what the processor answers to first attempts of calls until the event is set."""
        heard = asyncio.Event()
        ask = ProcessorClient.ask

        async def late(client: ProcessorClient, task: Any, *args: Any, **kwargs: Any) -> Any:
            outcome = await ask(client, task, *args, **kwargs)
            if task.attempt == 1 and task.task_type == "call":
                await heard.wait()
            return outcome

        monkeypatch.setattr(ProcessorClient, "ask", late)
        return heard

    @pytest_asyncio.fixture(loop_scope="module")
    async def quick(self, survivor: Replica) -> AsyncIterator[Stage]:
        """Return a stage whose steps may take a second, and 500 ms of grace."""
        async with open_stage(survivor, step_timeout=dt.timedelta(seconds=1)) as stage:
            yield stage

    async def test_its_timeout_and_grace_is_collected_and_retried(
        self, quick: Stage, never_heard: asyncio.Event
    ) -> None:
        await quick.running("p", answering(response=b"1"), answering(response=b"2"))

        answer = await quick.client.call("p")

        (collected,) = quick.points.passed("zombie_collected", task_id=answer.task_id)
        never_heard.set()
        assert answer.response == b"2"
        assert (collected["cause"], collected["settlement"]) == ("overrun", "Retry")

    async def test_is_fenced_off_when_it_settles_late(
        self, quick: Stage, never_heard: asyncio.Event
    ) -> None:
        first = answering(b"first", aux_state=b"first", response=b"1")
        await quick.running("p", first, answering(b"second", response=b"2"))
        answer = await quick.client.call("p")

        never_heard.set()
        await quick.points.wait("fenced", task_id=answer.task_id)

        snapshot = await quick.client.get("p")
        assert [event.payload for event in snapshot.history] == [b"second"]
        assert snapshot.process.state is None


class TestTheOnlyReplica:
    async def test_goes_on_where_the_one_before_it_was_killed(
        self, own_database: str, tmp_path: Path, survivor: Replica
    ) -> None:
        # The stage's own replica is of another database: it only lends its processor.
        async with open_stage(survivor, one_at_a_time=False) as lender:
            lender.processor.on_process("p", Hang(), Answer())
            async with running_process(own_database, tmp_path) as victim:
                async with lender.client_at(victim.address) as there:
                    config = await lender.client.get_namespace(lender.namespace)
                    await there.create_namespace(config)
                    await there.start("p", b"1", idempotency_key="k", accept_only=True)
                    await lender.asked("p")
                victim.kill()
            async with (
                running_replica(own_database) as successor,
                lender.client_at(successor.address) as here,
            ):
                answer = await here.await_task("p", idempotency_key="k")

        assert answer.response == b"1"
