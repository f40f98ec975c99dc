-- What was asked under which key, of a process that is gone: who asks again finds the answer.
ALTER TABLE progressor.replies
    ADD COLUMN idempotency_key text,
    ADD COLUMN fingerprint bytea;

-- A small table, whose rows live for minutes.
CREATE INDEX replies_by_idempotency_key
    ON progressor.replies (namespace, process_id, idempotency_key)
    WHERE (idempotency_key IS NOT NULL);
