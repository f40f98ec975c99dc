"""Rows of tables that may be partitioned are locked by look-ups of their own, which run to the end.

See "Partitions" in priv/README.md. If another transaction has just changed a row, PostgreSQL checks
it again once it has the lock: in a wrong partition if the lock stands in a join, or if something
has stopped an earlier look-up of the same statement. The row then counts as missing, without an
error, and only in that moment. So the texts are checked.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from progressor.storage.postgres import statements
from progressor.storage.postgres.schema import partitions

FILES = [*statements.functions(), *Path(statements.__file__).parents[1].rglob("*.sql")]
EXEMPT = {
    # What it misses is left to the next round, as is what others have locked.
    "delete_finished": ["not by the key of a process", "LIMIT", "EXIT"],
}

_LOCK = re.compile(r"\bFOR (?:NO KEY UPDATE|UPDATE|SHARE|KEY SHARE)\b")
_MAY_BE_PARTITIONED = re.compile(rf"\b(?:{'|'.join(partitions.TABLES)})\b")
_ONE_TABLE = re.compile(r"\s*(?:progressor\.)?\w+ (\w+)\s*")
_BY_KEY = r"\({0}\.slot, {0}\.namespace, {0}\.process_id\b[^)]*\)\s*=|\b{0}\.slot BETWEEN "
_STOP = re.compile(r"\b(?:LIMIT|OFFSET|FETCH)\b")
_LEFT = re.compile(r"\bEXIT\b|\bRETURN;")
_TEST = re.compile(r"\b(?:EXISTS|IN|ANY|SOME|ALL)\s*$")
_AGGREGATE = re.compile(r"\b(?:array_agg|bool_or|count)<")


class _Level(NamedTuple):
    """A query, or a subquery between its parentheses; ``own`` is blank where others are nested."""

    begin: int
    end: int
    own: str


def find_problems(text: str) -> Iterator[str]:
    """Yield what is wrong with the locks of rows that may be in partitions."""
    text = re.sub(r"--.*", "", text).replace("$$", ";")
    for lock in _LOCK.finditer(text):
        levels = list(_levels(text, lock.start()))
        begin, _, own = levels[0]
        query = max(own.rfind(word, 0, lock.start() - begin) for word in ("SELECT", "PERFORM"))
        source = own.index("FROM", query) + len("FROM")
        where = own.find("WHERE", source, lock.start() - begin)
        if where < 0:
            where = lock.start() - begin
        tables = text[begin + source : begin + where]
        if _MAY_BE_PARTITIONED.search(tables):
            condition = text[begin + where : lock.start()]
            if (one := _ONE_TABLE.fullmatch(tables)) is None:
                yield "in a join"
            elif not re.search(_BY_KEY.format(one[1]), condition):
                yield "not by the key of a process"
            yield from _stops(text, lock, levels, query)


def _stops(text: str, lock: re.Match[str], levels: list[_Level], query: int) -> Iterator[str]:
    """Yield what may end the look-up before all of its rows are locked."""
    seen = levels[0].begin + query
    for begin, end, own in levels:
        yield from _STOP.findall(own, max(0, seen - begin))
        yield from _TEST.findall(text[: begin - 1])
        seen = end
    if len(levels) > 1:
        own = levels[-1].own[: levels[-2].begin - levels[-1].begin]
        select, _, rest = own.rpartition("SELECT")[2].partition("FROM")
        if rest and " INTO " in select and not _AGGREGATE.search(select):
            yield "INTO"
    loop = re.compile(r"\bLOOP\b(.*?)\bEND LOOP\b", re.DOTALL).search(text, lock.end())
    if loop is not None and ";" not in text[lock.end() : loop.start()]:
        yield from _LEFT.findall(loop[1])


def _levels(text: str, at: int) -> Iterator[_Level]:
    """Yield the query that has a position, and those around it, from the inside."""
    while True:
        begin, end = _bound(text, at - 1, -1), _bound(text, at, 1)
        yield _Level(begin, end, _blanked(text[begin:end]))
        if begin == 0 or text[begin - 1] != "(":
            return
        at = begin - 1


def _bound(text: str, at: int, step: int) -> int:
    opening, closing = "()" if step > 0 else ")("
    depth = 0
    while 0 <= at < len(text):
        found = text[at]
        depth += (found == opening) - (found == closing)
        if depth < 0 or (depth == 0 and found == ";"):
            break
        at += step
    return at if step > 0 else at + 1


def _blanked(text: str) -> str:
    while (plain := re.sub(r"\(([^()]*)\)", lambda it: f"<{' ' * len(it[1])}>", text)) != text:
        text = plain
    return text


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_are_by_key_and_run_to_the_end(file: Path) -> None:
    assert list(find_problems(file.read_text("utf-8"))) == EXEMPT.get(file.stem, [])
