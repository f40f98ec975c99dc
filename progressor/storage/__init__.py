"""Makes decisions durable: the only room that speaks to PostgreSQL.

One method is one round trip; the writes of the hot path are gathered by ``group_commit`` into one
set-based function call per batch (``priv/functions``). Imported by worker, scanner, api's wiring.
Start with ``group_commit``, then ``settlements``; the tables are explained in ``priv/README.md``.

Who tries again while PostgreSQL is away, and how soon. Pauses grow by doubling and are spread by a
quarter (``backoff``), unless said otherwise; which error means what stands in ``pools``.

| who | tries again | pauses, s | meanwhile |
| --- | --- | --- | --- |
| the pools | while somebody waits | 0, 1, 1, …, spread by 10 % | `connect_timeout`, then told |
| settlements (a lane that insists) | for ever | 0.05 .. 1 | steps wait, callers too |
| admissions (a lane that gives up) | with the next request | 0.05 .. 1 | callers are told |
| reads | with the next one | | callers are told |
| timers, backlog | for ever | 0.25 .. 2 | |
| due, zombies, retention | with the next scan | their interval, spread by 10 % | |
| listener and fetcher of replies | for ever | 0.5 .. 4 | the slow round asks each second |
| sender of replies | never | | the other replica's slow round finds the answers |
| heartbeat | with the next beat | `heartbeat_interval` | past the lease, steps are abandoned |
| the start of an engine | for ever | 0.25 .. 2 | NOT_SERVING, requests are told |
| embedded PostgreSQL that has ended | for ever | 1 | as above |

So calls resume within about 2 s of PostgreSQL. Whoever finds a lost connection, or one to a server
that was demoted, has the pool replace all that are as old; the heartbeat, which finds the latter
within its interval, has all pools do so. A new connection leads to a server that takes writes, of
several hosts to the one that does, unless the DSN has `target_session_attrs` (``writer``).
"""
