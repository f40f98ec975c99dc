"""The commands as sections of a page, from their own help."""

import collections
import re

from progressor.cli.main import build_app
from tests.support.pages.protos import fenced

_CONTENTS = re.compile(r"## Table of Contents\n\n.*?\n(?=## )", re.DOTALL)
_NO_DEFAULT = re.compile(r' \*\[default: (?:False|\(\)|""|)\]\*')
_GROUP = re.compile(r"\*\*([^*\n]+)\*\*:\n\n((?:\* .*\n)+)")
_SHARED_BY = 4
_SHARED_LINES = 5


def sections() -> str:
    """Return a section for each command, and one for each group of options that many share."""
    text = _NO_DEFAULT.sub("", _CONTENTS.sub("", build_app(explained=None).generate_docs()))
    _, _, found = text.replace("```console\n", "```text\n").partition("\n## ")
    assert found, "the help has no section for a command"
    commands = f"## {found.strip()}\n"
    counts = collections.Counter(_GROUP.findall(commands)).most_common()
    # Of each name the most frequent one; shorter ones are not worth a look elsewhere.
    shared = dict(
        group
        for group, count in reversed(counts)
        if count >= _SHARED_BY and len(group[1].splitlines()) >= _SHARED_LINES
    )

    def shortened(group: re.Match[str]) -> str:
        name, options = group.groups()
        if shared.get(name) != options:
            return group[0]
        return f"**{name}**: [shared options](#{name.lower()}-options).\n"

    body = _GROUP.sub(shortened, commands)
    ends = [f"## {name} options\n\n{options}" for name, options in sorted(shared.items())]
    return fenced("\n".join([body, *ends]))
