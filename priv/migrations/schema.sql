-- The schema as it is today: what the numbered files beside this one come to.
-- Written by `make migrate-schema`; tests/storage/postgres/test_migrations.py proves it equal. Only
-- people read it.

CREATE TYPE progressor.gate_hold AS ENUM ('task', 'process');

CREATE TYPE progressor.gated_state AS ENUM ('time', 'order', 'process', 'gates', 'available');

CREATE TYPE progressor.job_state AS ENUM ('running', 'done', 'failed', 'cancelled');

CREATE TYPE progressor.node_state AS ENUM ('waiting', 'ready', 'running', 'done', 'failed', 'skipped', 'cancelled');

CREATE TYPE progressor.overlap_policy AS ENUM ('skip', 'queue_one', 'allow', 'cancel_previous');

CREATE TYPE progressor.process_status AS ENUM ('init', 'running', 'error', 'finished');

CREATE TYPE progressor.schedule_run_cause AS ENUM ('time', 'trigger', 'backfill');

CREATE TYPE progressor.schedule_run_state AS ENUM ('queued', 'running', 'done', 'failed', 'cancelled', 'gone', 'skipped', 'missed', 'refused');

CREATE TYPE progressor.task_status AS ENUM ('waiting', 'available', 'running', 'blocked', 'finished', 'error', 'cancelled');

CREATE TYPE progressor.task_type AS ENUM ('init', 'call', 'notify', 'repair', 'timeout', 'remove', 'join', 'reply');

CREATE SEQUENCE progressor.audit_entries_entry_id_seq AS bigint;

CREATE SEQUENCE progressor.lease_tokens AS bigint;

CREATE SEQUENCE progressor.message_ids AS bigint;

CREATE SEQUENCE progressor.new_failures_failure_number_seq AS bigint;

CREATE SEQUENCE progressor.replica_ids AS bigint;

CREATE SEQUENCE progressor.task_ids AS bigint;

CREATE TABLE progressor.access_bindings (
    principal text COLLATE "C" NOT NULL,
    role text COLLATE "C" NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    created_at timestamp with time zone NOT NULL,
    created_by text NOT NULL,
    CONSTRAINT access_bindings_pkey PRIMARY KEY (principal, role, namespace)
);

CREATE TABLE progressor.access_revision (
    revision bigint NOT NULL
);

CREATE TABLE progressor.access_tokens (
    token_id text COLLATE "C" NOT NULL,
    name text NOT NULL,
    secret_hash bytea NOT NULL,
    created_at timestamp with time zone NOT NULL,
    created_by text NOT NULL,
    expires_at timestamp with time zone,
    revoked_at timestamp with time zone,
    last_used_at timestamp with time zone,
    CONSTRAINT access_tokens_pkey PRIMARY KEY (token_id)
);

CREATE TABLE progressor.audit_chain (
    anchor_number bigint NOT NULL,
    anchor_hash bytea NOT NULL,
    head_number bigint NOT NULL,
    head_hash bytea NOT NULL
);

CREATE TABLE progressor.audit_entries (
    entry_id bigint NOT NULL,
    request_id uuid NOT NULL GENERATED ALWAYS AS (((entry ->> 'request_id'::text))::uuid) STORED,
    written_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    entry jsonb NOT NULL,
    before jsonb,
    after jsonb,
    result text COLLATE "C" NOT NULL DEFAULT 'OK'::text,
    left_out bigint NOT NULL DEFAULT 0,
    number bigint,
    hash bytea,
    CONSTRAINT audit_entries_pkey PRIMARY KEY (entry_id),
    CONSTRAINT audit_entries_check CHECK (((number IS NULL) = (hash IS NULL)))
);

CREATE TABLE progressor.bulk_items (
    operation_id text COLLATE "C" NOT NULL,
    item bigint NOT NULL,
    slot smallint NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    process_id text COLLATE "C" NOT NULL,
    init_task_id bigint NOT NULL,
    broken_by bigint,
    broken_at timestamp with time zone,
    task_id bigint,
    result text COLLATE "C",
    reason text,
    ended_at timestamp with time zone,
    follow boolean NOT NULL DEFAULT false,
    attempt_count integer NOT NULL DEFAULT 0,
    broken_token bigint,
    CONSTRAINT bulk_items_pkey PRIMARY KEY (operation_id, item),
    CONSTRAINT bulk_items_result_check CHECK ((result = ANY (ARRAY['done'::text, 'skipped'::text, 'failed'::text])))
) WITH (
    fillfactor=70
);

CREATE TABLE progressor.bulk_operations (
    operation_id text COLLATE "C" NOT NULL,
    slot smallint NOT NULL,
    kind text NOT NULL,
    state text NOT NULL DEFAULT 'matching'::text,
    filter jsonb NOT NULL,
    args bytea NOT NULL,
    reason text NOT NULL,
    author text NOT NULL,
    rate_max integer,
    failed_share_max double precision NOT NULL,
    failed_window integer NOT NULL,
    stop_reason text NOT NULL DEFAULT ''::text,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone,
    matched_count bigint NOT NULL DEFAULT 0,
    done_count bigint NOT NULL DEFAULT 0,
    skipped_count bigint NOT NULL DEFAULT 0,
    failed_count bigint NOT NULL DEFAULT 0,
    next_item bigint NOT NULL DEFAULT 1,
    after_created_at timestamp with time zone,
    after_namespace text COLLATE "C",
    after_process_id text COLLATE "C",
    follow boolean NOT NULL DEFAULT false,
    snapshot pg_snapshot,
    cursor_item bigint,
    CONSTRAINT bulk_operations_pkey PRIMARY KEY (operation_id),
    CONSTRAINT bulk_operations_state_check CHECK ((state = ANY (ARRAY['matching'::text, 'running'::text, 'done'::text, 'stopped'::text])))
);

