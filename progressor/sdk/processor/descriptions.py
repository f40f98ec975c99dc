"""Descriptions of steps and errors, for a processor's log and its failures.

A processor runs in its author's program, whose log may show only the text of a record. So the text
repeats the fields. Ids and errors are on one line, whatever they contain.
"""

import traceback

from progressor.sdk.values.processes import TaskType
from progressor.v1 import processor_service_pb2 as pb


def of_step(request: pb.ProcessRequest) -> str:
    """Return the process, the task and the attempt of a request."""
    process, task = request.process, request.task
    return (
        f"namespace {process.namespace!r}, process {process.process_id!r}, "
        f"{TaskType.from_number(task.type)} task {task.task_id}, attempt {task.attempt}"
    )


def of_error(error: Exception) -> str:
    """Return an error with its class, as in the last line of its traceback."""
    text = traceback.format_exception_only(error)[0].strip()
    return text if text.isprintable() else repr(text)[1:-1]


def of_failure(error: Exception) -> str:
    """Return the message of a failure by an error; the reason of the failure is its class.

    The text of a KeyError is only the key, and some errors have no text: these get their class.
    """
    if isinstance(error, KeyError) or not str(error):
        return traceback.format_exception_only(error)[0].strip()
    return str(error)
