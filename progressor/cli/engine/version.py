"""The command version."""

import platform

import progressor
from progressor.cli.input.options import Json
from progressor.cli.output.output import show


def version(*, json: Json = False) -> None:
    """Print the version."""
    document = {"progressor": progressor.__version__, "python": platform.python_version()}
    show(document, f"progressor {progressor.__version__}", as_json=json)