CREATE TABLE progressor.cell (
    name text COLLATE "C" NOT NULL,
    number integer NOT NULL,
    installation uuid NOT NULL,
    CONSTRAINT cell_number_check CHECK (((number >= 0) AND (number <= 64)))
);

CREATE TABLE progressor.cell_namespaces (
    namespace text COLLATE "C" NOT NULL,
    cell text COLLATE "C" NOT NULL,
    revision bigint NOT NULL,
    CONSTRAINT cell_namespaces_pkey PRIMARY KEY (namespace)
);

CREATE TABLE progressor.cells (
    number integer NOT NULL,
    name text COLLATE "C" NOT NULL,
    CONSTRAINT cells_name_key UNIQUE (name),
    CONSTRAINT cells_pkey PRIMARY KEY (number)
);

CREATE TABLE progressor.events (
    slot smallint NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    process_id text COLLATE "C" NOT NULL,
    event_id bigint NOT NULL,
    task_id bigint NOT NULL,
    occurred_at timestamp with time zone NOT NULL,
    format_version integer NOT NULL DEFAULT 0,
    payload bytea NOT NULL,
    metadata json,
    CONSTRAINT events_pkey PRIMARY KEY (slot, namespace, process_id, event_id)
) WITH (
    autovacuum_analyze_scale_factor=0.05,
    autovacuum_freeze_min_age=0,
    autovacuum_vacuum_scale_factor=0,
    autovacuum_vacuum_threshold=200000,
    autovacuum_vacuum_insert_scale_factor=0,
    autovacuum_vacuum_insert_threshold=200000
);

CREATE TABLE progressor.failures (
    namespace text COLLATE "C" NOT NULL,
    failure_id text COLLATE "C" NOT NULL,
    reason text NOT NULL,
    message text NOT NULL,
    task_type progressor.task_type,
    release text NOT NULL,
    first_seen_at timestamp with time zone NOT NULL,
    last_seen_at timestamp with time zone NOT NULL,
    failure_count bigint NOT NULL,
    sample_process_id text COLLATE "C" NOT NULL,
    CONSTRAINT failures_pkey PRIMARY KEY (namespace, failure_id),
    CONSTRAINT failures_failure_count_check CHECK ((failure_count > 0))
) WITH (
    fillfactor=50
);

CREATE TABLE progressor.function_schemas (
    schema text COLLATE "C" NOT NULL,
    used_at timestamp with time zone NOT NULL,
    CONSTRAINT function_schemas_pkey PRIMARY KEY (schema)
);

CREATE TABLE progressor.gate_holders (
    slot smallint NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    process_id text COLLATE "C" NOT NULL,
    gate text COLLATE "C" NOT NULL,
    task_id bigint NOT NULL,
    hold progressor.gate_hold NOT NULL,
    is_reserved boolean NOT NULL DEFAULT false,
    held_at timestamp with time zone NOT NULL,
    CONSTRAINT gate_holders_pkey PRIMARY KEY (slot, namespace, process_id, gate)
) WITH (
    autovacuum_vacuum_scale_factor=0.01,
    autovacuum_vacuum_threshold=1000,
    autovacuum_vacuum_cost_delay=0,
    vacuum_index_cleanup=on
);

CREATE TABLE progressor.gate_queues (
    namespace text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    gates text[] COLLATE "C" NOT NULL,
    waits_on text COLLATE "C",
    head_priority smallint NOT NULL,
    head_task_id bigint NOT NULL,
    oldest_at timestamp with time zone NOT NULL,
    oldest_id bigint NOT NULL,
    CONSTRAINT gate_queues_pkey PRIMARY KEY (namespace, queue)
) WITH (
    fillfactor=50,
    autovacuum_vacuum_scale_factor=0.01,
    autovacuum_vacuum_threshold=1000,
    autovacuum_vacuum_cost_delay=0,
    vacuum_index_cleanup=on
);

CREATE TABLE progressor.gated (
    slot smallint NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    process_id text COLLATE "C" NOT NULL,
    task_id bigint NOT NULL,
    task_type progressor.task_type NOT NULL,
    state progressor.gated_state NOT NULL,
    state_since timestamp with time zone NOT NULL,
    run_at timestamp with time zone,
    ready_at timestamp with time zone NOT NULL,
    priority smallint NOT NULL,
    order_key text COLLATE "C",
    order_version integer[],
    gates text[] COLLATE "C" NOT NULL,
    hold progressor.gate_hold NOT NULL,
    queue text COLLATE "C",
    attempt integer NOT NULL DEFAULT 0,
    replica_id bigint NOT NULL,
    spent_us bigint[] NOT NULL DEFAULT '{0,0,0,0,0,0}'::bigint[],
    cause text COLLATE "C" NOT NULL GENERATED ALWAYS AS (CASE
    WHEN (state = 'order'::progressor.gated_state) THEN 'order'::text
    WHEN (state = 'process'::progressor.gated_state) THEN 'behind_task'::text
    WHEN (state = 'gates'::progressor.gated_state) THEN 'gate'::text
    WHEN (state = 'available'::progressor.gated_state) THEN 'available'::text
    WHEN (attempt > 0) THEN 'retry'::text
    WHEN (task_type = ANY (ARRAY['timeout'::progressor.task_type, 'remove'::progressor.task_type])) THEN 'timer'::text
    ELSE 'run_at'::text
END) STORED,
    CONSTRAINT gated_pkey PRIMARY KEY (slot, namespace, process_id, task_id),
    CONSTRAINT gated_priority_check CHECK (((priority >= 1) AND (priority <= 5))),
    CONSTRAINT order_is_whole CHECK (((order_key IS NULL) = (order_version IS NULL))),
    CONSTRAINT queued_for_gates CHECK (((queue IS NOT NULL) = (state = 'gates'::progressor.gated_state)))
) WITH (
    fillfactor=70,
    autovacuum_vacuum_scale_factor=0.01,
    autovacuum_vacuum_threshold=1000,
    autovacuum_vacuum_cost_delay=0,
    vacuum_index_cleanup=on
);

