"""Whether a gate was ever held by more than it has places for: PostgreSQL itself notes it."""

import contextlib
from collections.abc import Iterator

import psycopg

_WATCH = """
    CREATE TABLE public.overfull (gate text, held integer, capacity integer);
    CREATE FUNCTION public.note_overfull() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO public.overfull VALUES (NEW.gate, NEW.held, NEW.capacity);
        RETURN NULL;
    END; $$;
    CREATE TRIGGER note_overfull AFTER INSERT OR UPDATE ON progressor.gates
    FOR EACH ROW WHEN (NEW.held > NEW.capacity) EXECUTE FUNCTION public.note_overfull();"""


@contextlib.contextmanager
def watched_gates(conninfo: str) -> Iterator[None]:
    """Assert that inside no statement makes more holders than places; PostgreSQL may restart."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(_WATCH)
    yield
    with psycopg.connect(conninfo, autocommit=True) as connection:
        found = connection.execute("SELECT * FROM public.overfull").fetchall()
        connection.execute("DROP FUNCTION public.note_overfull CASCADE")
        connection.execute("DROP TABLE public.overfull")
    assert found == []
