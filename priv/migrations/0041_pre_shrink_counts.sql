-- What a long transaction has made of process_counts is given back, since all of it is read each second.
ALTER TABLE progressor.process_counts RESET (vacuum_truncate);
