//! Abstract interpretation of a linked program: domain, transfer functions and fixpoint.

mod cfg;
pub(crate) mod domain;
pub(crate) mod event_uses;
pub(crate) mod fixpoint;
mod interner;
pub(crate) mod program;
pub(crate) mod register_liveness;
pub(crate) mod transfer;
