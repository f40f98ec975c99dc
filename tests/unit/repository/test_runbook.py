"""The runbook has a section for each alert and check; commands and keys of the guides exist."""

import contextlib
import re
import shlex
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from cyclopts.exceptions import MissingArgumentError

from progressor.cli.main import build_app
from progressor.settings import config
from progressor.storage.doctor.environment import checks as environment
from progressor.storage.doctor.invariants import checks as invariants

ROOT = Path(__file__).parents[3]
HOW_TO = ROOT / "docs" / "how-to"
RUNBOOK = HOW_TO / "operate" / "runbook"

ALERTS = [
    rule
    for group in yaml.safe_load((ROOT / "docker/prometheus/rules.yml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
    if "alert" in rule
]
CHECKS = [it.name for it in (*environment.CHECKS, *invariants.checks(deep=True))]

_SECTION = re.compile(r"^## (.+)\n\n((?:(?!## ).*\n)+)", re.MULTILINE)
_SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(?<!`)`([^`]+)`")
# Two words or more, in small letters but for the name of PostgreSQL.
_MESSAGE = re.compile(r"(?:[a-z]+|PostgreSQL)(?:[:;]? [a-z']+)+")
_OTHER = {"archive recovery complete", "make image", "make run", "schedule get"}
_SHELL_SYNTAX = {"|", ">", "<", "&&", ";", "\\"}

SECTIONS = [
    (page, title, text)
    for page in sorted(RUNBOOK.glob("*.md"))
    if page.name != "index.md"
    for title, text in _SECTION.findall(page.read_text("utf-8"))
]
QUERIES = sorted(
    {
        " ".join(span.split())
        for _, _, text in SECTIONS
        for span in _SPAN.findall(text)
        if span.startswith("SELECT ") and "pg_terminate" not in span and "pg_drop" not in span
    }
)


def commands(page: Path) -> list[str]:
    """Return the commands of `progressor` on a page, from blocks and from the text."""
    text = page.read_text("utf-8")
    lines = [line for block in _SHELL.findall(text) for line in block.splitlines()]
    spans = [" ".join(span.split()) for span in _SPAN.findall(text)]
    return [it for it in (*lines, *spans) if it.startswith("progressor ") and "…" not in it]


def test_each_alert_and_each_check_has_one_section() -> None:
    titles = [title for _, title, _ in SECTIONS]

    expected = [rule["alert"] for rule in ALERTS] + [it.replace("_", " ") for it in CHECKS]
    assert sorted(titles) == sorted(expected)


@pytest.mark.parametrize(("page", "title", "text"), SECTIONS, ids=lambda it: str(it)[:40])
def test_a_section_says_what_it_means_and_what_to_check_and_to_do(
    page: Path, title: str, text: str
) -> None:
    labels = re.findall(r"^\*\*(\w+)\.\*\* ", text, re.MULTILINE)

    assert labels == ["Meaning", "Check", "Action"], f"{page.name}: {title}"
    assert "`" in text.partition("**Check.**")[2], "names nothing to look at"


@pytest.mark.parametrize("rule", ALERTS, ids=lambda it: it["alert"])
def test_an_alert_names_its_section(rule: dict[str, Any]) -> None:
    path, _, anchor = rule["annotations"]["runbook"].partition("#")

    assert anchor == rule["alert"].lower()
    assert f"\n## {rule['alert']}\n" in (ROOT / path).read_text("utf-8")


@pytest.mark.parametrize("page", sorted(HOW_TO.rglob("*.md")), ids=lambda it: it.stem)
def test_every_command_of_a_guide_exists(page: Path) -> None:
    app = build_app()
    for command in commands(page):
        _, *tokens = shlex.split(command)
        end = next((at for at, it in enumerate(tokens) if it in _SHELL_SYNTAX), len(tokens))
        # In the text a command may be named without its arguments.
        is_name = all(re.fullmatch(r"[a-z-]+", it) for it in tokens)
        with contextlib.suppress(*([MissingArgumentError] if is_name else [])):
            app.parse_args(tokens[:end], exit_on_error=False, print_error=False, verbose=False)


def test_every_key_of_a_guide_exists() -> None:
    text = "\n".join(page.read_text("utf-8") for page in HOW_TO.rglob("*.md"))
    rows = config.reference()
    sections = {row.key.partition(".")[0] for row in rows}

    keys = {it for it in re.findall(r"`([a-z_]+\.[a-z_]+)`", text) if it.split(".")[0] in sections}

    assert keys - {row.key for row in rows} == set()


def test_every_log_message_of_a_guide_is_in_the_code() -> None:
    source = "\n".join(path.read_text("utf-8") for path in (ROOT / "progressor").rglob("*.py"))
    text = "\n".join(page.read_text("utf-8") for page in HOW_TO.rglob("*.md"))
    spans = {" ".join(it.split()) for it in _SPAN.findall(text)}
    messages = {it for it in spans if _MESSAGE.fullmatch(it) and not it.startswith("progressor ")}

    assert messages
    names = {it.replace("_", " ") for it in CHECKS}
    assert {it for it in messages if it not in source} <= names | _OTHER


def test_every_query_of_the_runbook_runs(own_database: str) -> None:
    with psycopg.connect(own_database, autocommit=True) as connection:
        for query in QUERIES:
            connection.execute(query.encode())
