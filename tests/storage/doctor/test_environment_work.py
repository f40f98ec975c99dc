"""Replicas and work: what can go wrong with them goes wrong in a real database, and is found."""

import pytest

from progressor.storage.doctor.environment import work as environment_work
from progressor.storage.doctor.findings import State
from tests.support.storage.doctor.doctor import execute, find
from tests.support.storage.doctor.rows import AGO, BROKEN, change, leased, replica, scheduled
from tests.support.storage.store import NAMESPACE


class TestLargeSteps:
    @staticmethod
    def told(*steps: str) -> str:
        """Return a change that has a replica tell of the largest steps of namespaces."""
        loads = ", ".join(
            f'"n{number}": [0, 100, null, 1, 1, 0, 0.5{step}]' for number, step in enumerate(steps)
        )
        return change("facts", f"'{{{loads}}}'")

    def test_of_whom_nothing_is_told_are_well(self, orders: str) -> None:
        execute(orders, replica(), self.told("", ""))

        assert find(orders, "large_steps").state is State.OK

    def test_that_come_near_what_their_processor_receives(self, orders: str) -> None:
        near, over = ', ["p", 2097152, 4194304]', ', ["q", 5000000, 4194304]'
        execute(orders, replica(), self.told(near, "", over))

        found = find(orders, "large_steps")

        assert found.state is State.WARNING
        assert found.words.startswith("steps of 2 namespaces have reached half of")
        assert found.offenders == (
            "n2/q: 5,000,000 of 4,194,304 bytes",
            "n0/p: 2,097,152 of 4,194,304 bytes",
        )
        assert "ProcessorService.Describe" in found.advice

    def test_of_a_replica_long_gone_are_not_reported(self, orders: str) -> None:
        execute(
            orders,
            replica(heartbeat="now() - interval '1 h'"),
            self.told(', ["p", 2097152, 4194304]'),
        )

        assert find(orders, "large_steps").state is State.OK


class TestReplicas:
    def test_one_that_serves_is_well(self, orders: str) -> None:
        execute(orders, replica(), scheduled())

        found = find(orders, "heartbeats")

        assert found.state is State.OK
        assert found.words == "1 replica serving, 0 draining, 0 silent"

    def test_one_that_is_silent_among_others(self, orders: str) -> None:
        execute(orders, replica(1), replica(2, heartbeat=AGO), replica(3, draining=True))

        found = find(orders, "heartbeats")

        assert found.state is State.WARNING
        assert found.words == "1 replica serving, 1 draining, 1 silent"
        assert len(found.offenders) == 1
        assert found.offenders[0].startswith("r2 (replica 2): silent for 60")

    def test_one_is_judged_by_its_own_lease_timeout(self, orders: str) -> None:
        execute(orders, replica(heartbeat=AGO), change("lease_timeout", "'10 min'"))

        assert find(orders, "heartbeats").state is State.OK

    @pytest.mark.parametrize("work", [scheduled(), leased()])
    def test_nobody_serves_while_there_is_work(self, orders: str, work: str) -> None:
        execute(orders, replica(1, draining=True), work)

        found = find(orders, "heartbeats")

        assert found.state is State.FAILED
        assert "progressor serve" in found.advice

    def test_nobody_serves_and_nothing_is_due(self, orders: str) -> None:
        execute(orders, scheduled(due="now() + '1 h'"))

        assert find(orders, "heartbeats").state is State.WARNING

    def test_two_releases_side_by_side(self, orders: str) -> None:
        execute(orders, replica(1), replica(2, version="2"), replica(3, heartbeat=AGO, version="3"))

        found = find(orders, "versions")

        assert found.state is State.WARNING
        assert found.words == "2 replicas of 2 different builds"
        assert len(found.offenders) == 2

    def test_a_clock_that_is_off(self, orders: str) -> None:
        execute(orders, replica(1), replica(2))
        execute(orders, change("clock_offset", "CASE replica_id WHEN 1 THEN -3.5 ELSE 0.9 END"))

        found = find(orders, "clocks")

        assert found.state is State.WARNING
        assert found.offenders == ("r1 (replica 1): 3.5 s behind",)

    def test_clocks_within_a_second_are_well(self, orders: str) -> None:
        execute(orders, replica(), change("clock_offset", "0.25"))

        assert find(orders, "clocks").words == "1 clock within 250 ms of PostgreSQL's"

    def test_a_schema_before_clocks_were_told_is_coped_with(self, orders: str) -> None:
        execute(
            orders,
            replica(),
            *(
                f"ALTER TABLE progressor.replicas DROP COLUMN {column}"
                for column in ("clock_offset", "lease_timeout", "step_count", "caller_count")
            ),
        )

        assert find(orders, "clocks").state is State.NOT_DONE
        assert find(orders, "heartbeats").state is State.OK
        assert find(orders, "lost_leases").state is State.OK


