"""What the tests run on: what a user gets who installs the package today."""

import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())


def dependencies() -> list[Requirement]:
    """Return what `.[embedded]` asks for."""
    project = PROJECT["project"]
    return [
        Requirement(text)
        for text in (*project["dependencies"], *project["optional-dependencies"]["embedded"])
    ]


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


def test_parts_of_grpc_are_of_one_release() -> None:
    names = [it.name for it in dependencies() if it.name.startswith("grpcio")]

    assert len({metadata.version(name) for name in names}) == 1
