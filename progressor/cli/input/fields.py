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
    "job_id_template": "--id-template",
    "operation_id": "--id",
    "page_size": "--limit",
    "process_id_template": "--id-template",
    "processor_targets": "--target",
    "rate_max": "--rate",
    "reason": "--why",
}
"""Options that are not called as their fields."""

_PATH = re.compile(r"[a-z_]+(?:\[\d+\]|\.[a-z_]+)*(?:\.'.*')?")
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
    """Return the option or argument of a field, or of what it is in; else the field."""
    if not _PATH.fullmatch(field):
        return field
    parts = reversed(re.findall("[a-z_]+", field.partition("'")[0]))
    forms = (
        form
        for it in parts
        for form in (f"--{it.replace('_', '-')}", _OTHERS.get(it, ""), it.upper())
    )
    return next((it for it in forms if it in names), field)
