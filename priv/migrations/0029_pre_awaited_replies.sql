-- Shows which replies a process waits for, and since when. The default is for the functions of the release before.
ALTER TABLE progressor.reply_requests
    ADD COLUMN sent_at timestamptz NOT NULL DEFAULT now();

CREATE INDEX reply_requests_awaited ON progressor.reply_requests (
    sender_slot, sender_namespace, sender_id, sender_init_id, sender_task_id, number);

-- Whether a step of the process has asked for a reply: a read of the process looks for these only then.
ALTER TABLE progressor.processes ADD COLUMN has_asked boolean NOT NULL DEFAULT false;
