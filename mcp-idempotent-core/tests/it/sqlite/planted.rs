//! Stores with a planted fault, each of which the conformance suite notices.

use std::{
    collections::HashMap,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex},
};

use futures_util::FutureExt as _;
use mcp_idempotent_core::{
    OnExpired, StoreError, Timestamp,
    engine::{BeginError, LateTransaction},
    store::{LeaseEnd, Reach},
    testing::{
        Harness, HarnessResult, SqlHarness, TransactionHarness,
        a_commit_makes_effect_and_record_visible_together, a_completed_attempt_cannot_be_changed,
        a_handler_that_ends_its_transaction_leaves_the_key_in_doubt,
        a_lapsed_lease_is_in_doubt_and_is_not_claimed_anew,
        a_lease_and_its_guard_are_completed_together,
        a_lease_and_its_guard_are_completed_together_with_a_transaction,
        a_lost_guard_commits_nothing_of_its_transaction,
        a_lost_guard_lets_its_lease_complete_nothing,
        a_record_and_its_guard_are_committed_together,
        a_released_key_is_free_and_its_token_is_not_reused,
        a_transaction_that_failed_is_never_a_success, a_wrong_token_is_fenced,
        an_end_dropped_at_any_point_leaves_both_or_neither,
        an_expired_key_is_refused_while_its_tombstone_is_kept_swept_or_not,
        an_old_call_is_noticed_until_it_is_settled,
        an_old_call_that_lapsed_is_noticed_as_long_as_it_is_kept,
        nothing_but_the_same_call_in_doubt_is_taken_over, racing_transactions_have_one_effect,
        what_is_free_or_no_call_is_not_noticed,
    },
};

use super::{
    conformance::{File, file},
    *,
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    ReusesTokens,
    OverwritesWhatIsCompleted,
    BelievesAnAbortedTransaction,
    CommitsTheEffectAlone,
    ClaimsAnewAfterALapse,
    IgnoresGuards,
    AnswersWithoutAClaim,
    SeesNothingUnsettled,
    TakesYoungCallsForOld,
    TakesEveryRecordForUnsettled,
    TakesOverWhoeverHadIt,
    TakesAnExpiredKeyForANewOne,
    BelievesAHandlersCommit,
    /// Its promise holds unless a future of its own is dropped halfway.
    RecordsInASecondStep,
}

struct Wrong {
    fault: Fault,
    store: SqliteStore,
    /// The lease behind the one that was handed out with a token of the past.
    leases: Mutex<HashMap<RecordId, Lease>>,
}

impl Wrong {
    fn behind(&self, lease: &Lease) -> Lease {
        let leases = self.leases.lock().unwrap();
        leases.get(&lease.id).unwrap_or(lease).clone()
    }

    fn asked(&self, claim: &Claim) -> Claim {
        let mut claim = claim.clone();
        if self.fault == Fault::TakesAnExpiredKeyForANewOne {
            claim.on_expired = OnExpired::New;
        }
        claim
    }

    fn seen(&self, mut completion: Completion) -> Completion {
        if self.fault == Fault::IgnoresGuards {
            completion.guard = None;
        }
        completion
    }
}

impl Store for Wrong {
    fn reach(&self) -> Reach {
        self.store.reach()
    }

    async fn look_up(&self, claim: &Claim) -> Result<Option<Record>, StoreError> {
        self.store.look_up(&self.asked(claim)).await
    }

    async fn claim(&self, claim: &Claim) -> Result<Claimed<Lease>, StoreError> {
        let claimed = self.store.claim(&self.asked(claim)).await?;
        match (self.fault, claimed) {
            (Fault::ReusesTokens, Claimed::New(lease)) => {
                self.leases.lock().unwrap().insert(claim.id, lease);
                Ok(Claimed::New(Lease::new(claim.id, 1)))
            }
            (Fault::ClaimsAnewAfterALapse, Claimed::Found(record)) => {
                let RecordState::InDoubt { token, .. } = record.state else {
                    return Ok(Claimed::Found(record));
                };
                let taken = self.store.take_over(claim, token).await?;
                Ok(taken.map_or(Claimed::InProgress, Claimed::New))
            }
            (_, claimed) => Ok(claimed),
        }
    }

    async fn take_over(&self, claim: &Claim, token: i64) -> Result<Option<Lease>, StoreError> {
        if self.fault == Fault::TakesOverWhoeverHadIt
            && let Some(record) = self.store.look_up(claim).await?
            && let RecordState::InDoubt { token, .. } = record.state
        {
            return self.store.take_over(claim, token).await;
        }
        self.store.take_over(claim, token).await
    }

