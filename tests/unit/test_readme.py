"""README and docs/ match the code: tables, limits, links, and examples that run.

``python -m tests.unit.test_readme`` rewrites the tables.
"""

import ast
import asyncio
import contextlib
import dataclasses
import datetime as dt
import functools
import inspect
import itertools
import os
import re
import shlex
import sys
import tomllib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import pytest
import yaml

from bench.catalogue import QUESTIONS
from progressor import errors, sdk
from progressor.api import namespaces
from progressor.api.calls import status, validation
from progressor.api.processes import responses
from progressor.cli.main import main
from progressor.cli.output import EPILOGUE, ExitCode
from progressor.domain.jobs import graph, job
from progressor.domain.processes import message
from progressor.domain.processes.namespace import PAYLOAD_BYTES_CEILING, Namespace
from progressor.domain.schedules import schedule
from progressor.processor import codec, failures
from progressor.runtime.step import histories, job_steps
from progressor.settings import config
from progressor.settings.config import variable_of
from progressor.telemetry import names
from progressor.telemetry.instruments import LABEL_SETS_MAX, OVERFLOW, Metric, MetricKind
from progressor.telemetry.metrics.registry import METRICS
from progressor.wire import fields as wire
from progressor.wire import processes as process_wire
from tests.support.api.scripted_engine import Ended
from tests.support.engine.replica import running_replica
from tests.support.pages import access_tables, commands, protos
from tests.support.pages import sdk as sdk_pages

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = (README, *sorted(DOCS.rglob("*.md")))

ENGINE = "127.0.0.1:7420"
PROCESSOR = "127.0.0.1:7422"
PROCESSORS = (PROCESSOR, "127.0.0.1:7423", "127.0.0.1:7424", "127.0.0.1:7425")
TIMEOUT_SECONDS = 30.0
MILLISECOND = dt.timedelta(milliseconds=1)

_NAMESPACE = "namespaces.NAME."
_EXIT_CODE = re.compile(r"^  (\d+)  (.+)$", re.MULTILINE)
_SERVES = re.compile(r"\.serve\(|\.add_insecure_port\(")
_FILE = re.compile(r"# (\S+\.toml)\n")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"`((?:bench|docker|docs|priv|progressor|proto|tests)/[\w./-]+)`")
_LINK = re.compile(r"\]\(([^):]+)\)")
_ERROR = re.compile(
    r"^### (\w+)\n\ngRPC code (\w+); in the SDK \[(\w+)\]\(.*\)\.\n\n\*\*Cause\.\*\* .+\n\n"
    r"\*\*Action\.\*\* .+$",
    re.MULTILINE,
)

_Match: TypeAlias = Callable[[str, str], "re.Match[str] | None"]
_END = "\n(the end)"  # a word of no page

# What a client never meets as a status: it ends a step, or a command.
_NOT_ON_THE_WIRE = frozenset({"INTERNAL", "REJECTED", "INVALID_ANSWER"})


def page(path: str) -> str:
    """Return the text of a page of docs/."""
    return (DOCS / path).read_text("utf-8")


def pages_in_order() -> list[Path]:
    """Return the pages of docs/ in the order of the site's navigation."""

    def leaves(entries: Sequence[Any]) -> Iterator[str]:
        for entry in entries:
            if isinstance(entry, str):
                yield entry
            else:
                for children in entry.values():
                    yield from leaves(children)

    site = tomllib.loads((DOCS / "zensical.toml").read_text("utf-8"))
    return [DOCS / path for path in leaves(site["project"]["nav"])]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def keys_table(*, of_namespaces: bool) -> str:
    rows = [
        (code(row.key.removeprefix(_NAMESPACE)), code(row.default), row.meaning)
        for row in config.reference()
        if row.key.startswith(_NAMESPACE) == of_namespaces
    ]
    return table(("key", "default", "meaning"), rows)


def full_name(metric: Metric) -> str:
    return f"{metric.name}_total" if metric.kind is MetricKind.COUNTER else metric.name