CREATE TABLE progressor.gates (
    namespace text COLLATE "C" NOT NULL,
    gate text COLLATE "C" NOT NULL,
    capacity integer NOT NULL,
    held integer NOT NULL DEFAULT 0,
    revision bigint NOT NULL DEFAULT 1,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    lowered_at timestamp with time zone,
    lowered_before timestamp with time zone,
    CONSTRAINT gates_pkey PRIMARY KEY (namespace, gate),
    CONSTRAINT gates_capacity_check CHECK ((capacity >= 0)),
    CONSTRAINT gates_gate_check CHECK (((octet_length(gate) >= 1) AND (octet_length(gate) <= 256))),
    CONSTRAINT gates_held_check CHECK ((held >= 0)),
    CONSTRAINT lowering_is_whole CHECK (((lowered_at IS NULL) = (lowered_before IS NULL)))
) WITH (
    fillfactor=50,
    autovacuum_vacuum_scale_factor=0.01,
    autovacuum_vacuum_threshold=1000,
    autovacuum_vacuum_cost_delay=0
);

CREATE TABLE progressor.held (
    slot smallint NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    process_id text COLLATE "C" NOT NULL,
    task_id bigint NOT NULL,
    task_type progressor.task_type NOT NULL,
    due_at timestamp with time zone,
    attempt integer NOT NULL,
    held_at timestamp with time zone NOT NULL,
    CONSTRAINT held_pkey PRIMARY KEY (slot, namespace, process_id, task_id),
    CONSTRAINT timers_keep_their_instant CHECK (((due_at IS NOT NULL) OR (task_type <> ALL (ARRAY['timeout'::progressor.task_type, 'remove'::progressor.task_type]))))
);

CREATE TABLE progressor.job_nodes (
    slot smallint NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    process_id text COLLATE "C" NOT NULL,
    ordinal integer NOT NULL,
    state progressor.node_state NOT NULL,
    begun boolean NOT NULL DEFAULT false,
    queued boolean NOT NULL GENERATED ALWAYS AS ((state = 'ready'::progressor.node_state)) STORED,
    gated boolean NOT NULL DEFAULT false,
    attempt integer NOT NULL DEFAULT 1,
    waits_for integer NOT NULL,
    skipped_because_of integer,
    revision bigint NOT NULL,
    follower_slot smallint NOT NULL,
    created_at timestamp with time zone NOT NULL,
    ready_at timestamp with time zone,
    started_at timestamp with time zone,
    ended_at timestamp with time zone,
    name text COLLATE "C" NOT NULL,
    follower_namespace text COLLATE "C" NOT NULL,
    follower_id text COLLATE "C" NOT NULL,
    predecessors integer[] NOT NULL DEFAULT '{}'::integer[],
    successors integer[] NOT NULL DEFAULT '{}'::integer[],
    args bytea NOT NULL DEFAULT '\x'::bytea,
    options json,
    constraints json,
    result bytea,
    error_code integer,
    error_reason text,
    error_message text,
    replica_id bigint,
    updated_at timestamp with time zone,
    CONSTRAINT job_nodes_pkey PRIMARY KEY (slot, namespace, process_id, ordinal),
    CONSTRAINT ended_when_final CHECK (((state = ANY (ARRAY['waiting'::progressor.node_state, 'ready'::progressor.node_state, 'running'::progressor.node_state])) = (ended_at IS NULL))),
    CONSTRAINT job_nodes_name_check CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 128))),
    CONSTRAINT job_nodes_ordinal_check CHECK ((ordinal >= 1)),
    CONSTRAINT job_nodes_waits_for_check CHECK ((waits_for >= 0)),
    CONSTRAINT ready_waits_for_nobody CHECK (((state <> ALL (ARRAY['ready'::progressor.node_state, 'running'::progressor.node_state, 'done'::progressor.node_state])) OR (waits_for = 0))),
    CONSTRAINT skipped_has_a_cause CHECK (((state = 'skipped'::progressor.node_state) = (skipped_because_of IS NOT NULL))),
    CONSTRAINT started_when_running CHECK (((state <> 'running'::progressor.node_state) OR (started_at IS NOT NULL)))
) WITH (
    fillfactor=50,
    autovacuum_vacuum_scale_factor=0.05,
    autovacuum_vacuum_insert_scale_factor=0.05,
    autovacuum_analyze_scale_factor=0.05
);

