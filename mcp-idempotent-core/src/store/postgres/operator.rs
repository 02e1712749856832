//! The operator's hand. Nothing of it is prepared, and no role of a caller needs its rights.

use std::sync::Arc;

use bytes::Bytes;
use sqlx::{Row, postgres::PgRow};

use super::{
    PostgresStore, TOOL_LENGTH,
    connection::{run, undo},
    error,
    lease::DURABLY,
    record::attempts,
    statement::{
        CLOCK, any_text, bytes, bytes_or_null, in_doubt_until, interval, is_in_doubt, micros,
        plain, text, unhex,
    },
};
use crate::{
    error::CommitOutcome,
    fingerprint::RecordId,
    record::Timestamp,
    store::{
        Audit, OperatorStore, RecordInfo, RecordQuery, RecordStatus, Resolution, ResolutionKind,
        Resolved, ResolvedBy, StoreError,
    },
};

impl OperatorStore for PostgresStore {
    async fn list(&self, query: &RecordQuery) -> Result<Vec<RecordInfo>, StoreError> {
        let mut wanted = vec![query.status.map_or("true".to_owned(), stands)];
        if let Some(tool) = &query.tool {
            // As it was written.
            wanted.push(format!("tool = {}", text(&plain(tool, TOOL_LENGTH))));
        }
        if let Some((created_at, id)) = &query.after {
            wanted.push(format!(
                "(created_at, id) > ('epoch'::timestamptz + {} * interval '1 microsecond', {})",
                created_at.as_micros(),
                bytes(id.as_bytes())
            ));
        }
        self.read(
            "NULL::text",
            &wanted.join(" AND "),
            &format!("ORDER BY created_at, id LIMIT {}", query.limit),
        )
        .await
    }

    async fn show(&self, id: RecordId) -> Result<Option<RecordInfo>, StoreError> {
        let wanted = format!("id = {}", bytes(id.as_bytes()));
        let response = "CASE WHEN state = 1 THEN pg_catalog.encode(response, 'hex') END";
        Ok(self.read(response, &wanted, "").await?.pop())
    }

    async fn resolve(
        &self,
        id: RecordId,
        token: i64,
        resolution: &Resolution,
        audit: &Audit,
    ) -> Result<Resolved, StoreError> {
        let statement = self.resolving(id, token, resolution, audit);
        let failed = |error| self.error("the record could not be resolved", error);
        let bound = self.inner.recovery_timeout;
        let mut lost = None;
        loop {
            let mut connection = self.connection().await?;
            let batch = [&self.short_transaction(), DURABLY, &statement, "COMMIT;"].concat();
            let row = match run(&mut connection, batch).await.into_row_before_commit() {
                Ok(row) => row.ok_or_else(|| failed(sqlx::Error::RowNotFound))?,
                Err(error) => {
                    let undone = tokio::time::timeout(bound, undo(&mut connection)).await;
                    if matches!(undone, Ok(Ok(true))) {
                        connection.release();
                        return Err(failed(error));
                    }
                    // It may have been committed. It is tried once again: the token guards a
                    // resolution from being made twice.
                    if lost.is_some() {
                        return Err(failed(error).with_outcome(CommitOutcome::Unknown));
                    }
                    lost = Some(error);
                    continue;
                }
            };
            connection.release();
            let (at, exists) = (|| Ok((row.try_get(0)?, row.try_get(1)?)))().map_err(failed)?;
            return match (at, lost, exists) {
                (Some(at), ..) => Ok(Resolved::Done(Timestamp::from_micros(at))),
                // The first try may have done it.
                (None, Some(lost), _) => Err(failed(lost).with_outcome(CommitOutcome::Unknown)),
                (None, None, true) => Ok(Resolved::Changed),
                (None, None, false) => Ok(Resolved::NotFound),
            };
        }
    }
}

impl PostgresStore {
    async fn read(
        &self,
        response: &str,
        wanted: &str,
        order: &str,
    ) -> Result<Vec<RecordInfo>, StoreError> {
        let failed = |error| self.error("the records could not be read", error);
        let select = format!(
            "SELECT pg_catalog.encode(id, 'hex'), {status}, tool, key_prefix, token, attempts, \
             {created}, {lease_until}, {completed}, {expires}, \
             resolved_kind::int, resolved_by, resolved_why, {resolved}, {response} \
             FROM {schema}.records, {CLOCK} WHERE {wanted} {order};",
            status = status(),
            created = micros("created_at"),
            lease_until = micros("(CASE state WHEN 0 THEN lease_until END)"),
            completed = micros("completed_at"),
            // A tombstone's is gone.
            expires = micros(&format!(
                "(CASE WHEN state = 0 AND lease_until <= clock.now THEN {} \
                 WHEN state IN (1, 2, 4) THEN expires_at END)",
                in_doubt_until()
            )),
            resolved = micros("resolved_at"),
            schema = self.inner.schema.quoted(),
        );
        for last_try in [false, true] {
            let batch = format!("{}{select}COMMIT;", self.short_transaction());
            let mut connection = self.connection().await?;
            let answer = run(&mut connection, batch).await;
            match answer.error {
                None => {
                    connection.release();
                    return answer
                        .rows
                        .iter()
                        .map(info)
                        .collect::<Result<_, _>>()
                        .map_err(failed);
                }
                Some(error) if !last_try && error::is_connection_lost(&error) => {}
                Some(error) => return Err(failed(error)),
            }
        }
        unreachable!("the last try returns")
    }