def metrics_table() -> str:
    rows = [
        (
            code(full_name(it)),
            it.kind,
            it.unit.strip("{}"),
            ", ".join(map(code, it.labels)),
            it.meaning,
        )
        for it in METRICS.values()
    ]
    return table(("metric", "kind", "unit", "by", "meaning"), rows)


def names_table(kind: str, meanings: Mapping[str, str]) -> str:
    return table((kind, "meaning"), [(code(it), meaning) for it, meaning in meanings.items()])


def exit_codes_table() -> str:
    rows = [*_EXIT_CODE.findall(EPILOGUE), (str(int(ExitCode.INTERRUPTED)), "ended by Ctrl-C")]
    return table(("code", "meaning"), rows)


TABLES: Mapping[str, Callable[[], str]] = {
    "config": functools.partial(keys_table, of_namespaces=False),
    "namespace": functools.partial(keys_table, of_namespaces=True),
    "metrics": metrics_table,
    "spans": functools.partial(names_table, "span", names.SPANS),
    "attributes": functools.partial(names_table, "attribute", names.ATTRIBUTES),
    "exit-codes": exit_codes_table,
    "commands": commands.sections,
    "rights": access_tables.rights,
    "roles": access_tables.roles,
}

# Whole pages, by their paths in docs/.
GENERATED = {**protos.pages(), **sdk_pages.pages()}


def region(name: str) -> "re.Pattern[str]":
    """Return the pattern of a region between markers: begin, text, end."""
    return re.compile(rf"(<!-- {name}:begin[^>]*-->\n)(.*?)(<!-- {name}:end -->)", re.DOTALL)


def region_text(name: str) -> str:
    """Return the text of a region, which exactly one page has."""
    (found,) = [it for path in PAGES for it in region(name).findall(path.read_text("utf-8"))]
    return str(found[1]).strip()


def regenerated(text: str) -> str:
    """Return the text of a page with its tables generated again."""
    for name, make in TABLES.items():
        # Most pages have none, and the help of all commands takes seconds.
        if region(name).search(text):
            text = region(name).sub(rf"\g<1>\n{_escaped(make())}\n\n\g<3>", text)
    return text


def _escaped(template: str) -> str:
    return template.replace("\\", r"\\")


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_what_the_code_says(name: str) -> None:
    assert region_text(name) == TABLES[name](), "python -m tests.unit.test_readme rewrites it"


@pytest.mark.parametrize("path", GENERATED)
def test_a_generated_page_is_what_the_code_says(path: str) -> None:
    assert page(path) == GENERATED[path], "python -m tests.unit.test_readme rewrites it"


def test_no_generated_page_is_left_over() -> None:
    folders = {Path(path).parent for path in GENERATED}
    there = {it.relative_to(DOCS) for folder in folders for it in (DOCS / folder).glob("*.md")}

    assert there == {*map(Path, GENERATED)}


def test_the_variable_of_every_key_follows_the_rule() -> None:
    tables = (_NAMESPACE, "processor_credentials.", "access.issuers.", "cells[].")
    rows = [row for row in config.reference() if not row.key.startswith(tables)]

    assert "`PROGRESSOR_SCANNER_BATCH_MAX`" in page("reference/configuration.md")
    assert variable_of("scanner.batch_max") == "PROGRESSOR_SCANNER_BATCH_MAX"
    assert [row.variable for row in rows] == [variable_of(row.key) for row in rows]


def test_every_reason_has_the_code_and_the_class_of_the_code() -> None:
    documented = _ERROR.findall(region_text("errors"))

    expected = {
        (kind.reason, gcode.name, kind.__name__)
        for kind, gcode in status.CODES.items()
        if kind.reason not in _NOT_ON_THE_WIRE and gcode.name != "INTERNAL"
        # These are unavailable storage, by other causes; a client sees no difference.
        if errors.StorageUnavailableError not in kind.__mro__[1:]
    }
    assert set(documented) == expected | {("INTERNAL", "INTERNAL", "UnexpectedStatusError")}
    assert len(documented) == len(set(documented))
    assert [name for _, _, name in documented if not hasattr(sdk, name)] == []