CREATE TABLE progressor.jobs (
    slot smallint NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    process_id text COLLATE "C" NOT NULL,
    state progressor.job_state NOT NULL,
    node_count integer NOT NULL,
    waiting integer NOT NULL DEFAULT 0,
    ready integer NOT NULL DEFAULT 0,
    running integer NOT NULL DEFAULT 0,
    failed integer NOT NULL DEFAULT 0,
    skipped integer NOT NULL DEFAULT 0,
    cancelled integer NOT NULL DEFAULT 0,
    beginning integer NOT NULL DEFAULT 0,
    join_task_id bigint,
    detail text,
    caller_context json,
    trace_context json,
    schedule_id text COLLATE "C",
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone,
    deadline_at timestamp with time zone,
    retry_count integer NOT NULL DEFAULT 0,
    revision bigint NOT NULL DEFAULT 1,
    upkeep_due_at timestamp with time zone,
    fails_nodes boolean NOT NULL DEFAULT false,
    CONSTRAINT jobs_pkey PRIMARY KEY (slot, namespace, process_id),
    CONSTRAINT counts_are_counts CHECK (((LEAST(waiting, ready, running, failed, skipped, cancelled, beginning) >= 0) AND ((((((waiting + ready) + running) + failed) + skipped) + cancelled) <= node_count) AND (beginning <= running))),
    CONSTRAINT ended_when_not_running CHECK (((state = 'running'::progressor.job_state) = (ended_at IS NULL)))
) WITH (
    fillfactor=50,
    autovacuum_vacuum_scale_factor=0.01,
    autovacuum_vacuum_threshold=1000,
    autovacuum_vacuum_cost_delay=0
);

CREATE TABLE progressor.lineage (
    identity text,
    epoch bigint NOT NULL,
    changed_at timestamp with time zone NOT NULL,
    CONSTRAINT lineage_epoch_check CHECK ((epoch >= 1))
);

CREATE TABLE progressor.memos (
    slot smallint NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    process_id text COLLATE "C" NOT NULL,
    task_id bigint NOT NULL,
    key text COLLATE "C" NOT NULL,
    value bytea NOT NULL,
    created_at timestamp with time zone NOT NULL,
    CONSTRAINT memos_pkey PRIMARY KEY (slot, namespace, process_id, task_id, key),
    CONSTRAINT memos_key_check CHECK (((octet_length(key) >= 1) AND (octet_length(key) <= 256)))
) WITH (
    autovacuum_vacuum_scale_factor=0.01,
    autovacuum_vacuum_threshold=1000
);

CREATE TABLE progressor.messages (
    slot smallint NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    process_id text COLLATE "C" NOT NULL,
    message_id bigint NOT NULL,
    init_task_id bigint NOT NULL,
    task_id bigint NOT NULL,
    number integer NOT NULL,
    kind text NOT NULL,
    receiver_slot smallint NOT NULL,
    receiver_namespace text COLLATE "C" NOT NULL,
    receiver_id text COLLATE "C" NOT NULL,
    args bytea NOT NULL,
    caller_context json,
    trace_context json,
    constraints json,
    metadata jsonb,
    created_at timestamp with time zone NOT NULL,
    deliver_at timestamp with time zone NOT NULL,
    reply text,
    receiver_init_id bigint,
    CONSTRAINT messages_pkey PRIMARY KEY (slot, namespace, process_id, message_id),
    CONSTRAINT messages_kind_check CHECK ((kind = ANY (ARRAY['start'::text, 'notify'::text, 'call'::text, 'reply'::text])))
) WITH (
    autovacuum_vacuum_scale_factor=0.01,
    autovacuum_vacuum_threshold=1000,
    autovacuum_vacuum_cost_delay=0
);

CREATE TABLE progressor.migrations (
    number integer NOT NULL,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamp with time zone NOT NULL DEFAULT now(),
    CONSTRAINT migrations_pkey PRIMARY KEY (number)
);

CREATE TABLE progressor.namespaces (
    name text COLLATE "C" NOT NULL,
    revision bigint NOT NULL,
    config jsonb NOT NULL,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    paused_at timestamp with time zone,
    pause_reason text,
    pause_author text,
    refuses_requests boolean NOT NULL DEFAULT false,
    CONSTRAINT namespaces_pkey PRIMARY KEY (name),
    CONSTRAINT namespaces_name_check CHECK ((name ~ '^[a-z0-9._-]{1,64}$'::text)),
    CONSTRAINT namespaces_pause_check CHECK ((((paused_at IS NULL) = (pause_reason IS NULL)) AND ((paused_at IS NULL) = (pause_author IS NULL)) AND ((paused_at IS NOT NULL) OR (NOT refuses_requests)))),
    CONSTRAINT namespaces_revision_check CHECK ((revision >= 1))
);

CREATE TABLE progressor.new_failures (
    failure_number bigint NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    failure_id text COLLATE "C" NOT NULL,
    reason text NOT NULL,
    message text NOT NULL,
    task_type progressor.task_type,
    release text NOT NULL,
    seen_at timestamp with time zone NOT NULL,
    failure_count bigint NOT NULL,
    process_id text COLLATE "C" NOT NULL,
    CONSTRAINT new_failures_pkey PRIMARY KEY (failure_number),
    CONSTRAINT new_failures_failure_count_check CHECK ((failure_count > 0))
) WITH (
    autovacuum_vacuum_threshold=1000,
    autovacuum_vacuum_scale_factor=0.01,
    autovacuum_vacuum_cost_delay=0
);

