"""The address of an embedded PostgreSQL that another process started."""

from pathlib import Path

from psycopg.conninfo import make_conninfo

from progressor import errors

# The lines of postmaster.pid, by pidfile.h of PostgreSQL.
_PORT, _SOCKET_DIRECTORY, _STATUS = 3, 4, 7


def running_conninfo(data_directory: Path) -> str:
    """Return the conninfo of the embedded PostgreSQL that runs in a directory.

    Raises:
        StorageUnavailableError: None runs there, or its directory belongs to another user.
    """
    described = f"embedded PostgreSQL in {data_directory}"
    try:
        text = (data_directory / "postgres" / "postmaster.pid").read_text("utf-8")
    except PermissionError as error:
        raise errors.StorageUnavailableError(
            f"the {described} belongs to another user: run this as its owner"
        ) from error
    except OSError as error:
        raise errors.StorageUnavailableError(
            f"no {described} is running: start its engine, or name a server by database.dsn"
        ) from error
    lines = [line.strip() for line in text.splitlines()]
    if len(lines) <= _STATUS or lines[_STATUS] != "ready":
        raise errors.StorageUnavailableError(f"the {described} is starting or stopping")
    return make_conninfo(
        host=lines[_SOCKET_DIRECTORY], port=lines[_PORT], user="postgres", dbname="postgres"
    )
