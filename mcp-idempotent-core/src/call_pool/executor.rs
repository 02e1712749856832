//! Statements through a `CallPool`.

use futures_util::{
    future::BoxFuture,
    stream::{BoxStream, TryStreamExt as _},
};
use sqlx::{Database, Either, Execute, Executor, SqlStr};

use super::{CallConnection, CallPool, SqlStore};

impl<'p, S, DB> Executor<'p> for &'p CallPool<S>
where
    S: SqlStore<Database = DB>,
    DB: Database,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    type Database = DB;

    fn fetch_many<'e, 'q: 'e, E>(
        self,
        query: E,
    ) -> BoxStream<'e, Result<Either<DB::QueryResult, DB::Row>, sqlx::Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, DB>,
    {
        let way = self.way();
        Box::pin(async_stream::try_stream! {
            let mut connection = CallConnection::take(way).await?;
            let mut steps = connection.fetch_many(query);
            while let Some(step) = steps.try_next().await? {
                yield step;
            }
        })
    }

    fn fetch_optional<'e, 'q: 'e, E>(
        self,
        query: E,
    ) -> BoxFuture<'e, Result<Option<DB::Row>, sqlx::Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, DB>,
    {
        let way = self.way();
        Box::pin(async move { CallConnection::take(way).await?.fetch_optional(query).await })
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [DB::TypeInfo],
    ) -> BoxFuture<'e, Result<DB::Statement, sqlx::Error>>
    where
        'p: 'e,
    {
        let way = self.way();
        Box::pin(async move {
            CallConnection::take(way)
                .await?
                .prepare_with(sql, parameters)
                .await
        })
    }

    #[doc(hidden)]
    fn describe<'e>(
        self,
        sql: SqlStr,
    ) -> BoxFuture<'e, Result<sqlx_core::describe::Describe<DB>, sqlx::Error>>
    where
        'p: 'e,
    {
        let way = self.way();
        Box::pin(async move { CallConnection::take(way).await?.describe(sql).await })
    }
}