    async fn renew(&self, lease: &Lease, period: Duration) -> Result<LeaseEnd, StoreError> {
        self.store.renew(&self.behind(lease), period).await
    }

    async fn complete(&self, lease: &Lease, result: Completion) -> Result<LeaseEnd, StoreError> {
        let result = self.seen(result);
        let response = result.response.clone();
        let end = self.store.complete(&self.behind(lease), result).await?;
        if self.fault == Fault::OverwritesWhatIsCompleted && end == LeaseEnd::Fenced {
            sqlx::query("UPDATE mcp_idempotent_record SET response = ?1 WHERE id = ?2")
                .bind(response.as_deref())
                .bind(lease.id.as_bytes().as_slice())
                .execute(self.store.pool())
                .await
                .unwrap();
        }
        Ok(end)
    }

    async fn release(&self, lease: &Lease, keep_origin: Duration) -> Result<LeaseEnd, StoreError> {
        self.store.release(&self.behind(lease), keep_origin).await
    }

    async fn abandon(&self, lease: &Lease) -> Result<LeaseEnd, StoreError> {
        self.store.abandon(&self.behind(lease)).await
    }

    async fn has_unsettled(&self, age: Duration) -> Result<bool, StoreError> {
        match self.fault {
            Fault::SeesNothingUnsettled => Ok(false),
            Fault::TakesYoungCallsForOld => self.store.has_unsettled(Duration::ZERO).await,
            Fault::TakesEveryRecordForUnsettled => {
                let any = sqlx::query_scalar("SELECT EXISTS (SELECT * FROM mcp_idempotent_record)");
                Ok(any.fetch_one(self.store.pool()).await.unwrap())
            }
            _ => self.store.has_unsettled(age).await,
        }
    }

    async fn sweep(&self, limit: u32) -> Result<u64, StoreError> {
        self.store.sweep(limit).await
    }
}

impl TransactionStore for Wrong {
    type Connection = SqliteConnection;
    type Transaction = SqliteTransaction;

    async fn begin(
        &self,
        call: &CallInfo,
        claim: Option<&Claim>,
    ) -> Result<Claimed<SqliteTransaction>, StoreError> {
        if self.fault == Fault::AnswersWithoutAClaim && claim.is_none() {
            return Ok(Claimed::InProgress);
        }
        let asked = claim.map(|claim| self.asked(claim));
        self.store.begin(call, asked.as_ref()).await
    }

    async fn end(&self, transaction: SqliteTransaction, claim: Option<&Claim>, end: End) -> Ended {
        if let (Fault::RecordsInASecondStep, Some(claim), End::Commit(completion)) =
            (self.fault, claim, &end)
        {
            let ended = self.store.end(transaction, None, End::CommitUnrecorded);
            let ended = ended.await;
            if let Ok(Claimed::New(lease)) = self.store.claim(claim).await {
                drop(self.store.complete(&lease, completion.clone()).await);
            }
            return ended;
        }
        let end = match end {
            End::Commit(_) if self.fault == Fault::CommitsTheEffectAlone => End::CommitUnrecorded,
            End::Commit(completion) => End::Commit(self.seen(completion)),
            End::RollBackAndRecord(completion) => End::RollBackAndRecord(self.seen(completion)),
            End::Complete(lease, completion) => End::Complete(lease, self.seen(completion)),
            end => end,
        };
        match self.store.end(transaction, claim, end).await {
            Ended::Aborted(_) | Ended::EndedByHandler
                if self.fault == Fault::BelievesAnAbortedTransaction =>
            {
                Ended::AsAsked(Timestamp::from_micros(1))
            }
            Ended::EndedByHandler if self.fault == Fault::BelievesAHandlersCommit => {
                Ended::AsAsked(Timestamp::from_micros(1))
            }
            ended => ended,
        }
    }
}

struct Planted {
    file: File,
    wrong: Wrong,
}

impl Harness for Planted {
    type Store = Wrong;

    fn store(&self) -> &Wrong {
        &self.wrong
    }

    async fn age(&self, id: RecordId, by: Duration) -> HarnessResult {
        Harness::age(&self.file, id, by).await
    }
}

impl TransactionHarness for Planted {
    async fn write<'c>(&'c self, connection: &'c mut SqliteConnection) -> HarnessResult {
        self.file.write(connection).await
    }

    async fn effects(&self) -> HarnessResult<u64> {
        self.file.effects().await
    }
}