CREATE TABLE progressor.orders (
    namespace text COLLATE "C" NOT NULL,
    order_key text COLLATE "C" NOT NULL,
    CONSTRAINT orders_pkey PRIMARY KEY (namespace, order_key),
    CONSTRAINT orders_order_key_check CHECK (((octet_length(order_key) >= 1) AND (octet_length(order_key) <= 256)))
) WITH (
    autovacuum_vacuum_scale_factor=0.01,
    autovacuum_vacuum_threshold=1000,
    autovacuum_vacuum_cost_delay=0,
    vacuum_index_cleanup=on
);

CREATE TABLE progressor.orphans (
    slot smallint NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    process_id text COLLATE "C" NOT NULL,
    init_task_id bigint NOT NULL,
    CONSTRAINT orphans_pkey PRIMARY KEY (slot, namespace, process_id)
);

CREATE TABLE progressor.process_count_state (
    is_exact boolean NOT NULL,
    replica_id bigint NOT NULL,
    scanned_at timestamp with time zone,
    scan_due_at timestamp with time zone NOT NULL
);

CREATE TABLE progressor.process_counts (
    namespace text COLLATE "C" NOT NULL,
    status_before progressor.process_status,
    status_after progressor.process_status,
    process_count bigint NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor=0,
    autovacuum_vacuum_threshold=2000
);

CREATE TABLE progressor.processes (
    slot smallint NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    process_id text COLLATE "C" NOT NULL,
    status progressor.process_status NOT NULL,
    previous_status progressor.process_status,
    detail text,
    aux_state bytea NOT NULL DEFAULT '\x'::bytea,
    metadata jsonb,
    corrupted_by bigint,
    created_at timestamp with time zone NOT NULL,
    status_changed_at timestamp with time zone NOT NULL,
    last_event_id bigint NOT NULL DEFAULT 0,
    init_task_id bigint NOT NULL,
    result bytea,
    finished_at timestamp with time zone,
    is_gated boolean NOT NULL DEFAULT false,
    led_by text,
    leader_slot smallint,
    leader_namespace text COLLATE "C",
    leader_id text COLLATE "C",
    node integer,
    job_options json,
    state_version integer NOT NULL DEFAULT 0,
    end_reason text,
    awaited_by bigint[],
    has_named_timers boolean NOT NULL DEFAULT false,
    has_reply_requests boolean NOT NULL DEFAULT false,
    has_asked boolean NOT NULL DEFAULT false,
    broken_at timestamp with time zone,
    failure_id text COLLATE "C",
    failure_reason text COLLATE "C",
    CONSTRAINT processes_pkey PRIMARY KEY (slot, namespace, process_id),
    CONSTRAINT corrupted_only_in_error CHECK (((corrupted_by IS NULL) OR (status = 'error'::progressor.process_status))),
    CONSTRAINT detail_with_error CHECK (((status = 'error'::progressor.process_status) = (detail IS NOT NULL))),
    CONSTRAINT finished_at_when_finished CHECK (((status = 'finished'::progressor.process_status) = (finished_at IS NOT NULL)))
) WITH (
    autovacuum_analyze_scale_factor=0.05,
    fillfactor=70,
    autovacuum_vacuum_scale_factor=0,
    autovacuum_vacuum_threshold=200000,
    autovacuum_vacuum_insert_scale_factor=0,
    autovacuum_vacuum_insert_threshold=200000,
    autovacuum_freeze_min_age=0
);

CREATE TABLE progressor.refused_messages (
    slot smallint NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    process_id text COLLATE "C" NOT NULL,
    task_id bigint NOT NULL,
    number integer NOT NULL,
    kind text NOT NULL,
    receiver_namespace text COLLATE "C" NOT NULL,
    receiver_id text COLLATE "C" NOT NULL,
    reason text NOT NULL,
    refused_at timestamp with time zone NOT NULL,
    CONSTRAINT refused_messages_pkey PRIMARY KEY (slot, namespace, process_id, task_id, number)
);

CREATE TABLE progressor.replicas (
    replica_id bigint NOT NULL,
    name text NOT NULL,
    version text NOT NULL,
    functions text NOT NULL,
    started_at timestamp with time zone NOT NULL,
    heartbeat_at timestamp with time zone NOT NULL,
    draining boolean NOT NULL DEFAULT false,
    lease_timeout interval,
    step_count integer,
    caller_count integer,
    clock_offset double precision,
    facts json,
    rates json,
    CONSTRAINT replicas_pkey PRIMARY KEY (replica_id)
) WITH (
    fillfactor=50
);

CREATE TABLE progressor.replies (
    task_id bigint NOT NULL,
    task_type progressor.task_type NOT NULL,
    status progressor.task_status NOT NULL,
    response bytea,
    error_code integer,
    error_reason text,
    error_message text,
    error_rejected boolean,
    error_metadata json,
    created_at timestamp with time zone NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    process_id text COLLATE "C" NOT NULL,
    idempotency_key text COLLATE "C",
    fingerprint bytea,
    slot smallint NOT NULL,
    CONSTRAINT replies_pkey PRIMARY KEY (slot, namespace, process_id, task_id)
) WITH (
    autovacuum_vacuum_scale_factor=0.01,
    autovacuum_vacuum_threshold=1000
);

CREATE TABLE progressor.reply_requests (
    slot smallint NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    process_id text COLLATE "C" NOT NULL,
    task_id bigint NOT NULL,
    kind text NOT NULL,
    reply text NOT NULL,
    sender_slot smallint NOT NULL,
    sender_namespace text COLLATE "C" NOT NULL,
    sender_id text COLLATE "C" NOT NULL,
    sender_init_id bigint NOT NULL,
    sender_task_id bigint NOT NULL,
    number integer NOT NULL,
    sent_at timestamp with time zone NOT NULL DEFAULT now(),
    CONSTRAINT reply_requests_pkey PRIMARY KEY (slot, namespace, process_id, task_id)
);

