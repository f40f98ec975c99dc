"""Random deeds upon jobs in storage and their model, which come to failures and repairs."""

import random
from collections.abc import Callable, Mapping

from tests.support.models.jobs.modelled import OUTCOMES, ModelledJobs

JOBS_AT_ONCE = 6
WEIGHTS = {
    "submit": 3, "lead": 2, "add": 4, "cancel": 1, "retry": 4, "repair": 4, "simple": 3,
    "leader": 1, "remove": 1, "remove leader": 0.5, "claim": 8, "settle": 20, "all": 3, "lose": 3,
    "late": 3, "tend": 4, "fail": 3, "time": 4,
}  # fmt: skip
"""How often each deed is done."""


def walk(jobs: ModelledJobs, chosen: random.Random, steps: int) -> None:
    """Do random deeds, which come to failures, repairs and retries more often than not."""
    for _ in range(steps):
        which, store = chosen.randrange(1000), chosen.randrange(2)
        seed = chosen.randrange(10_000)
        word = chosen.choice([*OUTCOMES, *["done"] * 5])
        deeds = _deeds(jobs, which, store, seed, word)
        if len(jobs.jobs) > JOBS_AT_ONCE:
            jobs.remove_leader(which, store)
        deeds[chosen.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]]()
    jobs.finish()


def _deeds(
    jobs: ModelledJobs, which: int, store: int, seed: int, word: str
) -> Mapping[str, Callable[[], None]]:
    return {
        "submit": lambda: jobs.submit(seed, store),
        "lead": lambda: jobs.lead(seed, store),
        "add": lambda: jobs.add(which, seed, store),
        "cancel": lambda: jobs.cancel(which, store),
        "retry": lambda: jobs.retry(which, store),
        "repair": lambda: jobs.repair(which, store, word),
        "simple": lambda: jobs.simple_repair(which, store),
        "leader": lambda: jobs.repair_leader(which, store),
        "remove": lambda: jobs.remove(which, store),
        "remove leader": lambda: jobs.remove_leader(which, store),
        "claim": lambda: jobs.claim(store),
        "settle": lambda: jobs.settle(which, word, continues=store == 0),
        "all": lambda: jobs.settle_all(seed),
        "lose": lambda: jobs.lose(which),
        "late": lambda: jobs.speak_late(which, word),
        "tend": lambda: jobs.tend(which, store),
        "fail": lambda: jobs.fail(which, store),
        "time": jobs.let_time_pass,
    }
