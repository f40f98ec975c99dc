"""What authors in other languages get: the .proto files, and what their generators read in them."""

import re
import zipfile
from pathlib import Path

import grpc
import pytest
from hatchling.builders.wheel import WheelBuilder

from progressor import errors
from progressor.api.calls.status import CODES

ROOT = Path(__file__).parents[3]
PROTOS = sorted((ROOT / "proto" / "progressor").rglob("*.proto"))
CONTRACT = [it for it in PROTOS if it.parent.name == "v1" and it.parent.parent.name != "internal"]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT / "proto").as_posix()


@pytest.mark.parametrize("path", PROTOS, ids=name_of)
def test_each_proto_names_the_packages_of_other_languages(path: Path) -> None:
    text = path.read_text()
    options = dict(re.findall(r"^option (\w+) = \"?(.*?)\"?;$", text, re.MULTILINE))
    package = ".".join(path.relative_to(ROOT / "proto").parent.parts)

    assert f"\npackage {package};\n" in text
    assert options == {
        "csharp_namespace": package.title(),
        "go_package": f"{package.replace('.', '/')};{package.replace('.', '')}",
        "java_multiple_files": "true",
        "java_outer_classname": f"{path.stem.title().replace('_', '')}Proto",
        "java_package": package,
    }


def test_what_is_internal_says_so_in_its_package() -> None:
    internal = [it for it in PROTOS if it not in CONTRACT]

    assert [name_of(it) for it in internal] == ["progressor/internal/v1/frames.proto"]
    assert all("progressor/internal/" not in it.read_text() for it in CONTRACT)
    assert all("Raw" not in it.read_text() for it in CONTRACT)


def test_the_proto_files_are_in_the_wheel_beside_what_is_generated_from_them(
    tmp_path: Path,
) -> None:
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        packed = {it: archive.read(it) for it in archive.namelist() if it.endswith(".proto")}

    assert packed == {name_of(it): it.read_bytes() for it in CONTRACT}


@pytest.mark.parametrize("name", ["types", "process_service", "processor_service"])
def test_the_convention_for_payloads_stands_where_another_language_begins(name: str) -> None:
    header = (ROOT / f"proto/progressor/v1/{name}.proto").read_text().partition("\nsyntax = ")[0]

    assert "they are UTF-8 JSON, with empty bytes for null" in header


# --- The reasons of errors

_ROW = re.compile(r"^//   ([A-Z_]+) {2,}(.*)$|^// {8,}(.*)$")
_WORD = re.compile(r"\b[A-Z]+(?:_[A-Z]+)+\b|\b(?:OVERLOADED|UNAUTHENTICATED|INTERNAL)\b")


def reasons_told() -> set[tuple[str, str]]:
    """Return each reason in the tables of the protos' headers, with its code."""
    found = set()
    for path in CONTRACT:
        code = ""
        for line in path.read_text().partition("\nsyntax = ")[0].splitlines():
            row = _ROW.match(line)
            if row is None:
                code = ""
                continue
            code = row[1] or code
            found |= {(reason, code) for reason in _WORD.findall(row[2] or row[3] or "") if code}
    return found


def test_the_protos_list_each_reason_of_an_error_with_its_code() -> None:
    public = {
        (kind.reason, code.name)
        for kind, code in CODES.items()
        if "reason" in vars(kind) and code is not grpc.StatusCode.INTERNAL
    }
    rejected = (errors.RejectedError.reason, "UNKNOWN")  # has the processor's own
    internal = (errors.ProgressorError.reason, "INTERNAL")

    assert reasons_told() == public - {rejected} | {internal}
