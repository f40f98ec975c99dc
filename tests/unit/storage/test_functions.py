"""How files of priv/functions become functions: what is added, and how they are called."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from progressor.storage.postgres import statements
from progressor.storage.postgres.functions import Functions
from progressor.storage.postgres.rows.arrays import COLUMNS

COUNT_ORDERS = """\
-- Counts, for one thing, orders.
-- Locks: none.
-- Returns: how many there are, and since when.
CREATE FUNCTION count_orders(
    p_namespace text,  -- of the orders, not of the gates
    p_keys      text[],
    OUT count   bigint,
    OUT since   timestamptz
)
STABLE
{clauses}AS $$
{directive}BEGIN
    count := 0;
END;
$$;
"""


def written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, clauses: str = "", directive: str = ""
) -> Functions:
    """Return the functions of a release that has only this one."""
    (folder / "functions").mkdir()
    text = COUNT_ORDERS.format(clauses=clauses, directive=directive)
    (folder / "functions" / "count_orders.sql").write_text(text, "utf-8")
    monkeypatch.setattr(statements, "priv", lambda: folder)
    return Functions()


def test_every_function_of_the_release_is_called_with_as_many_arguments_as_its_file_has() -> None:
    functions = Functions()

    calls = {
        file.stem: functions.call(file.stem)
        for file in statements.functions()
        if file.parent.name != "types"
    }

    assert len(calls) > 100
    assert calls["find_locked"].statement.count(b"%b") == 4
    assert calls["delete_schedule"].statement.count(b"%b") == 5


def test_neither_outputs_nor_comments_are_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    functions = written(tmp_path, monkeypatch)

    statement = functions.call("count_orders").statement
    # The first text gives all of them the collation of the keys.
    assert statement.endswith(b'"count_orders"(%b COLLATE "C", %b)')


def test_arguments_are_bound_by_name_in_the_order_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = written(tmp_path, monkeypatch).call("count_orders")

    bound = function.bind(keys=iter("k"), namespace="n")

    assert bound == ["n", ["k"]]
    assert type(bound[1]) is COLUMNS["text[]"]
    assert function.bind(keys=None, namespace=None) == [None] * 2
    with pytest.raises(TypeError, match="lacks the argument 'keys'"):
        function.bind(namespace="n")
    with pytest.raises(TypeError, match=r"no arguments \['shard'\]"):
        function.bind(keys=[], namespace="n", shard=2)


def test_a_list_of_arguments_or_columns_may_be_part_of_another_one() -> None:
    functions = Functions()
    tasks, jobs = functions.call("settle_tasks"), functions.call("settle_job_tasks")

    assert [*jobs.arguments][: len(tasks.arguments)] == [*tasks.arguments]
    assert len(jobs.arguments) > len(tasks.arguments)
    assert tasks.columns == jobs.columns
    assert not any(re.search(r"\bLIKE \w", text) for text in functions.texts)


class Node(NamedTuple):
    """Where a node of a job is."""

    slot: int


def test_a_row_reads_the_columns_of_the_file_or_of_its_type() -> None:
    functions = Functions()

    assert functions.call("claim_due").columns[:2] == ("slot", "namespace")
    assert functions.call("find_locked", int).make_row((3,)) == 3
    with pytest.raises(AssertionError, match=r"Node: no columns of \['slot'\]"):
        functions.call("find_locked", Node)
    with pytest.raises(AssertionError, match=r"Node does not read \['namespace', "):
        functions.call("claim_due", Node)


def test_a_file_without_a_signature_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "functions").mkdir()
    (tmp_path / "functions" / "half.sql").write_text("CREATE FUNCTION half(p_one text", "utf-8")
    monkeypatch.setattr(statements, "priv", lambda: tmp_path)

    with pytest.raises(AssertionError, match="CREATE FUNCTION half"):
        Functions()


@pytest.mark.parametrize(
    ("clauses", "directive", "plans"),
    [
        ("", "", 0),
        ("BY INDEX\n", "", 1),
        ("SET lock_timeout = '2s'\n", "#variable_conflict use_variable\n", 0),
    ],
)
def test_a_file_gets_what_nearly_all_have_in_common(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clauses: str, directive: str, plans: int
) -> None:
    functions = written(tmp_path, monkeypatch, clauses=clauses, directive=directive)

    [text] = functions.texts
    assert text.count("LANGUAGE plpgsql\nSET search_path FROM CURRENT\nAS $$\n") == 1
    assert text.count("SET enable_seqscan = off") == plans
    assert "BY INDEX" not in text
    assert text.count("#variable_conflict") == 1
    assert (directive or "#variable_conflict use_column\n") in text
