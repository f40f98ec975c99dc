"""Namespaces: their configuration, its revisions, and each replica's memory of them."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
from typing import Any, cast

import pytest

from progressor import errors
from progressor.clock import SystemClock
from progressor.domain.processes.namespace import HistoryMode, Namespace
from progressor.domain.processes.policy import Pause, RetryPolicy, ZombiePolicy
from progressor.domain.processes.process import process_key
from progressor.domain.processes.task import TaskType
from progressor.domain.views.replica import ReplicaLoad
from progressor.settings.sections import ReplicaSettings
from progressor.storage.namespaces.namespaces import Namespaces
from progressor.storage.postgres.functions import Functions
from progressor.storage.postgres.rows.effects import Effects
from progressor.storage.processes.results import Word, listen
from progressor.storage.replicas.heartbeats import Heartbeats, Identity
from progressor.storage.replicas.lineage import Lineage
from tests.support.storage.store import Store, a_request

pytestmark = pytest.mark.asyncio(loop_scope="module")

FULL = Namespace(
    name="full",
    processor_targets=("a:1", "b:2"),
    step_timeout=dt.timedelta(microseconds=1_500_001),
    retry_policy=RetryPolicy(
        elapsed_max=dt.timedelta(days=2), coefficient=1.5, non_retryable_reasons=("A", "B")
    ),
    retry_policies={TaskType.TIMEOUT: RetryPolicy(attempts_max=99)},
    exhausted_call_fails_alone=True,
    zombie_policy=ZombiePolicy.FAIL,
    worker_count_max=7,
    history_mode=HistoryMode.LAST,
    history_last=10,
    finished_process_retention=dt.timedelta(days=30),
    task_retention=dt.timedelta(hours=5),
    payload_bytes_max=1000,
    waiting_callers_max=5,
    unreachable_patience=dt.timedelta(minutes=1),
)


def plain(namespace: Namespace) -> Namespace:
    return dataclasses.replace(namespace, created_at=None, updated_at=None, revision=0)


def named(name: str) -> Namespace:
    return Namespace(name=name, processor_targets=("a:1",))


async def test_every_field_is_kept(store: Store, other: Store) -> None:
    created = await store.namespaces.create(FULL)

    assert plain(created) == FULL == plain(await other.namespaces.get("full"))
    assert (created.revision, created.created_at is not None) == (1, True)


async def test_a_name_is_taken_once(store: Store) -> None:
    await store.namespaces.create(named("taken"))

    with pytest.raises(errors.NamespaceAlreadyExistsError):
        await store.namespaces.create(named("taken"))


@pytest.mark.parametrize("operation", ["get", "lookup", "delete"])
async def test_one_that_is_not_there_is_not_found(store: Store, operation: str) -> None:
    with pytest.raises(errors.NamespaceNotFoundError):
        await getattr(store.namespaces, operation)("nowhere")


class TestAnUpdate:
    async def test_changes_what_it_says_and_counts_the_revision(self, store: Store) -> None:
        await store.namespaces.create(named("changed"))

        updated = await store.namespaces.update(
            "changed", lambda it: dataclasses.replace(it, worker_count_max=3)
        )

        assert (updated.worker_count_max, updated.revision) == (3, 2)
        assert plain(await store.namespaces.get("changed")) == plain(updated)

    async def test_of_another_revision_than_expected_is_refused(self, store: Store) -> None:
        await store.namespaces.create(named("revised"))

        with pytest.raises(errors.NamespaceChangedError):
            await store.namespaces.update("revised", lambda it: it, expected_revision=7)
        await store.namespaces.update("revised", lambda it: it, expected_revision=1)

    async def test_of_what_is_not_there_is_refused(self, store: Store) -> None:
        with pytest.raises(errors.NamespaceNotFoundError):
            await store.namespaces.update("nowhere", lambda it: it)

    async def test_at_once_with_others_loses_none(self, store: Store, other: Store) -> None:
        await store.namespaces.create(dataclasses.replace(named("counted"), worker_count_max=1))

        def more(namespace: Namespace) -> Namespace:
            return dataclasses.replace(namespace, worker_count_max=namespace.worker_count_max + 1)

        async with asyncio.TaskGroup() as group:
            for each in (store, other) * 3:
                group.create_task(each.namespaces.update("counted", more))

        assert (await store.namespaces.get("counted")).worker_count_max == 7


class TestTheMemory:
    async def test_is_what_a_lookup_answers_from(self, store: Store, other: Store) -> None:
        await store.namespaces.create(named("remembered"))
        await other.namespaces.update(
            "remembered", lambda it: dataclasses.replace(it, worker_count_max=3)
        )

        assert (await store.namespaces.lookup("remembered")).revision == 1
        await store.namespaces.refresh()
        assert (await store.namespaces.lookup("remembered")).revision == 2

    async def test_forgets_what_is_gone(self, store: Store, other: Store) -> None:
        await store.namespaces.create(named("gone"))
        await other.namespaces.delete("gone")

        await store.namespaces.refresh()

        assert "gone" not in {each.name for each in store.namespaces.known()}
        with pytest.raises(errors.NamespaceNotFoundError):
            await store.namespaces.lookup("gone")

    async def test_is_not_set_back_by_what_was_read_before_a_change(self, store: Store) -> None:
        await store.namespaces.create(named("read-late"))
        read = await store.namespaces.get("read-late")

        await store.namespaces.update(
            "read-late", lambda it: dataclasses.replace(it, worker_count_max=3)
        )
        store.namespaces._remember(read)

        assert (await store.namespaces.lookup("read-late")).worker_count_max == 3

    async def test_follows_a_name_that_was_deleted_and_taken_again(
        self, store: Store, other: Store
    ) -> None:
        await store.namespaces.create(named("anew"))
        await store.namespaces.update(
            "anew", lambda it: dataclasses.replace(it, worker_count_max=3)
        )
        await other.namespaces.delete("anew")
        await other.namespaces.create(named("anew"))

        await store.namespaces.refresh()

        assert (await store.namespaces.lookup("anew")).revision == 1

    async def test_keeps_what_is_created_while_it_is_read_anew(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        namespaces = Namespaces(store.context)
        await namespaces.create(named("created-again"))
        listed = namespaces.list

        async def list_and_create(**page: Any) -> tuple[Namespace, ...]:
            await namespaces.delete("created-again")
            found = await listed(**page)
            namespaces.take_gone()
            for name in ("created-again", "created-late"):
                await namespaces.create(named(name))
            return found

        monkeypatch.setattr(namespaces, "list", list_and_create)
        await namespaces.refresh()

        assert {"created-again", "created-late"} <= {it.name for it in namespaces.known()}
        assert namespaces.take_gone() == Effects()

    @pytest.mark.parametrize("operation", ["refresh", "get", "delete"])
    async def test_tells_once_what_is_gone(
        self, store: Store, other: Store, operation: str
    ) -> None:
        namespaces = Namespaces(other.context)
        name = f"gone-by-{operation}"
        await namespaces.create(named(name))
        await store.namespaces.delete(name)

        for _ in range(2):
            with contextlib.suppress(errors.NamespaceNotFoundError):
                arguments = () if operation == "refresh" else (name,)
                await getattr(namespaces, operation)(*arguments)

        assert [namespaces.take_gone(), namespaces.take_gone()] == [
            Effects(gone=(name,)),
            Effects(),
        ]


class TestADeletion:
    async def test_is_refused_as_long_as_there_are_processes(self, store: Store) -> None:
        await store.namespaces.create(named("busy"))
        key = process_key("busy", "p")
        await store.start(key)

        with pytest.raises(errors.NamespaceNotEmptyError):
            await store.namespaces.delete("busy")
        await store.remove(key)
        await store.namespaces.delete("busy")

        assert (await store.admit(a_request(key))).verdict == "namespace_not_found"


async def test_a_list_is_read_in_pages_by_name(store: Store) -> None:
    for name in ("list-c", "list-a", "list-b"):
        await store.namespaces.create(named(name))

    first = await store.namespaces.list(after="list-", limit=2)
    rest = await store.namespaces.list(after=first[-1].name, limit=1)

    assert [each.name for each in (*first, *rest)] == ["list-a", "list-b", "list-c"]


class TestAPause:
    async def test_keeps_its_beginning_and_ends_with_a_resume(
        self, store: Store, other: Store
    ) -> None:
        await store.namespaces.create(named("paused"))
        await other.namespaces.lookup("paused")

        [first] = await store.namespaces.pause(["paused"], reason="why", author="ada")
        updated = await store.namespaces.update(
            "paused", lambda it: dataclasses.replace(it, worker_count_max=3)
        )
        [again] = await store.namespaces.pause(
            ["paused"], reason="still", author="", refuses_requests=True
        )
        await other.namespaces.refresh_pauses()
        read = await other.namespaces.lookup("paused")
        resumed = await other.namespaces.resume("paused")

        assert first.pause is not None
        assert first.pause == updated.pause
        assert (first.pause.reason, first.pause.author) == ("why", "ada")
        assert read == again
        assert again.pause == Pause(
            paused_at=first.pause.paused_at, reason="still", refuses_requests=True
        )
        assert (resumed.pause, resumed.revision, resumed.worker_count_max) == (None, 5, 3)
        assert await other.namespaces.resume("paused") == resumed
        assert await store.namespaces.pause(["nowhere"], reason="why", author="") == ()
        with pytest.raises(errors.NamespaceNotFoundError):
            await store.namespaces.resume("nowhere")

    async def test_of_all_leaves_those_that_are_paused_as_they_are(self, store: Store) -> None:
        for name in ("a-paused", "b-running"):
            await store.namespaces.create(named(name))
        await store.namespaces.pause(["a-paused"], reason="why", author="ada")

        await store.namespaces.pause(None, reason="serve --paused", author="engine")
        found = await store.namespaces.list(after="", limit=1000)
        for each in found:
            await store.namespaces.resume(each.name)

        reasons = {it.name: it.pause and it.pause.reason for it in found}
        assert (reasons["a-paused"], reasons["b-running"]) == ("why", "serve --paused")
        assert None not in reasons.values()

    async def test_is_announced_to_the_other_replicas_once_it_is_committed(
        self, store: Store, other: Store, database: str
    ) -> None:
        await store.namespaces.create(named("announced"))
        heartbeats = Heartbeats(
            dsn=database,
            identity=Identity(replica_id=4711, name="r", version="1", functions=""),
            lineage=Lineage(Functions()),
            replica=ReplicaSettings(),
            clock=SystemClock(),
        )
        load = ReplicaLoad(step_count=0, caller_count=0)
        beats = [heartbeats.beat(draining=False, load=load)]
        async with contextlib.aclosing(cast("Any", listen(database, 4711))) as words:
            assert await anext(words) == Word()
            await store.namespaces.pause(["announced"], reason="why", author="ada")
            heard = [await anext(words)]
            beats.append(heartbeats.beat(draining=False, load=load))
            await other.namespaces.resume("announced")
            heard.append(await anext(words))
            beats.append(heartbeats.beat(draining=False, load=load))
        heartbeats.close()

        assert heard == [Word(pauses=True)] * 2
        assert [tuple(beat.paused) for beat in beats] == [(), ("announced",), ()]
