"""A thousand pages are counted: one process is started, and splits the work among a thousand."""

import asyncio
import contextlib

from rich.console import Console
from rich.text import Text

from progressor.example.mapreduce import Book, Counts, added, text_of, word_count, words
from progressor.example.scenario import ScenarioError
from progressor.sdk import Client, NodeCounts, NodeState, ProgressorError

_PATIENCE_SECONDS = 60.0
_PAGES = 1_000
_QUARTERS = ("a quarter", "half", "three quarters", "all")


class MapReduceScenario:
    """One run, told as it happens; `run` makes the id of its leader its own."""

    processor = words
    _client: Client

    def __init__(self, *, console: Console, run: str) -> None:
        self._console = console
        self._job_id = f"book-{run}"
        self._total = len(word_count(_PAGES))

    async def play(self, client: Client) -> tuple[str, ...]:
        """Play it to its end, some seconds later; return the leader and the last of its reduces.

        Args:
            client: Of the namespace of the word counts.

        Raises:
            ScenarioError: It went another way; the message says where and how.
        """
        self._client = client
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await client.start(self._job_id, Book(pages=_PAGES), idempotency_key="start")
                self._say(f"{self._job_id} has split {_PAGES} pages into {self._total} nodes")
                await self._watch()
                last = await self._see_results()
        except TimeoutError as error:
            raise ScenarioError("count the words in time", self._job_id) from error
        except ProgressorError as error:
            if isinstance(error, ScenarioError):
                raise
            raise ScenarioError("count the words", f"{error} ({error.reason})") from error
        return self._job_id, last

    async def _watch(self) -> None:
        """Tell each quarter of the way, and wait for the end."""
        told = 0
        async with contextlib.aclosing(self._client.jobs.watch(self._job_id)) as changes:
            async for view in changes:
                done = view.job.counts.done
                while told < len(_QUARTERS) * done // self._total:  # ends at all of them
                    self._say(f"  {_QUARTERS[told]} of the nodes are done")
                    told += 1
        job = await self._client.jobs.wait(self._job_id, check=True)
        if job.counts != NodeCounts(done=self._total):
            raise ScenarioError("have every node done", str(job.counts))

    async def _see_results(self) -> str:
        """See that the words are counted rightly; return the process of the last reduce."""
        process = (await self._client.get(self._job_id)).process
        expected = _counted_here()
        if process.result != expected:
            raise ScenarioError("count rightly", f"{process.result} instead of {expected}")
        self._say(f"{sum(expected.values())} words, {len(expected)} different ones:")
        for word, count in expected.items():
            self._console.print(Text.assemble(f"  {word:<8}", (f"{count:>6}", "bold")))
        view = await self._client.jobs.get(self._job_id, payloads=False)
        if any(it.state is not NodeState.DONE or it.attempt != 1 for it in view.nodes):
            raise ScenarioError("do every node once", self._job_id)
        return view.nodes[-1].process_id

    def _say(self, told: str) -> None:
        self._console.print(Text(told), soft_wrap=True)


def _counted_here() -> Counts:
    """Return what must come out, counted in one go."""
    counts: Counts = {}
    for page in range(1, _PAGES + 1):
        for word in text_of(page).split():
            counts[word] = counts.get(word, 0) + 1
    return added([counts])