CREATE TABLE progressor.running (
    slot smallint NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    process_id text COLLATE "C" NOT NULL,
    task_id bigint NOT NULL,
    task_type progressor.task_type NOT NULL,
    attempt integer NOT NULL,
    token bigint NOT NULL,
    previous_token bigint,
    replica_id bigint NOT NULL,
    leased_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    has_memos boolean,
    CONSTRAINT running_pkey PRIMARY KEY (slot, namespace, process_id)
) WITH (
    fillfactor=50,
    autovacuum_vacuum_scale_factor=0.01,
    autovacuum_vacuum_threshold=1000,
    autovacuum_vacuum_cost_delay=0,
    vacuum_index_cleanup=on
);

CREATE TABLE progressor.schedule (
    slot smallint NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    process_id text COLLATE "C" NOT NULL,
    task_id bigint NOT NULL,
    task_type progressor.task_type NOT NULL,
    status progressor.task_status NOT NULL,
    due_at timestamp with time zone,
    attempt integer NOT NULL DEFAULT 0,
    replica_id bigint NOT NULL,
    CONSTRAINT schedule_pkey PRIMARY KEY (slot, namespace, process_id, task_id),
    CONSTRAINT only_timers_are_blocked CHECK (((status = 'waiting'::progressor.task_status) OR (task_type = ANY (ARRAY['timeout'::progressor.task_type, 'remove'::progressor.task_type])))),
    CONSTRAINT schedule_status_check CHECK ((status = ANY (ARRAY['waiting'::progressor.task_status, 'blocked'::progressor.task_status]))),
    CONSTRAINT timers_are_due CHECK (((due_at IS NOT NULL) OR (task_type <> ALL (ARRAY['timeout'::progressor.task_type, 'remove'::progressor.task_type]))))
) WITH (
    autovacuum_vacuum_scale_factor=0.01,
    autovacuum_vacuum_threshold=1000,
    autovacuum_vacuum_cost_delay=0,
    fillfactor=100,
    vacuum_index_cleanup=on
);

CREATE TABLE progressor.schedule_runs (
    slot smallint NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    schedule_id text COLLATE "C" NOT NULL,
    instant timestamp with time zone NOT NULL,
    cause progressor.schedule_run_cause NOT NULL,
    state progressor.schedule_run_state NOT NULL,
    overlap_policy progressor.overlap_policy NOT NULL,
    due_at timestamp with time zone NOT NULL,
    recorded_at timestamp with time zone NOT NULL,
    started_at timestamp with time zone,
    ended_at timestamp with time zone,
    process_slot smallint,
    process_id text COLLATE "C",
    task_type progressor.task_type,
    task_id bigint,
    error_code integer,
    error_reason text,
    error_message text,
    missed_count bigint,
    missed_until timestamp with time zone,
    idempotency_key text COLLATE "C",
    CONSTRAINT schedule_runs_pkey PRIMARY KEY (slot, namespace, schedule_id, instant),
    CONSTRAINT only_missed_are_counted CHECK ((((state = 'missed'::progressor.schedule_run_state) = (missed_count IS NOT NULL)) AND ((missed_count IS NULL) = (missed_until IS NULL)))),
    CONSTRAINT running_has_started CHECK (((state = ANY (ARRAY['running'::progressor.schedule_run_state, 'done'::progressor.schedule_run_state, 'failed'::progressor.schedule_run_state, 'gone'::progressor.schedule_run_state])) <= (task_id IS NOT NULL))),
    CONSTRAINT started_has_a_task CHECK (((started_at IS NULL) = (task_id IS NULL)))
) WITH (
    fillfactor=70,
    autovacuum_vacuum_scale_factor=0.05,
    autovacuum_vacuum_insert_scale_factor=0.05,
    autovacuum_analyze_scale_factor=0.05
);

CREATE TABLE progressor.schedules (
    slot smallint NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    schedule_id text COLLATE "C" NOT NULL,
    cron text,
    time_zone text,
    every interval,
    anchor timestamp with time zone,
    jitter interval NOT NULL,
    start_at timestamp with time zone,
    end_at timestamp with time zone,
    overlap_policy progressor.overlap_policy NOT NULL,
    catch_up_window interval NOT NULL,
    target text NOT NULL,
    target_id text COLLATE "C" NOT NULL,
    args bytea NOT NULL,
    caller_context json,
    metadata jsonb,
    history_after bigint,
    history_limit integer,
    history_backward boolean,
    constraints json,
    fingerprint bytea NOT NULL,
    paused boolean NOT NULL,
    note text NOT NULL,
    revision bigint NOT NULL DEFAULT 1,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    next_instant timestamp with time zone,
    next_at timestamp with time zone,
    claimed_until timestamp with time zone,
    started_count bigint NOT NULL DEFAULT 0,
    skipped_count bigint NOT NULL DEFAULT 0,
    missed_count bigint NOT NULL DEFAULT 0,
    refused_count bigint NOT NULL DEFAULT 0,
    forgotten_from timestamp with time zone,
    forgotten_until timestamp with time zone,
    CONSTRAINT schedules_pkey PRIMARY KEY (slot, namespace, schedule_id),
    CONSTRAINT cron_has_a_zone CHECK (((cron IS NULL) = (time_zone IS NULL))),
    CONSTRAINT cron_or_interval CHECK (((cron IS NULL) = (every IS NOT NULL))),
    CONSTRAINT forgotten_is_a_span CHECK ((((forgotten_from IS NULL) = (forgotten_until IS NULL)) AND (forgotten_from <= forgotten_until))),
    CONSTRAINT interval_has_an_anchor CHECK (((every IS NULL) = (anchor IS NULL))),
    CONSTRAINT next_at_not_before_instant CHECK ((next_at >= next_instant)),
    CONSTRAINT next_is_whole CHECK (((next_instant IS NULL) = (next_at IS NULL))),
    CONSTRAINT paused_has_no_next CHECK (((NOT paused) OR (next_at IS NULL))),
    CONSTRAINT schedules_schedule_id_check CHECK (((octet_length(schedule_id) >= 1) AND (octet_length(schedule_id) <= 128))),
    CONSTRAINT schedules_target_check CHECK ((target = ANY (ARRAY['start'::text, 'call'::text, 'notify'::text, 'job'::text])))
) WITH (
    fillfactor=50,
    autovacuum_vacuum_scale_factor=0.01,
    autovacuum_vacuum_threshold=1000,
    autovacuum_vacuum_cost_delay=0
);

