//! Answers that are lost on their way: what was done is not done twice, and is known.

use std::sync::{Arc, Mutex};

use mcp_idempotent_core::{
    Audit, OperatorStore as _, RecordStatus, Resolution, Resolved,
    store::{Claimed, LeaseEnd},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use super::*;
use crate::stores::lease;

/// How an answer is lost.
#[derive(Clone, Copy)]
enum Loss {
    /// The connection ends.
    End,
    /// The connection stays open, and nothing comes any more.
    Silence,
}

/// Between a store and its server. It loses the answer to the next script.
struct Lossy {
    url: String,
    next: Arc<Mutex<Option<Loss>>>,
}

impl Lossy {
    async fn before(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let (next, port) = (Arc::default(), server.port());
        let lossy = Self {
            url,
            next: Arc::clone(&next),
        };
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                tokio::spawn(relay(client, server, Arc::clone(&next)));
            }
        });
        lossy
    }

    fn lose_the_next_answer(&self) {
        self.lose(Loss::End);
    }

    fn lose(&self, loss: Loss) {
        *self.next.lock().unwrap() = Some(loss);
    }

    fn has_lost(&self) -> bool {
        self.next.lock().unwrap().is_none()
    }
}

/// Loses an answer where the server has given it, so that the script has run.
async fn relay(mut client: TcpStream, mut server: TcpStream, next: Arc<Mutex<Option<Loss>>>) {
    let (mut asked, mut answered) = ([0; 65_536], [0; 65_536]);
    let mut is_script = false;
    loop {
        tokio::select! {
            read = client.read(&mut asked) => {
                let Ok(length @ 1..) = read else { return };
                let text = String::from_utf8_lossy(&asked[..length]);
                is_script = text.contains("\r\nEVAL");
                server.write_all(&asked[..length]).await.unwrap();
            }
            read = server.read(&mut answered) => {
                let Ok(length @ 1..) = read else { return };
                // The answer that the script is unknown is not the one.
                let is_answer = is_script && !answered.starts_with(b"-NOSCRIPT");
                let loss = is_answer.then(|| next.lock().unwrap().take()).flatten();
                match loss {
                    Some(Loss::End) => return,
                    Some(Loss::Silence) => std::future::pending().await,
                    None => {}
                }
                if client.write_all(&answered[..length]).await.is_err() { return }
            }
        }
    }
}

async fn lossy() -> (Server, Lossy, RedisStore) {
    let server = Server::start();
    let lossy = Lossy::before(&server).await;
    // Enough for a slow machine: half of it is how long the store waits on a silent connection.
    let store = builder(&lossy.url)
        .with_wait_bound(Duration::from_secs(4))
        .build()
        .unwrap();
    (server, lossy, store)
}

#[tokio::test]
async fn a_connection_that_falls_silent_is_replaced_and_the_claim_is_the_callers_own() {
    let (_server, lossy, store) = lossy().await;
    lease(&store, &claim(1)).await;
    lossy.lose(Loss::Silence);
    let second = lease(&store, &claim(2)).await;
    assert!(lossy.has_lost());
    let completed = store.complete(&second, completion(b"done")).await;
    assert!(matches!(completed, Ok(LeaseEnd::Done(_))), "{completed:?}");
}

#[tokio::test]
async fn a_claim_whose_answer_is_lost_is_the_callers_own() {
    let (_server, lossy, store) = lossy().await;
    lossy.lose_the_next_answer();
    let lease = lease(&store, &claim(1)).await;
    assert!(lossy.has_lost());
    assert_eq!((lease.origin, lease.attempts), (lease.token, 1));
    let completed = store.complete(&lease, completion(b"done")).await;
    assert!(matches!(completed, Ok(LeaseEnd::Done(_))), "{completed:?}");
}

