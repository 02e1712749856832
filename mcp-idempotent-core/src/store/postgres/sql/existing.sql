-- What already exists before a migration.
SELECT pg_catalog.to_regnamespace('{schema}') IS NOT NULL,
    pg_catalog.to_regclass('{schema}.migrations') IS NOT NULL
