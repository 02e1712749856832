//! A cluster: its slots move, its primaries fail.

use mcp_idempotent_core::store::LeaseEnd;

use super::*;
use crate::stores::lease;

const KEYS: std::ops::Range<u8> = 1..40;

#[tokio::test]
async fn a_primary_that_is_killed_is_replaced_and_what_its_replica_had_is_kept() {
    let mut cluster = Cluster::start(3, 1);
    let (store, position) = (store(&cluster.url()), position(&cluster));
    let mut leases = Vec::new();
    for key in KEYS {
        leases.push(lease(&store, &claim(key)).await);
    }
    // So that the replica has what this test is about; without this the last records may be lost.
    kit::until(|| {
        let written = |server: &Server, field: &str| {
            let info = server.ask("INFO replication");
            let line = info.lines().find_map(|line| line.strip_prefix(field));
            line.map(str::to_owned)
        };
        written(&cluster.primaries[position], "master_repl_offset:")
            == written(&cluster.replicas[position], "slave_repl_offset:")
    });
    cluster.primaries[position].kill();
    kit::until(|| {
        cluster.replicas[position]
            .ask("INFO replication")
            .contains("role:master")
    });
    kit::until(|| {
        let info = cluster.replicas[position].ask("CLUSTER INFO");
        info.contains("cluster_state:ok")
    });
    for (key, held) in KEYS.zip(&leases) {
        let found = state(&store, &claim(key)).await;
        assert!(
            matches!(found, Some(RecordState::InProgress { .. })),
            "{key}: {found:?}"
        );
        let completed = store.complete(held, completion(b"done")).await;
        assert!(
            matches!(completed, Ok(LeaseEnd::Done(_))),
            "{key}: {completed:?}"
        );
        let next = lease(&store, &claim(key + 100)).await;
        assert!(next.token > held.token, "tokens grow");
    }
}

/// Which primary has the store.
fn position(cluster: &Cluster) -> usize {
    let slot = cluster.primaries[0].ask("CLUSTER KEYSLOT {mcp_idempotent}");
    let slot: usize = slot.parse().expect("a number");
    slot * cluster.primaries.len() / 16_384
}

#[tokio::test]
async fn a_slot_that_moves_takes_its_records_along() {
    let cluster = Cluster::start(2, 0);
    let store = store(&cluster.url());
    let held = lease(&store, &claim(1)).await;
    let position = position(&cluster);
    let (from, to) = (
        &cluster.primaries[position],
        &cluster.primaries[1 - position],
    );
    let slot = from.ask("CLUSTER KEYSLOT {mcp_idempotent}");
    let [id_from, id_to] = [from, to].map(|node| node.ask("CLUSTER MYID"));
    to.ask(&format!("CLUSTER SETSLOT {slot} IMPORTING {id_from}"));
    from.ask(&format!("CLUSTER SETSLOT {slot} MIGRATING {id_to}"));
    let names = ["last_token", "due", "open", "records"];
    let keys = names.map(|name| format!("{{mcp_idempotent}}:{name}"));
    for key in keys.into_iter().chain([record_key(&claim(1))]) {
        let moved = from.ask(&format!("MIGRATE 127.0.0.1 {} {key} 0 5000", to.port()));
        assert_eq!(moved, "OK");
    }
    for node in [to, from] {
        node.ask(&format!("CLUSTER SETSLOT {slot} NODE {id_to}"));
    }
    let completed = store.complete(&held, completion(b"done")).await;
    assert!(matches!(completed, Ok(LeaseEnd::Done(_))), "{completed:?}");
    assert_eq!(from.ask(&format!("CLUSTER COUNTKEYSINSLOT {slot}")), "0");
}

#[tokio::test]
async fn a_cluster_is_found_by_another_node_if_the_first_is_away() {
    let mut cluster = Cluster::start(3, 1);
    let away = cluster.primaries[0].url();
    cluster.primaries[0].kill();
    kit::until(|| {
        cluster.replicas[0]
            .ask("INFO replication")
            .contains("role:master")
    });
    kit::until(|| {
        let info = cluster.primaries[1].ask("CLUSTER INFO");
        info.contains("cluster_state:ok")
    });
    let store = builder(&away)
        .with_server(cluster.primaries[1].url())
        .unwrap()
        .build()
        .unwrap();
    for key in KEYS {
        lease(&store, &claim(key)).await;
    }
}
