-- mcp-idempotent, SQLite, version 1.
-- Times are microseconds since the Unix epoch, by SQLite's own clock.

-- One row: which migrations have run, and the last fencing token that was given out. A token is
-- never given out twice, also after its record is gone.
CREATE TABLE mcp_idempotent_store (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    schema_version INTEGER NOT NULL,
    last_token INTEGER NOT NULL
);

INSERT INTO mcp_idempotent_store (only_row, schema_version, last_token) VALUES (1, 1, 0);

CREATE TABLE mcp_idempotent_record (
    id BLOB NOT NULL PRIMARY KEY CHECK (length(id) = 32),
    fingerprint BLOB NOT NULL,
    -- As in Postgres: 0 in progress, 1 completed, 2 in doubt, 3 tombstone (left by the sweep)
    state INTEGER NOT NULL CHECK (state IN (0, 1, 2, 3)),
    -- 0 for a record that was written together with its effect
    token INTEGER NOT NULL,
    tool TEXT NOT NULL,
    key_prefix TEXT,
    created_at INTEGER NOT NULL,
    lease_until INTEGER,
    completed_at INTEGER,
    expires_at INTEGER,
    purge_at INTEGER,
    -- when the sweep has something to do here; NULL while in progress or in doubt
    sweep_at INTEGER,
    -- NULL in a completed record: the result was too large to keep
    response BLOB
) WITHOUT ROWID;

CREATE INDEX mcp_idempotent_record_sweep
    ON mcp_idempotent_record (sweep_at)
    WHERE sweep_at IS NOT NULL;
