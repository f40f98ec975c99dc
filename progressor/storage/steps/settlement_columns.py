"""The arrays of a batch of settlements, as ``settle_tasks`` and ``settle_job_tasks`` take them.

What no item of a batch has is left out, and given as a null: that costs next to nothing.
"""

import datetime as dt
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from progressor.domain.jobs.graph import NodePlan
from progressor.domain.jobs.job import StartNodes
from progressor.domain.processes.intent import (
    Complete,
    Intent,
    KeepTimer,
    RemoveProcess,
    SetTimer,
    TimerChange,
)
from progressor.domain.processes.process import Part, ProcessKey
from progressor.domain.processes.settlement import (
    Break,
    Fail,
    Finish,
    Remove,
    Retry,
    Settlement,
    messages_of,
)
from progressor.domain.processes.task import TaskError, TaskType
from progressor.storage.postgres.rows.documents import (
    constraints_text,
    failure_text,
    history_columns,
    json_text,
    options_text,
    timer_word,
    timers_text,
)

_NO_INTENT = Intent()
_KEEP = KeepTimer()
_NO_PART = Part()
_OUTCOMES: Mapping[type[Settlement], str] = {
    Finish: "finish", Fail: "fail", Retry: "retry", Break: "break", Remove: "remove",
}  # fmt: skip


Columns = dict[str, list[Any]]


class _Item(Protocol):
    """What is needed of a settlement to write; see `settlements.Entry`."""

    @property
    def key(self) -> ProcessKey: ...
    @property
    def task_type(self) -> TaskType: ...
    @property
    def token(self) -> int: ...
    @property
    def settlement(self) -> Settlement: ...
    @property
    def continues(self) -> bool: ...
    @property
    def expires_after(self) -> dt.timedelta: ...
    @property
    def trace_context(self) -> Mapping[str, str]: ...
    @property
    def part(self) -> Part | None: ...
    @property
    def plan(self) -> NodePlan | None: ...


def columns(batch: Sequence[_Item]) -> Columns:
    """Return the arrays of a batch; without those that its items say nothing of."""
    settlements = [entry.settlement for entry in batch]
    intents = [s.intent if isinstance(s, Finish) else _NO_INTENT for s in settlements]
    keys = [entry.key for entry in batch]
    kinds = set(map(type, settlements))
    return {
        "slot": [key.slot for key in keys],
        "namespace": [key.namespace for key in keys],
        "process_id": [key.process_id for key in keys],
        "token": [entry.token for entry in batch],
        "outcome": [_outcome(s) for s in settlements],
        **_sparse(
            expires_after=[e.expires_after.total_seconds() if e.continues else None for e in batch],
            response=[_response(s) for s in settlements],
            aux_state=[intent.aux_state for intent in intents],
            metadata=[_metadata(intent) for intent in intents],
            result=[i.action.result if isinstance(i.action, Complete) else None for i in intents],
            state_version=[intent.state_version or None for intent in intents],
        ),
        **(_retry_columns(settlements) if Retry in kinds else {}),
        **(_error_columns(batch) if kinds != {Finish} else {}),
        **_timer_columns(batch, intents),
        **_event_columns(intents),
        **(_message_columns(batch) if any(map(messages_of, settlements)) else {}),
    }


def _sparse(**columns: list[Any]) -> Columns:
    return {name: it for name, it in columns.items() if it.count(None) < len(it)}


def _retry_columns(settlements: Sequence[Settlement]) -> Columns:
    retries = [s if isinstance(s, Retry) else None for s in settlements]
    return {
        "retry_after": [r and r.delay.total_seconds() for r in retries],
        "attempt_count": [r and r.attempt_count for r in retries],
        "tried_for": [r and r.tried_for.total_seconds() for r in retries],
    }


def _outcome(settlement: Settlement) -> str:
    if isinstance(settlement, Finish) and isinstance(settlement.intent.action, Complete):
        return "complete"
    return _OUTCOMES[type(settlement)]


