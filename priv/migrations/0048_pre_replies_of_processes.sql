-- The answers of deleted tasks have the key of their process, like all else that belongs to one: each look-up names the
-- process. Answers without one were left by a release that did not note it, and nobody waits for them.

-- Returns the slot of a process: a CRC-32 of its names, as domain/processes/process.py computes it.
CREATE FUNCTION progressor.slot_of(p_namespace text, p_process_id text)
RETURNS smallint
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_names bytea := convert_to(p_namespace || p_process_id, 'UTF8');
    v_crc   bigint := 4294967295;
BEGIN
    FOR v_byte IN 0 .. length(v_names) - 1 LOOP
        v_crc := v_crc # get_byte(v_names, v_byte);
        FOR v_bit IN 1 .. 8 LOOP
            v_crc := (v_crc >> 1) # (3988292384 * (v_crc & 1));
        END LOOP;
    END LOOP;
    RETURN (v_crc # 4294967295) & 1023;
END;
$$;

DELETE FROM progressor.replies WHERE namespace IS NULL OR process_id IS NULL;
ALTER TABLE progressor.replies ADD COLUMN slot smallint;
UPDATE progressor.replies SET slot = progressor.slot_of(namespace, process_id);

DROP INDEX progressor.replies_by_idempotency_key;
ALTER TABLE progressor.replies
    ALTER COLUMN namespace TYPE text COLLATE "C",
    ALTER COLUMN process_id TYPE text COLLATE "C",
    ALTER COLUMN idempotency_key TYPE text COLLATE "C",
    DROP CONSTRAINT replies_pkey,
    ADD CONSTRAINT replies_pkey PRIMARY KEY (slot, namespace, process_id, task_id);
CREATE INDEX replies_by_idempotency_key
    ON progressor.replies (slot, namespace, process_id, idempotency_key)
    WHERE (idempotency_key IS NOT NULL);

-- The functions of earlier releases, which may run beside this one, insert answers without a slot. To be dropped, with
-- slot_of, once there are none.
CREATE FUNCTION progressor.place_reply()
RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    NEW.slot := progressor.slot_of(NEW.namespace, NEW.process_id);
    RETURN NEW;
END;
$$;
CREATE TRIGGER replies_placed
BEFORE INSERT ON progressor.replies
FOR EACH ROW WHEN (NEW.slot IS NULL) EXECUTE FUNCTION progressor.place_reply();
