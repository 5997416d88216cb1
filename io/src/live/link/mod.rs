//! What a live run needs of network interfaces: their facts, ones of its own, and the way back into the kernel.
//!
//! - [`Interface`]: what the kernel says of an interface;
//! - [`Watch`]: whether it is up, down or gone;
//! - [`VethPair`], [`Tap`]: interfaces that a run makes, and that go with it;
//! - [`Stack`]: packets that pass, back into the kernel's stack.
//!
//! All is done by rtnetlink(7), in the network namespace that the thread is in; nothing is asked of `/sys`, which shows the
//! namespace in which it was mounted. The handful of messages is written here (`netlink`): the crates for it describe all
//! of rtnetlink, in several times the code of this whole module.
#![allow(unsafe_code)]

mod error;
mod interface;
mod name;
pub(crate) mod netlink;
mod stack;
mod tap;
mod veth;
mod watch;

pub use error::LinkError;
pub(crate) use error::no_interface;
pub use interface::Interface;
pub use stack::{Entrance, JoinError, Kind, Stack, Way};
pub use tap::Tap;
pub use veth::VethPair;
pub use watch::{State, Watch};