def _response(settlement: Settlement) -> bytes | None:
    if isinstance(settlement, Finish):
        return settlement.intent.response
    return settlement.response if isinstance(settlement, Remove) else None


def _metadata(intent: Intent) -> bytes | None:
    # An empty object is a value: it overwrites.
    return None if intent.metadata is None else json_text(intent.metadata) or b"{}"


def error_of(settlement: Settlement) -> TaskError | None:
    return None if isinstance(settlement, Finish) else settlement.error


def _error_columns(batch: Sequence[_Item]) -> Columns:
    failures = [error_of(entry.settlement) for entry in batch]
    if not any(failures):
        return {}
    return {
        **_sparse(
            failure=[_failure(entry) for entry in batch],
            cancels=[
                (isinstance(entry.settlement, Break) and entry.settlement.cancels) or None
                for entry in batch
            ],
        ),
        "error_code": [error and error.code for error in failures],
        "error_reason": [error and error.reason for error in failures],
        "error_message": [error and error.message for error in failures],
        "error_rejected": [error and error.rejected for error in failures],
        "error_metadata": [error and json_text(error.metadata) for error in failures],
    }


def _failure(entry: _Item) -> bytes | None:
    settlement = entry.settlement
    if not isinstance(settlement, Break):
        return None
    return failure_text(
        settlement.error.message,
        entry.key.process_id,
        task_type=entry.task_type,
        release=settlement.release,
    )


def _timer_columns(batch: Sequence[_Item], intents: Sequence[Intent]) -> Columns:
    named = _sparse(
        timers=[
            timers_text(intent.timers, entry.trace_context)
            if intent.timers and not isinstance(intent.action, Complete | RemoveProcess)
            else None
            for entry, intent in zip(batch, intents, strict=True)
        ]
    )
    changes = [_timer_change(intent) for intent in intents]
    words = [_timer_word(change) for change in changes]
    if not any(words):
        return named
    timers = [change if isinstance(change, SetTimer) else None for change in changes]
    ranges = [history_columns(timer.history_range if timer else None) for timer in timers]
    return {
        **named,
        "timer": words,
        **_sparse(
            timer_at=[timer and timer.at for timer in timers],
            timer_after=[timer and _span(timer.after) for timer in timers],
            timer_args=[timer and timer.args for timer in timers],
            timer_trace=[
                timer and json_text(entry.trace_context)
                for entry, timer in zip(batch, timers, strict=True)
            ],
            timer_timeout=[timer and _span(timer.step_timeout) for timer in timers],
            timer_constraints=[timer and constraints_text(timer.constraints) for timer in timers],
            history_after=[after for after, _, _ in ranges],
            history_limit=[limit for _, limit, _ in ranges],
            history_backward=[backward for _, _, backward in ranges],
        ),
    }


def _span(value: dt.timedelta | None) -> float | None:
    return None if value is None else value.total_seconds()


def _timer_change(intent: Intent) -> TimerChange:
    return _KEEP if isinstance(intent.action, Complete | RemoveProcess) else intent.timer


def _timer_word(change: TimerChange) -> str | None:
    return None if isinstance(change, KeepTimer) else timer_word(change)


def _event_columns(intents: Sequence[Intent]) -> Columns:
    events = [event for intent in intents for event in intent.events]
    if not events:
        return {}
    return {
        "events_until": list(itertools.accumulate(len(intent.events) for intent in intents)),
        "e_payload": [event.payload for event in events],
        **_sparse(
            e_format_version=[event.format_version or None for event in events],
            e_metadata=[json_text(event.metadata) for event in events],
        ),
    }


