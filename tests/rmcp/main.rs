//! rmcp's own tests, with every handler that they serve behind the layer.
//!
//! `build.rs` makes a module of each of rmcp's test files. In this crate the name `rmcp` means the crate itself. It
//! has everything that rmcp has, but what serves a handler puts the layer around it. `compare.py` runs the tests on
//! each side, and compares.

extern crate rmcp as real;
extern crate self as rmcp;

mod http;
mod serve;
mod side;

pub use real::*;
pub use serve::{Service, ServiceExt, serve_server};

pub mod service {
    pub use real::service::*;

    pub use crate::serve::{
        RunningService, Service, ServiceExt, serve_directly, serve_directly_with_ct, serve_server,
        serve_server_with_ct,
    };
}

pub mod transport {
    pub use real::transport::*;

    pub use crate::http::StreamableHttpService;

    pub mod streamable_http_server {
        pub use real::transport::streamable_http_server::*;

        pub use crate::http::StreamableHttpService;

        pub mod tower {
            pub use real::transport::streamable_http_server::tower::*;

            pub use crate::http::StreamableHttpService;
        }
    }
}

// At the root, where rmcp's tests look for them.
include!("again.rs");
include!(concat!(env!("OUT_DIR"), "/tests.rs"));
