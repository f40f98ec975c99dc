-- Keys compare their bytes, whatever the database's collation is: look-ups need no locale, order is that of every other
-- language, and an upgrade of a library cannot reorder an index. No table is rewritten, but the indexes on these
-- columns are built again, while the table is locked: two to three seconds for a million entries. Text that is neither
-- a key nor in an index keeps the database's collation.

-- No look-up by key may take an index of List, which has the same columns but the slot: they have the same order by another
-- name, POSIX, as they had "C" before the keys had it. Lists of an earlier release that runs beside this one sort.
DROP INDEX progressor.jobs_by_creation;
DROP INDEX progressor.processes_by_creation;
DROP INDEX progressor.processes_by_failure;
DROP INDEX progressor.processes_in_error;

ALTER TABLE progressor.access_bindings
    ALTER COLUMN principal TYPE text COLLATE "C",
    ALTER COLUMN role TYPE text COLLATE "C",
    ALTER COLUMN namespace TYPE text COLLATE "C";
ALTER TABLE progressor.access_tokens ALTER COLUMN token_id TYPE text COLLATE "C";
ALTER TABLE progressor.audit_entries ALTER COLUMN result TYPE text COLLATE "C";
ALTER TABLE progressor.bulk_items
    ALTER COLUMN operation_id TYPE text COLLATE "C",
    ALTER COLUMN namespace TYPE text COLLATE "C",
    ALTER COLUMN process_id TYPE text COLLATE "C",
    ALTER COLUMN result TYPE text COLLATE "C";
ALTER TABLE progressor.bulk_operations
    ALTER COLUMN operation_id TYPE text COLLATE "C",
    ALTER COLUMN after_namespace TYPE text COLLATE "C",
    ALTER COLUMN after_process_id TYPE text COLLATE "C";
ALTER TABLE progressor.events
    ALTER COLUMN namespace TYPE text COLLATE "C",
    ALTER COLUMN process_id TYPE text COLLATE "C";
ALTER TABLE progressor.failures
    ALTER COLUMN namespace TYPE text COLLATE "C",
    ALTER COLUMN failure_id TYPE text COLLATE "C",
    ALTER COLUMN sample_process_id TYPE text COLLATE "C";
ALTER TABLE progressor.gate_holders
    ALTER COLUMN namespace TYPE text COLLATE "C",
    ALTER COLUMN process_id TYPE text COLLATE "C",
    ALTER COLUMN gate TYPE text COLLATE "C";
ALTER TABLE progressor.gate_queues
    ALTER COLUMN namespace TYPE text COLLATE "C",
    ALTER COLUMN queue TYPE text COLLATE "C",
    ALTER COLUMN gates TYPE text[] COLLATE "C",
    ALTER COLUMN waits_on TYPE text COLLATE "C";
ALTER TABLE progressor.gated
    ALTER COLUMN namespace TYPE text COLLATE "C",
    ALTER COLUMN process_id TYPE text COLLATE "C",
    ALTER COLUMN order_key TYPE text COLLATE "C",
    ALTER COLUMN gates TYPE text[] COLLATE "C",
    ALTER COLUMN queue TYPE text COLLATE "C",
    ALTER COLUMN cause TYPE text COLLATE "C";
ALTER TABLE progressor.gates
    ALTER COLUMN namespace TYPE text COLLATE "C",
    ALTER COLUMN gate TYPE text COLLATE "C";
ALTER TABLE progressor.held
    ALTER COLUMN namespace TYPE text COLLATE "C",
    ALTER COLUMN process_id TYPE text COLLATE "C";
ALTER TABLE progressor.job_nodes
    ALTER COLUMN namespace TYPE text COLLATE "C",
    ALTER COLUMN process_id TYPE text COLLATE "C",
    ALTER COLUMN name TYPE text COLLATE "C",
    ALTER COLUMN follower_namespace TYPE text COLLATE "C",
    ALTER COLUMN follower_id TYPE text COLLATE "C";
ALTER TABLE progressor.jobs
    ALTER COLUMN namespace TYPE text COLLATE "C",
    ALTER COLUMN process_id TYPE text COLLATE "C",
    ALTER COLUMN schedule_id TYPE text COLLATE "C";
ALTER TABLE progressor.memos
    ALTER COLUMN namespace TYPE text COLLATE "C",
    ALTER COLUMN process_id TYPE text COLLATE "C",
    ALTER COLUMN key TYPE text COLLATE "C";
ALTER TABLE progressor.messages
    ALTER COLUMN namespace TYPE text COLLATE "C",
    ALTER COLUMN process_id TYPE text COLLATE "C",
    ALTER COLUMN receiver_namespace TYPE text COLLATE "C",
    ALTER COLUMN receiver_id TYPE text COLLATE "C";
