-- Drops constraints of what the functions themselves bound. PostgreSQL parses and plans each constraint of a table
-- again in every statement that writes to the table, also in one of a single row: these took 4 to 12 % of the time of
-- a small batch. What ties columns to a status stays.
ALTER TABLE progressor.processes
    DROP CONSTRAINT processes_process_id_check,
    DROP CONSTRAINT processes_last_event_id_check,
    DROP CONSTRAINT processes_led_by_check,
    DROP CONSTRAINT follower_is_whole;
ALTER TABLE progressor.tasks
    DROP CONSTRAINT tasks_attempt_count_check,
    DROP CONSTRAINT blocked_only_in_schedule;
ALTER TABLE progressor.events DROP CONSTRAINT events_event_id_check;
