"""Who passes gates, as PostgreSQL itself notes it: in its order, also inside a transaction.

What stands in the tables after a deed does not tell what a task met when it passed: within the same
deed others pass, join a line before another, send that one back, and so give up what it has just
been given. So whatever enters and leaves `gate_holders` and `gated` is noted row by row; replayed,
it shows the gates and the lines as they were at each passage.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, LiteralString

import psycopg

_NOTES: LiteralString = """
    CREATE UNLOGGED TABLE public.noted (
        place bigserial, what text, process_id text, task_id bigint, detail text
    );
    CREATE FUNCTION public.note_holder() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_OP <> 'INSERT' THEN
            INSERT INTO public.noted (what, process_id, task_id, detail)
            VALUES ('left', OLD.process_id, OLD.task_id, OLD.gate);
        END IF;
        IF TG_OP <> 'DELETE' THEN
            INSERT INTO public.noted (what, process_id, task_id, detail)
            VALUES (
                CASE WHEN TG_OP = 'INSERT' THEN 'taken' ELSE 'changed' END
                    || CASE WHEN NEW.is_reserved THEN ', reserved' ELSE '' END,
                NEW.process_id, NEW.task_id, NEW.gate);
        END IF;
        RETURN NULL;
    END; $$;
    CREATE FUNCTION public.note_state() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_OP = 'DELETE' THEN
            INSERT INTO public.noted (what, process_id, task_id, detail)
            VALUES ('gone', OLD.process_id, OLD.task_id, NULL);
        ELSE
            INSERT INTO public.noted (what, process_id, task_id, detail)
            VALUES ('state', NEW.process_id, NEW.task_id, NEW.state);
        END IF;
        RETURN NULL;
    END; $$;
    CREATE TRIGGER note_holder AFTER INSERT OR UPDATE OR DELETE ON progressor.gate_holders
    FOR EACH ROW EXECUTE FUNCTION public.note_holder();
    CREATE TRIGGER note_state AFTER INSERT OR DELETE OR UPDATE OF state ON progressor.gated
    FOR EACH ROW EXECUTE FUNCTION public.note_state();"""
_ARE_NOTED: LiteralString = "SELECT to_regclass('public.noted')"
_FORGET: LiteralString = "DELETE FROM public.noted"

Note = Sequence[Any]
"""What happened, to which process and task, and the gate or the state."""


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Who has a place in a gate."""

    task_id: int
    is_reserved: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Passed:
    """A task becomes available, and what it meets: before it takes its places, but for ``holders``.

    ``stirred`` are processes in whose lines something happens afterwards, within the same deed.
    """

    process_id: str
    task_id: int
    taken: frozenset[str]
    places: Mapping[tuple[str, str], Place]
    holders: frozenset[str]
    states: Mapping[int, str]
    stirred: frozenset[str]

    def held(self, gate: str) -> int:
        """Return how many places of a gate were not free."""
        return sum(each == gate for _, each in self.places)

    def has(self, process_id: str, task_id: int) -> set[str]:
        """Return the gates in which a task of a process had no need of another place."""
        return {
            gate
            for (owner, gate), place in self.places.items()
            if owner == process_id and (not place.is_reserved or place.task_id == task_id)
        }


@dataclasses.dataclass(slots=True)
class Trace:
    """The gates and the lines, replayed from what was noted.

    ``were`` are places as they were before a task, by its id, went on with them: what was reserved
    for it was kept from others, also from those of its process.
    """

    places: dict[tuple[str, str], Place] = dataclasses.field(default_factory=dict)
    were: dict[int, dict[tuple[str, str], Place]] = dataclasses.field(default_factory=dict)
    states: dict[int, str] = dataclasses.field(default_factory=dict)

    def replay(self, notes: Iterable[Note], capacities: Mapping[str, int]) -> list[Passed]:
        """Replay what a deed has brought about; assert that each place that was taken was there."""
        noted = list(notes)
        found = []
        left: Place | None = None
        for number, (what, process_id, task_id, detail) in enumerate(noted):
            match what:
                case "gone":
                    del self.states[task_id]
                case "state":
                    if detail == "available":
                        stirred = frozenset(_stirred(noted[number + 1 :], self.states))
                        found.append(self._passage(process_id, task_id, noted[:number], stirred))
                    self.states[task_id] = detail
                    self.were.pop(task_id, None)
                case "left":
                    left = self.places.pop((process_id, detail))
                case _:
                    self.places[process_id, detail] = Place(task_id, what.endswith("reserved"))
                    held = sum(gate == detail for _, gate in self.places)
                    is_new = what.startswith("taken")
                    if not is_new:
                        assert left is not None, "what is changed has just left, as it was"
                        self.were.setdefault(task_id, {}).setdefault((process_id, detail), left)
                    assert not is_new or held <= capacities[detail], f"{held} in {detail}"
        return found

    def _passage(
        self, process_id: str, task_id: int, before: Sequence[Note], stirred: frozenset[str]
    ) -> Passed:
        taken = frozenset(
            gate
            for what, _, each, gate in before[_since(before, task_id) :]
            if what == "taken" and each == task_id
        )
        return Passed(
            process_id=process_id,
            task_id=task_id,
            taken=taken,
            places={
                each: place
                for each, place in self.places.items()
                if each[0] != process_id or each[1] not in taken
            }
            | self.were.get(task_id, {}),
            holders=frozenset(
                gate
                for (owner, gate), place in self.places.items()
                if owner == process_id and not place.is_reserved
            ),
            states=dict(self.states),
            stirred=stirred,
        )


def note_passages(connection: psycopg.Connection[Any]) -> Trace:
    """Begin to note, in a database of the test's own; what was noted before is forgotten."""
    [is_noted] = connection.execute(_ARE_NOTED).fetchone() or (None,)
    connection.execute(_NOTES if is_noted is None else _FORGET)
    return Trace()


def _since(notes: Sequence[Note], task_id: int) -> int:
    """Return where the last change of a task's state stands, behind which it has taken places."""
    changes = (
        number
        for number, (what, _, each, _) in enumerate(notes)
        if what == "state" and each == task_id
    )
    return max(changes, default=0)


def _stirred(notes: Iterable[Note], states: Mapping[int, str]) -> Iterator[str]:
    """Yield the processes of tasks that come to be available, or cease to be."""
    was = dict(states)
    for what, process_id, task_id, detail in notes:
        if what in {"state", "gone"}:
            if "available" in {detail, was.get(task_id)}:
                yield process_id
            was[task_id] = detail