ALTER TABLE progressor.namespaces ALTER COLUMN name TYPE text COLLATE "C";
ALTER TABLE progressor.new_failures
    ALTER COLUMN namespace TYPE text COLLATE "C",
    ALTER COLUMN failure_id TYPE text COLLATE "C",
    ALTER COLUMN process_id TYPE text COLLATE "C";
ALTER TABLE progressor.orders
    ALTER COLUMN namespace TYPE text COLLATE "C",
    ALTER COLUMN order_key TYPE text COLLATE "C";
ALTER TABLE progressor.orphans
    ALTER COLUMN namespace TYPE text COLLATE "C",
    ALTER COLUMN process_id TYPE text COLLATE "C";
ALTER TABLE progressor.process_counts ALTER COLUMN namespace TYPE text COLLATE "C";
ALTER TABLE progressor.processes
    ALTER COLUMN namespace TYPE text COLLATE "C",
    ALTER COLUMN process_id TYPE text COLLATE "C",
    ALTER COLUMN leader_namespace TYPE text COLLATE "C",
    ALTER COLUMN leader_id TYPE text COLLATE "C",
    ALTER COLUMN failure_id TYPE text COLLATE "C",
    ALTER COLUMN failure_reason TYPE text COLLATE "C";
ALTER TABLE progressor.refused_messages
    ALTER COLUMN namespace TYPE text COLLATE "C",
    ALTER COLUMN process_id TYPE text COLLATE "C",
    ALTER COLUMN receiver_namespace TYPE text COLLATE "C",
    ALTER COLUMN receiver_id TYPE text COLLATE "C";
ALTER TABLE progressor.reply_requests
    ALTER COLUMN namespace TYPE text COLLATE "C",
    ALTER COLUMN process_id TYPE text COLLATE "C",
    ALTER COLUMN sender_namespace TYPE text COLLATE "C",
    ALTER COLUMN sender_id TYPE text COLLATE "C";
ALTER TABLE progressor.running
    ALTER COLUMN namespace TYPE text COLLATE "C",
    ALTER COLUMN process_id TYPE text COLLATE "C";
ALTER TABLE progressor.schedule
    ALTER COLUMN namespace TYPE text COLLATE "C",
    ALTER COLUMN process_id TYPE text COLLATE "C";
ALTER TABLE progressor.schedule_runs
    ALTER COLUMN namespace TYPE text COLLATE "C",
    ALTER COLUMN schedule_id TYPE text COLLATE "C",
    ALTER COLUMN process_id TYPE text COLLATE "C",
    ALTER COLUMN idempotency_key TYPE text COLLATE "C";
ALTER TABLE progressor.schedules
    ALTER COLUMN namespace TYPE text COLLATE "C",
    ALTER COLUMN schedule_id TYPE text COLLATE "C",
    ALTER COLUMN target_id TYPE text COLLATE "C";
ALTER TABLE progressor.tasks
    ALTER COLUMN namespace TYPE text COLLATE "C",
    ALTER COLUMN process_id TYPE text COLLATE "C",
    ALTER COLUMN idempotency_key TYPE text COLLATE "C",
    ALTER COLUMN timer_name TYPE text COLLATE "C";
ALTER TABLE progressor.upkeep_rounds ALTER COLUMN kind TYPE text COLLATE "C";

CREATE INDEX jobs_by_creation ON progressor.jobs (
    namespace COLLATE "POSIX", created_at DESC, process_id COLLATE "POSIX" DESC);
CREATE INDEX processes_by_creation ON progressor.processes (
    namespace COLLATE "POSIX", created_at DESC, process_id COLLATE "POSIX" DESC);
CREATE INDEX processes_by_failure ON progressor.processes (
    namespace COLLATE "POSIX", failure_id COLLATE "POSIX", created_at DESC, process_id COLLATE "POSIX" DESC)
    WHERE detail IS NOT NULL;
CREATE INDEX processes_in_error ON progressor.processes (
    namespace COLLATE "POSIX", created_at DESC, process_id COLLATE "POSIX" DESC, broken_at,
    failure_reason COLLATE "POSIX")
    WHERE detail IS NOT NULL;

-- A column that is changed so loses its statistics.
DO $$
DECLARE
    v_table regclass;
BEGIN
    FOR v_table IN
        SELECT c.oid
        FROM pg_catalog.pg_class c
        WHERE c.relnamespace = 'progressor'::regnamespace AND c.relkind = 'r' AND pg_relation_size(c.oid) > 0
    LOOP
        EXECUTE format('ANALYZE %s', v_table);
    END LOOP;
END;
$$;
