-- Whose answers they are: without it, whoever awaits a task of another process by a number that he
-- has guessed would be told them. Null in rows of functions of an older release, gone in minutes.
ALTER TABLE progressor.replies
    ADD COLUMN namespace text,
    ADD COLUMN process_id text;
