"""Jobs in storage against a model of 100 lines, through lost leases, in any order of events."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from tests.support.models.jobs.modelled import OUTCOMES, ModelledJobs
from tests.support.models.machine import Machinery, machinery
from tests.support.models.strategies import MOSTLY, RARELY, STORES, WHICH

GRAPHS = st.integers(0, 1000)
WORDS = st.sampled_from([*OUTCOMES, *["done"] * 8])


class JobsMachine(RuleBasedStateMachine):
    """Two replicas at work on a few jobs."""

    machinery: Machinery

    def __init__(self) -> None:
        super().__init__()
        self.jobs = ModelledJobs(self.machinery)

    @rule(seed=GRAPHS, store=STORES)
    def submit(self, seed: int, store: int) -> None:
        self.jobs.submit(seed, store)

    @rule(seed=GRAPHS, store=STORES)
    def lead(self, seed: int, store: int) -> None:
        self.jobs.lead(seed, store)

    @rule(which=WHICH, seed=GRAPHS, store=STORES)
    def add(self, which: int, seed: int, store: int) -> None:
        self.jobs.add(which, seed, store)

    @rule(which=WHICH, store=STORES, really=RARELY)
    def cancel(self, which: int, store: int, really: bool) -> None:
        if really:
            self.jobs.cancel(which, store)

    @rule(which=WHICH, store=STORES)
    def retry(self, which: int, store: int) -> None:
        self.jobs.retry(which, store)

    @rule(which=WHICH, store=STORES, word=st.sampled_from([*OUTCOMES]))
    def repair(self, which: int, store: int, word: str) -> None:
        self.jobs.repair(which, store, word)

    @rule(which=WHICH, store=STORES)
    def simple_repair(self, which: int, store: int) -> None:
        self.jobs.simple_repair(which, store)

    @rule(which=WHICH, store=STORES)
    def repair_leader(self, which: int, store: int) -> None:
        self.jobs.repair_leader(which, store)

    @rule(which=WHICH, store=STORES, really=RARELY)
    def remove(self, which: int, store: int, really: bool) -> None:
        if really:
            self.jobs.remove(which, store)

    @rule(which=WHICH, store=STORES, really=RARELY)
    def remove_leader(self, which: int, store: int, really: bool) -> None:
        if really:
            self.jobs.remove_leader(which, store)

    @rule(store=STORES)
    def claim(self, store: int) -> None:
        self.jobs.claim(store)

    @rule(which=WHICH, word=WORDS, continues=MOSTLY)
    def settle(self, which: int, word: str, continues: bool) -> None:
        self.jobs.settle(which, word, continues=continues)

    @rule(words=st.lists(WORDS, min_size=3, max_size=10), store=STORES)
    def work(self, words: list[str], store: int) -> None:
        self.jobs.work(words, store)

    @rule(words=st.lists(WORDS, min_size=3, max_size=10), store=STORES)
    def work_more(self, words: list[str], store: int) -> None:
        self.jobs.work(words, store)

    @rule(which=WHICH, store=STORES)
    def fail(self, which: int, store: int) -> None:
        self.jobs.fail(which, store)

    @rule(seed=GRAPHS)
    def settle_all(self, seed: int) -> None:
        self.jobs.settle_all(seed)

    @rule(which=WHICH)
    def lose(self, which: int) -> None:
        self.jobs.lose(which)

    @rule(which=WHICH, word=WORDS)
    def speak_late(self, which: int, word: str) -> None:
        self.jobs.speak_late(which, word)

    @rule(which=WHICH, store=STORES)
    def maintain(self, which: int, store: int) -> None:
        self.jobs.maintain(which, store)

    @rule()
    def let_time_pass(self) -> None:
        self.jobs.let_time_pass()

    def teardown(self) -> None:
        """Let everything come to its end."""
        self.jobs.finish()


def test_jobs_do_what_their_model_does(own_database: str) -> None:
    chosen = settings()
    with machinery(own_database) as opened:

        class Machine(JobsMachine):
            machinery = opened

        run_state_machine_as_test(Machine, settings=settings(chosen, stateful_step_count=40))


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(6))
def test_a_graph_of_up_to_200_nodes_whatever_becomes_of_them(own_database: str, seed: int) -> None:
    chosen = random.Random(seed)
    with machinery(own_database) as opened:
        jobs = ModelledJobs(opened)
        jobs.submit(seed, 0, nodes_max=200)
        for _ in range(60):
            jobs.claim(chosen.randrange(2))
            for _ in range(chosen.randrange(6)):
                which = chosen.randrange(1000)
                word = chosen.choices([*OUTCOMES], [60, 1, 3, 3])[0]
                if chosen.random() < 0.1:
                    jobs.lose(which)
                elif chosen.random() < 0.1:
                    jobs.speak_late(which, word)
                else:
                    jobs.settle(which, word, continues=chosen.random() < 0.5)
            if chosen.random() < 0.2:
                jobs.settle_all(chosen.randrange(1000))
            jobs.let_time_pass()
        jobs.finish()
