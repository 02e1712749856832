//! cancellation
