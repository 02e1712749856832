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
    -- Above zero: the fencing token of a lease, or of an operator's resolution. Below zero: the
    -- mark of the transaction that wrote the record together with its effect.
    token        bigint      NOT NULL,
    -- Lease mode: the token of the first attempt. NULL: the next attempt is a first one.
    origin       bigint,
    -- Lease mode: for how many microseconds the record is kept once it is in doubt.
    in_doubt_retention bigint,
    -- Lease mode: the number by which a claim recognises its record if its answer is lost.
    mark         bigint,
    -- NULL in what a transaction wrote together with its effect: it was created when it was completed.
    created_at   pg_catalog.timestamptz,
    -- Since the origin. NULL means 1.
    attempts     integer,
    -- For operators, as plain text on four lines: tool, application, scope, and what the key begins with. One
    -- column costs every call less than four.
    labels       pg_catalog.text NOT NULL,
    -- What follows changes while a record lives. It comes last, because the log of an update leaves
    -- out what the old and the new row begin with.
    -- 0 in progress, 1 completed, 2 in doubt, 3 tombstone (expired, its result removed), 4 released
    -- (the key is free; kept for its origin and its trail).
    state        smallint    NOT NULL,
    -- While in progress. A heartbeat writes this column and no other.
    lease_until  pg_catalog.timestamptz,
    -- Of the result, or when the attempt said that it is in doubt.
    completed_at pg_catalog.timestamptz,
    -- The end of the retention (completed, in doubt), of a tombstone, or of what is kept of a free
    -- key. In progress: the end of the lease and the retention in doubt as they were claimed.
    expires_at   pg_catalog.timestamptz,
    -- Completed: the end of the tombstone, if there is to be one.
    purge_at     pg_catalog.timestamptz,
    -- NULL when completed: the result was too large to keep.
    response     pg_catalog.bytea,
    -- An operator's resolution: its kind (1 committed, 2 not committed, 3 released), by whom, why, and when
    -- (microseconds since 1970).
    resolution   pg_catalog.text[],
    CONSTRAINT mcp_idempotent_records_pkey PRIMARY KEY (id)
);

-- No index but the primary key: every call would pay for it. Without one, renewals and completions
-- stay within their page (HOT updates). A sweep walks through the table slice by slice, and an
-- operator's listing reads it whole.

ALTER TABLE {schema}.records SET (autovacuum_vacuum_scale_factor = 0.05);

-- Room for a completion beside its claim, which is smaller. A page that still has room for claims, but for no
-- completion, would take the claims of its session for ever, and their completions would go elsewhere. More
-- than this keeps a page from being cleaned on the way, which happens once a tenth of it is free or less.
ALTER TABLE {schema}.records SET (fillfactor = 96);

-- lz4 where the server has it (Postgres 14 and a build with it); the default elsewhere.
DO $lz4$
BEGIN
    EXECUTE 'ALTER TABLE {schema}.records ALTER COLUMN response SET COMPRESSION lz4';
EXCEPTION
    WHEN syntax_error OR feature_not_supported OR invalid_parameter_value THEN NULL;
END
$lz4$;

INSERT INTO {schema}.migrations (version) VALUES (1) ON CONFLICT DO NOTHING;
