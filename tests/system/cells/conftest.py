"""What all tests of cells need."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def _no_patience_at_the_start() -> Iterator[None]:
    """Have a replica serve the cells that it reaches at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("progressor.engine.engine._START_SECONDS", 0.0)
        yield