def size(count: int) -> str:
    """Return bytes in the unit of the pages."""
    kib, mib = 1024, 1024**2
    return f"{count // mib} MiB" if count >= mib else f"{count // kib} KiB"


LIMITS = (
    f"1 to {wire.ID_BYTES_MAX} bytes",
    f"{size(Namespace(name='n', processor_targets=()).payload_bytes_max)}, by namespace",
    f"up to {size(PAYLOAD_BYTES_CEILING)}",
    f"{size(wire.METADATA_BYTES_MAX)}, nested {wire.METADATA_DEPTH_MAX} deep",
    f"{process_wire.CALLER_CONTEXT_PAIRS_MAX} pairs, {size(process_wire.CALLER_CONTEXT_BYTES_MAX)}",
    f"events of one step | {codec.EVENTS_MAX:,} |",
    f"refuses messages | {message.MESSAGES_MAX}; {message.QUEUE_MAX:,} |",
    f"{wire.HISTORY_LIMIT_MAX:,} events; {size(histories.HISTORY_BYTES_MAX)}",
    f"{validation.PAGE_SIZE_MAX:,} items, or {size(responses.PAGE_BYTES_MAX)}",
    f"the first {responses.WAITS_MAX};",
    f"{wire.STEP_TIMEOUT_MIN // MILLISECOND} ms to {wire.STEP_TIMEOUT_MAX.days} day",
    f"of a namespace | {namespaces.TARGETS_MAX} |",
    f"{codec.REJECT_METADATA_PAIRS_MAX} pairs, {size(codec.REJECT_METADATA_BYTES_MAX)} in all",
    f"id of a schedule | 1 to {job.NAME_BYTES_MAX} bytes",
    f"id of a schedule | 1 to {schedule.SCHEDULE_ID_BYTES_MAX} bytes",
    f"| {job.NODES_PER_STEP_MAX:,}; {job.NODES_MAX:,} |",
    f"| {job.EDGES_PER_STEP_MAX:,} |",
    f"handed to one task | {size(graph.GRAPH_BYTES_MAX)} |",
    f"handed to one task | {size(job_steps.OUTCOMES_BYTES_MAX)} |",
    f"| {job.WINDOW}; the others wait |",
    f"from {schedule.INTERVAL_MIN.seconds} s; to {schedule.JITTER_MAX.days} day;",
    f"{schedule.CATCH_UP_MIN.seconds} s to {schedule.CATCH_UP_MAX.days} days |",
    f"of one backfill | {schedule.BACKFILL_MAX:,} |",
    f"span of the next runs shown | {schedule.BACKFILL_SPAN_MAX.days:,} days |",
    f"span of the next runs shown | {schedule.NEXT_HORIZON.days:,} days |",
)


@pytest.mark.parametrize("limit", LIMITS)
def test_a_limit_is_that_of_the_code(limit: str) -> None:
    assert limit in page("reference/limits.md")


def test_every_metric_to_watch_exists() -> None:
    documented = set(re.findall(r"`(progressor_\w+)`", page("reference/metrics.md")))

    assert documented == set(map(full_name, METRICS.values()))
    words = " ".join(page("reference/metrics.md").split())
    assert f"no more than {LABEL_SETS_MAX:,} sets of labels" in words
    assert f"one of queues {METRICS['queue_tasks'].sets_max:,}" in words
    assert f"`{OVERFLOW}`" in page("reference/metrics.md")


def test_the_limit_of_a_step_is_that_of_the_code() -> None:
    assert "of a step above 64 MiB" in page("reference/errors.md")
    assert failures.MESSAGE_BYTES_MAX == 64 * 1024**2


