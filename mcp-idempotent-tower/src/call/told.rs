//! A handler in transaction mode that is told to stop.

use std::future::Future;

use mcp_idempotent_core::engine::Stop;
use tokio_util::sync::CancellationToken;

/// Runs a handler, and fires its cancellation token when it is told to stop.
pub(super) async fn until_told<F: Future>(
    stop: Stop,
    token: CancellationToken,
    handler: F,
) -> F::Output {
    let told = stop.told();
    tokio::pin!(handler, told);
    tokio::select! {
        biased;
        output = &mut handler => return output,
        () = told => token.cancel(),
    }
    handler.await
}
