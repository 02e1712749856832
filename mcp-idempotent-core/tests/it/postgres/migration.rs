//! migration
