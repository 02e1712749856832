-- Version 1. `{schema}` stands for the quoted name of the schema. Safe to run again.
CREATE TABLE IF NOT EXISTS {schema}.migrations (
    version    integer     PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Fencing tokens: drawn for the whole store, never used twice, whatever becomes of the records.
CREATE SEQUENCE IF NOT EXISTS {schema}.tokens AS bigint;

-- No CHECK constraints: each costs every call some microseconds, and only the store writes here.
CREATE TABLE IF NOT EXISTS {schema}.records (
    -- 32 bytes.
    id           bytea       NOT NULL,
    -- One byte of version, then 32 of digest.
    fingerprint  bytea       NOT NULL,
    -- 0 in progress, 1 completed, 2 in doubt, 3 tombstone (expired, its result removed).
    state        smallint    NOT NULL,
    -- Above zero: the fencing token of a lease. Below zero: the mark of the transaction that
    -- wrote the record together with its effect.
    token        bigint      NOT NULL,
    attempts     integer     NOT NULL,
    tool         text        NOT NULL,
    -- At most 8 characters.
    key_prefix   text,
    -- NULL when completed: the result was too large to keep.
    response     bytea,
    -- While in progress.
    lease_until  timestamptz,
    created_at   timestamptz NOT NULL,
    completed_at timestamptz,
    -- When a sweep is to look at the record; NULL in progress and in doubt. The end of retention,
    -- and in a tombstone its own end.
    expires_at   timestamptz,
    -- The end of the tombstone.
    purge_at     timestamptz,
    CONSTRAINT mcp_idempotent_records_pkey PRIMARY KEY (id)
);

-- Not BRIN: swept space is used again, after which a block range keeps the oldest expiry it has
-- ever seen and matches every sweep. Records arrive nearly in the order of their expiry, so the
-- B-tree grows at its right edge.
CREATE INDEX IF NOT EXISTS records_expires_at ON {schema}.records (expires_at);

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
