//! Notices a tool that does not use its transaction.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// Notices that a tool does not use its transaction.
#[derive(Debug)]
pub(crate) struct Unused {
    tool: Box<str>,
    is_noticed: AtomicBool,
}

impl Unused {
    pub(crate) fn by(tool: &str) -> Arc<Self> {
        Arc::new(Self {
            tool: tool.into(),
            is_noticed: AtomicBool::new(false),
        })
    }

    /// Warns the first time.
    pub(in crate::call) fn notice(&self) {
        if !self.is_noticed.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                tool = &*self.tool,
                "a tool in transaction mode succeeded without using its transaction; what it wrote through another pool or connection is not protected. Give its services a `CallPool` (this is said once)"
            );
        }
    }
}
