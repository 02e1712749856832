//! What tests and benchmarks of several packages share. The packages that cannot depend on this one,
//! because it depends on them, take a module of it by its path.

pub mod cluster;
pub mod disk;
pub mod pooler;
pub mod redis;
pub mod relay;
pub mod server;
