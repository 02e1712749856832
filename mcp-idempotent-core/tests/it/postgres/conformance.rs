//! The conformance suites, as they are, and under settings that change how a store talks.

use std::time::Duration;

use mcp_idempotent_core::{
    RecordId, operator_store_conformance, sql_operator_store_conformance, sql_store_conformance,
    store::postgres::{Isolation, PostgresStore},
    store_conformance,
    testing::{Harness, HarnessResult, SqlHarness, TransactionHarness},
    transaction_store_conformance,
};
use sqlx::{Executor, PgConnection, postgres::PgConnectOptions};

use super::{database::Database, proxy::Proxy};

impl Harness for Database {
    type Store = PostgresStore;

    fn store(&self) -> &PostgresStore {
        &self.store
    }

    fn elsewhere(&self) -> &PostgresStore {
        &self.elsewhere
    }

    async fn age(&self, id: RecordId, by: Duration) -> HarnessResult {
        Database::age(self, id, by).await;
        Ok(())
    }
}

impl TransactionHarness for Database {
    async fn write<'c>(&'c self, connection: &'c mut PgConnection) -> HarnessResult {
        connection
            .execute(self.sql("INSERT INTO {s}.effects VALUES ('effect')"))
            .await?;
        Ok(())
    }

    async fn effects(&self) -> HarnessResult<u64> {
        Ok(Database::effects(self).await.len() as u64)
    }
}

impl SqlHarness for Database {
    async fn run<'c>(&'c self, connection: &'c mut PgConnection, sql: &'static str) {
        drop(connection.execute(sqlx::raw_sql(sql)).await);
    }

    async fn fail<'c>(&'c self, connection: &'c mut PgConnection) {
        self.run(connection, "SELECT 1 / 0").await;
    }

    async fn write_through_the_pool(&self) -> HarnessResult {
        let insert = self.sql("INSERT INTO {s}.effects VALUES ('next')");
        sqlx::query(insert).execute(&self.pool).await?;
        Ok(())
    }
}

/// Every answer comes late, so that a future is pending wherever it waits for the server: one on this
/// machine may answer before it is asked for.
fn late(options: PgConnectOptions) -> PgConnectOptions {
    Proxy::start_late(&options, Duration::from_micros(300)).options(options)
}

store_conformance!(Database::new());
operator_store_conformance!(Database::new());

mod transactions {
    use super::*;

    transaction_store_conformance!(Database::new());
}

mod sql {
    use super::*;

    sql_store_conformance!(Database::with(
        late,
        |pool| pool.max_connections(1),
        |store| store
    ));
    sql_operator_store_conformance!(Database::with_pool(1));
}

mod looking_up_first {
    use super::*;

    transaction_store_conformance!(Database::with_store(|store| store.with_lookup_first(true)));

    mod sql {
        use super::*;

        /// With a hook, so that a claim has as many points at which it can be dropped as it may.
        async fn one_connection() -> Database {
            Database::with(
                late,
                |pool| pool.max_connections(1),
                |store| {
                    store
                        .with_lookup_first(true)
                        .with_on_begin(|connection, _| {
                            Box::pin(async move {
                                sqlx::query("SELECT 1").execute(connection).await?;
                                Ok(())
                            })
                        })
                },
            )
            .await
        }

        sql_store_conformance!(one_connection());
    }
}

mod without_prepared_statements {
    use super::*;

    store_conformance!(Database::with_store(
        |store| store.with_prepared_statements(false)
    ));
    operator_store_conformance!(Database::with_store(
        |store| store.with_prepared_statements(false)
    ));

    mod transactions {
        use super::*;

        transaction_store_conformance!(Database::with_store(
            |store| store.with_prepared_statements(false)
        ));
    }
}

mod repeatable_read {
    use super::*;

    transaction_store_conformance!(Database::with_store(
        |store| store.with_isolation(Isolation::RepeatableRead)
    ));
}

mod serializable {
    use super::*;

    transaction_store_conformance!(Database::with_store(
        |store| store.with_isolation(Isolation::Serializable)
    ));
}

/// Sessions whose defaults are as unlike the usual ones as they can be.
mod odd_sessions {
    use super::*;

    async fn odd() -> Database {
        Database::with(
            |connect| {
                connect.options([
                    ("default_transaction_isolation", "serializable"),
                    ("TimeZone", "Pacific/Chatham"),
                    ("DateStyle", "German, DMY"),
                    ("IntervalStyle", "iso_8601"),
                    ("bytea_output", "escape"),
                    ("standard_conforming_strings", "off"),
                    ("synchronous_commit", "off"),
                    ("extra_float_digits", "0"),
                    ("search_path", ""),
                ])
            },
            |pool| pool,
            |store| store,
        )
        .await
    }

    store_conformance!(odd());
    operator_store_conformance!(odd());

    mod transactions {
        use super::*;

        transaction_store_conformance!(odd());
    }
}

/// Sessions that find everybody's objects before Postgres's own.
mod hostile_sessions {
    use super::*;
    use crate::postgres::hostile::hostile_sessions;

    store_conformance!(hostile_sessions(true));
    operator_store_conformance!(hostile_sessions(true));

    mod transactions {
        use super::*;

        transaction_store_conformance!(hostile_sessions(true));
    }

    mod without_prepared_statements {
        use super::*;

        store_conformance!(hostile_sessions(false));
        operator_store_conformance!(hostile_sessions(false));

        mod transactions {
            use super::*;

            transaction_store_conformance!(hostile_sessions(false));
        }
    }
}

/// A store that owns its connections.
mod own_connections {
    use super::*;

    async fn own() -> Database {
        Database::owning(|options| options, 8, |store| store).await
    }

    store_conformance!(own());
    operator_store_conformance!(own());

    mod transactions {
        use super::*;

        transaction_store_conformance!(own());
    }

    mod sql {
        use super::*;

        /// Later still: these connections wait for one answer only.
        async fn one_connection() -> Database {
            let late =
                |options| Proxy::start_late(&options, Duration::from_millis(5)).options(options);
            Database::owning(late, 1, |store| store).await
        }

        sql_store_conformance!(one_connection());
        sql_operator_store_conformance!(one_connection());
    }

    mod serializable {
        use super::*;

        transaction_store_conformance!(Database::owning(
            |options| options,
            8,
            |store| store.with_isolation(Isolation::Serializable)
        ));
    }
}
