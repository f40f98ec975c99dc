-- Messages that steps send to processes: written with the settlement of the step, deleted with the admission by their
-- receiver. The key is that of the sender, which may be gone.
CREATE SEQUENCE progressor.message_ids;

CREATE TABLE progressor.messages (
    slot               smallint NOT NULL,
    namespace          text NOT NULL,
    process_id         text NOT NULL,
    message_id         bigint NOT NULL,
    init_task_id       bigint NOT NULL,
    task_id            bigint NOT NULL,
    number             integer NOT NULL,
    kind               text NOT NULL CHECK (kind IN ('start', 'notify', 'call')),
    receiver_slot      smallint NOT NULL,
    receiver_namespace text NOT NULL,
    receiver_id        text NOT NULL,
    args               bytea NOT NULL,
    caller_context     json,
    trace_context      json,
    constraints        json,
    metadata           jsonb,
    created_at         timestamptz NOT NULL,
    deliver_at         timestamptz NOT NULL,
    PRIMARY KEY (slot, namespace, process_id, message_id)
) WITH (
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX messages_due ON progressor.messages (deliver_at);

-- Messages that were refused, of processes that exist.
CREATE TABLE progressor.refused_messages (
    slot               smallint NOT NULL,
    namespace          text NOT NULL,
    process_id         text NOT NULL,
    task_id            bigint NOT NULL,
    number             integer NOT NULL,
    kind               text NOT NULL,
    receiver_namespace text NOT NULL,
    receiver_id        text NOT NULL,
    reason             text NOT NULL,
    refused_at         timestamptz NOT NULL,
    PRIMARY KEY (slot, namespace, process_id, task_id, number)
);
