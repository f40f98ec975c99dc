-- Who changed what. Rows are inserted in the transaction of the action, sealed in order by seal_audit, and deleted from
-- the front by forget_audit. entry: who, from where, what and why, as progressor/storage/access/audit.py has it.
CREATE TABLE progressor.audit_entries (
    entry_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    request_id uuid NOT NULL GENERATED ALWAYS AS ((entry ->> 'request_id')::uuid) STORED,
    written_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    entry jsonb NOT NULL,
    before jsonb,
    after jsonb,
    result text NOT NULL DEFAULT 'OK',
    left_out bigint NOT NULL DEFAULT 0,
    number bigint,
    hash bytea,
    CHECK ((number IS NULL) = (hash IS NULL))
);
-- A request has one entry of what it has done, also if that was several transactions.
CREATE UNIQUE INDEX audit_entries_by_request ON progressor.audit_entries (request_id) WHERE result = 'OK';
CREATE UNIQUE INDEX audit_entries_by_number ON progressor.audit_entries (number) WHERE number IS NOT NULL;
CREATE INDEX audit_entries_unsealed ON progressor.audit_entries (entry_id) WHERE number IS NULL;
CREATE INDEX audit_entries_by_time ON progressor.audit_entries (written_at, entry_id);

-- Both ends of the chain: the last entry that retention has deleted, and the last one that is sealed. One row.
CREATE TABLE progressor.audit_chain (
    anchor_number bigint NOT NULL,
    anchor_hash bytea NOT NULL,
    head_number bigint NOT NULL,
    head_hash bytea NOT NULL
);
INSERT INTO progressor.audit_chain VALUES (0, '', 0, '');

-- Functions of the tables, not of a release: releases that run side by side must agree on them.

-- Returns the hash of an entry: of the hash before it, and of its columns as a JSON array. It must never change.
CREATE FUNCTION progressor.hash_audit_entry(p_previous bytea, p_entry progressor.audit_entries)
RETURNS bytea
LANGUAGE sql
STABLE
AS $$
    SELECT sha256(p_previous || convert_to(jsonb_build_array(
        p_entry.number, p_entry.entry_id, (extract(epoch FROM p_entry.written_at) * 1000000)::bigint,
        p_entry.entry, p_entry.before, p_entry.after, p_entry.result, p_entry.left_out)::text, 'UTF8'))
$$;

-- Returns what an entry shows of a schedule: neither payloads nor metadata.
CREATE FUNCTION progressor.describe_schedule(p_schedule progressor.schedules)
RETURNS jsonb
LANGUAGE sql
STABLE
AS $$
    SELECT jsonb_strip_nulls(jsonb_build_object(
        'revision', p_schedule.revision, 'cron', p_schedule.cron, 'time_zone', p_schedule.time_zone,
        'every', p_schedule.every, 'anchor', p_schedule.anchor, 'jitter', p_schedule.jitter,
        'start_at', p_schedule.start_at, 'end_at', p_schedule.end_at,
        'overlap_policy', p_schedule.overlap_policy, 'catch_up_window', p_schedule.catch_up_window,
        'target', p_schedule.target, 'target_id', p_schedule.target_id, 'paused', p_schedule.paused,
        'note', nullif(p_schedule.note, '')))
$$;

-- Entries may be sealed, once, and deleted once the anchor has passed them. Whoever owns the table can drop the
-- trigger; what they change then does not fit the chain.
CREATE FUNCTION progressor.protect_audit()
RETURNS trigger
LANGUAGE plpgsql
AS $$
DECLARE
    v_entry progressor.audit_entries%ROWTYPE;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        v_entry := NEW;
        v_entry.number := NULL;
        v_entry.hash := NULL;
        v_entry.request_id := OLD.request_id;  -- generated after this
        IF NEW.number IS NOT NULL AND v_entry IS NOT DISTINCT FROM OLD THEN
            RETURN NEW;
        END IF;
    ELSIF TG_OP = 'DELETE' THEN
        IF OLD.number <= (SELECT c.anchor_number FROM progressor.audit_chain c) THEN
            RETURN OLD;
        END IF;
    END IF;
    RAISE EXCEPTION 'audit entries cannot be changed' USING ERRCODE = 'insufficient_privilege';
END;
$$;
CREATE TRIGGER audit_entries_kept
BEFORE UPDATE OR DELETE ON progressor.audit_entries
FOR EACH ROW EXECUTE FUNCTION progressor.protect_audit();
CREATE TRIGGER audit_entries_not_truncated
BEFORE TRUNCATE ON progressor.audit_entries
FOR EACH STATEMENT EXECUTE FUNCTION progressor.protect_audit();
