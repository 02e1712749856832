//! Listing and resolving records.

use std::sync::Arc;

use bytes::Bytes;
use sqlx::{Arguments as _, Row as _, sqlite::SqliteArguments, sqlite::SqliteRow};

use super::{
    batch::{self, Encoded},
    error::store_error,
    queue::{Checkout, Line},
    row::undecodable,
    statement::{COMPLETED, EXPIRED, IN_DOUBT, IN_PROGRESS, RELEASED},
    store::{SqliteStore, micros},
};
use crate::{
    fingerprint::{Fingerprint, RecordId},
    record::Timestamp,
    store::{
        Audit, OperatorStore, RecordInfo, RecordQuery, RecordStatus, Resolution, ResolutionKind,
        Resolved, ResolvedBy, StoreError,
    },
};

impl OperatorStore for SqliteStore {
    async fn list(&self, query: &RecordQuery) -> Result<Vec<RecordInfo>, StoreError> {
        let statement = &self.shared.statements.list;
        let rows = self
            .rows("listing", statement, listed(query), self.deadline())
            .await?;
        rows.iter()
            .map(decode)
            .collect::<Result<_, _>>()
            .map_err(|error| store_error("listing", error))
    }

    async fn show(&self, id: RecordId) -> Result<Option<RecordInfo>, StoreError> {
        let statement = &self.shared.statements.show;
        let rows = self
            .rows("showing", statement, shown(id), self.deadline())
            .await?;
        rows.first()
            .map(decode_whole)
            .transpose()
            .map_err(|error| store_error("showing", error))
    }

    async fn resolve(
        &self,
        id: RecordId,
        token: i64,
        resolution: &Resolution,
        audit: &Audit,
    ) -> Result<Resolved, StoreError> {
        // Attempts that are about to end, or to be taken over, wait in the same line.
        let mut checkout = self.lock(Line::Lease, true).await?;
        let resolved = self
            .resolve_in(&mut checkout, id, token, resolution, audit)
            .await
            .map_err(|error| store_error("resolving", error))?;
        if matches!(resolved, Resolved::Done(_)) {
            checkout.give_back();
        } else {
            checkout.roll_back_and_give_back().await;
        }
        Ok(resolved)
    }
}

impl SqliteStore {
    /// Commits only if the record was resolved.
    async fn resolve_in(
        &self,
        checkout: &mut Checkout,
        id: RecordId,
        token: i64,
        resolution: &Resolution,
        audit: &Audit,
    ) -> Result<Resolved, sqlx::Error> {
        let connection = &mut checkout.writer.connection;
        let drawn = self.draw_token(connection).await?;
        let statements = &self.shared.statements;
        let statement = match resolution {
            Resolution::Committed(_) => &statements.resolve_as_committed,
            Resolution::NotCommitted | Resolution::Release => &statements.resolve_as_free,
        };
        let arguments = resolving(id, token, drawn, resolution, audit);
        let batch = batch::run(connection, statement, arguments, 1).await;
        batch.done?;
        if let Some(at) = batch.values.first() {
            checkout.writer.commit().await?;
            return Ok(Resolved::Done(Timestamp::from_micros(*at)));
        }
        let exists: bool = sqlx::query_scalar(statements.exists.clone())
            .bind(&id.as_bytes()[..])
            .fetch_one(connection)
            .await?;
        Ok(if exists {
            Resolved::Changed
        } else {
            Resolved::NotFound
        })
    }
}

fn listed(query: &RecordQuery) -> Encoded {
    let mut arguments = SqliteArguments::default();
    arguments.add(query.status.map(to_stored))?;
    arguments.add(query.tool.as_deref())?;
    arguments.add(query.application.as_deref())?;
    arguments.add(query.scope.as_deref())?;
    arguments.add(query.visible_prefix())?;
    let (created_at, id) = query.after.unzip();
    arguments.add(created_at.map(Timestamp::as_micros))?;
    arguments.add(id.as_ref().map(|id| &id.as_bytes()[..]))?;
    arguments.add(query.limit)?;
    Ok(arguments)
}

fn shown(id: RecordId) -> Encoded {
    let mut arguments = SqliteArguments::default();
    arguments.add(&id.as_bytes()[..])?;
    Ok(arguments)
}