def test_every_figure_names_its_benchmark() -> None:
    documented = re.findall(r"^\|[^|]*\| `(\w+)` \|", region_text("bench"), re.MULTILINE)

    assert set(documented) <= {name for question in QUESTIONS for name in question.names}
    assert "python -m bench" in region_text("bench")


@functools.cache
def sources() -> str:
    """Return the text of the whole package."""
    return "\n".join(path.read_text("utf-8") for path in (ROOT / "progressor").rglob("*.py"))


def test_every_reason_of_a_failed_task_is_in_the_code() -> None:
    source = sources()
    where_to_look = page("reference/errors.md").partition("\n## Bad input and failure")[2]
    documented = set(re.findall(r"`([A-Z]+(?:_[A-Z]+)+)`", where_to_look))

    assert {it for it in documented if f'"{it}"' not in source and it not in source} == set()


def test_every_log_message_is_in_the_code() -> None:
    rows = re.findall(
        r"^\| (`.+?`) \| ", page("reference/logs.md").partition("\n## Messages")[2], re.MULTILINE
    )
    source = sources()
    documented = [text for row in rows for text in re.findall(r"`([^`]+)`", row)]

    assert len(documented) > len(rows) > 0
    assert [text for text in documented if text not in source] == []


def test_a_figure_of_the_readme_is_that_of_the_benchmarks() -> None:
    row = re.compile(r"^\|[^|]*\| `(\w+)` \|(.*)\|$", re.MULTILINE)

    def figures(text: str) -> dict[str, list[str]]:
        return {name: re.split(r"\s*\|\s*", cells.strip()) for name, cells in row.findall(text)}

    measured, shown = figures(region_text("bench")), figures(README.read_text("utf-8"))

    assert shown
    for name, cells in shown.items():
        rate, _ratio, p50, p99, _cpu = measured[name]
        assert cells == [rate, p50, p99], name


def test_the_readme_is_short() -> None:
    assert len(README.read_text("utf-8").splitlines()) <= 200


def test_the_navigation_and_the_index_have_every_page() -> None:
    linked = {(DOCS / it).resolve() for it in _LINK.findall(page("index.md"))}
    pages = {*PAGES} - {README}

    assert sorted(pages_in_order()) == sorted(pages)
    assert pages - {DOCS / "index.md"} <= linked


@pytest.mark.parametrize("path", PAGES, ids=lambda it: it.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(path: Path) -> None:
    text = _FENCE.sub("", path.read_text("utf-8"))
    broken = []
    for target in _LINK.findall(text):
        name, _, anchor = target.partition("#")
        file = path.parent / name if name else path
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            broken.append(target)

    assert broken == []


@pytest.mark.parametrize("path", PAGES[1:], ids=lambda it: it.relative_to(DOCS).as_posix())
def test_a_page_links_to_what_the_site_has(path: Path) -> None:
    if path.name == "guarantees.md":
        pytest.skip("`make docs` removes its links to tests from the site")
    text = _FENCE.sub("", path.read_text("utf-8"))
    targets = [(path.parent / it.partition("#")[0]).resolve() for it in _LINK.findall(text)]

    assert [it for it in targets if not it.is_relative_to(DOCS)] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda it: it.relative_to(ROOT).as_posix())
