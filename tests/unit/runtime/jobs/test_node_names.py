"""The cache of node names: only new names are read, and none is stale."""

from collections.abc import Mapping

from progressor.domain.processes.process import Process, ProcessKey
from progressor.runtime.jobs.node_names import NodeNames
from tests.support.builders import make_key, make_process

LEADER, OTHER = make_key("leader"), make_key("other")


class GrowingJobs:
    """Jobs by their leaders' keys; notes which were read, and after which ordinals."""

    def __init__(self) -> None:
        self.jobs: dict[ProcessKey, dict[str, int]] = {}
        self.asked: list[tuple[ProcessKey, int]] = []

    def add(self, key: ProcessKey, *names: str) -> None:
        job = self.jobs.setdefault(key, {})
        for name in names:
            job[name] = len(job) + 1

    async def known_nodes(self, key: ProcessKey, *, after: int) -> Mapping[str, int]:
        self.asked.append((key, after))
        return {name: at for name, at in self.jobs.get(key, {}).items() if at > after}


def a_leader(key: ProcessKey = LEADER, init_task_id: int = 1) -> Process:
    return make_process(key=key, init_task_id=init_task_id)


async def test_only_what_is_new_is_read() -> None:
    jobs = GrowingJobs()
    names = NodeNames(jobs)
    assert await names.of(a_leader()) == {}
    jobs.add(LEADER, "a", "b")
    assert await names.of(a_leader()) == {"a": 1, "b": 2}
    jobs.add(LEADER, "c")

    assert await names.of(a_leader()) == {"a": 1, "b": 2, "c": 3}
    assert jobs.asked == [(LEADER, 0), (LEADER, 0), (LEADER, 2)]


async def test_a_later_leader_of_the_same_id_has_another_job() -> None:
    jobs = GrowingJobs()
    names = NodeNames(jobs)
    jobs.add(LEADER, "a", "b")
    await names.of(a_leader())
    jobs.jobs.clear()
    jobs.add(LEADER, "c")

    assert await names.of(a_leader(init_task_id=2)) == {"c": 1}
    jobs.add(LEADER, "d")
    assert await names.of(a_leader(init_task_id=2)) == {"c": 1, "d": 2}


async def test_the_job_that_was_asked_for_longest_ago_is_forgotten() -> None:
    jobs = GrowingJobs()
    names = NodeNames(jobs, names_max=5)
    jobs.add(LEADER, "a", "b")
    jobs.add(OTHER, "a", "b")
    for key in (LEADER, OTHER, LEADER):
        await names.of(a_leader(key))
    jobs.add(LEADER, "c", "d")

    assert await names.of(a_leader()) == {"a": 1, "b": 2, "c": 3, "d": 4}
    assert await names.of(a_leader(OTHER)) == {"a": 1, "b": 2}
    assert jobs.asked[-3:] == [(LEADER, 2), (LEADER, 2), (OTHER, 0)]


async def test_a_job_that_has_no_room_is_read_whole_each_time() -> None:
    jobs = GrowingJobs()
    names = NodeNames(jobs, names_max=1)
    jobs.add(LEADER, "a", "b")

    assert [len(await names.of(a_leader())) for _ in range(2)] == [2, 2]
    assert jobs.asked == [(LEADER, 0), (LEADER, 0)]
