//! The engine on Redis, in two processes.

use super::*;
use crate::engine::{Outcome, Server as Engine, succeed};

#[tokio::test]
async fn duplicates_in_two_processes_are_one_execution() {
    let server = Server::start();
    let engines = [(); 2].map(|()| Engine::on(store(&server.url()), |_| {}));
    let calls: Vec<_> = (0..32)
        .map(|caller| {
            let engine = engines[caller % 2].clone();
            tokio::spawn(async move { engine.call("key", succeed("charged")).await })
        })
        .collect();
    let mut own = 0;
    for call in calls {
        match call.await.unwrap() {
            Outcome::Own(text) => {
                assert_eq!(text, "charged");
                own += 1;
            }
            Outcome::Replayed(text) | Outcome::Joined(text) => assert_eq!(text, "charged"),
            other => panic!("expected the result, found {other:?}"),
        }
    }
    assert_eq!(own, 1);
    let executions: usize = engines.iter().map(Engine::executions).sum();
    assert_eq!(executions, 1);
}
