//! The `#[idempotent]` attribute. `mcp-idempotent-tower` re-exports it, with its documentation;
//! depend on that crate.

mod args;
mod diagnostics;
mod expand;
mod target;

use proc_macro::TokenStream;

/// Recognises a retried call of an rmcp tool and runs it once. Its documentation stands where it
/// is re-exported: `mcp_idempotent_tower::idempotent`.
#[proc_macro_attribute]
pub fn idempotent(args: TokenStream, item: TokenStream) -> TokenStream {
    expand::expand(args.into(), item.into()).into()
}
