//! The Postgres store over TLS, with a server whose certificate is checked, and the program over TLS.

#[path = "../src/kit/cluster.rs"]
mod cluster;
mod program;
#[path = "../src/kit/redis.rs"]
mod redis;
#[path = "../src/kit/server.rs"]
mod server;

use std::{path::Path, time::Duration};

use cluster::Cluster;
use mcp_idempotent_core::{
    Application, Bytes, CanonicalArguments, IdempotencyKey, Identity, RecordState, Scope, Store,
    TransactionStore,
    store::{
        CallInfo, Claim, Claimed, Completion, End, Ended, LeaseEnd, StoreErrorKind,
        postgres::PostgresStore,
    },
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use sqlx::{
    PgPool, Row as _,
    postgres::{PgConnectOptions, PgPoolOptions, PgSslMode},
};
use tempfile::TempDir;

/// A server with a certificate for its address, and the certificate of who signed it.
struct Site {
    cluster: Cluster,
    authority: String,
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

async fn site() -> Site {
    let authority = authority();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &authority).unwrap();
    let cluster = Cluster::start();
    let plain = tls_on(&cluster, &certificate.pem(), &key.serialize_pem()).await;
    let store = PostgresStore::new(plain.clone());
    store.migrate().await.unwrap();
    sqlx::raw_sql("CREATE TABLE effects (what text NOT NULL)")
        .execute(&plain)
        .await
        .unwrap();
    Site {
        cluster,
        authority: authority.pem(),
    }
}

/// Gives a server a certificate. Returns a pool whose connections have no TLS.
async fn tls_on(cluster: &Cluster, certificate: &str, key: &str) -> PgPool {
    cluster.write("server.crt", certificate);
    cluster.write("server.key", key);
    let plain = PgPool::connect_with(cluster.options().ssl_mode(PgSslMode::Disable));
    let plain = plain.await.unwrap();
    for sql in ["ALTER SYSTEM SET ssl = on", "SELECT pg_reload_conf()"] {
        sqlx::raw_sql(sql).execute(&plain).await.unwrap();
    }
    plain
}

/// A store that checks certificate and name, and trusts `authority`.
fn store(site: &Site, directory: &Path, authority: &str) -> (PgPool, PostgresStore) {
    let file = directory.join("authority.crt");
    std::fs::write(&file, authority).unwrap();
    with(checked(site.cluster.options(), &file))
}

fn checked(options: PgConnectOptions, authority: &Path) -> PgConnectOptions {
    options
        .ssl_mode(PgSslMode::VerifyFull)
        .ssl_root_cert(authority)
}

fn with(options: PgConnectOptions) -> (PgPool, PostgresStore) {
    let pool = PgPoolOptions::new()
        .max_connections(4)
        .connect_lazy_with(options);
    (pool.clone(), PostgresStore::new(pool))
}

fn claim(key: &str) -> Claim {
    let scope = Scope::new("tests");
    let key = IdempotencyKey::new(key).unwrap();
    let identity = Identity::new(
        &Application::new("tests"),
        &scope,
        Some(&key),
        "tool",
        &CanonicalArguments::new(None, &[]),
        None,
    );
    let call = CallInfo::new("tool", scope);
    Claim::new(identity.id, identity.fingerprint, call)
}

fn result(size: usize) -> Completion {
    Completion::new(Some(Bytes::from(vec![b'x'; size])), Duration::from_secs(60))
}

async fn effects(pool: &PgPool) -> i64 {
    let counted = sqlx::query("SELECT count(*) FROM effects").fetch_one(pool);
    counted.await.unwrap().get(0)
}

/// One call with one effect, up to its end.
async fn write(
    store: &PostgresStore,
    claim: &Claim,
) -> <PostgresStore as TransactionStore>::Transaction {
    let Ok(Claimed::New(mut transaction)) = store.begin(&claim.call, Some(claim)).await else {
        panic!("the key is new");
    };
    sqlx::query("INSERT INTO effects VALUES ('effect')")
        .execute(&mut *transaction)
        .await
        .unwrap();
    transaction
}

#[tokio::test]
async fn calls_and_leases_go_over_a_checked_connection() {
    let site = site().await;
    let directory = TempDir::new().unwrap();
    let (pool, store) = store(&site, directory.path(), &site.authority);
    let encrypted = sqlx::query("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert!(encrypted.get::<bool, _>(0));
    store.verify().await.unwrap();
    for size in [10, 100_000] {
        let claim = claim(&format!("key-{size}"));
        let transaction = write(&store, &claim).await;
        let ended = store.end(transaction, Some(&claim), End::Commit(result(size)));
        assert!(matches!(ended.await, Ended::AsAsked(_)));
        let again = store.begin(&claim.call, Some(&claim)).await;
        let Ok(Claimed::Found(record)) = again else {
            panic!("expected a record, found {again:?}");
        };
        assert!(
            matches!(&record.state, RecordState::Completed { response: Some(response), .. } if response.len() == size)
        );
    }
    assert_eq!(effects(&pool).await, 2);
    let leased = claim("leased");
    let Ok(Claimed::New(lease)) = store.claim(&leased).await else {
        panic!("the key is new");
    };
    let completed = store.complete(&lease, result(10)).await;
    assert!(matches!(completed, Ok(LeaseEnd::Done(_))), "{completed:?}");
}

#[tokio::test]
async fn a_checked_connection_that_is_lost_is_not_committed() {
    let site = site().await;
    let directory = TempDir::new().unwrap();
    let (pool, store) = store(&site, directory.path(), &site.authority);
    let claim = claim("key");
    let mut transaction = write(&store, &claim).await;
    let session: i32 = sqlx::query_scalar("SELECT pg_backend_pid()")
        .fetch_one(&mut *transaction)
        .await
        .unwrap();
    sqlx::query("SELECT pg_terminate_backend($1)")
        .bind(session)
        .execute(&pool)
        .await
        .unwrap();
    let ended = store
        .end(transaction, Some(&claim), End::Commit(result(10)))
        .await;
    assert!(matches!(ended, Ended::Aborted(_)), "{ended:?}");
    assert_eq!(effects(&pool).await, 0);
    let transaction = write(&store, &claim).await;
    let ended = store.end(transaction, Some(&claim), End::Commit(result(10)));
    assert!(matches!(ended.await, Ended::AsAsked(_)));
    assert_eq!(effects(&pool).await, 1);
}

#[tokio::test]
async fn a_server_that_cannot_be_checked_gets_no_call() {
    let site = site().await;
    let directory = TempDir::new().unwrap();
    let (_, stranger) = store(&site, directory.path(), &authority().pem());
    let (_, other_name) = {
        let file = directory.path().join("right.crt");
        std::fs::write(&file, &site.authority).unwrap();
        with(checked(site.cluster.options().host("localhost"), &file))
    };
    for store in [stranger, other_name] {
        let claim = claim("key");
        let error = store.begin(&claim.call, Some(&claim)).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
    }
}
