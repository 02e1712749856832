-- Version 1. `{schema}` stands for the quoted name of the schema. Safe to run again.
-- Every name is qualified, so the session's search path plays no part.
CREATE TABLE IF NOT EXISTS {schema}.migrations (
    version    integer     PRIMARY KEY,
    applied_at pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);

-- The lower part of fencing tokens. The upper part is the time.
CREATE SEQUENCE IF NOT EXISTS {schema}.tokens AS bigint;

-- No CHECK constraints: each costs every call some microseconds, and only the store writes here.
CREATE TABLE IF NOT EXISTS {schema}.records (
    -- 32 bytes.
    id           pg_catalog.bytea NOT NULL,
    -- One byte of version, then 32 of digest.
    fingerprint  pg_catalog.bytea NOT NULL,
    -- 0 in progress, 1 completed, 2 in doubt, 3 tombstone (expired, its result removed), 4 released
    -- (the key is free; kept for its origin and its trail).
    state        smallint    NOT NULL,
    -- Above zero: the fencing token of a lease, or of an operator's resolution. Below zero: the
    -- mark of the transaction that wrote the record together with its effect.
    token        bigint      NOT NULL,
    -- Lease mode: the token of the first attempt. NULL: the next attempt is a first one.
    origin       bigint,
    -- Since the origin.
    attempts     integer     NOT NULL,
    tool         pg_catalog.text NOT NULL,
    -- Whose record it is, and whose key, as plain text for operators.
    application  pg_catalog.text,
    scope        pg_catalog.text,
    -- At most 8 characters.
    key_prefix   pg_catalog.text,
    -- NULL when completed: the result was too large to keep.
    response     pg_catalog.bytea,
    -- While in progress. A heartbeat writes this column and no other. No index may have it, neither
    -- as a column nor in its predicate, so that a renewal stays within its page (a HOT update) and
    -- touches no index.
    lease_until  pg_catalog.timestamptz,
    -- Lease mode: for how many microseconds the record is kept once it is in doubt.
    in_doubt_retention bigint,
    -- Lease mode: the number by which a claim recognises its record if its answer is lost.
    mark         bigint,
    created_at   pg_catalog.timestamptz NOT NULL,
    -- Of the result, or when the attempt said that it is in doubt.
    completed_at pg_catalog.timestamptz,
    -- When a sweep is to look at the record: the end of its retention (completed, in doubt), of a
    -- tombstone, or of what is kept of a free key. In progress: not before the lease and the
    -- retention in doubt have ended as they were claimed; the sweep moves it on after renewals.
    expires_at   pg_catalog.timestamptz,
    -- Completed: the end of the tombstone.
    purge_at     pg_catalog.timestamptz,
    -- An operator's resolution: 1 committed, 2 not committed, 3 released; by whom, why, when.
    resolved_kind smallint,
    resolved_by  pg_catalog.text,
    resolved_why pg_catalog.text,
    resolved_at  pg_catalog.timestamptz,
    CONSTRAINT mcp_idempotent_records_pkey PRIMARY KEY (id)
);

-- Not BRIN: swept space is used again, after which a block range keeps the oldest expiry it has
-- ever seen and matches every sweep. Records arrive nearly in the order of their expiry, so the
-- B-tree grows at its right edge.
CREATE INDEX IF NOT EXISTS records_expires_at ON {schema}.records (expires_at);

-- What is not completed, for an operator's listing: a small part of the table, and no part of it is
-- written by transaction mode.
CREATE INDEX IF NOT EXISTS records_open ON {schema}.records (created_at, id)
    WHERE state OPERATOR(pg_catalog.=) 0 OR state OPERATOR(pg_catalog.=) 2
    OR state OPERATOR(pg_catalog.=) 4;

ALTER TABLE {schema}.records SET (autovacuum_vacuum_scale_factor = 0.05);

-- lz4 where the server has it (Postgres 14 and a build with it); the default elsewhere.
DO $lz4$
BEGIN
    EXECUTE 'ALTER TABLE {schema}.records ALTER COLUMN response SET COMPRESSION lz4';
EXCEPTION
    WHEN syntax_error OR feature_not_supported OR invalid_parameter_value THEN NULL;
END
$lz4$;

INSERT INTO {schema}.migrations (version) VALUES (1) ON CONFLICT DO NOTHING;
