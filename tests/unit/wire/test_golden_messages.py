"""What goes over the wire, and what is read from it, stays as it is in the files."""

import pytest

from tests.support.api import golden

TEXTS = golden.texts()


@pytest.mark.parametrize("name", sorted({it.name for it in golden.FOLDER.glob("*.txt")} | {*TEXTS}))
def test_messages_and_values_are_as_they_were(name: str) -> None:
    path = golden.FOLDER / name
    before = path.read_text().splitlines() if path.exists() else []

    assert TEXTS.get(name, "").splitlines() == before, (
        f"tests/golden/{name} differs; if that is meant: python -m tests.support.api.golden"
    )