CREATE TABLE progressor.tasks (
    slot smallint NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    process_id text COLLATE "C" NOT NULL,
    task_id bigint NOT NULL,
    task_type progressor.task_type NOT NULL,
    status progressor.task_status NOT NULL,
    attempt_count integer NOT NULL DEFAULT 0,
    created_at timestamp with time zone NOT NULL,
    scheduled_at timestamp with time zone,
    first_started_at timestamp with time zone,
    started_at timestamp with time zone,
    finished_at timestamp with time zone,
    token bigint,
    first_event_id bigint,
    event_count integer NOT NULL DEFAULT 0,
    step_timeout interval,
    history_after bigint,
    history_limit integer,
    history_backward boolean,
    args bytea NOT NULL DEFAULT '\x'::bytea,
    caller_context json,
    trace_context json,
    idempotency_key text COLLATE "C",
    fingerprint bytea,
    reply_to bigint[],
    response bytea,
    error_code integer,
    error_reason text,
    error_message text,
    error_rejected boolean,
    error_metadata json,
    constraints json,
    spent_us bigint[],
    replica_id bigint,
    is_acknowledged boolean NOT NULL DEFAULT false,
    timer_name text COLLATE "C",
    has_memos boolean,
    sender json,
    tried_for interval,
    CONSTRAINT tasks_pkey PRIMARY KEY (slot, namespace, process_id, task_id),
    CONSTRAINT finished_when_final CHECK (((finished_at IS NOT NULL) = (status = ANY (ARRAY['finished'::progressor.task_status, 'error'::progressor.task_status, 'cancelled'::progressor.task_status]))))
) WITH (
    fillfactor=60,
    autovacuum_analyze_scale_factor=0.05,
    autovacuum_vacuum_scale_factor=0,
    autovacuum_vacuum_threshold=200000,
    autovacuum_vacuum_insert_scale_factor=0,
    autovacuum_vacuum_insert_threshold=200000,
    autovacuum_freeze_min_age=0
);

CREATE TABLE progressor.upkeep_rounds (
    kind text COLLATE "C" NOT NULL,
    due_at timestamp with time zone NOT NULL,
    replica_id bigint,
    begun_at timestamp with time zone,
    CONSTRAINT upkeep_rounds_pkey PRIMARY KEY (kind)
);

CREATE UNIQUE INDEX audit_entries_by_number ON progressor.audit_entries USING btree (number) WHERE (number IS NOT NULL);

CREATE UNIQUE INDEX audit_entries_by_request ON progressor.audit_entries USING btree (request_id) WHERE (result = 'OK'::text);

CREATE INDEX audit_entries_by_time ON progressor.audit_entries USING btree (written_at, entry_id);

CREATE INDEX audit_entries_unsealed ON progressor.audit_entries USING btree (entry_id) WHERE (number IS NULL);

CREATE INDEX bulk_items_failed ON progressor.bulk_items USING btree (operation_id, item) WHERE (result = 'failed'::text);

CREATE INDEX bulk_items_followed ON progressor.bulk_items USING btree (operation_id, init_task_id) WHERE follow;

CREATE INDEX bulk_operations_by_creation ON progressor.bulk_operations USING btree (created_at DESC, operation_id DESC);

CREATE INDEX gate_holders_by_gate ON progressor.gate_holders USING btree (namespace, gate, held_at);

CREATE INDEX gate_queues_by_age ON progressor.gate_queues USING btree (namespace, waits_on, oldest_at, oldest_id);

CREATE INDEX gate_queues_by_head ON progressor.gate_queues USING btree (namespace, waits_on, head_priority, head_task_id);

CREATE INDEX gated_by_age ON progressor.gated USING btree (namespace, queue, ready_at, task_id) WHERE (queue IS NOT NULL);

CREATE INDEX gated_by_cause ON progressor.gated USING btree (namespace, cause, state_since);

CREATE INDEX gated_by_head ON progressor.gated USING btree (namespace, queue, priority, task_id) WHERE (queue IS NOT NULL);

CREATE INDEX gated_by_instant ON progressor.gated USING btree (slot, namespace, process_id, run_at) WHERE (state = 'time'::progressor.gated_state);