    /// One guarded statement. Who and why are arbitrary text.
    fn resolving(
        &self,
        id: RecordId,
        token: i64,
        resolution: &Resolution,
        audit: &Audit,
    ) -> String {
        let state = match resolution {
            Resolution::Committed(completion) => {
                let retention = interval(completion.retention);
                format!(
                    "state = 1, response = {}, completed_at = clock.now, \
                     expires_at = clock.now + {retention} * interval '1 microsecond', \
                     purge_at = clock.now + {} * interval '1 microsecond'",
                    bytes_or_null(completion.response.as_deref()),
                    retention + interval(completion.tombstone),
                )
            }
            Resolution::NotCommitted | Resolution::Release => format!(
                "state = 4, completed_at = NULL, \
                 expires_at = clock.now + {} * interval '1 microsecond', origin = {}",
                interval(audit.kept),
                if matches!(resolution, Resolution::Release) {
                    "origin"
                } else {
                    "NULL"
                },
            ),
        };
        let records = format!("{}.records", self.inner.schema.quoted());
        let id = bytes(id.as_bytes());
        format!(
            "WITH done AS (UPDATE {records} SET {state}, lease_until = NULL, \
             token = pg_catalog.nextval('{schema}.tokens'), \
             resolved_kind = {kind}, resolved_by = {who}, resolved_why = {why}, \
             resolved_at = clock.now FROM {CLOCK} \
             WHERE id = {id} AND token = {token} AND (state = 0 AND lease_until > {now} OR {in_doubt}) \
             RETURNING {at} AS at) \
             SELECT (SELECT at FROM done), EXISTS (SELECT 1 FROM {records} WHERE id = {id});",
            schema = self.inner.schema.quoted(),
            kind = resolution.kind().to_stored(),
            who = any_text(&audit.who),
            why = any_text(&audit.why),
            now = "pg_catalog.clock_timestamp()",
            in_doubt = is_in_doubt("pg_catalog.clock_timestamp()"),
            at = micros("resolved_at"),
        )
    }
}

/// Where a record stands, as a condition. That of what is not completed implies the predicate of
/// the index `records_open`.
fn stands(status: RecordStatus) -> String {
    match status {
        RecordStatus::InProgress => "state = 0 AND lease_until > clock.now".to_owned(),
        RecordStatus::InDoubt => is_in_doubt("clock.now"),
        RecordStatus::Completed => "state = 1 AND expires_at > clock.now".to_owned(),
        RecordStatus::Released => "state = 4 AND expires_at > clock.now".to_owned(),
        RecordStatus::Expired => format!("{} = {EXPIRED}", self::status()),
    }
}

const EXPIRED: i32 = 3;

/// Where a record stands, as the number of the state that it is in by now.
fn status() -> String {
    format!(
        "(CASE WHEN {in_doubt} THEN 2 \
         WHEN state = 0 AND lease_until > clock.now THEN 0 \
         WHEN state IN (1, 4) AND expires_at > clock.now THEN state \
         ELSE {EXPIRED} END)::int",
        in_doubt = is_in_doubt("clock.now")
    )
}

fn info(row: &PgRow) -> Result<RecordInfo, sqlx::Error> {
    let moment = |column: usize| {
        row.try_get::<Option<i64>, _>(column)
            .map(|micros| micros.map(Timestamp::from_micros))
    };
    let id: [u8; 32] = unhex(row.try_get(0)?)?
        .try_into()
        .map_err(|_| sqlx::Error::Decode("a stored id is not 32 bytes".into()))?;
    let status = match row.try_get::<i32, _>(1)? {
        0 => RecordStatus::InProgress,
        1 => RecordStatus::Completed,
        2 => RecordStatus::InDoubt,
        4 => RecordStatus::Released,
        _ => RecordStatus::Expired,
    };
    let mut info = RecordInfo::new(
        RecordId::from_bytes(id),
        status,
        row.try_get::<&str, _>(2)?,
        row.try_get(4)?,
        Timestamp::from_micros(row.try_get(6)?),
    );
    info.key_prefix = row.try_get::<Option<&str>, _>(3)?.map(Into::into);
    info.attempts = attempts(row, 5)?;
    info.lease_until = moment(7)?;
    info.completed_at = moment(8)?;
    info.expires_at = moment(9)?;
    let kind = row.try_get::<Option<i32>, _>(10)?;
    let kind = kind.and_then(|kind| ResolutionKind::from_stored(i16::try_from(kind).ok()?));
    if let (Some(kind), Some(at)) = (kind, moment(13)?) {
        let said = |column| row.try_get::<&str, _>(column).map(Arc::<str>::from);
        info.resolved = Some(ResolvedBy::new(kind, said(11)?, said(12)?, at));
    }
    info.response = row
        .try_get::<Option<&str>, _>(14)?
        .map(unhex)
        .transpose()?
        .map(Bytes::from);
    Ok(info)
}
