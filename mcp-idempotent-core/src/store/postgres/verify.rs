//! The check at start-up. It does what calls do, and rolls it back.

use std::{
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

use sqlx::{Connection as _, PgConnection, Row as _};

use super::{
    batch::{Batch, BatchRun},
    bound::within,
    end::insert_record,
    error::{self, answer},
    literal::Argument,
    lock::Mark,
    schema::{NEWEST, version},
    statement::Step,
    store::PostgresStore,
    tries::Tries,
};
use crate::{
    Application, CanonicalArguments, Identity, Scope,
    store::{CallInfo, Claim, Completion, StoreError, StoreErrorKind},
};

impl PostgresStore {
    /// Proves that the store can work here. It writes a record, sees it, changes it and removes it;
    /// it finds that a second connection is excluded by a lock, and a second record by the primary
    /// key. All of this is rolled back. It needs no right to create anything. It uses one of the
    /// store's connections and opens another.
    ///
    /// It logs a warning if the connections go through a pooler that shares sessions between
    /// clients. It cannot tell if the pooler had no other session free.
    ///
    /// # Errors
    ///
    /// [`StoreErrorKind::Misconfigured`], with the remedy.
    /// [`StoreErrorKind::Unavailable`]: the database could not be asked, or is a standby.
    /// Nothing is left behind in either case.
    pub async fn verify(&self) -> Result<(), StoreError> {
        let mut tries = Tries::patient(self, "the check of the tables failed");
        let mut session = tries.session().await?;
        let failed = |error| tries.failed(error);
        // The first version with `COMMIT AND CHAIN`.
        const OLDEST_SERVER: u32 = 12_00_00;
        if session
            .server_version_num()
            .is_some_and(|version| version < OLDEST_SERVER)
        {
            return Err(misconfigured("the store needs Postgres 13 or later"));
        }
        let version = version(&tries, &mut session).await.map_err(failed)?;
        self.is_of_this_version(version)?;
        let mut other = self.another_connection().await?;
        let asked = Batch::in_full(self).steps([Step::Backend]);
        let asked = asked.run(&mut other).await.into_result();
        let home: i32 = asked
            .and_then(|answer| answer.one(Step::Backend)?.try_get(0))
            .map_err(failed)?;

        let claim = claim_of_nobody();
        let written = write(self, &claim).run(&mut session).await;
        self.could_write(written)?;
        let key = Argument::Integer(self.inner.locks.of_key(&claim));
        let mut moved_to = home;
        // Both kinds of lock, because an engine may have only one of them.
        for both in [true, false] {
            let begun = Batch::in_full(self).steps([Step::BeginReadCommitted, Step::Backend]);
            let excluded = if both {
                begun.try_locks(self, Step::LockKey, &claim)
            } else {
                begun.call(Step::TryLock, &[key])
            };
            let excluded = excluded.run(&mut other).await;
            if let Some(row) = excluded.row(Step::Backend) {
                moved_to = row.try_get(0).map_err(failed)?;
            }
            match excluded.error {
                Some(error) if is_first_refusal(&error) => {}
                Some(error) if !is_refusal(&error) => return Err(failed(error)),
                None | Some(_) => {
                    return Err(misconfigured(
                        "the advisory locks of this database do not exclude, or its two connections led to different databases: the store needs Postgres's own advisory locks, and all its connections must lead to one database",
                    ));
                }
            }
            let left = Batch::in_full(self).steps([Step::RollBack]);
            left.run(&mut other).await.into_result().map_err(failed)?;
        }
        let inserted = || insert_record(Batch::in_full(self), Mark::new(), &claim, &result());
        let first = inserted().run(&mut session).await.into_result();
        first.map_err(failed)?;
        match inserted().run(&mut session).await.error {
            Some(error) if error::is_our_unique_violation(&error, self.inner.schema.as_str()) => {}
            Some(error) => return Err(failed(error)),
            None => {
                return Err(misconfigured(format!(
                    "the table records in schema {0} has lost its primary key: ALTER TABLE {0}.records ADD CONSTRAINT mcp_idempotent_records_pkey PRIMARY KEY (id)",
                    self.inner.schema.as_str()
                )));
            }
        }
        tries.roll_back(&mut session).await.map_err(failed)?;
        session.release();
        // Our own transaction occupies the session that it had before.
        if moved_to != home {
            tracing::warn!(
                "the connections go through a pooler that shares sessions between clients; your own queries need care there: see \"Poolers\" in docs/operating.md"
            );
        }
        Ok(())
    }

    fn is_of_this_version(&self, version: i32) -> Result<(), StoreError> {
        let remedy = if version < NEWEST {
            "run `PostgresStore::migrate`, or apply `PostgresStore::migration_sql` by hand"
        } else if version > NEWEST {
            "a newer program has changed them; run one that is at least as new"
        } else {
            return Ok(());
        };
        Err(misconfigured(format!(
            "the tables in schema {} are of version {version}, and this program needs version {NEWEST}: {remedy}",
            self.inner.schema.as_str()
        )))
    }

    /// A connection from outside the pool, which may have no second one.
    async fn another_connection(&self) -> Result<PgConnection, StoreError> {
        let options = self.inner.source.connect_options();
        let connected = PgConnection::connect_with(&options);
        let connected = within(self.inner.acquire_timeout, connected).await;
        connected.map_err(|error| self.error("no second connection for the check", error))
    }

    fn could_write(&self, written: BatchRun) -> Result<(), StoreError> {
        let is_standby = written.stopped_at() == Some(Step::Primary);
        if let Some(error) = written.error {
            if is_standby && error::sqlstate(&error).as_deref() == Some(answer::NO) {
                return Err(StoreError::new(
                    StoreErrorKind::Unavailable,
                    "the database is a standby: the store needs the primary",
                ));
            }
            // A standby was already ruled out above.
            if error::is_read_only(&error) {
                return Err(misconfigured(
                    "transactions begin read-only here: set default_transaction_read_only to off for the role and the database",
                )
                .with_source(error));
            }
            return Err(self.error("the check of the tables failed", error));
        }
        let is_seen = [Step::LookUp, Step::Trial].map(|step| written.row(step).is_some());
        let is_changed = [Step::Finish, Step::Expire].map(|step| written.affected(step) == 1);
        if is_seen == [true; 2] && is_changed == [true; 2] {
            return Ok(());
        }
        Err(misconfigured(format!(
            "the database role does not see, or cannot change, the records that it writes in schema {}: give it a row-level security policy for all rows of the table records, or BYPASSRLS, and remove triggers and rules from the table",
            self.inner.schema.as_str()
        )))
    }
}

/// Everything that calls do to a record. It leaves the record's place free, and the locks held.
fn write<'s>(store: &'s PostgresStore, claim: &Claim) -> Batch<'s> {
    let record = Argument::record(claim);
    let opened = Batch::in_full(store)
        .begin_short()
        .steps([Step::Primary, Step::Columns])
        .try_locks(store, Step::LockKey, claim);
    insert_record(opened, Mark::new(), claim, &result())
        .call(Step::LookUp, &record)
        .call(Step::Trial, &record[..1])
        .call(Step::Expire, &record)
}

/// A claim that no caller makes, and no other check that runs now.
fn claim_of_nobody() -> Claim {
    let random = RandomState::new().hash_one(0);
    let scope = Scope::new(format!("{random:016x}"));
    let identity = Identity::new(
        &Application::new("mcp-idempotent"),
        &scope,
        None,
        "verify",
        &CanonicalArguments::new(None, &[]),
        None,
    );
    let call = CallInfo::new("verify", scope);
    Claim::new(identity.id, identity.fingerprint, call)
}

fn result() -> Completion {
    Completion::new(None, Duration::from_secs(60))
}

/// Whether the error says that a lock is taken: the first one tried, or a later one.
fn is_refusal(error: &sqlx::Error) -> bool {
    is_first_refusal(error) || error::sqlstate(error).as_deref() == Some(answer::KEY_BUSY)
}

fn is_first_refusal(error: &sqlx::Error) -> bool {
    error::sqlstate(error).as_deref() == Some(answer::NO)
}

fn misconfigured(what: impl Into<String>) -> StoreError {
    StoreError::new(StoreErrorKind::Misconfigured, what)
}
