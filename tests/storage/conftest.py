"""What several storage tests ask for: a place for a server of their own."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.postgres import put_cluster


@pytest.fixture
def home() -> Iterator[Path]:
    """Yield a short directory that every user may enter, unlike tmp_path."""
    path = Path(tempfile.mkdtemp(prefix="progressor-embedded-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def data(home: Path) -> Path:
    """Return where a server may keep its data."""
    return home / "data"


@pytest.fixture
def made(data: Path) -> Path:
    """Return where a server finds its cluster made already, of which making it is no matter."""
    put_cluster(data)
    return data