def test_a_file_that_is_named_exists(path: Path) -> None:
    named = _NAMED.findall(_FENCE.sub("", path.read_text("utf-8")))

    assert [it for it in named if not (ROOT / it).exists()] == []


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    text = _FENCE.sub("", path.read_text("utf-8"))
    return {_anchor(it) for it in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language and its text."""

    language: str
    text: str


def blocks(paths: Sequence[Path] = PAGES) -> list[Block]:
    return [
        Block(language, text)
        for path in paths
        for language, text in _FENCE.findall(path.read_text("utf-8"))
    ]


def test_every_block_has_a_language_that_is_known_here() -> None:
    known = {"python", "py", "console", "sh", "text", "toml", "yaml"}
    assert {it.language for it in blocks()} == known


def test_every_block_of_yaml_is_yaml() -> None:
    texts = [it.text for it in blocks() if it.language == "yaml"]

    assert texts
    assert all([*yaml.safe_load_all(text)] for text in texts)


def test_a_fragment_of_a_program_runs() -> None:
    """``py`` is a piece, ``python`` a program that is run and prints what is shown."""
    for block in blocks():
        if block.language == "py":
            exec(compile(block.text, "docs", "exec"), {})  # noqa: S102  our own text


def test_the_processor_is_the_one_that_the_sdk_shows() -> None:
    (shown,) = re.findall(r"one::\n\n((?:    .*\n|\n)+)", sdk.__doc__ or "")
    documented = next(it.text for it in blocks([README]) if it.language == "python")

    renamed = documented.replace("baskets", "orders").replace(PROCESSOR, "127.0.0.1:7421")
    assert ast.dump(ast.parse(renamed)) == ast.dump(ast.parse(inspect.cleandoc(shown)))


@pytest.mark.parametrize(
    "text", [it.text for it in blocks() if it.language == "toml" and not _FILE.match(it.text)]
)
def test_a_configuration_file_can_be_loaded(text: str, tmp_path: Path) -> None:
    file = tmp_path / "progressor.toml"
    file.write_text(text)

    assert config.load(file=file, environment={}).sources


@pytest.mark.parametrize(
    "command",
    [
        line
        for it in blocks()
        if it.language == "sh"
        for line in it.text.splitlines()
        if line.startswith("make ")
    ],
)
def test_a_make_command_has_its_target(command: str) -> None:
    assert re.search(
        rf"^{command.split()[1]}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A user who types what pages show, with other addresses."""

    addresses: Mapping[str, str]
    folder: Path
    capture: pytest.CaptureFixture[str]

    async def follow(self, pages: Sequence[Path]) -> None:
        """Run every block in order; processors keep serving to the last page."""
        async with contextlib.AsyncExitStack() as stack:
            followed = {"python", "console", "text", "toml"}
            shown = iter([it for it in blocks(pages) if it.language in followed])
            for block in shown:
                if block.language == "console":
                    await self._type(block.text)
                elif block.language == "toml":
                    self._save_named(block.text)
                elif block.language == "python" and _SERVES.search(block.text):
                    await stack.enter_async_context(self._serving(block.text))
                elif block.language == "python":
                    printed = await self._run(sys.executable, self._save(block.text))
                    assert_shown(self._with_real_addresses(next(shown).text), printed)

    @contextlib.asynccontextmanager
    async def _serving(self, text: str) -> AsyncIterator[None]:
        (address,) = (it for it in PROCESSORS if it in text)
        process = await self._start(sys.executable, self._save(text))
        try:
            async with (
                asyncio.timeout(TIMEOUT_SECONDS),
                grpc.aio.insecure_channel(self.addresses[address]) as channel,
            ):
                await channel.channel_ready()
            yield
        finally:
            process.terminate()
            async with asyncio.timeout(TIMEOUT_SECONDS):
                assert await process.wait() == 0

    async def _type(self, session: str) -> None:
        ended = Ended(code=0, out="", err="")
        for command, expected in _commands(session):
            if command == "echo $?":
                printed = f"{ended.code}\n"
            elif command.startswith("progressor "):
                ended = await self._cli(shlex.split(self._with_real_addresses(command))[1:])
                printed = ended.out + ended.err
            else:
                program, *rest = shlex.split(self._with_real_addresses(command))
                printed = await self._run(str(Path(sys.executable).with_name(program)), *rest)
            assert_shown(self._with_real_addresses(expected), printed)

    async def _cli(self, arguments: Sequence[str]) -> Ended:
        self.capture.readouterr()
        code_ = await asyncio.to_thread(main, [*arguments])
        captured = self.capture.readouterr()
        return Ended(code=code_, out=captured.out, err=captured.err)

    async def _run(self, *command: str) -> str:
        process = await self._start(*command)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            printed, _ = await process.communicate()
        assert process.returncode == 0, printed.decode()
        return printed.decode()

    async def _start(self, *command: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *command,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def _save(self, text: str) -> str:
        program = self.folder / f"program-{len(list(self.folder.iterdir()))}.py"
        program.write_text(self._with_real_addresses(text))
        return str(program)

    def _save_named(self, text: str) -> None:
        """Save a file that says in its first line how it is called."""
        if named := _FILE.match(text):
            (self.folder / named[1]).write_text(text)

    def _with_real_addresses(self, text: str) -> str:
        for shown, real in self.addresses.items():
            text = text.replace(shown, real)
        return text


def _commands(session: str) -> Iterator[tuple[str, str]]:
    """Return the commands of a console, each with what it prints."""
    for part in session.removeprefix("$ ").split("\n$ "):
        command, _, expected = part.partition("\n")
        yield command, expected


def assert_shown(expected: str, printed: str) -> None:
    """Check that a command printed what is shown: any number, any spaces; … is anything.

    What is between two … is searched for from where the one before ended, and from no earlier
    place: a page that differs is found out in one pass.
    """
    rest = printed.strip()
    *segments, last = (it.split() for it in expected.split("…"))
    match: _Match = re.match
    for words in (*segments, [*last, _END]):
        found = match(_pattern(words), rest)
        if found is None:
            number = next(it for it in itertools.count(1) if not match(_pattern(words[:it]), rest))
            pytest.fail(
                f"the page shows {words[number - 1]!r} after {' '.join(words[: number - 1])!r}, "
                f"which is not in\n{rest}\nThe page shows\n{expected}\nand there was\n{printed}"
            )
        rest, match = rest[found.end() :], re.search


def _pattern(words: Sequence[str]) -> str:
    return r"\s*".join(r"\Z" if word is _END else _word(word) for word in words)


def _word(word: str) -> str:
    return "".join(map(_piece, re.split(r"(\d+(?:\.\d+)?|\bm?s\b)", word)))


def _piece(part: str) -> str:
    if part[:1].isdigit():
        return r"\d+(?:\.\d+)?"
    return r"m?s" if part in {"ms", "s"} else re.escape(part)


def test_a_page_that_differs_names_the_first_word_that_does() -> None:
    rows = [f"name-{number}  …  …  waits for 7 ms" for number in range(300)]
    printed = "\n".join(row.replace("…", "12 of 30") for row in rows)

    assert_shown("\n".join(rows), printed.replace("7 ms", "0.8 s"))
    for was, differs in (("name-299", "other-299"), ("waits", "runs"), ("7 ms", "soon")):
        changed = [*rows[:-1], rows[-1].replace(was, differs)]
        with pytest.raises(pytest.fail.Exception, match=f"shows '{differs}'"):
            assert_shown("\n".join(changed), printed)
    with pytest.raises(pytest.fail.Exception, match="the end"):
        assert_shown("\n".join(rows), f"{printed}\nmore")


@pytest.mark.parametrize("pages", [[README], pages_in_order()], ids=["README", "docs"])
async def test_every_example_runs_and_prints_what_is_shown(
    pages: list[Path],
    own_database: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processors = {
        shown: f"unix:{tmp_path}/p{number}.sock" for number, shown in enumerate(PROCESSORS)
    }
    monkeypatch.chdir(tmp_path)
    async with running_replica(own_database) as replica:
        monkeypatch.setenv("PROGRESSOR_ADDRESS", replica.address)
        reader = Reader(
            addresses={**processors, ENGINE: replica.address},
            folder=tmp_path,
            capture=capfd,
        )

        await reader.follow(pages)


if __name__ == "__main__":
    for each in PAGES:
        each.write_text(regenerated(each.read_text("utf-8")), "utf-8")
    for each_path, each_text in GENERATED.items():
        (DOCS / each_path).parent.mkdir(exist_ok=True)
        (DOCS / each_path).write_text(each_text, "utf-8")
