//! What a live run needs of network interfaces: their facts, ones of its own, and the way back into the kernel.
//!
//! - [`Interface`]: what the kernel says of an interface;
//! - [`LinkWatch`]: whether it is up, down or gone;
//! - `VethPair`, `Tap`: interfaces that a run with AF_XDP makes, and that go with it;
//! - `StackInjector`: packets of such a run that pass, back into the kernel's stack.
//!
//! All is done by rtnetlink(7), in the network namespace that the thread is in; nothing is asked of `/sys`, which shows the
//! namespace in which it was mounted. The handful of messages is written in `netlink`: the crates for it describe all
//! of rtnetlink, in several times the code of this whole module.
#![allow(unsafe_code)]

mod error;
mod interface;
#[cfg(feature = "af-xdp")]
mod links;
#[cfg(feature = "af-xdp")]
mod name;
#[cfg(feature = "af-xdp")]
mod stack;
#[cfg(feature = "af-xdp")]
mod tap;
#[cfg(feature = "af-xdp")]
mod veth;
mod watch;

pub(crate) use crate::netlink;
pub use error::LinkError;
#[cfg(feature = "af-xdp")]
pub(crate) use error::no_interface;
pub use interface::Interface;
pub(crate) use interface::interface_name;
#[cfg(feature = "af-xdp")]
pub use stack::{InjectionPoint, StackDelivery, StackDevice, StackError, StackInjector};
#[cfg(feature = "af-xdp")]
pub use tap::Tap;
#[cfg(feature = "af-xdp")]
pub use veth::VethPair;
pub use watch::{LinkState, LinkWatch};
