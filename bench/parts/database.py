"""The database: an embedded PostgreSQL with full durability, in the directory given as argument."""

import sys
from pathlib import Path

from bench.parts import orders
from progressor.storage.embedded.server import EmbeddedPostgres


def _main(directory: Path) -> None:
    # Commit timestamps give the instant at which a gate is released.
    settings = {"track_commit_timestamp": "on"}
    with EmbeddedPostgres(data_directory=directory, settings=settings) as postgres:
        orders.tell({"dsn": postgres.conninfo})
        sys.stdin.read()


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
