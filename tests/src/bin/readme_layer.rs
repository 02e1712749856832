//! The program of README.md that shows the layer, word for word (see `build.rs`).

include!(concat!(env!("OUT_DIR"), "/layer.rs"));
