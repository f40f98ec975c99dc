"""The chain of audit entries: sealed once by replicas at once, kept by retention, protected."""

import asyncio
import datetime as dt
from typing import Any

import psycopg
import pytest

from progressor.domain.access.audit import AuditEntry, AuditFilter
from progressor.storage.access import audit as audit_module
from progressor.storage.access.audit import (
    NOTES_BURST,
    NOTES_PER_SECOND,
    Audit,
    AuditNotes,
    entry_of,
)
from progressor.storage.postgres import attempt
from tests.support.clock import ManualClock
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.store import Store, fresh_key

pytestmark = pytest.mark.asyncio(loop_scope="module")

EVERYTHING = ("*",)
NO_AGE = dt.timedelta()


def audit_of(store: Store) -> Audit:
    return Audit(store.context, AuditNotes(store.clock))


async def change(store: Store, *, count: int = 1) -> None:
    """Make changes with entries."""
    for number in range(count):
        gate = fresh_key().process_id
        with attempt.of(entry_of("SetGate", principal="token:a", object_id=gate)):
            await store.set_gate(gate, number)


async def seal_all(audit: Audit) -> None:
    while await audit.seal():
        pass


def chain(observer: psycopg.Connection[Any]) -> list[int]:
    query = "SELECT number FROM progressor.audit_entries WHERE number IS NOT NULL ORDER BY number"
    return [number for (number,) in observer.execute(query)]


def faults(observer: psycopg.Connection[Any]) -> list[Any]:
    return broken_invariants(observer).get("audit_entries_form_a_chain", [])


async def test_replicas_that_seal_at_once_make_one_chain(
    stores: tuple[Store, ...], observer: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_module, "SEALED_MAX", 3)
    audits = [audit_of(store) for store in stores]
    before = chain(observer)

    async with asyncio.TaskGroup() as group:
        for store, audit in zip(stores, audits, strict=True):
            group.create_task(change(store, count=20))
            group.create_task(_seal_often(audit))
    await seal_all(audits[0])

    assert chain(observer) == list(range(1, len(before) + 41))
    assert faults(observer) == []


async def _seal_often(audit: Audit) -> None:
    for _ in range(30):
        await audit.seal()


async def test_retention_deletes_from_the_front_and_keeps_what_the_rest_is_chained_to(
    stores: tuple[Store, ...], observer: psycopg.Connection[Any]
) -> None:
    store, audit = stores[0], audit_of(stores[0])
    await change(store, count=5)
    await seal_all(audit)
    count = len(chain(observer))
    await change(store)

    assert await audit.forget(age=dt.timedelta(days=1), limit=100) == 0
    assert await audit.forget(age=NO_AGE, limit=count - 2) == count - 2
    head = await audit.head()
    assert chain(observer) == [head.number - 1, head.number]
    assert faults(observer) == []
    # What is not sealed stays, however old it is.
    assert await audit.forget(age=NO_AGE, limit=100) == 2
    assert (await audit.head()).unsealed_count == 1
    assert faults(observer) == []
    assert await audit.seal() == 1
    assert faults(observer) == []


async def test_what_cuts_off_the_end_with_the_head_is_found_by_a_head_that_was_kept(
    stores: tuple[Store, ...], observer: psycopg.Connection[Any]
) -> None:
    audit = audit_of(stores[0])
    await change(stores[0], count=3)
    await seal_all(audit)
    kept = await audit.head()

    with observer.transaction(force_rollback=True):
        observer.execute("SET LOCAL session_replication_role = replica")
        observer.execute("DELETE FROM progressor.audit_entries WHERE number = %s", [kept.number])
        observer.execute(
            "UPDATE progressor.audit_chain SET (head_number, head_hash) ="
            " (SELECT number, hash FROM progressor.audit_entries"
            " WHERE number IS NOT NULL ORDER BY number DESC LIMIT 1)"
        )
        # The chain does not show it,
        assert faults(observer) == []
        query = "SELECT encode(hash, 'hex') FROM progressor.audit_entries WHERE number = %s"
        found = observer.execute(query, [kept.number]).fetchall()
    # but there is no entry with the number and hash of the head that was kept.
    assert found != [(kept.hash,)]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE progressor.audit_entries SET result = 'FORGED'",
        "UPDATE progressor.audit_entries SET number = NULL, hash = NULL",
        "UPDATE progressor.audit_entries SET number = number + 1000",
        "DELETE FROM progressor.audit_entries",
        "TRUNCATE progressor.audit_entries",
    ],
)
async def test_statements_cannot_change_entries(
    stores: tuple[Store, ...], observer: psycopg.Connection[Any], statement: str
) -> None:
    await change(stores[0])
    await seal_all(audit_of(stores[0]))

    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="cannot be changed"):
        observer.execute(statement.encode())


async def test_a_page_looks_at_so_many_entries_and_goes_on_behind_them(
    stores: tuple[Store, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = audit_of(stores[0])
    await change(stores[0])
    [oldest], _ = await audit.page(AuditFilter(), EVERYTHING, after=None, limit=1)
    await change(stores[0], count=7)
    monkeypatch.setattr(audit_module, "EXAMINED_MAX", 3)
    wanted = AuditFilter(object_id=oldest.object_id)

    pages, place = [], None
    for _ in range(10):
        page, place = await audit.page(wanted, EVERYTHING, after=place, limit=5)
        pages.append([it.entry_id for it in page])
        if place is None or page:
            break
    await seal_all(audit)
    numbers = [0]
    followed: list[AuditEntry] = []
    while not followed or numbers[-1] != numbers[-2]:
        found, number = await audit.follow(wanted, EVERYTHING, after=numbers[-1], limit=5)
        followed += found
        numbers.append(number)

    assert pages == [[], [], [oldest.entry_id]]
    assert [it.entry_id for it in followed] == [oldest.entry_id]


async def test_a_late_note_does_not_add_a_second_entry(
    stores: tuple[Store, ...], observer: psycopg.Connection[Any]
) -> None:
    store, audit = stores[0], audit_of(stores[0])
    entry = entry_of("SetGate", principal="token:a", object_id="twice")
    with attempt.of(entry):
        await store.set_gate("twice", 1)
    audit.notes.add(entry, "STORAGE_UNAVAILABLE")
    await audit.write_notes()

    query = "SELECT result FROM progressor.audit_entries WHERE entry ->> 'object_id' = 'twice'"
    assert observer.execute(query).fetchall() == [("OK",)]


async def test_notes_are_bounded_in_rate_and_the_rest_is_counted() -> None:
    clock = ManualClock()
    notes = AuditNotes(clock)
    for _ in range(NOTES_BURST + 7):
        notes.add(entry_of("Get", principal=""), "UNAUTHENTICATED")
    first = notes.take()
    clock.advance(dt.timedelta(seconds=1))
    for _ in range(NOTES_PER_SECOND + 3):
        notes.add(entry_of("Get", principal=""), "UNAUTHENTICATED")
    second = notes.take()

    assert (len(first), first[-1].result, first[-1].left_out) == (NOTES_BURST + 1, "LEFT_OUT", 7)
    assert (len(second), second[-1].left_out) == (NOTES_PER_SECOND + 1, 3)
