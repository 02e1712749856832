//! Batches that must be seen through to the end.
//!
//! Two habits of the driver matter for a commit. If a query is dropped after its first row, the
//! driver resets it and discards any error of that reset. If the driver's thread dies, the stream
//! of results simply ends. So a commit counts only if every statement has reported that it is done.

use futures_util::TryStreamExt as _;
use sqlx::{
    Either, Executor as _, Row as _, SqlStr, SqliteConnection, error::BoxDynError,
    sqlite::SqliteArguments,
};

/// Arguments, if they could be encoded.
pub(super) type Encoded = Result<SqliteArguments, BoxDynError>;

/// What a batch returned.
#[derive(Debug)]
pub(super) struct Batch {
    /// The columns of every row received, including those before an error.
    pub(super) values: Vec<i64>,
    /// Whether all statements are done.
    pub(super) done: Result<(), sqlx::Error>,
}

/// Runs a batch of this many statements.
pub(super) async fn run(
    connection: &mut SqliteConnection,
    text: &SqlStr,
    arguments: Encoded,
    statements: usize,
) -> Batch {
    let mut values = Vec::new();
    let done = async {
        let arguments = arguments.map_err(sqlx::Error::Encode)?;
        let mut results = connection.fetch_many(sqlx::query_with(text.clone(), arguments));
        let mut done = 0;
        while let Some(result) = results.try_next().await? {
            match result {
                Either::Left(_) => done += 1,
                Either::Right(row) => {
                    for column in 0..row.len() {
                        values.push(row.try_get(column)?);
                    }
                }
            }
        }
        if done == statements {
            Ok(())
        } else {
            Err(sqlx::Error::WorkerCrashed)
        }
    }
    .await;
    Batch { values, done }
}
