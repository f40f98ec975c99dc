"""What users of progressor import: clients for those who call processes, processors for authors.

Imports only the wire contract and ``progressor.errors``. A processor, served: a basket that takes
items by calls, and gives up after a day without one::

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

And a client::

    async with Client("127.0.0.1:7420", namespace="orders") as client:
        await client.start("order-1", "tea", idempotency_key="start")
        answer = await client.call("order-1", "milk", idempotency_key="milk")

Jobs, graphs of processes, begin with ``graph.py`` and ``job_client.py``; schedules with
``schedules.py``; tests of one's own processors with ``progressor.sdk.testing``.

Start reading at ``client.py`` or at ``processor.py``.
"""

from progressor.errors import (
    DeadlineExceededError,
    EventNotFoundError,
    FieldViolation,
    GateChangedError,
    GateInUseError,
    GateNotFoundError,
    IdempotencyKeyReusedError,
    InvalidRequestError,
    NamespaceAlreadyExistsError,
    NamespaceChangedError,
    NamespaceNotEmptyError,
    NamespaceNotFoundError,
    NotFoundError,
    OverloadedError,
    ProcessAlreadyExistsError,
    ProcessFailedError,
    ProcessFinishedError,
    ProcessIsRunningError,
    ProcessNotFoundError,
    ProcessRemovedError,
    ProgressorError,
    RejectedError,
    RepairFailedError,
    ReplicaStoppedError,
    RequestError,
    ShuttingDownError,
    StateError,
    StepFailedError,
    StorageUnavailableError,
    TaskCancelledError,
    TaskFailedError,
    TaskHasEndedError,
    TaskIsRunningError,
    TaskNotFoundError,
)
from progressor.job_errors import (
    JobEndedError,
    JobNotFailedError,
    JobNotFoundError,
    LedByEngineError,
    ScheduleAlreadyExistsError,
    ScheduleChangedError,
    ScheduleNotFoundError,
)
from progressor.sdk.client.client import Client
from progressor.sdk.client.gates import Gates, SyncGates
from progressor.sdk.client.jobs import Jobs, SyncJobs
from progressor.sdk.client.namespaces import Namespaces, SyncNamespaces
from progressor.sdk.client.processes import Processes, SyncProcesses
from progressor.sdk.client.replicas import Replicas, SyncReplicas
from progressor.sdk.client.schedules import Schedules, SyncSchedules
from progressor.sdk.client.sync_client import SyncClient
from progressor.sdk.codec.codecs import (
    BYTES,
    JSON,
    BytesCodec,
    CheckedCodec,
    Codec,
    JsonCodec,
    Payload,
)
from progressor.sdk.processor.processor import Processor
from progressor.sdk.processor.server import Limits, running, serve, serve_async
from progressor.sdk.processor.step import Step
from progressor.sdk.processor.verdicts import Fail, Reject, Retry
from progressor.sdk.sending.failures import EngineUnavailableError, UnexpectedStatusError
from progressor.sdk.values.activity import (
    Activity,
    NamespaceActivity,
    NamespaceQueue,
    Rates,
    ReplicaActivity,
    StepRate,
    StepTally,
    rates_between,
    rates_by_namespace,
)
from progressor.sdk.values.constraints import Constraints, GateHold, Order, TimeSpent
from progressor.sdk.values.gates import Gate, GateHolder, GateView, GateWaiter
from progressor.sdk.values.graph import Graph, NewNode, NodeOptions
from progressor.sdk.values.jobs import (
    Job,
    JobCancelledError,
    JobFailedError,
    JobRetried,
    JobState,
    JobSubmitted,
    JobView,
    Node,
    NodeCounts,
    NodeOutcome,
    NodeState,
)
from progressor.sdk.values.namespaces import NamespaceConfig, RetryPolicy, ZombiePolicy
from progressor.sdk.values.processes import (
    NO_HISTORY,
    Accepted,
    Answer,
    Direction,
    Event,
    FollowedJob,
    GateWait,
    HistoryRange,
    JobRole,
    LedJob,
    NewEvent,
    NewTimer,
    OrderWait,
    Process,
    ProcessStatus,
    SimpleRepaired,
    Snapshot,
    TaskAnswer,
    TaskError,
    TaskStatus,
    TaskTrace,
    TaskType,
    Timer,
    Trace,
    Wait,
    WaitCause,
)
from progressor.sdk.values.replicas import LogLevel, LogLevelChange, Replica, ReplicaState
from progressor.sdk.values.schedules import (
    Backfilled,
    Cron,
    Every,
    Firing,
    FiringCause,
    FiringState,
    NextFiring,
    OverlapPolicy,
    Schedule,
    ScheduledCall,
    ScheduledJob,
    ScheduledNotify,
    ScheduledStart,
    ScheduleSpec,
    ScheduleView,
)

