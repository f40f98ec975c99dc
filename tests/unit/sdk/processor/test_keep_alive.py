"""`step.keep_alive` against a scripted engine: for how long it goes on asking, and what it says."""

import asyncio
import datetime as dt
import logging

import pytest

from progressor.sdk.codec.codecs import BYTES
from progressor.sdk.processor.links import StepLink
from progressor.sdk.processor.requests import StepRequests
from progressor.v1 import processor_service_pb2 as pb
from tests.support.engine.points import PATIENCE_SECONDS

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
EVERY = 0.001


class ScriptedLink(StepLink):
    """Answers with one deadline after the other, in seconds, and repeats the last."""

    def __init__(self, *deadlines: float) -> None:
        self._deadlines = list(deadlines)
        self.is_over = asyncio.Event()

    async def _extend(self, by: dt.timedelta) -> dt.datetime:
        assert by > dt.timedelta()
        if len(self._deadlines) == 1:
            self.is_over.set()
        seconds = self._deadlines[0] if self.is_over.is_set() else self._deadlines.pop(0)
        return START + dt.timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("deadlines", "warnings"),
    [
        # The timeout of the step is further ahead than what is asked for.
        ((9.0, 8.9999, 9.0001, 8.9998, 9.0, 9.001, 9.002, 9.003), 0),
        ((9.0, 9.001, 9.002, 9.002, 9.002, 9.002), 1),
        ((9.0, 9.001, 9.002, 9.002, 9.003, 9.004), 1),
    ],
    ids=["at first the same", "at its maximum", "the same for once"],
)
async def test_the_deadline_is_asked_for_until_the_block_ends(
    caplog: pytest.LogCaptureFixture, deadlines: tuple[float, ...], warnings: int
) -> None:
    link, request = ScriptedLink(*deadlines), pb.ProcessRequest()
    request.deadline.FromDatetime(START + dt.timedelta(seconds=deadlines[0]))

    with caplog.at_level(logging.WARNING):
        async with (
            asyncio.timeout(PATIENCE_SECONDS),
            StepRequests(request, BYTES, link).keep_alive(EVERY),
        ):
            await link.is_over.wait()

    assert request.deadline.ToDatetime(dt.UTC) >= START + dt.timedelta(seconds=max(deadlines[:-1]))
    assert len(caplog.records) == warnings
