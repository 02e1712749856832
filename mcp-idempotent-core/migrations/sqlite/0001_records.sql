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

-- With a rowid: ids are hashes, so in a table without one each new record would go to a page of its own, and split one
-- in nine. Here only the index of the ids, in which far more of them share a page, is written at random.
CREATE TABLE mcp_idempotent_record (
    id BLOB NOT NULL PRIMARY KEY CHECK (length(id) = 32),
    fingerprint BLOB NOT NULL,
    -- As in Postgres: 0 in progress, 1 completed, 2 in doubt, 3 tombstone (left by the sweep),
    -- 4 released (the key is free; what is left says where its next attempt comes from)
    state INTEGER NOT NULL CHECK (state BETWEEN 0 AND 4),
    -- 0 for a record that was committed together with its effect
    token INTEGER NOT NULL,
    -- the first attempt's token; NULL: the next attempt under a lease is a first one
    origin INTEGER,
    -- since the origin
    attempts INTEGER NOT NULL DEFAULT 1,
    tool TEXT NOT NULL,
    -- whose record it is, and whose key, as plain text for operators
    application TEXT,
    scope TEXT,
    key_prefix TEXT,
    created_at INTEGER NOT NULL,
    -- while in progress, and after a lapse
    lease_until INTEGER,
    -- how long it is kept once it is in doubt; a duration, as the claim gave it
    in_doubt_retention INTEGER,
    -- in doubt: when the attempt said so
    completed_at INTEGER,
    -- from then on the record is absent: the end of retention, in doubt of its own, in progress of
    -- the one it will have after a lapse; released, the end of its keeping
    expires_at INTEGER NOT NULL,
    -- the end of the tombstone, where there is to be one; else as expires_at
    purge_at INTEGER NOT NULL,
    -- when the sweep has something to do here
    sweep_at INTEGER NOT NULL,
    -- an operator's: 1 committed, 2 not committed, 3 released; who, why, and when
    resolution INTEGER CHECK (resolution BETWEEN 1 AND 3),
    resolved_by TEXT,
    resolved_why TEXT,
    resolved_at INTEGER,
    -- NULL in a completed record: the result was too large to keep
    response BLOB
);

CREATE INDEX mcp_idempotent_record_sweep ON mcp_idempotent_record (sweep_at);
