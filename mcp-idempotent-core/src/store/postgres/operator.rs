//! What an operator can do. These statements are not prepared, and a server's role does not need
//! the rights for them.

use std::sync::Arc;

use bytes::Bytes;
use sqlx::{Row as _, postgres::PgRow};

use super::{
    literal::{Argument, NAME_LENGTH, unhex},
    look_up::attempts,
    statement::Step,
    store::PostgresStore,
    tries::{Purpose, Tries},
};
use crate::{
    error::CommitOutcome,
    fingerprint::{Fingerprint, RecordId},
    key::VISIBLE_PREFIX,
    record::Timestamp,
    store::{
        Audit, OperatorStore, RecordInfo, RecordQuery, RecordStatus, Resolution, ResolutionKind,
        Resolved, ResolvedBy, StoreError,
    },
};

/// The digits of a resolution's kind.
const KIND_LENGTH: usize = 6;

const OF_TOOL: &str = " AND {tool} {=} ";
const OF_APPLICATION: &str = " AND {application} {=} ";
const OF_SCOPE: &str = " AND {scope} {=} ";
/// The beginning of the key follows.
const OF_KEY: &str = " AND pg_catalog.starts_with({key_prefix}, ";
/// A time and a record id follow.
const AFTER: &str = " AND ({created_at}, id) {>} (timestamp with time zone 'epoch' {+} (";
const OLDEST_FIRST: &str = "{created_at}, id";
const OF_ID: &str = "id {=} ";
const RESULT: &str = "CASE WHEN state {=} 1 THEN pg_catalog.encode(response, 'hex') END";
const NO_RESULT: &str = "NULL::pg_catalog.text";

impl OperatorStore for PostgresStore {
    async fn list(&self, query: &RecordQuery) -> Result<Vec<RecordInfo>, StoreError> {
        let sql = |text| self.inner.statements.fill(text);
        let mut wanted = sql(query.status.map_or("true", stands));
        for (piece, name) in [
            (OF_TOOL, &query.tool),
            (OF_APPLICATION, &query.application),
            (OF_SCOPE, &query.scope),
        ] {
            if let Some(name) = name {
                // In the form in which it was stored.
                wanted.push_str(&sql(piece));
                Argument::Plain(name, NAME_LENGTH).push_to(&mut wanted);
            }
        }
        if let Some(prefix) = query.visible_prefix() {
            wanted.push_str(&sql(OF_KEY));
            Argument::Plain(prefix, VISIBLE_PREFIX).push_to(&mut wanted);
            wanted.push(')');
        }
        if let Some((created_at, id)) = &query.after {
            wanted.push_str(&sql(AFTER));
            Argument::Integer(created_at.as_micros()).push_to(&mut wanted);
            wanted.push_str(&sql("{microseconds}), "));
            Argument::Bytes(id.as_bytes()).push_to(&mut wanted);
            wanted.push(')');
        }
        let order = format!("ORDER BY {} LIMIT {}", sql(OLDEST_FIRST), query.limit);
        read(self, NO_RESULT, &wanted, &order).await
    }

    async fn show(&self, id: RecordId) -> Result<Option<RecordInfo>, StoreError> {
        let mut wanted = self.inner.statements.fill(OF_ID);
        Argument::Bytes(id.as_bytes()).push_to(&mut wanted);
        let response = self.inner.statements.fill(RESULT);
        Ok(read(self, &response, &wanted, "").await?.pop())
    }

    /// Runs one guarded statement. The token prevents a second resolution.
    async fn resolve(
        &self,
        id: RecordId,
        token: i64,
        resolution: &Resolution,
        audit: &Audit,
    ) -> Result<Resolved, StoreError> {
        let kind = resolution.kind().to_stored().to_string();
        let mut arguments = vec![
            Argument::Bytes(id.as_bytes()),
            Argument::Integer(token),
            Argument::Plain(&kind, KIND_LENGTH),
            Argument::AnyText(&audit.who),
            Argument::AnyText(&audit.why),
        ];
        let step = match resolution {
            Resolution::Committed(completion) => {
                arguments.extend(Argument::completion(completion));
                Step::ResolveCommitted
            }
            Resolution::NotCommitted | Resolution::Release => {
                let goes_on = matches!(resolution, Resolution::Release);
                arguments.push(Argument::interval(audit.kept));
                arguments.push(Argument::Boolean(goes_on));
                Step::ResolveFree
            }
        };
        let mut tries = Tries::patient(self, "the record could not be resolved");
        let session = tries.session().await?;
        let resolved = tries.run(session, Purpose::Commit, |batch, _| {
            batch
                .begin_short()
                .steps([Step::Durably])
                .call(step, &arguments)
                .steps([Step::Commit])
        });
        let (session, answer) = match resolved.await {
            Ok(outcome) => outcome.through(),
            Err(error) if tries.may_be_committed => {
                return Err(error.with_outcome(CommitOutcome::Unknown));
            }
            Err(error) => return Err(error),
        };
        session.release();
        let read = |row: &PgRow| Ok((row.try_get(0)?, row.try_get(1)?));
        let (at, exists) = answer
            .one(step)
            .and_then(read)
            .map_err(|error| tries.failed(error))?;
        match (at, exists) {
            (Some(at), _) => Ok(Resolved::Done(Timestamp::from_micros(at))),
            // An earlier try may have done it.
            (None, _) if tries.may_be_committed => {
                Err(tries.gave_up().with_outcome(CommitOutcome::Unknown))
            }
            (None, true) => Ok(Resolved::Changed),
            (None, false) => Ok(Resolved::NotFound),
        }
    }
}

