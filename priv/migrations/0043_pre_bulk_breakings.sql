-- `broken_token` is the token of the task that had broken the process when it matched, and identifies the breaking beside
-- `broken_by`: instants may repeat where a clock is set back. Null: no task had, or an older release has added the item.
ALTER TABLE progressor.bulk_items ADD COLUMN broken_token bigint;
