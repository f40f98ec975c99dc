"""What comes from others: it is what its README says, and no page is heavy."""

import hashlib
import re

from tests.support.console.catalogs import CONSOLE

STATIC = CONSOLE / "static"
_ROW = re.compile(r"^\| `([\w.-]+)` \|.*\| `([0-9a-f]{64})` \|$", re.MULTILINE)


def test_vendored_files_are_those_of_their_readme() -> None:
    folder = STATIC / "vendor"
    told = dict(_ROW.findall((folder / "README.md").read_text(encoding="utf-8")))
    found = {
        it.name: hashlib.sha256(it.read_bytes()).hexdigest()
        for it in folder.iterdir()
        if it.name != "README.md"
    }
    assert found == told


def test_scripts_and_styles_leave_a_page_most_of_its_200_kilobytes() -> None:
    files = [it for it in STATIC.rglob("*") if it.suffix in {".js", ".css", ".svg"}]
    assert sum(it.stat().st_size for it in files) < 100_000
