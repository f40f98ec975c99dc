"""Failures that broke processes, in groups: the same reason and message, whatever ids are in it."""

import re

MESSAGE_CHARACTERS_MAX = 200
"""Of the message of a group."""

_READ_MAX = 1000
"""Characters of a message that are looked at."""

# No text may be matched by a repetition in two ways: a message comes from outside, and one that
# makes the search backtrack stops the whole replica.
_VARIABLE = re.compile(
    r"""
      (?<!\w)(?:'[^']*'|"[^"]*"|`[^`]*`)(?!\w)              # quoted
    | \b[A-Za-z][A-Za-z0-9+.-]{0,20}://[^\s'",;)\]]+              # a URL
    | (?<![\w./-])(?:~|\.{1,2}|[A-Za-z]:)?(?:[/\\][\w.@+-]+){2,}[/\\]?  # a path
    | \b\d{4}-\d\d-\d\d(?:[T ]\d\d:[\d:.,]*\d)?(?:Z|[+-]\d\d:?\d\d)?(?!\w)  # an instant
    | \b0[xX][0-9a-fA-F]+\b
    | \b(?=[0-9a-fA-F-]{0,64}\d)[0-9a-fA-F]{8,}(?:-[0-9a-fA-F]{4,12})*\b  # hex, a UUID
    | \b(?=[\w-]{0,64}\d)[\w-]{16,}\b                        # an id
    | \d+(?:[.,:]\d+)*                                       # a number
    """,
    re.VERBOSE,
)
_SPACE = re.compile(r"\s+")
_WORD = re.compile(r"\w")


def normalized(message: str, process_id: str) -> str:
    """Return the message of a group: `*` stands for what differs between its failures.

    That is the id of the process itself, numbers, instants, ids, what is quoted, paths and URLs.
    """
    text = _SPACE.sub(" ", message[:_READ_MAX]).strip()
    text = _VARIABLE.sub("*", _without(process_id, text))
    return text if len(text) <= MESSAGE_CHARACTERS_MAX else f"{text[: MESSAGE_CHARACTERS_MAX - 1]}…"


def _without(process_id: str, text: str) -> str:
    """Replace the id by `*` where it is not part of a word.

    By hand: an expression for each process takes longer to compile than the message to read.
    """
    found, *others = text.split(process_id) if process_id else [text]
    for other in others:
        is_part = _WORD.match(found[-1:]) or _WORD.match(other)
        found += f"{process_id if is_part else '*'}{other}"
    return found
