"""Words of a processor's log and of its failures: which step, and which error.

A processor runs in a program of its author's, whose log may show nothing but the text of a line. So
the text has what else would be a field. Ids and errors in it are shown on one line, whatever they
contain.
"""

import traceback

from progressor.sdk.values.processes import TaskType
from progressor.v1 import processor_service_pb2 as pb


def of_step(request: pb.ProcessRequest) -> str:
    """Return which attempt of which task of which process it is."""
    process, task = request.process, request.task
    return (
        f"namespace {process.namespace!r}, process {process.process_id!r}, "
        f"{TaskType.from_number(task.type)} task {task.task_id}, attempt {task.attempt}"
    )


def of_error(error: Exception) -> str:
    """Return an error with its class, as the last line of its traceback has it."""
    text = traceback.format_exception_only(error)[0].strip()
    return text if text.isprintable() else repr(text)[1:-1]


def of_failure(error: Exception) -> str:
    """Return what a failure says of an error, whose class is its reason.

    The text of a KeyError is the key alone, and some errors have none: those are shown with their
    class.
    """
    if isinstance(error, KeyError) or not str(error):
        return traceback.format_exception_only(error)[0].strip()
    return str(error)
