"""Prometheus itself, which reads engines and evaluates the rules of docker/; Debian packages it."""

import asyncio
import contextlib
import json
import shutil
import socket
import urllib.error
import urllib.parse
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.telemetry.metrics import scraped

PROMETHEUS = shutil.which("prometheus")

RULES = Path(__file__).parents[3] / "docker/prometheus/rules.yml"

_INTERVAL = "500ms"
_PAUSE_SECONDS = 0.1


class Prometheus:
    """A running Prometheus."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def api(self, path: str, **parameters: str) -> Any:
        """Return what it says of something."""
        query = urllib.parse.urlencode(parameters)
        answer = json.loads(await scraped(f"{self._url}/api/v1/{path}?{query}"))
        assert answer["status"] == "success", answer
        return answer["data"]

    async def query(self, expression: str) -> list[tuple[Mapping[str, str], float]]:
        """Return the labels and values of an instant query of now."""
        data = await self.api("query", query=expression)
        assert data["resultType"] == "vector", expression
        return [(it["metric"], float(it["value"][1])) for it in data["result"]]

    async def until(
        self, expression: str, holds: Callable[[Sequence[float]], bool]
    ) -> Sequence[float]:
        """Ask again and again, as it reads but now and then, until the values are as wanted."""
        values: Sequence[float] = ()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                while True:
                    values = [value for _, value in await self.query(expression)]
                    if holds(values):
                        return values
                    await asyncio.sleep(_PAUSE_SECONDS)
        message = f"{expression} is {values}"
        raise AssertionError(message)


@contextlib.asynccontextmanager
async def running_prometheus(
    folder: Path, targets: Sequence[str], *, job: str = "progressor"
) -> AsyncIterator[Prometheus]:
    """Run Prometheus on loopback, with its data in `folder`, until the context is left.

    Args:
        folder: Empty, and thrown away afterwards.
        targets: ``HOST:PORT`` of what it reads.
        job: The label of all that it reads there.
    """
    assert PROMETHEUS is not None, "prometheus is not on the PATH"
    place = f"127.0.0.1:{_free_port()}"
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(_configuration(targets, job)), "utf-8")
    process = await asyncio.create_subprocess_exec(
        PROMETHEUS,
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={place}",
        "--log.level=warn",
    )
    try:
        await _ready(f"http://{place}", process)
        yield Prometheus(f"http://{place}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def _configuration(targets: Sequence[str], job: str) -> Mapping[str, object]:
    return {
        "global": {"scrape_interval": _INTERVAL, "evaluation_interval": _INTERVAL},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": job, "static_configs": [{"targets": [*targets]}]}],
    }


async def _ready(url: str, process: asyncio.subprocess.Process) -> None:
    """Wait until it answers; it prints nothing when it does."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while process.returncode is None:
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                await scraped(f"{url}/-/ready")
                return
            await asyncio.sleep(_PAUSE_SECONDS)
    message = f"prometheus ended with {process.returncode}"
    raise AssertionError(message)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
