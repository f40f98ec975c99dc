"""All that is asynchronous here runs in virtual time."""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from tests.support.runtime.harness import Harness
from tests.support.runtime.virtual_time import VirtualTimeLoop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return what makes the loop of a test."""
    return {"virtual": VirtualTimeLoop}


@pytest.fixture
def harness() -> Harness:
    return Harness()