class TestWork:
    def test_due_and_nobody_serves(self, orders: str) -> None:
        execute(orders, scheduled("p1"), scheduled("p2"))

        found = find(orders, "due_tasks")

        assert found.state is State.FAILED
        assert "no replica is serving" in found.words
        assert found.offenders[0].startswith("orders: 2 tasks due, the oldest for 60")
        assert found.offenders[0].endswith("0 of 0 workers taken")

    def test_due_and_all_workers_are_taken(self, orders: str) -> None:
        execute(
            orders,
            "UPDATE progressor.namespaces SET config = config || '{\"worker_count_max\": 1}'",
            replica(),
            leased("busy"),
            scheduled(),
        )

        found = find(orders, "due_tasks")

        assert found.state is State.WARNING
        assert "all workers are busy" in found.words
        assert "1 of 1 workers taken" in found.offenders[0]

    def test_due_although_there_is_room(self, orders: str) -> None:
        execute(orders, replica(), leased("busy"), scheduled())

        found = find(orders, "due_tasks")

        assert found.state is State.FAILED
        assert "although there are free workers" in found.words

    @pytest.mark.parametrize("due", ["now() - '1 s'::interval", "now() + '1 h'::interval", "NULL"])
    def test_due_just_now_or_later_or_behind_another_is_no_matter(
        self, orders: str, due: str
    ) -> None:
        execute(orders, replica(), scheduled(due=due))

        assert find(orders, "due_tasks").state is State.OK

    def test_what_waits_behind_a_long_step(self, orders: str) -> None:
        long_ago = "now() - '10 min'::interval"
        execute(
            orders,
            leased("slow", leased=long_ago),
            scheduled("slow", due="NULL"),
            leased("alone", leased=long_ago),
            leased("quick"),
            scheduled("quick", due="NULL"),
        )

        found = find(orders, "long_steps")

        assert found.state is State.WARNING
        assert found.words == (
            "1 process where requests wait behind a long step, the oldest for 10 min"
        )
        assert found.offenders == (
            "orders/slow call 1: attempt 1 for 10 min in replica 1, 1 behind it",
        )

    @pytest.mark.parametrize(
        ("statements", "cause"),
        [
            ((leased(leased=AGO, by=7),), "its replica is gone"),
            ((replica(), leased(expires=AGO)), "its step overran"),
            ((replica(heartbeat="now() - '1 h'::interval"), leased()), "its replica is silent"),
        ],
    )
    def test_a_lease_that_nobody_collects(
        self, orders: str, statements: tuple[str, ...], cause: str
    ) -> None:
        execute(orders, *statements)

        found = find(orders, "lost_leases")

        assert found.state is State.FAILED
        assert cause in found.offenders[0]

    @pytest.mark.parametrize(
        "statements",
        [
            (leased(by=7),),
            (replica(), leased(expires="now() - '1 s'::interval")),
            (replica(heartbeat="now() - '20 s'::interval"), leased()),
            (replica(), leased(leased="now() - '1 h'::interval")),
        ],
    )
    def test_a_lease_that_holds_or_was_lost_just_now_is_no_matter(
        self, orders: str, statements: tuple[str, ...]
    ) -> None:
        execute(orders, *statements)

        assert find(orders, "lost_leases").state is State.OK

    def test_processes_in_error(self, orders: str) -> None:
        execute(orders, BROKEN.format(count=12))

        found = find(orders, "broken_processes")

        assert found.state is State.WARNING
        assert found.words == "12 processes in error"
        assert found.offenders == ("orders: 12 processes",)

    def test_broken_jobs_and_nodes_are_for_job_retry(self, orders: str) -> None:
        execute(
            orders,
            BROKEN.format(count=6),
            "UPDATE progressor.processes SET led_by = 'engine' WHERE process_id LIKE '%1'",
            "UPDATE progressor.processes SET leader_slot = 1, leader_namespace = 'orders',"
            " leader_id = 'job', node = 1 WHERE process_id LIKE '%2' OR process_id LIKE '%3'",
        )

        found = find(orders, "broken_processes")

        assert found.offenders == ("orders: 6 processes, of which 3 are jobs or nodes of jobs",)
        assert "`progressor job retry -n NAMESPACE JOB`" in found.advice

    def test_broken_processes_without_jobs_are_for_repair(self, orders: str) -> None:
        execute(orders, BROKEN.format(count=1))

        advice = find(orders, "broken_processes").advice

        assert "`progressor repair`" in advice
        assert "job retry" not in advice

    def test_counting_ends_somewhere(self, orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(environment_work, "COUNTED_MAX", 5)
        execute(orders, BROKEN.format(count=12))

        assert find(orders, "broken_processes").words == "5 processes or more in error"

    def test_tasks_that_are_far_in_their_attempts(self, orders: str) -> None:
        attempts_max = NAMESPACE.retry_policy.attempts_max
        execute(
            orders,
            scheduled("near", attempt=attempts_max - 1, due="now() + '90 s'::interval"),
            scheduled("early", attempt=1),
        )

        found = find(orders, "retries")

        assert found.state is State.WARNING
        assert len(found.offenders) == 1
        assert found.offenders[0].startswith("orders/near call 2: attempt 2 of 3 failed, next in ")

    def test_attempts_are_those_of_the_policy_of_the_type(self, orders: str) -> None:
        execute(
            orders,
            "UPDATE progressor.namespaces"
            ' SET config = config || \'{"retry_policies": {"call": {"attempts_max": 100}}}\'',
            scheduled(attempt=3),
        )

        assert find(orders, "retries").state is State.OK
