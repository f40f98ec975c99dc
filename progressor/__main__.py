"""The command ``progressor``, also as ``python -m progressor``.

The command line is an extra: what an installation lacks is named here, in one line.
"""

import sys

_EXTRAS = {
    "cyclopts": "cli",
    "rich": "cli",
    "cronsim": "engine",
    "cryptography": "engine",
    "joserfc": "engine",
    "opentelemetry.exporter": "engine",
    "opentelemetry.sdk": "engine",
    "prometheus_client": "engine",
    "psycopg": "engine",
    "psycopg_pool": "engine",
    "structlog": "engine",
}
"""The extra that installs a package of others."""

_USAGE = 2


def main() -> int:
    """Run one command and return its exit code."""
    try:
        from progressor.cli.main import main as run  # noqa: PLC0415  # may not be installed

        return run()
    except ImportError as error:
        missing = _missing(error)
        if missing is None:
            raise
        sys.stderr.write(
            f"error: {missing} is not installed; "
            f"install it with: pip install 'progressor[{_EXTRAS[missing]}]'\n"
        )
        return _USAGE


def _missing(error: BaseException | None) -> str | None:
    """Return the package of an extra that an import did not find; cyclopts chains the error."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError):
            for package in _EXTRAS:
                if f"{error.name}.".startswith(f"{package}."):
                    return package
        error = error.__cause__
    return None


if __name__ == "__main__":
    sys.exit(main())
