//! A server of our own: what is measured depends on its settings, which nobody else's should be.

use std::{thread::sleep, time::Duration};

use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

pub(crate) use crate::kit::cluster::Cluster;

const SETTINGS: &str = "
max_connections = 100
shared_buffers = 256MB
max_wal_size = 4GB
checkpoint_timeout = 30min
# With it, a delay of commits applies to a single one as well.
commit_siblings = 0
";

pub(crate) fn start() -> Cluster {
    Cluster::start_with(SETTINGS)
}

/// Changes settings that need no restart.
pub(crate) async fn set(cluster: &Cluster, settings: &[(&str, &str)]) {
    let mut connection = PgConnection::connect_with(&cluster.over_the_socket())
        .await
        .expect("the server answers");
    for (name, value) in settings {
        let sql = format!("ALTER SYSTEM SET {name} = '{value}'");
        sqlx::query(AssertSqlSafe(sql))
            .execute(&mut connection)
            .await
            .expect("we are its superuser");
    }
    sqlx::query("SELECT pg_reload_conf()")
        .execute(&mut connection)
        .await
        .expect("we are its superuser");
    for (name, value) in settings {
        for tries in 0.. {
            let shown: String =
                sqlx::query_scalar("SELECT setting FROM pg_settings WHERE name = $1")
                    .bind(name)
                    .fetch_one(&mut connection)
                    .await
                    .expect("the server answers");
            if shown == *value {
                break;
            }
            assert!(tries < 300, "the server does not take {name} = {value}");
            sleep(Duration::from_millis(10));
        }
    }
}
