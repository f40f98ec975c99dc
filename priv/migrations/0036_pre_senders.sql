-- Whose step has sent the message that became the task: [namespace, process_id, task_id]. Null: no step has sent it.
ALTER TABLE progressor.tasks ADD COLUMN sender json;
