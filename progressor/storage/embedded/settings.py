"""The settings an embedded server runs with, and which of them a user may change."""

import re
from collections.abc import Mapping
from types import MappingProxyType

from progressor import errors

# These go on the server's command line, so that ALTER SYSTEM cannot undo them.
SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        # An answer is given after the commit it rests on is on disk, whole.
        "fsync": "on",
        "synchronous_commit": "on",
        "full_page_writes": "on",
        # Shows in the process list whose server it is.
        "cluster_name": "progressor",
        # The pools of a few replicas, the tools and a person with psql.
        "max_connections": "100",
        # Holds the queues and the inner pages of the indexes of some million processes; histories
        # are read through the page cache. Taken from the system only as it fills.
        "shared_buffers": "512MB",
        # Every commit writes WAL, and whole pages where one is changed for the first time since a
        # checkpoint: on large tables two to four a step. Rarer checkpoints make them rarer; a
        # crash costs a minute of recovery at most.
        "max_wal_size": "4GB",
        "checkpoint_timeout": "15min",
        # pglz, which is in every build, takes 150 us and more to halve a page of payloads. With a
        # million processes, right after a checkpoint, a start cost 627 us with it and 240 without.
        "wal_compression": "off",
        # The queues turn over completely within seconds; dead rows slow every claim.
        "autovacuum_naptime": "5s",
        "autovacuum_vacuum_cost_limit": "2000",
        # Statements take milliseconds; compiling one takes more.
        "jit": "off",
        # As above, for starting workers; and /dev/shm, which they need, is small in containers.
        "max_parallel_workers_per_gather": "0",
        # Seeks are cheap on the disks of today, so an index is taken when there is one.
        "random_page_cost": "1.1",
        # Logs and sessions speak of one zone, whatever the machine's.
        "timezone": "UTC",
        "log_timezone": "UTC",
        # Routine news would push the rest out of the bounded log.
        "log_checkpoints": "off",
    }
)

_OTHERS = 13
"""Connections besides the pools': superusers' own 3, the tools, a person with psql."""

_DURABLE = frozenset({"fsync", "synchronous_commit", "full_page_writes"})
_TRUE = frozenset({"on", "true", "yes", "1"})

# What decides where the cluster is and who may connect is the launcher's alone.
_RESERVED = frozenset(
    {
        "config_file",
        "data_directory",
        "external_pid_file",
        "hba_file",
        "ident_file",
        "listen_addresses",
        "logging_collector",
        "port",
        "unix_socket_directories",
        "unix_socket_permissions",
    }
)


def checked_settings(settings: Mapping[str, str], *, durable: bool) -> Mapping[str, str]:
    """Return `settings` under the names PostgreSQL knows them by.

    Raises:
        EmbeddedPostgresError: A name is malformed or reserved, or, if `durable`, a value
            would let a commit that was answered be lost.
    """
    checked = {}
    for given, value in settings.items():
        name = given.strip().lower().replace("-", "_")  # as PostgreSQL reads its options
        if not re.fullmatch(r"[a-z_][a-z0-9_.]*", name):
            raise errors.EmbeddedPostgresError(f"{given!r} is not the name of a server setting")
        if name in _RESERVED:
            raise errors.EmbeddedPostgresError(f"the setting {name} is the launcher's own")
        if durable and name in _DURABLE and value.strip().lower() not in _TRUE:
            raise errors.EmbeddedPostgresError(
                f"{name}={value} may lose commits that were answered; it needs durable=False"
            )
        checked[name] = value
    return MappingProxyType(checked)


def room_for(connections: int) -> Mapping[str, str]:
    """Return the settings by which an embedded PostgreSQL has room for so many connections."""
    if connections + _OTHERS <= int(SETTINGS["max_connections"]):
        return {}
    return {"max_connections": str(connections + _OTHERS)}