async fn read(
    store: &PostgresStore,
    response: &str,
    wanted: &str,
    order: &str,
) -> Result<Vec<RecordInfo>, StoreError> {
    let statements = &store.inner.statements;
    // The caller's own text goes in last, because it may look like a placeholder.
    let text = statements
        .text(Step::List)
        .replace("{response}", response)
        .replace("{order}", order)
        .replace("{wanted}", wanted);
    let mut tries = Tries::patient(store, "the records could not be read");
    let session = tries.session().await?;
    let listed = tries.run(session, Purpose::Read, |batch, _| {
        let begun = batch.begin_short();
        begun.write(Step::List, &text).steps([Step::Commit])
    });
    let (session, answer) = listed.await?.through();
    session.release();
    let infos = answer.rows(Step::List).map(info).collect::<Result<_, _>>();
    infos.map_err(|error| tries.failed(error))
}

/// The condition for a record's status.
const fn stands(status: RecordStatus) -> &'static str {
    match status {
        RecordStatus::InProgress => "state {=} 0 AND lease_until {>} clock.now",
        RecordStatus::InDoubt => "{is_in_doubt_by_clock}",
        RecordStatus::Completed => "state {=} 1 AND expires_at {>} clock.now",
        RecordStatus::Released => "state {=} 4 AND expires_at {>} clock.now",
        RecordStatus::Expired => "{status} {=} 3",
    }
}

/// The pieces of which listings are made.
#[cfg(test)]
pub(super) fn texts() -> impl Iterator<Item = &'static str> {
    let conditions = [
        RecordStatus::InProgress,
        RecordStatus::InDoubt,
        RecordStatus::Completed,
        RecordStatus::Released,
        RecordStatus::Expired,
    ];
    let pieces = [
        OF_TOOL,
        OF_APPLICATION,
        OF_SCOPE,
        OF_KEY,
        AFTER,
        OLDEST_FIRST,
        OF_ID,
        RESULT,
        NO_RESULT,
    ];
    conditions.into_iter().map(stands).chain(pieces)
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
    let fingerprint = Fingerprint::from_stored(&unhex(row.try_get(15)?)?)
        .ok_or_else(|| sqlx::Error::Decode("a stored fingerprint is not 33 bytes".into()))?;
    let mut info = RecordInfo::new(
        RecordId::from_bytes(id),
        fingerprint,
        status,
        row.try_get::<&str, _>(2)?,
        row.try_get(4)?,
        Timestamp::from_micros(row.try_get(6)?),
    );
    info.key_prefix = label(row, 3)?.map(Into::into);
    info.attempts = attempts(row, 5)?;
    info.origin = row.try_get(16)?;
    info.application = label(row, 17)?.map(Into::into);
    info.scope = label(row, 18)?.map(Into::into);
    info.lease_until = moment(7)?;
    info.completed_at = moment(8)?;
    info.expires_at = moment(9)?;
    let said = |column| row.try_get::<Option<&str>, _>(column);
    let kind = said(10)?.and_then(|kind| ResolutionKind::from_stored(kind.parse().ok()?));
    let at = said(13)?.and_then(|at| at.parse().ok());
    if let (Some(kind), Some(who), Some(why), Some(at)) = (kind, said(11)?, said(12)?, at) {
        let [who, why] = [who, why].map(Arc::<str>::from);
        info.resolved = Some(ResolvedBy::new(kind, who, why, Timestamp::from_micros(at)));
    }
    info.response = row
        .try_get::<Option<&str>, _>(14)?
        .map(unhex)
        .transpose()?
        .map(Bytes::from);
    Ok(info)
}

/// A label. An empty line means that there is none.
fn label(row: &PgRow, column: usize) -> Result<Option<&str>, sqlx::Error> {
    let label: &str = row.try_get(column)?;
    Ok((!label.is_empty()).then_some(label))
}
