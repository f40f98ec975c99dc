"""What does the end of a node cost in a small job, and in a large one?"""

from bench.env import Env
from bench.measurement import Measurement, Pace, summed_up
from bench.questions.fan_out import job

_SIZES = (10, 100, 1000, 10_000)
_NODE_COUNT = 10_000
_LEADER_TASKS = 2
NAMES = tuple(f"job_of_{size}" for size in _SIZES)


async def ask(env: Env, pace: Pace) -> list[Measurement]:
    """Run as many jobs of a size at once as make 10,000 nodes.

    The engine leads them. A leader has two tasks, its init and its join, which weigh more in a
    small job: `per_task` is the CPU per task of nodes and leaders.
    """
    answers = []
    for size, name in zip(_SIZES, NAMES, strict=True):
        if not pace.wants(name):
            continue
        nodes = pace.count(size, least=2)
        jobs = max(1, pace.count(_NODE_COUNT, least=nodes) // nodes)
        turns = [await job(name, "submit", nodes, env, jobs=jobs) for _ in range(pace.long_turns)]
        share = nodes / (nodes + _LEADER_TASKS)
        costs = summed_up(name, turns).cpu_ms_per_op
        per_task = {part: round(share * cost, 4) for part, cost in costs.items()}
        answers.append(summed_up(name, turns, nodes=nodes, jobs=jobs, per_task=per_task))
    return answers
