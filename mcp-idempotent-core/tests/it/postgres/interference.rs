//! interference
