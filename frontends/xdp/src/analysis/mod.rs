//! Abstract interpretation of a linked program: domain, transfer functions and fixpoint.

pub(crate) mod domain;
pub(crate) mod fixpoint;
pub(crate) mod register_liveness;
pub(crate) mod transfer;
