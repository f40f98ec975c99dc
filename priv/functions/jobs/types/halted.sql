-- What processes or jobs that were ended from outside of their steps leave to the replica; null: nothing.
CREATE TYPE halted AS (
    cancelled jsonb,  -- [[slot, namespace, process_id, tasks], ...], the tasks as settle_tasks returns the cancelled ones
    jobs      jsonb,  -- [[slot, namespace, process_id], ...]; each function says which
    effects   jsonb   -- as settle_gates returns them
);
