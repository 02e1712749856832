//! The server that runs in a process of its own.
