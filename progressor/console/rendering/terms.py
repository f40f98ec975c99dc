"""The words for what has no look of its own: causes, types of tasks, kinds of operations."""

from collections.abc import Mapping

from progressor.console.words.words import mark
from progressor.sdk.client.bulk import BulkKind
from progressor.sdk.codec.wire import WireEnum
from progressor.sdk.values.messages import MessageKind
from progressor.sdk.values.processes import TaskType, WaitCause

_UNKNOWN = mark("unknown")

_TERMS: Mapping[type[WireEnum], Mapping[str, str]] = {
    # As the end of "waits for".
    WaitCause: {
        "running": mark("the end of its step"),
        "timer": mark("a timer"),
        "behind_task": mark("an earlier task"),
        "no_free_worker": mark("a free worker"),
        "retry": mark("its next attempt"),
        "no_replica": mark("a replica that serves"),
        "presumed_dead": mark("a replica that is presumed dead"),
        "overrun": mark("a step that is overdue"),
        "run_at": mark("the time at which it may run"),
        "order": mark("a smaller version"),
        "gate": mark("a full gate"),
        "process_failed": mark("a repair of its process"),
        "processor_unreachable": mark("its processor"),
        "paused": mark("the end of a pause"),
        "quota": mark("its quota"),
    },
    TaskType: {
        "init": mark("start"),
        "call": mark("call"),
        "notify": mark("notification"),
        "repair": mark("repair"),
        "timeout": mark("timer"),
        "remove": mark("removal"),
        "join": mark("join"),
        "reply": mark("reply"),
    },
    MessageKind: {
        "start": mark("start"),
        "notify": mark("notification"),
        "call": mark("call"),
    },
    BulkKind: {
        "retry": mark("Retry"),
        "simple_repair": mark("Repair without the processor"),
        "repair": mark("Repair"),
        "notify": mark("Notify"),
        "cancel": mark("Cancel the first task"),
        "terminate": mark("Terminate"),
        "remove": mark("Remove"),
    },
}


def term_of(member: WireEnum) -> str:
    """Return the word for a member, to be translated; one of a newer release is unknown."""
    return _TERMS[type(member)].get(member, _UNKNOWN)
