"""The metrics of two replicas, read where Prometheus reads them, under load of all operations."""

import asyncio
import dataclasses
import itertools
import math
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import pytest_asyncio
from prometheus_client.metrics_core import Metric as Exposed
from prometheus_client.openmetrics import parser as openmetrics

from progressor.telemetry.metrics.registry import METRICS
from tests.support.engine.replica import (
    NOW_AND_THEN,
    Env,
    open_env,
    running_process,
    running_replica,
)
from tests.support.processor.scripted import Answer, Hang
from tests.support.telemetry.load import ROUNDS, Asked, Load, keep_a_gate
from tests.support.telemetry.metrics import Series, families, read, scrape
from tests.support.telemetry.trace_receiver import running_receiver

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCRAPED = {
    "telemetry.metrics_bind": "127.0.0.1:0",
    # No lease may be lost by itself, however slow the machine is: a step that is asked again takes
    # the next answer of the script.
    "replica.lease_timeout_seconds": "10",
}
OPENMETRICS = {"Accept": "application/openmetrics-text;version=1.0.0"}
SCRAPES_MAX = 20

NEVER = {
    "fenced", "abandoned", "scan_found", "gates_scan_found", "scans_failed", "notifications_lost",
    "jobs_recovered", "jobs_running", "job_nodes", "jobs_ended", "job_nodes_ended",
    "jobs_overdue", "upkeep_nodes", "schedule_runs", "schedule_lateness",
    "largest_step",
}  # fmt: skip
"""Metrics without values as long as nothing is wrong and no job runs."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the two replicas told in the end, and one of them on the way there."""

    namespace: str
    asked: Asked
    seconds: float
    urls: Sequence[str]
    texts: Sequence[str]
    on_the_way: Sequence[str]

    def samples(self, name: str) -> Iterator[tuple[Mapping[str, str], float]]:
        """Yield the labels and values of a series, of both replicas."""
        for text in self.texts:
            for (sample, labels), value in read(text).items():
                if sample == name:
                    yield dict(labels), value

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of the values with these labels among theirs."""
        return sum(value for found, value in self.samples(name) if labels.items() <= found.items())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def seen(database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Seen]:
    folder = tmp_path_factory.mktemp("victim")
    async with (
        running_receiver() as receiver,
        running_replica(
            database, {**SCRAPED, "telemetry.otlp_endpoint": receiver.endpoint}
        ) as first,
        open_env(first, retry_policy=NOW_AND_THEN) as env,
    ):
        await keep_a_gate(env)
        async with running_replica(database, SCRAPED) as second:
            # It looks at once for what waits, and the namespace and its gate are there.
            await second.points.wait("scanned", scan="queues")
            urls = [first.engine.metrics_url, second.engine.metrics_url]
            begun_at = time.monotonic()
            loading = asyncio.ensure_future(Load(env, second).run())
            on_the_way = await scrapes_until(loading, urls[0])
            await lose_a_lease(env, database, folder)
            texts = [await asyncio.to_thread(scrape, url) for url in urls]
            yield Seen(
                namespace=env.namespace,
                asked=await loading,
                seconds=time.monotonic() - begun_at,
                urls=urls,
                texts=texts,
                on_the_way=on_the_way,
            )


async def scrapes_until(done: "asyncio.Future[Asked]", url: str) -> list[str]:
    """Return what is to be read there again and again, until something is done."""
    found: list[str] = []
    while not done.done() and len(found) < SCRAPES_MAX:
        found.append(await asyncio.to_thread(scrape, url))
    await done
    return found


async def lose_a_lease(env: Env, database: str, folder: Path) -> None:
    """Have a third replica die with a step in hand, which goes on at one of the two."""
    await env.running("lost", Hang(), Answer())
    async with (
        running_process(database, folder) as victim,
        env.client_at(victim.address) as there,
    ):
        accepted = await there.call("lost", accept_only=True)
        await env.asked("lost", 2)
        victim.kill()
        await victim.process.wait()
        await env.client.await_task("lost", task_id=accepted.task_id)


async def test_every_metric_is_read_with_its_type_and_its_sentence(seen: Seen) -> None:
    for text in seen.texts:
        told = families(text)
        for metric in METRICS.values():
            found = told[metric.name]
            assert (found.type, metric.meaning in found.documentation) == (metric.kind, True)


@pytest.mark.parametrize("name", METRICS)
async def test_every_metric_has_values(seen: Seen, name: str) -> None:
    values = [
        sample.value for text in seen.texts for sample in families(text)[METRICS[name].name].samples
    ]

    assert values or name in NEVER
    assert all(math.isfinite(value) and value >= 0 for value in values)


async def test_the_buckets_of_every_histogram_fit_its_count_and_its_sum(seen: Seen) -> None:
    for text in seen.texts:
        for family in families(text).values():
            if family.type == "histogram":
                for buckets, count, total in histograms(family):
                    assert_fits(buckets, count, total)


def histograms(family: Exposed) -> Iterator[tuple[Mapping[float, float], float, float]]:
    """Yield buckets by their bounds, the count and the sum, for each set of labels."""

    def labels(sample: tuple[str, Mapping[str, str]]) -> list[tuple[str, str]]:
        return sorted((key, value) for key, value in sample[1].items() if key != "le")

    samples = {(it.name, *sorted(it.labels.items())): it for it in family.samples}
    for _, group in itertools.groupby(
        sorted(samples.values(), key=lambda it: labels((it.name, it.labels))),
        key=lambda it: labels((it.name, it.labels)),
    ):
        buckets: dict[float, float] = {}
        numbers: dict[str, float] = {}
        for sample in group:
            if "le" in sample.labels:
                buckets[float(sample.labels["le"])] = sample.value
            else:
                numbers[sample.name.removeprefix(f"{family.name}_")] = sample.value
        yield dict(sorted(buckets.items())), numbers["count"], numbers["sum"]


def assert_fits(buckets: Mapping[float, float], count: float, total: float) -> None:
    bounds, below = [*buckets], [*buckets.values()]
    inside = [many - few for few, many in itertools.pairwise([0.0, *below])]
    lowest = sum(n * bound for n, bound in zip(inside, [0.0, *bounds[:-1]], strict=True))
    highest = sum(n * bound for n, bound in zip(inside, bounds, strict=True) if n)

    assert bounds[-1] == math.inf
    assert min(inside) >= 0
    assert below[-1] == count
    # What was added up is as exact as a float.
    assert lowest * (1 - 1e-9) <= total <= highest * (1 + 1e-9)


async def test_what_is_counted_twice_is_counted_alike(seen: Seen) -> None:
    admitted = seen.total("progressor_requests_admitted_total")
    settled = seen.total("progressor_tasks_settled_total")
    completed = seen.total("progressor_task_completion_duration_ms_count")
    collected = seen.total("progressor_zombies_collected_total")
    errors = seen.total("progressor_processor_errors_total")
    failed = sum(
        seen.total("progressor_tasks_settled_total", settlement=it)
        for it in ("retry", "fail", "break")
    )
    removed = seen.total("progressor_tasks_settled_total", settlement="remove")
    removals = seen.total("progressor_requests_total", operation="Remove", outcome="ok")

    assert admitted == seen.total("progressor_request_preparing_duration_ms_count")
    assert settled == completed + collected
    assert failed == errors + collected
    assert collected == seen.total("progressor_zombie_collection_duration_ms_count") == 1
    assert removed + removals == seen.total("progressor_process_removing_duration_ms_count")
    assert removed == 2 * ROUNDS


async def test_what_is_counted_never_goes_back(seen: Seen) -> None:
    all_of_them = [counts(text) for text in (*seen.on_the_way, seen.texts[0])]

    assert len(all_of_them) > 2
    for before, after in itertools.pairwise(all_of_them):
        assert {it: after.get(it) for it, value in before.items() if after.get(it, 0) < value} == {}


def counts(text: str) -> dict[Series, float]:
    """Return what only grows."""
    growing = {it.name for it in families(text).values() if it.type in {"counter", "histogram"}}
    return {
        (name, labels): value
        for (name, labels), value in read(text).items()
        if name.removesuffix("_total") in growing or name.rpartition("_")[0] in growing
    }


async def test_no_label_names_a_process_or_a_task(seen: Seen) -> None:
    values = {
        value for text in seen.texts for _, labels in read(text) for name, value in labels
        if name != "le"
    }  # fmt: skip

    assert not [it for it in values if it.isdigit() or it.startswith(("load", "lost"))]


async def test_the_strict_parser_of_openmetrics_takes_it_too(seen: Seen) -> None:
    for url in seen.urls:
        text = await asyncio.to_thread(scrape, url, OPENMETRICS)
        told = {it.name: it for it in strictly_parsed(text)}

        assert told.keys() >= {it.name for it in METRICS.values()}
        assert {told[it.name].unit for it in METRICS.values() if it.unit == "ms"} == {"ms"}


def strictly_parsed(text: str) -> Iterator[Exposed]:
    """Yield the families of a scrape of OpenMetrics, which must keep to its form to the letter."""
    yield from openmetrics.text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
