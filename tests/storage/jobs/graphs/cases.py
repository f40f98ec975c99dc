"""Jobs of a few nodes with one-letter names, for cases told one by one."""

from progressor.domain.jobs.job import NodeSpec, StartNodes
from progressor.domain.processes.process import ProcessKey, process_key
from progressor.domain.processes.task import RunningTask
from tests.support.models.jobs.graphs import specs
from tests.support.storage.jobs.store import JobStore, leader_of
from tests.support.storage.store import a_request, success

LEADER = leader_of(1)


def nodes(**before: str) -> tuple[NodeSpec, ...]:
    """Return nodes with one-letter names, by those that must be done before."""
    return specs({name: tuple(names) for name, names in before.items()})


async def led(jobs: JobStore, *specs_: NodeSpec, leader: ProcessKey = LEADER) -> None:
    """Have a process lead a job that its own processor started."""
    init = await jobs.store.start(leader)
    await jobs.settled(init, success(StartNodes(nodes=specs_)))


async def call(jobs: JobStore, key: ProcessKey) -> RunningTask:
    """Call a process that has nothing else to do, and return the call in hand."""
    return await jobs.store.run_task(a_request(key))


def follower(name: str, leader: ProcessKey = LEADER) -> ProcessKey:
    """Return the key of the process that carries out a node, where it has none of its own."""
    return process_key(leader.namespace, f"{leader.process_id}/{name}")
