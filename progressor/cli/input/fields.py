"""Errors about fields of a request, in the words that the user typed: options and arguments."""

import re
from collections.abc import Collection, Mapping

from progressor import errors
from progressor.cli.input.filters import OPTIONS

_OTHERS: Mapping[str, str] = {
    **OPTIONS,
    "caller_context": "--context",
    "causes": "--cause",
    "failed_share_max": "--failed-share",
    "gates": "--gate",
    "history_range": "--history-last",
    "operation_id": "--id",
    "page_size": "--limit",
    "processor_targets": "--target",
    "rate_max": "--rate",
    "reason": "--why",
}
"""Options that are not called as their fields."""

_PATH = re.compile(r"(?:filter\.|constraints\.|spec\.)?([a-z_]+)")
_NAME = re.compile(r"(?<!['\w.])[a-z]+(?:_[a-z]+)+(?!['\w])")


def as_typed(
    error: errors.InvalidRequestError, names: Collection[str]
) -> errors.InvalidRequestError:
    """Return an error whose fields are named as a command's options and arguments, `names`."""
    return errors.InvalidRequestError(
        *(
            errors.FieldViolation(
                _typed(it.field, names),
                _NAME.sub(lambda found: _typed(found[0], names), it.description),
            )
            for it in error.violations
        )
    )


def _typed(field: str, names: Collection[str]) -> str:
    """Return the option or argument of a field; the field, if the command has none."""
    if not (found := _PATH.match(field)):
        return field
    name = found[1]
    forms = (f"--{name.replace('_', '-')}", _OTHERS.get(name, ""), name.upper())
    return next((it for it in forms if it in names), field)
