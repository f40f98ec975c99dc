-- A paused namespace: no step of it begins. Not part of its configuration, which only updates change.
ALTER TABLE progressor.namespaces
    ADD COLUMN paused_at timestamptz,
    ADD COLUMN pause_reason text,
    ADD COLUMN pause_author text,
    ADD COLUMN refuses_requests boolean NOT NULL DEFAULT false,
    ADD CONSTRAINT namespaces_pause_check CHECK (
        (paused_at IS NULL) = (pause_reason IS NULL)
        AND (paused_at IS NULL) = (pause_author IS NULL)
        AND (paused_at IS NOT NULL OR NOT refuses_requests));

-- Each heartbeat reads which namespaces are paused: usually none.
CREATE INDEX namespaces_paused ON progressor.namespaces (name) WHERE paused_at IS NOT NULL;
