"""From when on something around the engine is worth a word: every number, and why this one."""

import datetime as dt
from typing import Final

# Work.

OVERDUE: Final = dt.timedelta(seconds=10)
"""A due task is taken at once, at the latest one lease timeout and one scan after a crash: 6 s with
the defaults."""

UNCOLLECTED: Final = dt.timedelta(seconds=30)
"""Every replica looks for lost leases once a second, 500 at a time: 30 s is a backlog of 15,000, or
no replica is looking."""

LONG_STEP: Final = dt.timedelta(seconds=60)
"""Twice the default step timeout: callers of the process are waiting and need to know why."""

ATTEMPTS_SHARE: Final = 0.5
"""Half of the attempts: there is still time to act, where the policy leaves any at all."""

COUNTED_MAX: Final = 10_000
"""Counting what is due, or broken, stops here for each namespace: more is not another message."""

LONG_PAUSE: Final = dt.timedelta(days=1)
"""A pause that has outlived the shift of who made it is perhaps forgotten."""

# Replicas.

CLOCK_SKEW: Final = dt.timedelta(seconds=1)
"""Replicas compare times by PostgreSQL's clock alone, so skew breaks nothing; but the times in logs
and traces are read across machines, where a second is what people notice. NTP keeps 10 ms."""

# Sessions.

IDLE_IN_TRANSACTION: Final = dt.timedelta(seconds=60)
"""The engine's transactions last milliseconds. The hot tables turn over within seconds, and every
claim walks past what vacuum may not take away: a minute is 10,000 dead rows and more under load."""

LONG_TRANSACTION: Final = dt.timedelta(minutes=5)
"""An honest statement, as of a backup or a report, may take minutes; those of this command end
after 30 s each by default."""

HELD_BACK: Final = dt.timedelta(minutes=30)
"""After half an hour under load the dead rows are millions, and every claim is slow: that is no
warning any more."""

SNAPSHOT_AGE: Final = 1_000_000
"""Transactions since an old snapshot, for holders without a clock (slots, standbys): 1 M is some
minutes of an engine at full load, and hours of most."""

SLOT_WAL_BYTES: Final = 10 * 1024**3
"""WAL that a slot keeps: more than twice the 4 GiB of max_wal_size that our embedded server has, so
no checkpoint explains it; and a full disk stops PostgreSQL."""

SPARE_CONNECTIONS: Final = 3
"""With fewer places free the next heartbeat that must connect anew may be refused."""

# Tables.

DEAD_SHARE: Final = 0.2
"""Where autovacuum acts by default; our tables ask it to act at 1 to 5 %, so it is late."""

DEAD_ROWS: Final = 10_000
"""Fewer dead rows are a few hundred pages whatever their share: cheap to walk past, and normal on
the hot tables between two visits of autovacuum."""

TRANSACTION_ID_AGE: Final = 500_000_000
"""From autovacuum_freeze_max_age on, 200 M by default, vacuum is forced; at 500 M it has been
failing for long."""

TRANSACTION_ID_AGE_LAST: Final = 1_500_000_000
"""vacuum_failsafe_age is 1,600 M, and PostgreSQL refuses to write 3 M before 2,147 M."""