CREATE INDEX gated_by_order ON progressor.gated USING btree (namespace, order_key, order_version, task_id) WHERE (order_key IS NOT NULL);

CREATE INDEX gated_by_state ON progressor.gated USING btree (slot, namespace, process_id, state, gates, task_id);

CREATE INDEX gated_by_time ON progressor.gated USING btree (namespace, run_at) WHERE (state = 'time'::progressor.gated_state);

CREATE INDEX gated_inits ON progressor.gated USING btree (namespace, state_since) WHERE ((task_type = 'init'::progressor.task_type) AND (state <> 'available'::progressor.gated_state));

CREATE INDEX gated_timers ON progressor.gated USING btree (slot, namespace, process_id) WHERE (task_type = ANY (ARRAY['timeout'::progressor.task_type, 'remove'::progressor.task_type]));

CREATE INDEX gates_lowered ON progressor.gates USING btree (lowered_at) WHERE (lowered_at IS NOT NULL);

CREATE INDEX held_by_age ON progressor.held USING btree (namespace, held_at);

CREATE INDEX job_nodes_ready ON progressor.job_nodes USING btree (slot, namespace, process_id, gated, ordinal) WHERE queued;

CREATE INDEX jobs_by_creation ON progressor.jobs USING btree (namespace COLLATE "POSIX", created_at DESC, process_id COLLATE "POSIX" DESC);

CREATE INDEX jobs_by_deadline ON progressor.jobs USING btree (deadline_at) WHERE ((state = 'running'::progressor.job_state) AND (deadline_at IS NOT NULL));

CREATE INDEX jobs_running ON progressor.jobs USING btree (slot, namespace, process_id) WHERE (state = 'running'::progressor.job_state);

CREATE INDEX jobs_upkeep_due ON progressor.jobs USING btree (upkeep_due_at) WHERE (upkeep_due_at IS NOT NULL);

CREATE INDEX messages_due ON progressor.messages USING btree (deliver_at);

CREATE INDEX namespaces_paused ON progressor.namespaces USING btree (name) WHERE (paused_at IS NOT NULL);

CREATE INDEX processes_by_creation ON progressor.processes USING btree (namespace COLLATE "POSIX", created_at DESC, process_id COLLATE "POSIX" DESC);

CREATE INDEX processes_by_failure ON progressor.processes USING btree (namespace COLLATE "POSIX", failure_id COLLATE "POSIX", created_at DESC, process_id COLLATE "POSIX" DESC) WHERE (detail IS NOT NULL);

CREATE INDEX processes_by_metadata ON progressor.processes USING gin (metadata jsonb_path_ops) WHERE (metadata IS NOT NULL);

CREATE INDEX processes_finished ON progressor.processes USING btree (namespace, finished_at) WHERE (finished_at IS NOT NULL);

CREATE INDEX processes_in_error ON progressor.processes USING btree (namespace COLLATE "POSIX", created_at DESC, process_id COLLATE "POSIX" DESC, broken_at, failure_reason COLLATE "POSIX") WHERE (detail IS NOT NULL);

CREATE INDEX replies_by_creation ON progressor.replies USING btree (created_at);

CREATE INDEX replies_by_idempotency_key ON progressor.replies USING btree (slot, namespace, process_id, idempotency_key) WHERE (idempotency_key IS NOT NULL);

CREATE INDEX reply_requests_awaited ON progressor.reply_requests USING btree (sender_slot, sender_namespace, sender_id, sender_init_id, sender_task_id, number);

CREATE INDEX schedule_due ON progressor.schedule USING btree (namespace, due_at) WHERE ((status = 'waiting'::progressor.task_status) AND (due_at IS NOT NULL));

CREATE INDEX schedule_due_requests ON progressor.schedule USING btree (namespace, due_at) WHERE ((due_at IS NOT NULL) AND (task_type <> ALL (ARRAY['timeout'::progressor.task_type, 'remove'::progressor.task_type])));

CREATE INDEX schedule_retries ON progressor.schedule USING btree (namespace, due_at) WHERE ((attempt > 0) AND (due_at IS NOT NULL));

CREATE INDEX schedule_timer ON progressor.schedule USING btree (slot, namespace, process_id, due_at, task_id) WHERE (task_type = ANY (ARRAY['timeout'::progressor.task_type, 'remove'::progressor.task_type]));

CREATE UNIQUE INDEX schedule_runs_by_key ON progressor.schedule_runs USING btree (slot, namespace, schedule_id, idempotency_key) WHERE (idempotency_key IS NOT NULL);

CREATE INDEX schedule_runs_queued ON progressor.schedule_runs USING btree (slot, namespace, schedule_id, instant) WHERE (state = 'queued'::progressor.schedule_run_state);

CREATE INDEX schedule_runs_running ON progressor.schedule_runs USING btree (slot, namespace, schedule_id, instant) WHERE (state = 'running'::progressor.schedule_run_state);

CREATE INDEX schedules_by_id ON progressor.schedules USING btree (namespace, schedule_id);

CREATE INDEX schedules_due ON progressor.schedules USING btree (next_at) WHERE (next_at IS NOT NULL);

CREATE INDEX schedules_due_in_namespace ON progressor.schedules USING btree (namespace, next_at) WHERE (next_at IS NOT NULL);

CREATE UNIQUE INDEX tasks_by_idempotency_key ON progressor.tasks USING btree (slot, namespace, process_id, idempotency_key) WHERE (idempotency_key IS NOT NULL);
