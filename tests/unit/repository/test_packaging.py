"""What the tests run on, and what an installation without extras can do."""

import itertools
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from progressor.__main__ import _EXTRAS

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())


def dependencies() -> list[Requirement]:
    """Return what `.[embedded]` asks for."""
    project = PROJECT["project"]
    extras = project["optional-dependencies"].values()
    found = map(Requirement, itertools.chain(project["dependencies"], *extras))
    return [each for each in found if each.name != project["name"]]


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
        Version(metadata.version(dependency.name))
        for dependency in dependencies()
        if dependency.name.startswith("grpcio")
    ]

    # A patch release is published for some of the parts only.
    assert len({version.release[:2] for version in versions}) == 1


ROOT = Path(__file__).parents[3]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
ENGINE = sorted(name for name, extra in _EXTRAS.items() if extra == "engine")
COMMANDS_FOR_ANY_ENGINE = (
    "progressor.cli.main",
    "progressor.cli.engine.remote",
    "progressor.cli.engine.settings",
    "progressor.cli.gates",
    "progressor.cli.jobs.jobs",
    "progressor.cli.namespaces.apply",
    "progressor.cli.namespaces.namespaces",
    "progressor.cli.processes.processes",
    "progressor.cli.schedules.schedules",
    "progressor.cli.top.top",
)


def run_without(modules: list[str], code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a Python that does not find `modules`."""
    absent = f"import sys; sys.modules.update(dict.fromkeys({modules!r})); {code}"
    return subprocess.run(
        [sys.executable, "-c", absent], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_the_sdk_needs_no_extra() -> None:
    code = "import progressor.sdk.testing, progressor.example.order"

    ended = run_without(sorted(_EXTRAS), code)

    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("module", COMMANDS_FOR_ANY_ENGINE)
def test_a_command_for_an_engine_elsewhere_needs_no_engine(module: str) -> None:
    ended = run_without(ENGINE, f"import {module}")

    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(
    ("module", "unneeded"),
    [
        ("engine.settings", "progressor.sdk.client.client"),
        ("doctor", "progressor.sdk.client.client"),
        ("engine.migrate", "progressor.engine.engine"),
    ],
)
def test_a_command_starts_without_what_it_does_not_use(module: str, unneeded: str) -> None:
    code = f"import progressor.cli.{module}; sys.exit({unneeded!r} in sys.modules)"

    ended = run_without([], code)

    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(
    ("absent", "argument", "extra"),
    [("cyclopts", "version", "cli"), ("psycopg", "doctor", "engine")],
)
def test_a_command_that_lacks_an_extra_names_it(absent: str, argument: str, extra: str) -> None:
    code = f"from progressor.__main__ import main; sys.argv[1:] = [{argument!r}]; sys.exit(main())"

    ended = run_without([absent], code)

    assert ended.returncode == 2
    assert ended.stderr == (
        f"error: {absent} is not installed; install it with: pip install 'progressor[{extra}]'\n"
    )


@pytest.mark.parametrize("extra", ["cli", "engine"])
def test_every_package_of_an_extra_is_known_by_its_modules(extra: str) -> None:
    distributions = {Requirement(text).name for text in EXTRAS[extra]} - {"progressor", "tzdata"}

    named = {
        distribution
        for module, of in _EXTRAS.items()
        if of == extra
        for distribution in distributions
        if any(
            str(file).startswith(module.replace(".", "/") + "/")
            or str(file) == module.replace(".", "/") + ".py"
            for file in metadata.files(distribution) or ()
        )
    }

    assert named == distributions
