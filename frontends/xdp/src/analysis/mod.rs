//! Abstract interpretation of a linked program: domain, transfer functions and fixpoint. Two passes
//! improve the IR that the transfer functions emit: [`value_numbering`] forwards reads across
//! blocks, and [`liveness`] finds the operations that are needed.

mod cfg;
pub(crate) mod domain;
pub(crate) mod event_uses;
pub(crate) mod fixpoint;
mod interner;
pub(crate) mod liveness;
pub(crate) mod program;
pub(crate) mod register_liveness;
pub(crate) mod transfer;
mod value_numbering;
