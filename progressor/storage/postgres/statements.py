"""Finds SQL: named statements beside their modules, and the files of ``priv``."""

import functools
import importlib.resources
import re
from pathlib import Path
from typing import LiteralString, cast

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def priv() -> Path:
    """Return the folder with migrations and functions: in a wheel or in a checkout."""
    package = Path(str(importlib.resources.files("progressor")))
    packed = package / "_priv"
    return packed if packed.is_dir() else package.parent / "priv"


def functions() -> list[Path]:
    files = (priv() / "functions").rglob("*.sql")
    return sorted(files, key=lambda file: (file.parent.name != "types", file.name))


@functools.cache
def load(place: str) -> dict[str, LiteralString]:
    """Return the statements of ``storage/<place>.sql`` by their names.

    They are literals as far as mypy is concerned: they come from files that ship with the code.
    """
    text = (importlib.resources.files("progressor.storage") / f"{place}.sql").read_text("utf-8")
    parts = _NAME.split(text)
    return {
        name: cast("LiteralString", body.strip())
        for name, body in zip(parts[1::2], parts[2::2], strict=True)
    }
