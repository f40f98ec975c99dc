-- Who may do what. A binding gives a role to the principals and in the namespaces that its patterns match.
CREATE TABLE progressor.access_bindings (
    principal text NOT NULL,
    role text NOT NULL,
    namespace text NOT NULL,
    created_at timestamptz NOT NULL,
    created_by text NOT NULL,
    PRIMARY KEY (principal, role, namespace)
);

-- API tokens: of the secret there is only a hash. Several may have one name, so that a new one can replace
-- an old one without a gap.
CREATE TABLE progressor.access_tokens (
    token_id text PRIMARY KEY,
    name text NOT NULL,
    secret_hash bytea NOT NULL,
    created_at timestamptz NOT NULL,
    created_by text NOT NULL,
    expires_at timestamptz,
    revoked_at timestamptz,
    last_used_at timestamptz
);

-- Each change of the two adds 1. Heartbeats read it, so that no replica goes by what is older than its last one.
CREATE TABLE progressor.access_revision (
    revision bigint NOT NULL
);
INSERT INTO progressor.access_revision VALUES (0);
