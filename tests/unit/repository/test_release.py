"""The bill of materials: complete, about nothing but packages, and in the wheel."""

import json
import zipfile
from pathlib import Path
from typing import Any

from tests.support.console.catalogs import CONSOLE
from tests.support.release.sbom import bill, built


def installed(name: str, *needs: str, **metadata: str) -> dict[str, Any]:
    return {
        "download_info": {"url": f"file:///somewhere/{name}.whl"},
        "metadata": {"name": name, "version": "1.0", "requires_dist": needs, **metadata},
    }


REPORT = {
    "install": [
        installed("progressor", "One_Two>=1", 'other; extra == "x"', license_expression="MIT"),
        installed("one-two", "three"),
        installed("three", "absent"),
        installed("other", license_expression="Apache-2.0"),
    ]
}


def test_a_bill_has_each_package_and_what_needs_it() -> None:
    found = bill(REPORT)

    assert [it["name"] for it in found["components"]] == ["one-two", "other", "three"]
    assert {it["ref"]: it["dependsOn"] for it in found["dependencies"]} == {
        "pkg:pypi/progressor@1.0": ["pkg:pypi/one-two@1.0", "pkg:pypi/other@1.0"],
        "pkg:pypi/one-two@1.0": ["pkg:pypi/three@1.0"],
        "pkg:pypi/other@1.0": [],
        "pkg:pypi/three@1.0": [],
    }
    assert "somewhere" not in json.dumps(found)


def test_the_same_packages_are_the_same_bill() -> None:
    assert bill(REPORT) == bill({"install": REPORT["install"][::-1]})
    assert bill(REPORT)["serialNumber"] != bill({"install": REPORT["install"][:3]})["serialNumber"]


def test_a_wheel_has_its_bill(tmp_path: Path) -> None:
    document = tmp_path / "progressor-1.0.cdx.json"
    document.write_text("{}")

    (wheel,) = built(document, tmp_path)

    with zipfile.ZipFile(wheel) as archive:
        (name,) = (it for it in archive.namelist() if "sboms" in it)
        assert name.endswith(f".dist-info/sboms/{document.name}")
        assert archive.read(name) == b"{}"


def test_a_wheel_has_the_pages_files_and_languages_of_the_console(tmp_path: Path) -> None:
    document = tmp_path / "progressor-1.0.cdx.json"
    document.write_text("{}")

    (wheel,) = built(document, tmp_path)

    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    files = [
        it for it in CONSOLE.rglob("*") if it.suffix in {".html", ".js", ".css", ".svg", ".po"}
    ]
    assert {it.suffix for it in files} == {".html", ".js", ".css", ".svg", ".po"}
    assert {str(it.relative_to(CONSOLE.parents[1])) for it in files} <= packed
