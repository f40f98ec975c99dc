"""Makes decisions durable: the only room that speaks to PostgreSQL.

Imported by ``runtime`` and ``engine``. A folder is a feature; ``rows`` and ``postgres`` are beneath
all of them. A method is one round trip; the writes of the hot path are gathered by ``commit`` into
one set-based function call per batch (``priv/functions``). While PostgreSQL is unreachable, each
raises StorageUnavailableError; docstrings name what else they raise. Start with
``commit/group_commit.py``, then ``steps/settlements.py``; ``priv/README.md`` explains the
tables.

What retries while PostgreSQL is unreachable. Pauses double, with a jitter of a quarter
(``postgres/backoff.py``), unless the table says otherwise; ``postgres/pools.py`` says which error
means what.

| part | retries | pauses, s | meanwhile |
| --- | --- | --- | --- |
| the pools | while a request waits | 0, 1, 1, …, jitter 10 % | `connect_timeout`, then an error |
| settlements | for ever | 0.05 .. 1 | steps and callers wait |
| admissions | with the next request | 0.05 .. 1 | callers get an error |
| reads | with the next request | | callers get an error |
| timers, backlog | for ever | 0.25 .. 2 | |
| due, zombies, retention | with the next scan | their interval, jitter 10 % | |
| listener and fetcher of replies | for ever | 0.5 .. 4 | a slow scan asks every second |
| sender of replies | never | | the other replica's slow scan finds the replies |
| heartbeat | with the next beat | `heartbeat_interval` | when the lease ends, steps are abandoned |
| the start of an engine | for ever | 0.25 .. 2 | NOT_SERVING; requests get an error |
| embedded PostgreSQL that has ended | for ever | 1 | as above |

So calls resume within about 2 s of PostgreSQL's return. A lost connection, or one to a server that
was demoted, makes its pool replace every connection at least as old; the heartbeat notices a
demotion within its interval and makes every pool do so. New connections go to a server that accepts
writes, whichever of the DSN's hosts that is, unless the DSN sets `target_session_attrs`
(``postgres/writer.py``).
"""
