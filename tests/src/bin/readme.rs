//! The program of README.md word for word (see `build.rs`).

include!(concat!(env!("OUT_DIR"), "/readme.rs"));
