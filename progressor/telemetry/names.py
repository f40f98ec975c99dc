"""Every span and span attribute by its name, with a sentence for each."""

from collections.abc import Mapping
from types import MappingProxyType

PROCESSOR_SERVICE = "progressor.v1.ProcessorService"
ADMIT = "progressor.admit"
STEP = "progressor.step"
CLAIM = "progressor.claim"
SETTLE = "progressor.settle"
COLLECT = "progressor.collect"
SCHEDULE_RUN = "progressor.schedule_run"

SPANS: Mapping[str, str] = MappingProxyType(
    {
        "progressor.v1.ProcessService/…": "A request, alone or in a session, from its arrival to "
        "its answer; likewise for the other services.",
        ADMIT: "A request becomes a durable task, including the wait for a batch.",
        STEP: "One attempt of a task, from its claim to its settlement; a timer's step is "
        "linked to the step that set it, the first step of a new trace to the last one of the "
        "previous trace.",
        CLAIM: "The statement that leased a task that had waited, usually many at once.",
        f"{PROCESSOR_SERVICE}/Process": "The request to the processor, by a call or in a frame; "
        "the parent of the processor's own spans.",
        SETTLE: "The outcome is written, including the wait for a batch.",
        COLLECT: "A lost lease is found and settled.",
        SCHEDULE_RUN: "A run of a schedule: the transaction that decides whether it starts, and "
        "starts its work; many at once. The steps of that work continue its trace. Not recorded if "
        "nothing changes, as for a queued run.",
    }
)
"""By name, a sentence for each."""

NAMESPACE = "progressor.namespace"
PROCESS_ID = "progressor.process_id"
TASK_ID = "progressor.task_id"
TASK_TYPE = "progressor.task_type"
ATTEMPT = "progressor.attempt"
LATENESS = "progressor.lateness_ms"
BATCH_WAIT = "progressor.batch_wait_ms"
VERDICT = "progressor.verdict"
SETTLEMENT = "progressor.settlement"
NEXT_TASK_ID = "progressor.next_task_id"
RETRY_DELAY = "progressor.retry_delay_ms"
REJECTED = "progressor.rejected"
CAUSE = "progressor.cause"
LOST_REPLICA_ID = "progressor.lost_replica_id"
SCHEDULE_ID = "progressor.schedule_id"
INSTANT = "progressor.instant"
GATE = "progressor.gate"
GATES = "progressor.gates"
WAITED_FOR = "progressor.waited_for"
BEHIND_TASK_ID = "progressor.behind_task_id"
SPENT = (
    "progressor.spent.time_us",
    "progressor.spent.order_us",
    "progressor.spent.process_us",
    "progressor.spent.gates_us",
    "progressor.spent.available_us",
    "progressor.spent.running_us",
)
"""As of `RunningTask.spent`, in its order."""
ERROR_TYPE = "error.type"
RPC_SYSTEM = "rpc.system.name"
RPC_METHOD = "rpc.method"
RPC_STATUS_CODE = "rpc.response.status_code"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
MESSAGING_SYSTEM = "messaging.system"
MESSAGING_OPERATION = "messaging.operation.name"
MESSAGING_OPERATION_TYPE = "messaging.operation.type"
MESSAGING_DESTINATION = "messaging.destination.name"
MESSAGE_ID = "messaging.message.id"
DB_SYSTEM = "db.system.name"
DB_PROCEDURE = "db.stored_procedure.name"

ATTRIBUTES: Mapping[str, str] = MappingProxyType(
    {
        NAMESPACE: "The namespace of the process, or of the schedule.",
        PROCESS_ID: "The id of the process; on a schedule run, of the one that it starts or calls.",
        TASK_ID: "The id of the task; on a request, of the task that it names or created; on a "
        "schedule run, of the task that it created.",
        TASK_TYPE: "init, call, notify, repair, timeout, remove or join.",
        ATTEMPT: "The number of the attempt, from 1.",
        LATENESS: "From the instant at which a waiting task, a timer or a retry was due to the "
        "start of its step; on a schedule run, from its due time to its transaction.",
        BATCH_WAIT: "How long an admission or a settlement was queued before it was sent.",
        VERDICT: "The outcome of an admission: accepted, duplicate, process_not_found …; of a "
        "schedule run: started, queued, skipped, refused, missed.",
        SETTLEMENT: "What was written: finish, fail, retry, break, remove.",
        NEXT_TASK_ID: "The task of the same process that the worker continues with.",
        RETRY_DELAY: "How long the task waits for its next attempt.",
        REJECTED: "The processor rejected the request, which is not a failure.",
        CAUSE: "How the lease was lost: silent, overrun, unknown; why a schedule ran: time, "
        "trigger, backfill.",
        LOST_REPLICA_ID: "The replica whose lease was lost.",
        SCHEDULE_ID: "The id of the schedule, on a schedule run or a request.",
        INSTANT: "The scheduled instant of a run, in UTC; it identifies the run within its "
        "schedule.",
        GATE: "The key of the gate that a request is about.",
        GATES: "The keys of the gates that an admitted task must pass.",
        WAITED_FOR: "What the step's task waited for, each once: time (its due time, or that of a "
        "retry), order, process (another task of its process), gates, available (a worker). Absent "
        "if it was leased at once.",
        BEHIND_TASK_ID: "The task of the same process after whose end this one began.",
        SPENT[0]: "Of a task with constraints, until this attempt began: how long it waited for an "
        "instant, its own or that of its retry. This and the next five add up to the age of the "
        "task, to the microsecond.",
        SPENT[1]: "Likewise, for a smaller version of its order.",
        SPENT[2]: "Likewise, for another task of its process.",
        SPENT[3]: "Likewise, for a place in its gates.",
        SPENT[4]: "Likewise, for a worker.",
        SPENT[5]: "Likewise, how long it ran in earlier attempts.",
        ERROR_TYPE: "The reason of an error; CANCELLED if the caller no longer waited.",
        RPC_SYSTEM: "grpc.",
        RPC_METHOD: "The full name of the method.",
        RPC_STATUS_CODE: "The gRPC status: OK, UNAVAILABLE …",
        SERVER_ADDRESS: "The host, or the path of the socket, of the processor.",
        SERVER_PORT: "Its port.",
        MESSAGING_SYSTEM: "progressor: in messaging terms, a task is a message.",
        MESSAGING_OPERATION: "step.",
        MESSAGING_OPERATION_TYPE: "process.",
        MESSAGING_DESTINATION: "The namespace.",
        MESSAGE_ID: "The id of the task.",
        DB_SYSTEM: "postgresql.",
        DB_PROCEDURE: "The function in the database.",
    }
)
"""Of spans, by name, a sentence for each."""
