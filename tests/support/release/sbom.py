"""Writes the bill of materials (SBOM) of a release, and a wheel that contains it.

``python -m tests.support.release.sbom REPORT DIRECTORY`` reads the report of pip about an
installation with all extras, and writes CycloneDX 1.6 to DIRECTORY. With ``--wheel`` it also builds
the wheel there, which has the same document in ``.dist-info/sboms`` (PEP 770).
"""

import argparse
import hashlib
import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
_NAMESPACE = uuid.UUID("b2c1c0d4-5d2f-4b9e-9a57-0c7c3a6f3a55")


def bill(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bill of an installation of this project, by pip's report about it."""
    packages: dict[str, Any] = {
        canonicalize_name(it["metadata"]["name"]): it for it in report["install"]
    }
    ours = packages.pop("progressor")
    components = [_component(name, it["metadata"]) for name, it in sorted(packages.items())]
    own = {**_component("progressor", ours["metadata"]), "type": "application"}
    known = {"progressor": ours, **packages}
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own},
        "components": components,
        "dependencies": [
            {"ref": _purl(name, it["metadata"]), "dependsOn": _needed(name, known)}
            for name, it in sorted(known.items())
        ],
    }
    # The same materials are the same bill.
    digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
    return {**document, "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, digest)}"}


def _component(name: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    found = {
        "type": "library",
        "bom-ref": _purl(name, metadata),
        "name": name,
        "version": metadata["version"],
        "purl": _purl(name, metadata),
    }
    expression = metadata.get("license_expression")
    return {**found, "licenses": [{"expression": expression}]} if expression else found


def _purl(name: str, metadata: Mapping[str, Any]) -> str:
    return f"pkg:pypi/{name}@{metadata['version']}"


def _needed(name: str, known: Mapping[str, Any]) -> list[str]:
    """Return what a package needs, of the packages that are installed; with all of its extras."""
    texts = known[name]["metadata"].get("requires_dist", ())
    needed = {canonicalize_name(Requirement(it).name) for it in texts} - {name}
    return sorted(_purl(it, known[it]["metadata"]) for it in needed if it in known)


def main() -> None:
    """Write the documents that the command line asks for, and print their paths."""
    parser = argparse.ArgumentParser()
    parser.add_argument("report", type=Path)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--wheel", action="store_true")
    options = parser.parse_args()
    found = bill(json.loads(options.report.read_text("utf-8")))
    own = found["metadata"]["component"]
    options.directory.mkdir(exist_ok=True)
    path = options.directory.absolute() / f"{own['name']}-{own['version']}.cdx.json"
    path.write_text(json.dumps(found, indent=2) + "\n", "utf-8")
    print(path)  # noqa: T201
    if options.wheel:
        print(*built(path, options.directory))  # noqa: T201


def built(document: Path, directory: Path) -> list[str]:
    """Build the wheel with a bill in it, and return its path."""
    builder = WheelBuilder(str(ROOT))
    builder.config.target_config["sbom-files"] = [str(document)]
    return list(builder.build(directory=str(directory), versions=["standard"]))


if __name__ == "__main__":
    main()
