"""Bindings in a file: what apply changes, and what it refuses."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from progressor.cli.main import main
from progressor.settings.config import load
from progressor.storage.access.first_admin import create_first_admin
from tests.support.engine.points import eventually
from tests.support.engine.replica import running_replica

pytestmark = pytest.mark.asyncio(loop_scope="module")

ADMIN = '[[bindings]]\nprincipal = "token:admin"\nrole = "admin"\nnamespaces = ["*"]\n'
SHOP = '[[bindings]]\nprincipal = "token:shop"\nrole = "caller"\nnamespaces = ["a", "b-*"]\n'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def environment(
    database: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[dict[str, str]]:
    file: Path = tmp_path_factory.mktemp("access") / "token"
    async with running_replica(database, {"access.enabled": "true"}) as replica:
        config = load(environment={}, flags={"database.dsn": database}).database
        token = await asyncio.to_thread(create_first_admin, config, database, "admin")
        await asyncio.to_thread(file.write_text, token)
        found = {"PROGRESSOR_ADDRESS": replica.address, "PROGRESSOR_TOKEN_FILE": str(file)}
        with pytest.MonkeyPatch.context() as patch:
            for name, value in found.items():
                patch.setenv(name, value)
            await eventually(_is_let_in)
            yield found


async def _is_let_in() -> bool:
    return await _run("access", "whoami") == 0


async def _run(*arguments: str) -> int:
    return await asyncio.to_thread(main, arguments)


@pytest.mark.usefixtures("environment")
async def test_a_file_is_applied_once_and_pruned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, alone = tmp_path / "bindings.toml", tmp_path / "alone.toml"
    file.write_text(ADMIN + SHOP)
    alone.write_text(ADMIN)
    apply, only = ("access", "apply", str(file)), ("access", "apply", str(alone))
    capsys.readouterr()

    codes = [
        await _run(*apply, "--check"),
        await _run(*apply, "--dry-run"),
        await _run(*apply, "--yes"),
        await _run(*apply, "--check"),
        await _run(*apply, "--yes", "--json"),
        await _run(*only, "--check"),
        await _run(*only, "--check", "--prune"),
        await _run(*only, "--prune", "--yes"),
        await _run(*only, "--check", "--prune"),
    ]
    said = capsys.readouterr().out
    await _run("access", "export")

    assert codes == [1, 0, 0, 0, 0, 0, 1, 0, 0]
    assert said.count("+ token:shop is caller in b-*") == 3
    assert said.count("- token:shop is caller in b-*") == 2
    assert "added 2, removed 0" in said
    assert "added 0, removed 2" in said
    assert '"applied_count": 0' in said
    assert capsys.readouterr().out.strip() == ADMIN.strip()


@pytest.mark.usefixtures("environment")
async def test_nobody_prunes_the_right_to_prune(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bindings.toml"
    file.write_text(SHOP)

    assert await _run("access", "apply", str(file), "--prune", "--yes") == 2
    assert "would take the role admin in * from you, token:admin" in capsys.readouterr().err
    assert await _run("access", "apply", str(file), "--check") == 1


@pytest.mark.usefixtures("environment")
async def test_all_that_is_wrong_in_a_file_is_named_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bindings.toml"
    file.write_text(
        '[[bindings]]\nprincipal = "oidc:a"\nrole = "caller"\nnamespaces = ["A", "*"]\n'
        '[[bindings]]\nrole = "chief"\n'
        '[[bindings]]\nprincipal = "token:a*b"\nrole = "reader"\nplace = "x"\n'
        '[[bindings]]\nprincipal = "token:*"\n'
    )

    assert await _run("access", "apply", str(file)) == 2
    said = " ".join(capsys.readouterr().err.split())
    for words in (
        "bindings[1].principal: must be * or begin with token:, cert:, user: or group:, got 'oidc:",
        "bindings[1].namespaces: must be names, beginnings of them followed by *, or *, got 'A'",
        "bindings[2].role: must be one of",
        "bindings[3].place: is not a known key",
        "bindings[4].role: must be given",
        "bindings[4].namespaces: must be given",
    ):
        assert words in said
