-- When a replica of a release has last started, so that its functions are removed once they are of no use.
CREATE TABLE progressor.function_schemas (
    schema  text COLLATE "C" NOT NULL PRIMARY KEY,
    used_at timestamptz NOT NULL
);
