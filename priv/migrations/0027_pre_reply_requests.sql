-- Answers to messages: a message names the reply that its sender wants, and a reply is a message back.
ALTER TABLE progressor.messages
    ADD COLUMN reply text,
    ADD COLUMN receiver_init_id bigint,  -- of a reply: the sender's init task, by which it is known
    DROP CONSTRAINT messages_kind_check,
    ADD CONSTRAINT messages_kind_check CHECK (kind IN ('start', 'notify', 'call', 'reply'));

-- Tasks from messages whose senders want to know how they end; of a start, how the process ends.
CREATE TABLE progressor.reply_requests (
    slot             smallint NOT NULL,
    namespace        text NOT NULL,
    process_id       text NOT NULL,
    task_id          bigint NOT NULL,
    kind             text NOT NULL,
    reply            text NOT NULL,
    sender_slot      smallint NOT NULL,
    sender_namespace text NOT NULL,
    sender_id        text NOT NULL,
    sender_init_id   bigint NOT NULL,
    sender_task_id   bigint NOT NULL,
    number           integer NOT NULL,
    PRIMARY KEY (slot, namespace, process_id, task_id)
);

-- Whether the process has rows there: a settlement reads it with the row that it locks anyway.
ALTER TABLE progressor.processes ADD COLUMN has_reply_requests boolean NOT NULL DEFAULT false;
