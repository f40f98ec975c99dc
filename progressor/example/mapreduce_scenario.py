"""Counts a thousand pages: one process is started and splits the work among a thousand others."""

import contextlib

from rich.console import Console
from rich.text import Text

from progressor.example.mapreduce import Book, Counts, added, text_of, word_count, words
from progressor.example.scenario import ScenarioError, attempting
from progressor.sdk import Client, NodeCounts, NodeState

_TIMEOUT_SECONDS = 60.0
_PAGES = 1_000
_QUARTERS = ("a quarter", "half", "three quarters", "all")


class MapReduceScenario:
    """One run, printed as it happens; `run` makes the id of its leader unique."""

    processor = words
    _client: Client

    def __init__(self, *, console: Console, run: str) -> None:
        self._console = console
        self._job_id = f"book-{run}"
        self._total = len(word_count(_PAGES))

    async def play(self, client: Client) -> tuple[str, ...]:
        """Run the scenario, which takes seconds; return the ids of the leader and the last reduce.

        Args:
            client: Its namespace is that of the word counts.

        Raises:
            ScenarioError: An unexpected result; the message says which.
        """
        self._client = client
        async with attempting("count the words", seconds=_TIMEOUT_SECONDS):
            await client.start(self._job_id, Book(pages=_PAGES), idempotency_key="start")
            self._say(f"{self._job_id} has split {_PAGES} pages into {self._total} nodes")
            await self._watch()
            last = await self._check_results()
        return self._job_id, last

    async def _watch(self) -> None:
        """Print each quarter of the way, and wait for the end."""
        printed = 0
        async with contextlib.aclosing(self._client.jobs.watch(self._job_id)) as changes:
            async for view in changes:
                done = view.job.counts.done
                while printed < len(_QUARTERS) * done // self._total:  # at most all quarters
                    self._say(f"  {_QUARTERS[printed]} of the nodes are done")
                    printed += 1
        job = await self._client.jobs.wait(self._job_id, check=True)
        if job.counts != NodeCounts(done=self._total):
            raise ScenarioError("complete every node", str(job.counts))

    async def _check_results(self) -> str:
        """Check the counts; return the process id of the last reduce."""
        process = (await self._client.get(self._job_id)).process
        expected = _counted_here()
        if process.result != expected:
            raise ScenarioError("count the words", f"got {process.result}, not {expected}")
        self._say(f"{sum(expected.values())} words, {len(expected)} different ones:")
        for word, count in expected.items():
            self._console.print(Text.assemble(f"  {word:<8}", (f"{count:>6}", "bold")))
        view = await self._client.jobs.get(self._job_id, payloads=False)
        if any(it.state is not NodeState.DONE or it.attempt != 1 for it in view.nodes):
            raise ScenarioError("run every node once", self._job_id)
        return view.nodes[-1].process_id

    def _say(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)


def _counted_here() -> Counts:
    """Return the expected counts."""
    counts: Counts = {}
    for page in range(1, _PAGES + 1):
        for word in text_of(page).split():
            counts[word] = counts.get(word, 0) + 1
    return added([counts])
