-- $1 int     the key's half of the lock of this call
-- $2 int     the other half
-- $3 bigint  the lock of the key
-- The claim in transaction mode: takes the locks of a key and of a call on it. (Part of it are the session's idle timeout
-- and the refusal of servers that are read-only.) find.sql (seen.sql on the user's own pool) comes later in the
-- same batch, so that its snapshot is newer than the locks. finish.sql writes the record when the call ends, and the
-- primary key lets only one commit.
SELECT WHERE {set_up} AND {try_locks}
