-- Version 1. `{schema}` stands for the quoted name of the schema. Safe to run again.
CREATE TABLE IF NOT EXISTS {schema}.migrations (
    version    integer     PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Fencing tokens: drawn for the whole store, never used twice, whatever becomes of the records.
CREATE SEQUENCE IF NOT EXISTS {schema}.tokens AS bigint;

CREATE TABLE IF NOT EXISTS {schema}.records (
    id           bytea       NOT NULL CHECK (octet_length(id) = 32),
    -- One byte of version, then the digest.
    fingerprint  bytea       NOT NULL CHECK (octet_length(fingerprint) = 33),
    -- 0 in progress, 1 completed, 2 in doubt, 3 tombstone (expired, its result removed).
    state        smallint    NOT NULL CHECK (state BETWEEN 0 AND 3),
    -- Above zero: the fencing token of a lease. Below zero: the mark of the transaction that
    -- wrote the record together with its effect.
    token        bigint      NOT NULL CHECK (token <> 0),
    attempts     integer     NOT NULL CHECK (attempts > 0),
    tool         text        NOT NULL,
    key_prefix   text        CHECK (char_length(key_prefix) <= 8),
    -- NULL when completed: the result was too large to keep.
    response     bytea,
    lease_until  timestamptz,
    created_at   timestamptz NOT NULL,
    completed_at timestamptz,
    expires_at   timestamptz,
    purge_at     timestamptz,
    CONSTRAINT mcp_idempotent_records_pkey PRIMARY KEY (id),
    CONSTRAINT mcp_idempotent_records_times CHECK (
        CASE state
            WHEN 0 THEN lease_until IS NOT NULL AND expires_at IS NULL
            WHEN 2 THEN expires_at IS NULL
            ELSE completed_at IS NOT NULL AND expires_at <= purge_at
        END
    )
);

-- Not BRIN: swept space is used again, after which a block range keeps the oldest expiry it has
-- ever seen and matches every sweep. Records arrive nearly in the order of their expiry, so the
-- B-tree grows at its right edge.
CREATE INDEX IF NOT EXISTS records_expires_at ON {schema}.records (expires_at)
    WHERE expires_at IS NOT NULL AND state = 1;
CREATE INDEX IF NOT EXISTS records_purge_at ON {schema}.records (purge_at)
    WHERE state = 3;

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
