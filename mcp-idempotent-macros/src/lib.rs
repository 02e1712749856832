//! The `#[idempotent]` attribute. Depend on `mcp-idempotent-tower`, which re-exports it with its
//! documentation.

mod args;
mod check;
mod diagnostics;
mod expand;
mod target;

use proc_macro::TokenStream;

/// Documented where it is re-exported: `mcp_idempotent_tower::idempotent`.
#[proc_macro_attribute]
pub fn idempotent(args: TokenStream, item: TokenStream) -> TokenStream {
    expand::expand(args.into(), item.into()).into()
}
