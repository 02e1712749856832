-- Whatever a session's search path can put before Postgres's own: every operator and function that
-- Postgres has, operators with the exact types of our columns where it has them through casts only,
-- types, tables; and casts that make it unclear which operator was meant. Each raises an error.
CREATE SCHEMA hostile;
GRANT USAGE ON SCHEMA hostile TO PUBLIC;
SET check_function_bodies = off;

CREATE FUNCTION pg_temp.hostile(sort text, name text, arguments text, result text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format($f$CREATE FUNCTION hostile.%I(%s) RETURNS %s LANGUAGE plpgsql AS
        'BEGIN RAISE EXCEPTION ''hostile %s''; END'$f$,
        name, arguments, result, format('%s %s(%s)', sort, name, arguments));
END $$;

-- Functions, and aggregates as functions.
SELECT count(pg_temp.hostile('function', proname, arguments, 'boolean'))
FROM (SELECT DISTINCT proname,
        (SELECT string_agg(format_type(t, NULL), ', ' ORDER BY n)
        FROM unnest(proargtypes) WITH ORDINALITY AS argument (t, n)) AS arguments
    FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace AND prokind IN ('f', 'a')
    AND NOT EXISTS (SELECT FROM pg_type t WHERE t.oid = ANY (proargtypes) AND t.typtype = 'p')) f;

-- Operators of Postgres, and all pairs of the types that occur in our SQL.
DO $$
DECLARE
    types regtype[] := '{smallint,integer,bigint,double precision,numeric,boolean,text,name,oid,tid,bytea,
        interval,timestamptz}';
    names text[] := '{=,<>,<,<=,>,>=,+,-,*,/,|,<<,||}';
    o record;
    made int := 0;
BEGIN
    FOR o IN
        SELECT oprname AS name, CASE WHEN oprleft <> 0 THEN format_type(oprleft, NULL) END AS l,
            format_type(oprright, NULL) AS r
        FROM pg_operator WHERE oprnamespace = 'pg_catalog'::regnamespace AND oprright <> 0
            AND NOT EXISTS (SELECT FROM pg_type t WHERE t.oid IN (oprleft, oprright) AND t.typtype = 'p')
        UNION
        SELECT n, format_type(l, NULL), format_type(r, NULL)
            FROM unnest(names) n, unnest(types) l, unnest(types) r
    LOOP
        made := made + 1;
        PERFORM pg_temp.hostile('operator ' || o.name, 'operator_' || made,
            concat_ws(', ', o.l, o.r), 'boolean');
        EXECUTE format('CREATE OPERATOR hostile.%s (FUNCTION = hostile.%I, RIGHTARG = %s%s)',
            o.name, 'operator_' || made, o.r, ', LEFTARG = ' || o.l);
    END LOOP;
END $$;

-- Tables, types (a table has one of its name), and casts where Postgres has none.
DO $$
DECLARE
    types regtype[] := '{smallint,integer,bigint,double precision,numeric,boolean,text,name,oid,tid,bytea,
        interval,timestamptz}';
    name text;
    l regtype;
    r regtype;
    made int := 0;
BEGIN
    FOR name IN SELECT relname FROM pg_class
        WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind IN ('r', 'v')
    LOOP
        EXECUTE format('CREATE TABLE hostile.%I ()', name);
    END LOOP;
    FOR name IN SELECT typname FROM pg_type WHERE oid = ANY (types) LOOP
        EXECUTE format('CREATE DOMAIN hostile.%I AS pg_catalog.int4 CHECK (false)', name);
    END LOOP;
    FOR l, r IN SELECT a, b FROM unnest(types) a, unnest(types) b
        WHERE a <> b AND NOT EXISTS (SELECT FROM pg_cast WHERE castsource = a AND casttarget = b)
    LOOP
        made := made + 1;
        PERFORM pg_temp.hostile('cast', 'cast_' || made, l::text, r::text);
        EXECUTE format('CREATE CAST (%s AS %s) WITH FUNCTION hostile.%I (%s) AS IMPLICIT',
            l, r, 'cast_' || made, l);
    END LOOP;
END $$;
