//! Leases that are completed in a transaction of another driver. The engine hands the statement out, and
//! looks afterwards what became of it.

use std::{fmt::Write as _, time::Duration};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use sqlx::{Row as _, postgres::PgRow};

use super::{
    batch::moment,
    lease,
    literal::{Argument, hex, interval, unhex},
    statement::Step,
    store::PostgresStore,
    tries::{Purpose, Tries},
};
use crate::store::{
    Completed, Completion, CompletionStatement, ForeignRenewal, ForeignTransactions, Lease,
    LeaseEnd, StoreError, StoreErrorKind,
};

impl ForeignTransactions for PostgresStore {
    fn completion(&self, lease: &Lease, completion: Completion) -> CompletionStatement {
        let text = self.inner.statements.text(Step::CompleteElsewhere);
        let attempt = attempt(lease, &completion);
        CompletionStatement::new(text, attempt, completion.response)
    }

    fn no_completion(&self) -> CompletionStatement {
        let text = self.inner.statements.text(Step::CompleteNowhere);
        CompletionStatement::new(text, String::new(), None)
    }

    fn renew<'a>(
        &'a self,
        lease: &'a Lease,
        period: Duration,
    ) -> BoxFuture<'a, Result<ForeignRenewal, StoreError>> {
        Box::pin(async move {
            let renewed = lease::renew_by(self, lease, period, Some(Step::TryRow)).await;
            Ok(match renewed {
                Ok(LeaseEnd::Done(_)) => ForeignRenewal::Extended,
                Ok(LeaseEnd::Fenced) if completed(self, lease).await?.is_some() => {
                    ForeignRenewal::Completed
                }
                Ok(LeaseEnd::Fenced) => ForeignRenewal::Fenced,
                // The record or its table is locked.
                Err(error) if error.kind() == StoreErrorKind::Busy => ForeignRenewal::Locked,
                Err(error) => return Err(error),
            })
        })
    }

    fn completed<'a>(
        &'a self,
        lease: &'a Lease,
    ) -> BoxFuture<'a, Result<Option<Completed>, StoreError>> {
        Box::pin(completed(self, lease))
    }
}

/// The first parameter of the statement.
fn attempt(lease: &Lease, completion: &Completion) -> String {
    let mut attempt = String::new();
    let guard = completion.guard.as_ref();
    let both = [
        Some((lease, completion.retention)),
        guard.map(|guard| (guard, completion.retention_of_guard())),
    ];
    for (lease, retention) in both.into_iter().flatten() {
        if !attempt.is_empty() {
            attempt.push(',');
        }
        let _ = write!(
            attempt,
            "{}:{}:{}:{}",
            hex(lease.id.as_bytes()),
            lease.token,
            interval(retention),
            interval(completion.tombstone)
        );
    }
    attempt
}

async fn completed(store: &PostgresStore, lease: &Lease) -> Result<Option<Completed>, StoreError> {
    let mut tries = Tries::new(store, "the completion could not be looked for");
    let session = tries.session().await?;
    let asked = tries.run(session, Purpose::Read, |batch, _| {
        batch.call(Step::CompletedElsewhere, &Argument::attempt(lease))
    });
    let (session, answer) = asked.await?.through();
    let found = answer.row(Step::CompletedElsewhere).map(read).transpose();
    session.release();
    found.map_err(|error| tries.failed(error))
}

fn read(row: &PgRow) -> Result<Completed, sqlx::Error> {
    let response = row.try_get::<Option<&str>, _>(0)?.map(unhex).transpose()?;
    Ok(Completed::new(response.map(Bytes::from), moment(row)?))
}
