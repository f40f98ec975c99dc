"""The database: an embedded PostgreSQL with full durability, in the directory of the argument."""

import sys
from pathlib import Path

from bench.parts import orders
from progressor.storage.embedded import EmbeddedPostgres


def _main(directory: Path) -> None:
    with EmbeddedPostgres(data_directory=directory) as postgres:
        orders.tell({"dsn": postgres.conninfo})
        sys.stdin.read()


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