impl SqlHarness for Planted {
    async fn run<'c>(&'c self, connection: &'c mut SqliteConnection, sql: &'static str) {
        self.file.run(connection, sql).await;
    }

    async fn fail<'c>(&'c self, connection: &'c mut SqliteConnection) {
        self.file.fail(connection).await;
    }

    async fn write_through_the_pool(&self) -> HarnessResult {
        self.file.write_through_the_pool().await
    }
}

/// Whether a rule holds for a store with this fault.
async fn holds<F>(fault: Fault, rule: fn(Arc<Planted>) -> F) -> bool
where
    F: Future<Output = ()>,
{
    let file = file(4).await;
    let wrong = Wrong {
        fault,
        store: file.store().clone(),
        leases: Mutex::default(),
    };
    let followed = AssertUnwindSafe(rule(Arc::new(Planted { file, wrong })));
    followed.catch_unwind().await.is_ok()
}

/// It is not mistaken for a lease and a transaction of two stores, which the author could mend.
#[tokio::test]
async fn a_store_that_answers_a_call_without_a_claim_is_itself_the_error() {
    let store = Arc::new(Wrong {
        fault: Fault::AnswersWithoutAClaim,
        store: file(1).await.store().clone(),
        leases: Mutex::default(),
    });
    let late = LateTransaction::default();
    let begun = late.begin(&store, &CallInfo::new("pay", None)).await;
    let error = begun.err();
    assert!(matches!(error, Some(BeginError::Store(_))), "{error:?}");
}

macro_rules! a_store_that {
    ($($name:ident: $fault:ident breaks $($rule:ident)+;)+) => {$(
        #[tokio::test]
        async fn $name() {
            $(
                assert!(holds(Fault::None, $rule).await);
                assert!(!holds(Fault::$fault, $rule).await, stringify!($rule));
            )+
        }
    )+};
}

a_store_that! {
    a_store_that_reuses_tokens_is_noticed: ReusesTokens breaks
        a_released_key_is_free_and_its_token_is_not_reused a_wrong_token_is_fenced;
    a_store_that_overwrites_what_is_completed_is_noticed: OverwritesWhatIsCompleted breaks
        a_completed_attempt_cannot_be_changed;
    a_store_that_believes_an_aborted_transaction_is_noticed: BelievesAnAbortedTransaction breaks
        a_transaction_that_failed_is_never_a_success;
    a_store_that_commits_the_effect_alone_is_noticed: CommitsTheEffectAlone breaks
        a_commit_makes_effect_and_record_visible_together racing_transactions_have_one_effect;
    a_store_that_claims_anew_after_a_lapse_is_noticed: ClaimsAnewAfterALapse breaks
        a_lapsed_lease_is_in_doubt_and_is_not_claimed_anew;
    a_store_that_ignores_guards_is_noticed: IgnoresGuards breaks
        a_lease_and_its_guard_are_completed_together a_lost_guard_lets_its_lease_complete_nothing
        a_record_and_its_guard_are_committed_together
        a_lost_guard_commits_nothing_of_its_transaction
        a_lease_and_its_guard_are_completed_together_with_a_transaction;
    a_store_that_sees_nothing_unsettled_is_noticed: SeesNothingUnsettled breaks
        an_old_call_is_noticed_until_it_is_settled
        an_old_call_that_lapsed_is_noticed_as_long_as_it_is_kept;
    a_store_that_takes_young_calls_for_old_is_noticed: TakesYoungCallsForOld breaks
        an_old_call_is_noticed_until_it_is_settled;
    a_store_that_takes_every_record_for_unsettled_is_noticed: TakesEveryRecordForUnsettled breaks
        an_old_call_is_noticed_until_it_is_settled what_is_free_or_no_call_is_not_noticed;
    a_store_that_takes_over_whoever_had_the_call_is_noticed: TakesOverWhoeverHadIt breaks
        nothing_but_the_same_call_in_doubt_is_taken_over;
    a_store_whose_tombstone_lets_another_call_through_is_noticed: TakesAnExpiredKeyForANewOne breaks
        an_expired_key_is_refused_while_its_tombstone_is_kept_swept_or_not;
    a_store_that_believes_a_handlers_commit_is_noticed: BelievesAHandlersCommit breaks
        a_handler_that_ends_its_transaction_leaves_the_key_in_doubt;
    a_store_that_records_in_a_second_step_is_noticed_when_it_is_dropped: RecordsInASecondStep breaks
        an_end_dropped_at_any_point_leaves_both_or_neither;
}
