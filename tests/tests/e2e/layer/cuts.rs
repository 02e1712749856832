//! HTTP connections that are cut: whatever the place, the protocol revision and the kind of the
//! answer, there is one effect, and a retry from a new connection gets the first result, from the
//! same instance of the server and from another one.

use mcp_idempotent_tests::database::{Database as _, Postgres, Stored, unique};
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

/// A server with an engine and connections of its own.
struct Instance {
    idempotency: Idempotency<PostgresStore>,
    shop: Shop,
    site: Site,
}

impl Instance {
    async fn new(database: &Postgres, name: &str, shop: Shop, served: Served) -> Self {
        let options = database.options().application_name(name);
        let pool = database.pool(options, 4);
        let store = database.builder(pool).build().unwrap();
        let idempotency = engine(store).build().unwrap();
        let site = Site::of(shop.behind(&idempotency), served).await;
        Self {
            idempotency,
            shop,
            site,
        }
    }
}

/// Two instances in one set-up, and the database that both write to. Calls come to the first.
struct Case {
    database: Postgres,
    first: Instance,
    /// To this one come retries, where it is there.
    second: Option<Instance>,
    /// As which the second is known to Postgres.
    second_name: String,
    stop: Stop,
    served: Served,
    revision: &'static str,
    order: Value,
}

impl Case {
    /// Each revision with each kind of answer, retried at the same instance and at another one.
    async fn each(place: Option<Place>, length: usize, test: impl AsyncFn(Self)) {
        for revision in REVISIONS {
            for served in Served::ALL {
                for is_retried_elsewhere in [false, true] {
                    test(Self::new(place, length, revision, served, is_retried_elsewhere).await)
                        .await;
                }
            }
        }
    }

    async fn new(
        place: Option<Place>,
        length: usize,
        revision: &'static str,
        served: Served,
        is_retried_elsewhere: bool,
    ) -> Self {
        let database = Postgres::create().await;
        let stop = Stop::at(place);
        let shop = Shop::stopping(&stop);
        let first = Instance::new(&database, "first", shop, served).await;
        let second_name = unique("second");
        let second = match is_retried_elsewhere {
            false => None,
            true => Some(Instance::new(&database, &second_name, Shop::new(), served).await),
        };
        Self {
            database,
            first,
            second,
            second_name,
            stop,
            served,
            revision,
            order: json!({ "name": "an order", "length": length }),
        }
    }

    /// What a client does that has lost its connection: a new one, a new session where there are
    /// sessions, and another JSON-RPC id.
    async fn retry(&self) -> Value {
        let instance = self.second.as_ref().unwrap_or(&self.first);
        let caller = instance.site.caller(self.revision).await;
        let body = caller.call(71, "order", &self.order, "k");
        caller.answer(&body).await
    }

    /// How many handlers were started, wherever.
    fn runs(&self) -> u32 {
        let instances = [Some(&self.first), self.second.as_ref()];
        instances
            .into_iter()
            .flatten()
            .map(|it| it.shop.runs())
            .sum()
    }

    async fn assert_one_effect(&self, answer: &Value) {
        let case = (self.revision, self.served, self.second.is_some());
        let receipt = &answer["result"]["structuredContent"];
        assert_eq!(receipt["number"], 1, "{case:?}");
        let text = receipt["text"].as_str().map(str::len);
        assert_eq!(
            text,
            self.order["length"]
                .as_u64()
                .map(|n| usize::try_from(n).unwrap())
        );
        assert_eq!(self.runs(), 1, "{case:?}");
        assert_eq!(self.database.effects().await, ["an order"], "{case:?}");
        assert_eq!(
            self.database.records().await,
            [Stored::Completed],
            "{case:?}"
        );
    }

    /// Sends the order; once the server has stopped in it, looks at `effects` and cuts.
    async fn cut_at(&self, effects: &[&str]) {
        let caller = self.first.site.caller(self.revision).await;
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

    async fn retry_waits(&self) -> bool {
        if self.second.is_none() {
            return self.first.idempotency.engine().waiting() == 1;
        }
        // Another process claims, is told that the call runs, and claims again after a while.
        let claimed = format!(
            "SELECT count(*) FROM pg_stat_activity \
             WHERE application_name = '{}' AND state = 'idle' AND query <> ''",
            self.second_name
        );
        self.database.integer(&claimed).await > 0
    }

    /// The retry comes while the first call is stopped, and joins it.
    async fn retry_that_joins(&self) -> Value {
        let retry = self.retry();
        let release = async {
            until(async || self.retry_waits().await).await;
            self.stop.open();
        };
        let (answer, ()) = tokio::join!(retry, release);
        answer
    }
}

#[tokio::test]
async fn a_connection_cut_while_the_request_is_sent_has_no_effect_but_that_of_the_retry() {
    Case::each(None, SHORT, async |case| {
        let caller = case.first.site.caller(case.revision).await;
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
        assert_eq!(case.runs(), 0);
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
        assert_eq!(case.runs(), 1);
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
        let caller = case.first.site.caller(case.revision).await.slow();
        let body = caller.call(7, "order", &case.order, "k");
        let mut connection = caller.send(&body, None).await;
        read_some(&mut connection, "xxxx").await;
        drop(connection);
        let answer = case.retry().await;
        case.assert_one_effect(&answer).await;
    })
    .await;
}
