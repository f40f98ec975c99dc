"""Counts the words of a thousand pages: a leader splits the work, and its nodes do it.

    count ──► map-1 … map-1000 ──► reduce-1-1 … reduce-1-32 ──► reduce-2-1 ──► join

A map counts the words of one page. A reduce wants the results of its predecessors, at most 32, and
adds them up, so the last reduce has the total of any number of pages.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from progressor.sdk import Fail, Graph, NamespaceConfig, NewNode, Processor, Reject, Step

NAMESPACE = "word-counts"
FAN_IN = 32
"""Results that one reduce adds up."""

_SENTENCE = "the engine carries every step and no step is lost or done twice"
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


words = Processor(NAMESPACE)


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


def added(counts: Iterable[Counts]) -> Counts:
    """Return the sum of counts, the most frequent word first."""
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(sorted(total.items(), key=lambda it: (-it[1], it[0])))


def namespace(processor_target: str) -> NamespaceConfig:
    """Return the namespace of the word counts."""
    return NamespaceConfig(name=NAMESPACE, processor_targets=(processor_target,))
