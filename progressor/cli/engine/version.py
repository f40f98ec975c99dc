"""The command version."""

import platform

from rich.text import Text

import progressor
from progressor.cli.input.options import Json
from progressor.cli.output.output import Output


def version(*, json: Json = False) -> None:
    """Print the version."""
    document = {"progressor": progressor.__version__, "python": platform.python_version()}
    Output(as_json=json).show(document, Text(f"progressor {progressor.__version__}"))
