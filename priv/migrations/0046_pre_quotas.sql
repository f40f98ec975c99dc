-- What a replica tells the others of the rates that it shares with them: by namespace and quota, its demand and its share.
ALTER TABLE progressor.replicas ADD COLUMN rates json;
