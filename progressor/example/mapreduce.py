"""Counts the words of a thousand pages: a leader splits the work, and its nodes do it.

    count ──► map-1 … map-1000 ──► reduce-1-1 … reduce-1-32 ──► reduce-2-1 ──► join

A map counts the words of one page. A reduce wants the results of its predecessors, at most 32, and
adds them up, so the last reduce has the total of any number of pages.
"""

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from rich.text import Text

from progressor.example.scenario import Scenario, ScenarioError
from progressor.sdk import Fail, Graph, NewNode, NodeState, Processor, Reject, Step

FAN_IN = 32
"""Results that one reduce adds up."""

_SENTENCE = "the engine runs every step and no step is lost or done twice"
_WORDS_PER_PAGE = 40

Counts = dict[str, int]


class Book(msgspec.Struct, frozen=True, tag="book"):
    """The args of the leader: the number of pages to count."""

    pages: int = 1_000


class Page(msgspec.Struct, frozen=True, tag="page"):
    """The args of a map: the number of a page, from 1."""

    number: int


class Sum(msgspec.Struct, frozen=True, tag="sum"):
    """The args of a reduce, which adds up the results of its predecessors."""


def text_of(page: int) -> str:
    """Return the text of a page; a real program would read it."""
    known = _SENTENCE.split()
    return " ".join(known[page * page * at % len(known)] for at in range(_WORDS_PER_PAGE))


def word_count(pages: int) -> Graph:
    """Return the graph that counts this number of pages."""
    graph = Graph()
    layer: Sequence[NewNode] = graph.fan_out("map", [Page(it) for it in range(1, pages + 1)])
    depth = 0
    while len(layer) > 1 or depth == 0:  # each layer is smaller than its predecessor
        depth += 1
        parts = [layer[at : at + FAN_IN] for at in range(0, len(layer), FAN_IN)]
        layer = [
            graph.node(f"reduce-{depth}-{number}", Sum(), after=part, wants_results=True)
            for number, part in enumerate(parts, start=1)
        ]
    return graph


words = Processor("word-counts")


@words.init
async def begin(step: Step[Any]) -> None:
    """Split the work, or do one part of it."""
    match step.args_as(Book | Page | Sum):
        case Book(pages=pages):
            if pages < 1:
                raise Reject(f"pages must be at least 1, got {pages}")
            step.start_nodes(word_count(pages))
        case Page(number=number):
            step.complete(Counter(text_of(number).split()))
        case _:
            step.complete(added(step.results_as(Counts).values()))


@words.join
async def end(step: Step[Any]) -> None:
    """Complete the job with the result of the last reduce."""
    *_, last = step.nodes.values()
    if not last.is_done:
        raise Fail(f"{last.name} is {last.state} because of {last.skipped_because_of}")
    step.complete(last.result)


def added(counts: Iterable[Mapping[str, int]]) -> Counts:
    """Return the sum of counts, the most frequent word first."""
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(sorted(total.items(), key=lambda it: (-it[1], it[0])))


_PAGES = 1_000
_QUARTERS = ("a quarter", "half", "three quarters", "all")


class MapReduceScenario(Scenario):
    """One process is started, and splits the work among a thousand others."""

    goal = "count the words"
    commands = ("job get -n {namespace} {id}", "trace -n {namespace} {id}")
    processor = words

    async def _play(self) -> tuple[str, ...]:
        job_id, count, printed = f"book-{self._run}", len(word_count(_PAGES)), 0
        await self._client.start(job_id, Book(pages=_PAGES), idempotency_key="start")
        self._say(f"{job_id} has split {_PAGES} pages into {count} nodes")
        async with contextlib.aclosing(self._client.jobs.watch(job_id)) as changes:
            async for view in changes:
                while printed < len(_QUARTERS) * view.job.counts.done // count:  # 4 at most
                    self._say(f"  {_QUARTERS[printed]} of the nodes are done")
                    printed += 1
        await self._client.jobs.wait(job_id, check=True)
        result = (await self._client.get(job_id)).process.result
        expected = added(Counter(text_of(page).split()) for page in range(1, _PAGES + 1))
        if result != expected:
            raise ScenarioError(self.goal, f"got {result}, not {expected}")
        self._say(f"{sum(expected.values())} words, {len(expected)} different ones:")
        for word, number in expected.items():
            self._say(Text.assemble(f"  {word:<8}", (f"{number:>6}", "bold")))
        nodes = (await self._client.jobs.get(job_id, payloads=False)).nodes
        if any(it.state is not NodeState.DONE or it.attempt != 1 for it in nodes):
            raise ScenarioError("run every node once", job_id)
        return job_id, nodes[-1].process_id
