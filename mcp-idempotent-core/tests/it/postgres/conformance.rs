//! The conformance suites, as they are, and under settings that change how a store talks.

use std::time::Duration;

use mcp_idempotent_core::{
    RecordId, operator_store_conformance,
    store::postgres::{Isolation, PostgresStore},
    store_conformance,
    testing::{Harness, TransactionHarness},
    transaction_store_conformance,
};
use sqlx::PgConnection;

use super::database::Database;

impl Harness for Database {
    type Store = PostgresStore;

    fn store(&self) -> &PostgresStore {
        &self.store
    }

    async fn age(&self, id: RecordId, by: Duration) {
        Database::age(self, id, by).await;
    }
}

impl TransactionHarness for Database {
    async fn write<'c>(&'c self, connection: &'c mut PgConnection) {
        Database::write(self, connection, "effect").await;
    }

    async fn effects(&self) -> u64 {
        Database::effects(self).await.len() as u64
    }
}

store_conformance!(Database::new());
operator_store_conformance!(Database::new());

mod transactions {
    use super::*;

    transaction_store_conformance!(Database::new());
}

mod looking_up_first {
    use super::*;

    transaction_store_conformance!(Database::with_store(|store| store.with_lookup_first(true)));
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
