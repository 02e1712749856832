//! A handler that interferes with its transaction must never be reported as a success.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::{
    SqlHarness,
    step::{
        MINUTE, assert_running, begin, begin_unclaimed, call, effects, end, found, fresh_claim,
        lease_of, record_of, release, renew, result, write,
    },
};
use crate::{
    record::RecordState,
    store::{Completion, End, Ended, TransactionStore as _},
};

/// The SQL with which a handler ends its transaction.
const ENDINGS: [&str; 6] = [
    "COMMIT",
    "ROLLBACK",
    "COMMIT; BEGIN",
    "ROLLBACK; BEGIN",
    "COMMIT; BEGIN; SELECT 1 / 0",
    "ROLLBACK; BEGIN; SELECT 1 / 0",
];

/// The ends of a transaction under a claim, except a plain rollback.
fn ends() -> [End; 4] {
    let large = Bytes::from(vec![b'x'; 100_000]);
    [
        End::Commit(result("result")),
        End::Commit(Completion::new(Some(large), MINUTE)),
        End::CommitUnrecorded,
        End::RollBackAndRecord(result("error")),
    ]
}

/// The handler has rolled back, which is also what is asked for. The store may then answer that it
/// was done as asked, or that the handler did it.
fn is_undone_twice(sql: &str, end: &End) -> bool {
    sql.starts_with("ROLLBACK") && matches!(end, End::RollBack | End::RollBackAndRecord(_))
}

pub async fn a_handler_that_ends_its_transaction_leaves_the_key_in_doubt<H: SqlHarness>(
    harness: Arc<H>,
) {
    for sql in ENDINGS {
        for ends in ends().into_iter().chain([End::RollBack]) {
            if is_undone_twice(sql, &ends) {
                continue;
            }
            let what = format!("{sql} / {ends:?}");
            let claim = fresh_claim();
            let mut transaction = begin(&harness, &claim).await;
            write(&harness, &mut transaction).await;
            harness.run(&mut transaction, sql).await;
            let ended = harness.store().end(transaction, Some(&claim), ends).await;
            assert!(matches!(ended, Ended::EndedByHandler), "{what}: {ended:?}");
            let record = found(&harness, &claim).await;
            assert!(
                matches!(record.state, RecordState::InDoubt { .. }),
                "{what}: {record:?}"
            );
            assert_eq!(record.fingerprint, claim.fingerprint);
            call(&harness, &fresh_claim(), result("the next call")).await;
        }
    }
}

pub async fn an_unprotected_handler_that_ends_its_transaction_is_noticed<H: SqlHarness>(
    harness: Arc<H>,
) {
    let claim = fresh_claim();
    for sql in ENDINGS {
        for ends in [End::CommitUnrecorded, End::RollBack] {
            if is_undone_twice(sql, &ends) {
                continue;
            }
            let mut transaction = begin_unclaimed(&harness, &claim).await;
            write(&harness, &mut transaction).await;
            harness.run(&mut transaction, sql).await;
            let ended = harness.store().end(transaction, None, ends).await;
            assert!(matches!(ended, Ended::EndedByHandler), "{sql}: {ended:?}");
        }
    }
    let transaction = begin(&harness, &claim).await;
    end(&harness, transaction, Some(&claim), End::RollBack).await;
}

pub async fn a_handler_that_ends_the_transaction_of_its_lease_completes_nothing<H: SqlHarness>(
    harness: Arc<H>,
) {
    for sql in ENDINGS {
        let claim = fresh_claim();
        let lease = lease_of(harness.store(), &claim).await;
        let before = effects(&harness).await;
        let mut transaction = begin_unclaimed(&harness, &claim).await;
        write(&harness, &mut transaction).await;
        harness.run(&mut transaction, sql).await;
        let complete = End::Complete(lease.clone(), result("done"));
        let ended = harness.store().end(transaction, None, complete).await;
        assert!(matches!(ended, Ended::EndedByHandler), "{sql}: {ended:?}");
        assert_running(harness.store(), &claim).await;
        renew(harness.store(), &lease, claim.lease).await;
        if sql.starts_with("ROLLBACK") {
            assert_eq!(effects(&harness).await, before, "{sql}");
        }
    }
}

pub async fn a_transaction_that_failed_is_never_a_success<H: SqlHarness>(harness: Arc<H>) {
    let store = harness.store();
    let unclaimed = [(false, End::CommitUnrecorded)];
    for (claimed, ends) in ends().map(|end| (true, end)).into_iter().chain(unclaimed) {
        let what = format!("{ends:?}, claimed: {claimed}");
        let claim = fresh_claim();
        let mut transaction = if claimed {
            begin(&harness, &claim).await
        } else {
            begin_unclaimed(&harness, &claim).await
        };
        write(&harness, &mut transaction).await;
        harness.fail(&mut transaction).await;
        let ended = store
            .end(transaction, claimed.then_some(&claim), ends)
            .await;
        assert_eq!(effects(&harness).await, 0, "{what}");
        let record = record_of(store, &claim).await;
        match ended {
            Ended::Aborted(_) => {
                assert!(record.is_none(), "{what}: {record:?}");
                let transaction = begin(&harness, &claim).await;
                end(&harness, transaction, Some(&claim), End::RollBack).await;
            }
            // A database that rolls back by itself looks the same as a handler that does.
            Ended::EndedByHandler => assert_eq!(
                record.is_some_and(|record| matches!(record.state, RecordState::InDoubt { .. })),
                claimed,
                "{what}"
            ),
            other => panic!("{what}: {other:?}"),
        }
    }
    let claim = fresh_claim();
    let mut transaction = begin(&harness, &claim).await;
    write(&harness, &mut transaction).await;
    harness.fail(&mut transaction).await;
    end(&harness, transaction, Some(&claim), End::RollBack).await;
    let lease = lease_of(store, &claim).await;
    let mut transaction = begin_unclaimed(&harness, &claim).await;
    write(&harness, &mut transaction).await;
    harness.fail(&mut transaction).await;
    let complete = End::Complete(lease.clone(), result("done"));
    let ended = store.end(transaction, None, complete).await;
    assert!(
        matches!(ended, Ended::Aborted(_) | Ended::EndedByHandler),
        "{ended:?}"
    );
    assert_eq!(effects(&harness).await, 0);
    release(store, &lease, Duration::ZERO).await;
    call(&harness, &claim, result("done")).await;
}
