"""What several storage tests ask for: a place for a server of their own."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


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