def _message_columns(batch: Sequence[_Item]) -> Columns:
    sent = [
        (item, number, message, entry.trace_context)
        for item, entry in enumerate(batch, 1)
        for number, message in enumerate(messages_of(entry.settlement), 1)
    ]
    messages = [message for _, _, message, _ in sent]
    return {
        "m_item": [item for item, *_ in sent],
        "m_number": [number for _, number, *_ in sent],
        "m_kind": [message.kind for message in messages],
        "m_slot": [message.receiver.slot for message in messages],
        "m_namespace": [message.receiver.namespace for message in messages],
        "m_process_id": [message.receiver.process_id for message in messages],
        "m_args": [message.args for message in messages],
        **_sparse(
            m_caller_context=[json_text(message.caller_context) for message in messages],
            m_trace_context=[json_text(trace_context) for *_, trace_context in sent],
            m_constraints=[constraints_text(message.constraints) for message in messages],
            m_metadata=[json_text(message.metadata) for message in messages],
            m_reply=[message.reply for message in messages],
        ),
    }


def job_columns(batch: Sequence[_Item]) -> Columns:
    parts = [entry.part or _NO_PART for entry in batch]
    return {
        **_sparse(
            leader_slot=[it.leader and it.leader.slot for it in parts],
            leader_namespace=[it.leader and it.leader.namespace for it in parts],
            leader_id=[it.leader and it.leader.process_id for it in parts],
            node=[it.node for it in parts],
            leads=[
                (entry.plan is not None or part.led_by is not None) or None
                for entry, part in zip(batch, parts, strict=True)
            ],
            fails_job=[
                (isinstance(it.settlement, Break) and it.settlement.fails_job) or None
                for it in batch
            ],
        ),
        **_plan_columns(batch),
    }


def _plan_columns(batch: Sequence[_Item]) -> Columns:
    planned = [
        (item, entry, entry.plan, _action(entry))
        for item, entry in enumerate(batch, 1)
        if entry.plan is not None
    ]
    if not planned:
        return {}
    actions = [action for *_, action in planned]
    plans = [(leader, plan) for leader, (_, _, plan, _) in enumerate(planned, 1)]
    nodes = [(leader, node) for leader, plan in plans for node in plan.nodes]
    appended = [(leader, *it) for leader, plan in plans for it in plan.appended.items()]
    return {
        "l_item": [item for item, *_ in planned],
        "l_deadline_at": [action.deadline for action in actions],
        "l_timeout": [_span(action.timeout) for action in actions],
        "l_schedule_id": [action.schedule_id for action in actions],
        "l_caller_context": [json_text(action.caller_context) for action in actions],
        "l_trace_context": [json_text(entry.trace_context) for _, entry, *_ in planned],
        "g_leader": [leader for leader, _ in nodes],
        "g_ordinal": [node.ordinal for _, node in nodes],
        "g_name": [node.spec.name for _, node in nodes],
        "g_slot": [node.follower.slot for _, node in nodes],
        "g_namespace": [node.follower.namespace for _, node in nodes],
        "g_process_id": [node.follower.process_id for _, node in nodes],
        "g_args": [node.spec.args for _, node in nodes],
        "g_options": [options_text(node.spec.options) for _, node in nodes],
        "g_constraints": [constraints_text(node.spec.constraints) for _, node in nodes],
        "g_predecessors": [_literal(node.predecessors) for _, node in nodes],
        "g_successors": [_literal(node.successors) for _, node in nodes],
        **_sparse(
            a_leader=[leader for leader, _, _ in appended],
            a_ordinal=[ordinal for _, ordinal, _ in appended],
            a_successors=[_literal(successors) for _, _, successors in appended],
        ),
    }


def _action(entry: _Item) -> StartNodes:
    settlement = entry.settlement
    assert isinstance(settlement, Finish), "a plan without a step that succeeded"
    action = settlement.intent.action
    assert isinstance(action, StartNodes), "a plan without its action"
    return action


def _literal(ordinals: Sequence[int]) -> str | None:
    """Return ordinals as PostgreSQL reads an array: an array of arrays has them of one length."""
    return "{" + ",".join(map(str, ordinals)) + "}" if ordinals else None