fn resolving(
    id: RecordId,
    token: i64,
    drawn: i64,
    resolution: &Resolution,
    audit: &Audit,
) -> Encoded {
    let mut arguments = SqliteArguments::default();
    arguments.add(&id.as_bytes()[..])?;
    arguments.add(token)?;
    arguments.add(drawn)?;
    arguments.add(resolution.kind().to_stored())?;
    arguments.add(&*audit.who)?;
    arguments.add(&*audit.why)?;
    match resolution {
        Resolution::Committed(completion) => {
            arguments.add(completion.response.as_deref())?;
            arguments.add(micros(completion.retention))?;
            arguments.add(micros(completion.tombstone))?;
        }
        Resolution::NotCommitted | Resolution::Release => {
            arguments.add(micros(audit.kept))?;
            arguments.add(matches!(resolution, Resolution::Release))?;
        }
    }
    Ok(arguments)
}

const fn to_stored(status: RecordStatus) -> i64 {
    match status {
        RecordStatus::InProgress => IN_PROGRESS,
        RecordStatus::Completed => COMPLETED,
        RecordStatus::InDoubt => IN_DOUBT,
        RecordStatus::Expired => EXPIRED,
        RecordStatus::Released => RELEASED,
    }
}

fn from_stored(status: i64) -> Option<RecordStatus> {
    [
        RecordStatus::InProgress,
        RecordStatus::Completed,
        RecordStatus::InDoubt,
        RecordStatus::Expired,
        RecordStatus::Released,
    ]
    .into_iter()
    .find(|known| to_stored(*known) == status)
}

fn decode_whole(row: &SqliteRow) -> Result<RecordInfo, sqlx::Error> {
    let mut info = decode(row)?;
    let response: Option<Vec<u8>> = row.try_get("response")?;
    info.response = response.map(Bytes::from);
    Ok(info)
}

fn decode(row: &SqliteRow) -> Result<RecordInfo, sqlx::Error> {
    let status: i64 = row.try_get("status")?;
    let status = from_stored(status).ok_or_else(|| undecodable(format!("state {status}")))?;
    let id: &[u8] = row.try_get("id")?;
    let id = <[u8; 32]>::try_from(id)
        .map_err(|_| undecodable("an id of the wrong length".to_owned()))?;
    let time = |column: &str| -> Result<Option<Timestamp>, sqlx::Error> {
        Ok(row
            .try_get::<Option<i64>, _>(column)?
            .map(Timestamp::from_micros))
    };
    let fingerprint: &[u8] = row.try_get("fingerprint")?;
    let fingerprint = Fingerprint::from_stored(fingerprint)
        .ok_or_else(|| undecodable("a fingerprint of the wrong length".to_owned()))?;
    let text = |column: &str| row.try_get::<Option<&str>, _>(column);
    let mut info = RecordInfo::new(
        RecordId::from_bytes(id),
        fingerprint,
        status,
        row.try_get::<&str, _>("tool")?,
        row.try_get("token")?,
        Timestamp::from_micros(row.try_get("created_at")?),
    );
    info.application = text("application")?.map(Arc::from);
    info.scope = text("scope")?.map(Arc::from);
    info.key_prefix = text("key_prefix")?.map(Box::from);
    info.origin = row.try_get("origin")?;
    info.attempts = row.try_get("attempts")?;
    info.lease_until = time("lease_until")?;
    info.completed_at = time("completed_at")?;
    info.expires_at = time("expires_at")?.filter(|_| status != RecordStatus::InProgress);
    info.resolved = resolved_by(row)?;
    Ok(info)
}

fn resolved_by(row: &SqliteRow) -> Result<Option<ResolvedBy>, sqlx::Error> {
    let Some(kind) = row.try_get::<Option<i16>, _>("resolution")? else {
        return Ok(None);
    };
    let kind = ResolutionKind::from_stored(kind)
        .ok_or_else(|| undecodable(format!("resolution {kind}")))?;
    Ok(Some(ResolvedBy::new(
        kind,
        Arc::<str>::from(row.try_get::<&str, _>("resolved_by")?),
        Arc::<str>::from(row.try_get::<&str, _>("resolved_why")?),
        Timestamp::from_micros(row.try_get("resolved_at")?),
    )))
}
