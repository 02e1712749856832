//! The program of README.md that shows the attribute, word for word (see `build.rs`).

include!(concat!(env!("OUT_DIR"), "/attribute.rs"));