__all__ = (
    "BYTES",
    "JSON",
    "NO_HISTORY",
    "Accepted",
    "Activity",
    "Answer",
    "Backfilled",
    "BytesCodec",
    "CheckedCodec",
    "Client",
    "Codec",
    "Constraints",
    "Cron",
    "DeadlineExceededError",
    "Direction",
    "EngineUnavailableError",
    "Event",
    "EventNotFoundError",
    "Every",
    "Fail",
    "FieldViolation",
    "Firing",
    "FiringCause",
    "FiringState",
    "FollowedJob",
    "Gate",
    "GateChangedError",
    "GateHold",
    "GateHolder",
    "GateInUseError",
    "GateNotFoundError",
    "GateView",
    "GateWait",
    "GateWaiter",
    "Gates",
    "Graph",
    "HistoryRange",
    "IdempotencyKeyReusedError",
    "InvalidRequestError",
    "Job",
    "JobCancelledError",
    "JobEndedError",
    "JobFailedError",
    "JobNotFailedError",
    "JobNotFoundError",
    "JobRetried",
    "JobRole",
    "JobState",
    "JobSubmitted",
    "JobView",
    "Jobs",
    "JsonCodec",
    "LedByEngineError",
    "LedJob",
    "Limits",
    "LogLevel",
    "LogLevelChange",
    "NamespaceActivity",
    "NamespaceAlreadyExistsError",
    "NamespaceChangedError",
    "NamespaceConfig",
    "NamespaceNotEmptyError",
    "NamespaceNotFoundError",
    "NamespaceQueue",
    "Namespaces",
    "NewEvent",
    "NewNode",
    "NewTimer",
    "NextFiring",
    "Node",
    "NodeCounts",
    "NodeOptions",
    "NodeOutcome",
    "NodeState",
    "NotFoundError",
    "Order",
    "OrderWait",
    "OverlapPolicy",
    "OverloadedError",
    "Payload",
    "Process",
    "ProcessAlreadyExistsError",
    "ProcessFailedError",
    "ProcessFinishedError",
    "ProcessIsRunningError",
    "ProcessNotFoundError",
    "ProcessRemovedError",
    "ProcessStatus",
    "Processes",
    "Processor",
    "ProgressorError",
    "Rates",
    "Reject",
    "RejectedError",
    "RepairFailedError",
    "Replica",
    "ReplicaActivity",
    "ReplicaState",
    "ReplicaStoppedError",
    "Replicas",
    "RequestError",
    "Retry",
    "RetryPolicy",
    "Schedule",
    "ScheduleAlreadyExistsError",
    "ScheduleChangedError",
    "ScheduleNotFoundError",
    "ScheduleSpec",
    "ScheduleView",
    "ScheduledCall",
    "ScheduledJob",
    "ScheduledNotify",
    "ScheduledStart",
    "Schedules",
    "ShuttingDownError",
    "SimpleRepaired",
    "Snapshot",
    "StateError",
    "Step",
    "StepFailedError",
    "StepRate",
    "StepTally",
    "StorageUnavailableError",
    "SyncClient",
    "SyncGates",
    "SyncJobs",
    "SyncNamespaces",
    "SyncProcesses",
    "SyncReplicas",
    "SyncSchedules",
    "TaskAnswer",
    "TaskCancelledError",
    "TaskError",
    "TaskFailedError",
    "TaskHasEndedError",
    "TaskIsRunningError",
    "TaskNotFoundError",
    "TaskStatus",
    "TaskTrace",
    "TaskType",
    "TimeSpent",
    "Timer",
    "Trace",
    "UnexpectedStatusError",
    "Wait",
    "WaitCause",
    "ZombiePolicy",
    "rates_between",
    "rates_by_namespace",
    "running",
    "serve",
    "serve_async",
)