#[tokio::test]
async fn a_take_over_whose_answer_is_lost_is_the_callers_own() {
    let (_server, lossy, store) = lossy().await;
    let first = lease(&store, &claim(1)).await;
    store.abandon(&first).await.unwrap();
    lossy.lose_the_next_answer();
    let second = store.take_over(&claim(1), first.token).await.unwrap();
    assert!(lossy.has_lost());
    let second = second.expect("it was in doubt");
    assert_eq!((second.origin, second.attempts), (first.token, 2));
}

#[tokio::test]
async fn a_result_whose_acknowledgement_is_lost_is_recorded_once_and_not_fenced() {
    let (_server, lossy, store) = lossy().await;
    let lease = lease(&store, &claim(1)).await;
    lossy.lose_the_next_answer();
    let completed = store.complete(&lease, completion(b"done")).await;
    assert!(lossy.has_lost());
    let Ok(LeaseEnd::Done(recorded)) = completed else {
        panic!("expected the time of the result, found {completed:?}");
    };
    let Some(RecordState::Completed { at, .. }) = state(&store, &claim(1)).await else {
        panic!("expected a completed record");
    };
    assert_eq!(at, recorded);
    let again = store.complete(&lease, completion(b"other")).await;
    assert!(matches!(again, Ok(LeaseEnd::Fenced)), "{again:?}");
}

/// All its answers were lost.
#[tokio::test]
async fn a_completion_that_is_sent_again_is_done_at_the_same_time() {
    let (_server, _lossy, store) = lossy().await;
    for (key, result) in [(1, completion(b"done")), (2, completion(b""))] {
        let lease = lease(&store, &claim(key)).await;
        let Ok(LeaseEnd::Done(at)) = store.complete(&lease, result.clone()).await else {
            panic!("the lease is current");
        };
        let again = store.complete(&lease, result).await;
        assert!(
            matches!(again, Ok(LeaseEnd::Done(found)) if found == at),
            "{key}: {again:?}"
        );
        let other = store.complete(&lease, completion(b"other")).await;
        assert!(matches!(other, Ok(LeaseEnd::Fenced)), "{key}: {other:?}");
    }
}

#[tokio::test]
async fn other_ends_whose_acknowledgement_is_lost_are_not_fenced() {
    let (_server, lossy, store) = lossy().await;
    let minute = Duration::from_secs(60);
    let first = lease(&store, &claim(1)).await;
    lossy.lose_the_next_answer();
    let renewed = store.renew(&first, minute).await;
    assert!(lossy.has_lost() && matches!(renewed, Ok(LeaseEnd::Done(_))));
    lossy.lose_the_next_answer();
    let released = store.release(&first, minute).await;
    assert!(lossy.has_lost() && matches!(released, Ok(LeaseEnd::Done(_))));
    let second = lease(&store, &claim(1)).await;
    lossy.lose_the_next_answer();
    let abandoned = store.abandon(&second).await;
    assert!(lossy.has_lost() && matches!(abandoned, Ok(LeaseEnd::Done(_))));
}

#[tokio::test]
async fn a_resolution_whose_acknowledgement_is_lost_is_done_once() {
    let (_server, lossy, store) = lossy().await;
    let lease = lease(&store, &claim(1)).await;
    let audit = Audit::new("who", "why").unwrap();
    lossy.lose_the_next_answer();
    let resolved = store
        .resolve(lease.id, lease.token, &Resolution::Release, &audit)
        .await;
    assert!(lossy.has_lost());
    assert!(matches!(resolved, Ok(Resolved::Done(_))), "{resolved:?}");
    let info = store.show(lease.id).await.unwrap().expect("a record");
    assert_eq!(info.status, RecordStatus::Released);
}

#[tokio::test]
async fn a_claim_that_was_not_this_callers_stays_the_others() {
    let (_server, lossy, store) = lossy().await;
    lease(&store, &claim(1)).await;
    lossy.lose_the_next_answer();
    let claimed = store.claim(&claim(1)).await.unwrap();
    assert!(lossy.has_lost());
    assert!(matches!(claimed, Claimed::Found(_)), "{claimed:?}");
}
