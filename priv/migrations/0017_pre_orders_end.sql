-- The row of an order goes with the last task of the order, and comes back with the next one.
ALTER TABLE progressor.orders SET (
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0, vacuum_index_cleanup = on
);

-- Those that earlier releases left behind. One that gets a task meanwhile is made anew when it is locked.
DELETE FROM progressor.orders o
WHERE NOT EXISTS (
    SELECT FROM progressor.gated g WHERE (g.namespace, g.order_key) = (o.namespace, o.order_key)
);
