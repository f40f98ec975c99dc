"""What the tests run on: what a user gets who installs the package today."""

import itertools
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())


def dependencies() -> list[Requirement]:
    """Return what `.[embedded]` asks for."""
    project = PROJECT["project"]
    extras = project["optional-dependencies"].values()
    found = map(Requirement, itertools.chain(project["dependencies"], *extras))
    return [it for it in found if it.name != project["name"]]


def bounded() -> list[tuple[str, int]]:
    """Return the dependencies with an upper bound, each with the highest major that it allows."""
    return [
        (requirement.name, Version(bound.version).major - 1)
        for requirement in dependencies()
        for bound in requirement.specifier
        if bound.operator == "<"
    ]


@pytest.mark.parametrize(("name", "major"), bounded())
def test_the_tests_run_on_the_highest_major_that_users_may_get(name: str, major: int) -> None:
    assert Version(metadata.version(name)).major == major


def test_what_generates_code_is_not_among_the_tools_of_the_tests() -> None:
    groups = PROJECT["dependency-groups"]
    tools = {Requirement(text).name for text in groups["dev"]}
    generators = {Requirement(text).name for text in groups["proto"]}

    assert generators
    assert not tools & generators


def test_parts_of_grpc_are_of_one_minor_release() -> None:
    versions = [
        Version(metadata.version(it.name)) for it in dependencies() if it.name.startswith("grpcio")
    ]

    # A patch release is published for some of the parts only.
    assert len({version.release[:2] for version in versions}) == 1
