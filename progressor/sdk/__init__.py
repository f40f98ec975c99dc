"""The SDK: clients for programs that call processes, and processors for those that implement them.

A processor: a basket to which calls add items, and which ends after a day without one::

    from progressor.sdk import Processor, Reject, Step

    orders = Processor("orders", state=list[str])

    @orders.init
    @orders.call
    async def add(step: Step[list[str]]) -> int:
        if not step.args:
            raise Reject("name an item")
        step.state = [*(step.state or []), step.args]
        step.set_timer(after=86_400)
        return len(step.state)

    @orders.timeout
    def give_up(step: Step[list[str]]) -> None:
        step.complete({"abandoned": step.state})

    orders.serve(bind="127.0.0.1:7421")

A client::

    async with Client("127.0.0.1:7420", namespace="orders") as client:
        await client.start("order-1", "tea", idempotency_key="start")
        answer = await client.call("order-1", "milk", idempotency_key="milk")

`progressor.sdk.testing` runs processors and jobs in memory, for tests.

A name is loaded when it is first used, so that a client does not load the processor, and a program
without jobs and schedules does not load those.

Start reading at ``client/client.py`` or at ``processor/processor.py``.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # each name as itself, so that type checkers take it for public
    # fmt: off
    from progressor.access_errors import (
        BindingNotFoundError as BindingNotFoundError,
        PermissionDeniedError as PermissionDeniedError,
        TokenNotFoundError as TokenNotFoundError,
        TooManyBindingsError as TooManyBindingsError, TooManyTokensError as TooManyTokensError,
        UnauthenticatedError as UnauthenticatedError,
    )
    from progressor.domain.access.answers import Decision as Decision, Identity as Identity
    from progressor.domain.access.audit import (
        AuditEntry as AuditEntry, AuditFilter as AuditFilter, AuditHead as AuditHead,
    )  # fmt: skip
    from progressor.domain.access.rights import Binding as Binding, Role as Role
    from progressor.domain.access.tokens import ApiToken as ApiToken
    from progressor.domain.gates.gate import Gate as Gate, GateWaiter as GateWaiter
    from progressor.domain.jobs.roles import (
        FollowedJob as FollowedJob, JobRole as JobRole, LedJob as LedJob, NodeCounts as NodeCounts,
    )
    from progressor.domain.processes.event import (
        Direction as Direction, HistoryRange as HistoryRange, NO_HISTORY as NO_HISTORY,
    )
    from progressor.domain.processes.message import Sender as Sender
    from progressor.domain.processes.policy import Pause as Pause, RetryPolicy as RetryPolicy
    from progressor.domain.processes.process import (
        ProcessCount as ProcessCount, ProcessCounts as ProcessCounts,
    )
    from progressor.domain.quotas.quotas import Quotas as Quotas
    from progressor.domain.views.activity import NamespaceQueue as NamespaceQueue
    from progressor.domain.views.replica import StepTally as StepTally
    from progressor.errors import (
        DeadlineExceededError as DeadlineExceededError,
        EventNotFoundError as EventNotFoundError, FieldViolation as FieldViolation,
        GateChangedError as GateChangedError, GateInUseError as GateInUseError,
        GateNotFoundError as GateNotFoundError,
        IdempotencyKeyReusedError as IdempotencyKeyReusedError,
        InvalidRequestError as InvalidRequestError, LeaseLostError as LeaseLostError,
        NamespaceAlreadyExistsError as NamespaceAlreadyExistsError,
        NamespaceChangedError as NamespaceChangedError,
        NamespaceNotEmptyError as NamespaceNotEmptyError,
        NamespaceNotFoundError as NamespaceNotFoundError,
        NamespacePausedError as NamespacePausedError, NotFoundError as NotFoundError,
        OperationAlreadyExistsError as OperationAlreadyExistsError,
        OperationNotFoundError as OperationNotFoundError, OverloadedError as OverloadedError,
        ProcessAlreadyExistsError as ProcessAlreadyExistsError,
        ProcessFailedError as ProcessFailedError, ProcessFinishedError as ProcessFinishedError,
        NothingToRetryError as NothingToRetryError, ProcessIsRunningError as ProcessIsRunningError,
        ProcessNotFoundError as ProcessNotFoundError,
        QuotaExceededError as QuotaExceededError,
        ProcessRemovedError as ProcessRemovedError, ProgressorError as ProgressorError,
        RejectedError as RejectedError, RepairFailedError as RepairFailedError,
        ReplicaStoppedError as ReplicaStoppedError, RequestError as RequestError,
        ShuttingDownError as ShuttingDownError, StateError as StateError,
        StepFailedError as StepFailedError, StorageUnavailableError as StorageUnavailableError,
        TaskCancelledError as TaskCancelledError, TaskFailedError as TaskFailedError,
        TaskHasEndedError as TaskHasEndedError, ProcessTerminatedError as ProcessTerminatedError,
        TaskNotFoundError as TaskNotFoundError,
    )
    from progressor.job_errors import (
        JobEndedError as JobEndedError, JobNotFailedError as JobNotFailedError,
        JobNotFoundError as JobNotFoundError, LedByEngineError as LedByEngineError,
        ScheduleAlreadyExistsError as ScheduleAlreadyExistsError,
        ScheduleChangedError as ScheduleChangedError,
        ScheduleNotFoundError as ScheduleNotFoundError,
    )
    from progressor.sdk.client.access import Access as Access, SyncAccess as SyncAccess
    from progressor.sdk.client.bulk import (
        BulkFilter as BulkFilter, BulkItem as BulkItem, BulkKind as BulkKind,
        BulkOperation as BulkOperation, Bulk as Bulk,
        BulkPreview as BulkPreview, BulkResult as BulkResult, BulkState as BulkState,
        SyncBulk as SyncBulk,
    )
    from progressor.sdk.client.client import Client as Client, SyncClient as SyncClient
    from progressor.sdk.client.gates import (
        GateView as GateView, Gates as Gates, SyncGates as SyncGates,
    )
    from progressor.sdk.client.filters import FilterOptions as FilterOptions
    from progressor.sdk.client.jobs import Jobs as Jobs, SyncJobs as SyncJobs
    from progressor.sdk.client.namespaces import (
        Namespaces as Namespaces, SyncNamespaces as SyncNamespaces,
    )
    from progressor.sdk.client.processes import (
        Processes as Processes, SyncProcesses as SyncProcesses, TaskOptions as TaskOptions,
    )
    from progressor.sdk.client.replicas import (
        Activity as Activity, DoctorFinding as DoctorFinding, DoctorReport as DoctorReport,
        FindingState as FindingState, LogLevel as LogLevel, LogLevelChange as LogLevelChange,
        NamespaceActivity as NamespaceActivity, Rates as Rates,
        Replica as Replica, ReplicaActivity as ReplicaActivity, ReplicaState as ReplicaState,
        Replicas as Replicas, StepRate as StepRate,
        SyncReplicas as SyncReplicas, rates_between as rates_between,
        rates_by_namespace as rates_by_namespace,
    )
    from progressor.sdk.client.resource import RequestOptions as RequestOptions
    from progressor.sdk.client.schedules import (
        Schedules as Schedules, SyncSchedules as SyncSchedules,
        Backfilled as Backfilled, Cron as Cron, Every as Every, NextRun as NextRun,
        OverlapPolicy as OverlapPolicy, Schedule as Schedule, ScheduleRun as ScheduleRun,
        ScheduleRunCause as ScheduleRunCause, ScheduleRunState as ScheduleRunState,
        ScheduleSpec as ScheduleSpec, ScheduleView as ScheduleView, ScheduledCall as ScheduledCall,
        ScheduledJob as ScheduledJob, ScheduledNotify as ScheduledNotify,
        ScheduledStart as ScheduledStart,
    )
    from progressor.sdk.codec.codecs import (
        BYTES as BYTES, BytesCodec as BytesCodec, CheckedCodec as CheckedCodec, Codec as Codec,
        DecryptionError as DecryptionError, JSON as JSON, JsonCodec as JsonCodec,
        KeyNotFoundError as KeyNotFoundError, Payload as Payload,
        RepeatableCodec as RepeatableCodec,
    )
    from progressor.sdk.codec.decode_endpoint import DecodeEndpoint as DecodeEndpoint
    from progressor.sdk.codec.encryption import Encrypted as Encrypted
    from progressor.sdk.codec.keys import Keys as Keys
    from progressor.sdk.processor.links import EngineAddress as EngineAddress
    from progressor.sdk.processor.processor import Processor as Processor
    from progressor.sdk.processor.server import (
        Limits as Limits, running as running, serve as serve,
    )
    from progressor.sdk.processor.step import Step as Step
    from progressor.sdk.processor.verdicts import Fail as Fail, Reject as Reject, Retry as Retry
    from progressor.sdk.transport.failures import (
        EngineUnavailableError as EngineUnavailableError,
        UnexpectedStatusError as UnexpectedStatusError,
    )
    from progressor.sdk.transport.security import Tls as Tls
    from progressor.sdk.transport.trust import ServerTls as ServerTls, Trust as Trust
    from progressor.sdk.values.constraints import (
        Constraints as Constraints, GateHold as GateHold, GateHolder as GateHolder,
        Order as Order, TimeSpent as TimeSpent,
    )
    from progressor.sdk.values.graph import (
        Graph as Graph, NewNode as NewNode, NodeOptions as NodeOptions,
    )
    from progressor.sdk.values.jobs import (
        Job as Job, JobCancelledError as JobCancelledError, JobFailedError as JobFailedError,
        JobRetried as JobRetried, JobState as JobState, JobView as JobView, Node as Node,
        NodeOutcome as NodeOutcome, NodeState as NodeState,
    )
    from progressor.sdk.values.messages import (
        AwaitedReply as AwaitedReply, MessageKind as MessageKind,
        MessageOptions as MessageOptions, RefusedMessage as RefusedMessage,
        SentMessage as SentMessage,
    )
    from progressor.sdk.values.namespaces import (
        NamespaceConfig as NamespaceConfig, OnError as OnError, ZombiePolicy as ZombiePolicy,
    )
    from progressor.sdk.values.replies import MessageReply as MessageReply, TaskError as TaskError
    from progressor.sdk.values.processes import (
        Event as Event, FailedRepair as FailedRepair, FailureGroup as FailureGroup,
        GateWait as GateWait, NewEvent as NewEvent, NewTimer as NewTimer, OrderWait as OrderWait,
        Process as Process, ProcessStatus as ProcessStatus, Receipt as Receipt, Reply as Reply,
        Retried as Retried, SimpleRepaired as SimpleRepaired, Snapshot as Snapshot,
        TaskReply as TaskReply, TaskStatus as TaskStatus,
        TaskTrace as TaskTrace, TaskType as TaskType, Timer as Timer, Trace as Trace,
        Wait as Wait, WaitCause as WaitCause,
    )
    # fmt: on

_MODULES = {
    "progressor.access_errors": """
        BindingNotFoundError PermissionDeniedError TokenNotFoundError TooManyBindingsError
        TooManyTokensError UnauthenticatedError
    """,
    "progressor.domain.access.answers": "Decision Identity",
    "progressor.domain.access.audit": "AuditEntry AuditFilter AuditHead",
    "progressor.domain.access.rights": "Binding Role",
    "progressor.domain.access.tokens": "ApiToken",
    "progressor.domain.gates.gate": "Gate GateWaiter",
    "progressor.domain.jobs.roles": "FollowedJob JobRole LedJob NodeCounts",
    "progressor.domain.processes.event": "Direction HistoryRange NO_HISTORY",
    "progressor.domain.processes.message": "Sender",
    "progressor.domain.processes.policy": "Pause RetryPolicy",
    "progressor.domain.processes.process": "ProcessCount ProcessCounts",
    "progressor.domain.quotas.quotas": "Quotas",
    "progressor.domain.views.activity": "NamespaceQueue",
    "progressor.domain.views.replica": "StepTally",
    "progressor.errors": """
        DeadlineExceededError EventNotFoundError FieldViolation GateChangedError GateInUseError
        GateNotFoundError IdempotencyKeyReusedError InvalidRequestError LeaseLostError
        NamespaceAlreadyExistsError NamespacePausedError
        NamespaceChangedError NamespaceNotEmptyError NamespaceNotFoundError NotFoundError
        OperationAlreadyExistsError OperationNotFoundError
        OverloadedError ProcessAlreadyExistsError ProcessFailedError ProcessFinishedError
        NothingToRetryError ProcessIsRunningError ProcessNotFoundError ProcessRemovedError
        ProgressorError QuotaExceededError RejectedError RepairFailedError ReplicaStoppedError
        RequestError ShuttingDownError StateError StepFailedError StorageUnavailableError
        TaskCancelledError TaskFailedError TaskHasEndedError ProcessTerminatedError
        TaskNotFoundError
    """,
    "progressor.job_errors": """
        JobEndedError JobNotFailedError JobNotFoundError LedByEngineError ScheduleAlreadyExistsError
        ScheduleChangedError ScheduleNotFoundError
    """,
    "progressor.sdk.client.access": "Access SyncAccess",
    "progressor.sdk.client.bulk": """
        BulkFilter BulkItem BulkKind BulkOperation Bulk BulkPreview BulkResult BulkState
        SyncBulk
    """,
    "progressor.sdk.client.client": "Client SyncClient",
    "progressor.sdk.client.filters": "FilterOptions",
    "progressor.sdk.client.gates": "GateView Gates SyncGates",
    "progressor.sdk.client.jobs": "Jobs SyncJobs",
    "progressor.sdk.client.namespaces": "Namespaces SyncNamespaces",
    "progressor.sdk.client.processes": "Processes SyncProcesses TaskOptions",
    "progressor.sdk.client.replicas": """
        Activity DoctorFinding DoctorReport FindingState LogLevel LogLevelChange
        NamespaceActivity Rates Replica ReplicaActivity ReplicaState Replicas StepRate
        SyncReplicas rates_between rates_by_namespace
    """,
    "progressor.sdk.client.resource": "RequestOptions",
    "progressor.sdk.client.schedules": """
        Backfilled Cron Every NextRun OverlapPolicy Schedule ScheduleRun ScheduleRunCause
        ScheduleRunState ScheduleSpec ScheduleView ScheduledCall ScheduledJob ScheduledNotify
        ScheduledStart Schedules SyncSchedules
    """,
    "progressor.sdk.codec.codecs": """
        BYTES BytesCodec CheckedCodec Codec DecryptionError JSON JsonCodec KeyNotFoundError Payload
        RepeatableCodec
    """,
    "progressor.sdk.codec.decode_endpoint": "DecodeEndpoint",
    "progressor.sdk.codec.encryption": "Encrypted",
    "progressor.sdk.codec.keys": "Keys",
    "progressor.sdk.processor.links": "EngineAddress",
    "progressor.sdk.processor.processor": "Processor",
    "progressor.sdk.processor.server": "Limits running serve",
    "progressor.sdk.processor.step": "Step",
    "progressor.sdk.processor.verdicts": "Fail Reject Retry",
    "progressor.sdk.transport.failures": "EngineUnavailableError UnexpectedStatusError",
    "progressor.sdk.transport.security": "Tls",
    "progressor.sdk.transport.trust": "ServerTls Trust",
    "progressor.sdk.values.constraints": "Constraints GateHold GateHolder Order TimeSpent",
    "progressor.sdk.values.graph": "Graph NewNode NodeOptions",
    "progressor.sdk.values.jobs": """
        Job JobCancelledError JobFailedError JobRetried JobState JobView Node NodeOutcome NodeState
    """,
    "progressor.sdk.values.messages": """
        AwaitedReply MessageKind MessageOptions RefusedMessage SentMessage
    """,
    "progressor.sdk.values.namespaces": "NamespaceConfig OnError ZombiePolicy",
    "progressor.sdk.values.processes": """
        Event FailedRepair FailureGroup GateWait NewEvent NewTimer OrderWait Process ProcessStatus
        Receipt Reply Retried SimpleRepaired Snapshot TaskReply TaskStatus TaskTrace TaskType Timer
        Trace Wait WaitCause
    """,
    "progressor.sdk.values.replies": "MessageReply TaskError",
}
"""The public names by the module that defines them."""

_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = tuple(sorted(_HOMES))  # computed, so that a name stands here twice at most

if not TYPE_CHECKING:  # a type checker would take every name for a public one

    def __getattr__(name: str) -> object:
        """Load a public name."""
        if name not in _HOMES:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """Return the public names."""
    return [*globals(), *_HOMES]
