//! HTTP connections that are cut: whatever the place, the protocol revision and the kind of the
//! answer, there is one effect, and a retry from a new connection gets the first result.

use mcp_idempotent_tests::database::{Database as _, Postgres, Stored};
use mcp_idempotent_tower::{Idempotency, store::postgres::PostgresStore};
use serde_json::{Value, json};

use super::{
    shop::{Place, Shop, Stop},
    site::{REVISIONS, Served, Site, read_some},
};
use crate::world::{engine, until};

/// An answer that comes in one piece.
const SHORT: usize = 3;

/// More than the buffers between the server and a slow reader hold.
const LONG: usize = 100_000;

/// One server in one set-up, and the database that it writes to.
struct Case {
    database: Postgres,
    idempotency: Idempotency<PostgresStore>,
    shop: Shop,
    stop: Stop,
    site: Site,
    served: Served,
    revision: &'static str,
    order: Value,
}

impl Case {
    /// Each revision with each kind of answer.
    async fn each(place: Option<Place>, length: usize, test: impl AsyncFn(Self)) {
        for revision in REVISIONS {
            for served in Served::ALL {
                let database = Postgres::create().await;
                let idempotency = engine(database.store(4)).build().unwrap();
                let stop = Stop::at(place);
                let shop = Shop::stopping(&stop);
                let site = Site::of(shop.behind(&idempotency), served).await;
                let order = json!({ "name": "an order", "length": length });
                test(Self {
                    database,
                    idempotency,
                    shop,
                    stop,
                    site,
                    served,
                    revision,
                    order,
                })
                .await;
            }
        }
    }

    /// What a client does that has lost its connection: a new one, a new session where there are
    /// sessions, and another JSON-RPC id.
    async fn retry(&self) -> Value {
        let caller = self.site.caller(self.revision).await;
        let body = caller.call(71, "order", &self.order, "k");
        caller.answer(&body).await
    }

    async fn assert_one_effect(&self, answer: &Value) {
        let case = (self.revision, self.served);
        let receipt = &answer["result"]["structuredContent"];
        assert_eq!(receipt["number"], 1, "{case:?}");
        let text = receipt["text"].as_str().map(str::len);
        assert_eq!(
            text,
            self.order["length"]
                .as_u64()
                .map(|n| usize::try_from(n).unwrap())
        );
        assert_eq!(self.shop.runs(), 1, "{case:?}");
        assert_eq!(self.database.effects().await, ["an order"], "{case:?}");
        assert_eq!(
            self.database.records().await,
            [Stored::Completed],
            "{case:?}"
        );
    }

    /// Sends the order; once the server has stopped in it, looks at `effects` and cuts.
    async fn cut_at(&self, effects: &[&str]) {
        let caller = self.site.caller(self.revision).await;
        let body = caller.call(7, "order", &self.order, "k");
        let connection = caller.send(&body, None).await;
        self.stop.arrival().await;
        assert_eq!(self.database.effects().await, effects);
        drop(connection);
        // rmcp tells the handler of a call without session. One in a session goes on untold.
        if !self.served.has_session(self.revision) {
            self.stop.departure().await;
        }
    }

    /// The retry comes while the first call is stopped, and joins it.
    async fn retry_that_joins(&self) -> Value {
        let retry = self.retry();
        let release = async {
            until(async || self.idempotency.engine().waiting() == 1).await;
            self.stop.open();
        };
        let (answer, ()) = tokio::join!(retry, release);
        answer
    }
}

#[tokio::test]
async fn a_connection_cut_while_the_request_is_sent_has_no_effect_but_that_of_the_retry() {
    Case::each(None, SHORT, async |case| {
        let caller = case.site.caller(case.revision).await;
        let body = caller.call(7, "order", &case.order, "k");
        let half = body.to_string().len() / 2;
        drop(caller.send(&body, Some(half)).await);
        let answer = case.retry().await;
        case.assert_one_effect(&answer).await;
    })
    .await;
}

#[tokio::test]
async fn a_connection_cut_before_the_handler_has_one_effect() {
    Case::each(Some(Place::BeforeHandler), SHORT, async |case| {
        case.cut_at(&[]).await;
        assert_eq!(case.shop.runs(), 0);
        let answer = case.retry_that_joins().await;
        case.assert_one_effect(&answer).await;
    })
    .await;
}

#[tokio::test]
async fn a_connection_cut_during_the_handler_has_one_effect() {
    Case::each(Some(Place::InHandler), SHORT, async |case| {
        // Written, and not committed.
        case.cut_at(&[]).await;
        assert_eq!(case.shop.runs(), 1);
        let answer = case.retry_that_joins().await;
        case.assert_one_effect(&answer).await;
    })
    .await;
}

#[tokio::test]
async fn a_connection_cut_between_commit_and_answer_has_one_effect() {
    Case::each(Some(Place::BeforeAnswer), SHORT, async |case| {
        case.cut_at(&["an order"]).await;
        let answer = case.retry().await;
        case.assert_one_effect(&answer).await;
        case.stop.open();
    })
    .await;
}

#[tokio::test]
async fn a_connection_cut_in_the_middle_of_the_answer_has_one_effect() {
    Case::each(None, LONG, async |case| {
        let caller = case.site.caller(case.revision).await.slow();
        let body = caller.call(7, "order", &case.order, "k");
        let mut connection = caller.send(&body, None).await;
        read_some(&mut connection, "xxxx").await;
        drop(connection);
        let answer = case.retry().await;
        case.assert_one_effect(&answer).await;
    })
    .await;
}
