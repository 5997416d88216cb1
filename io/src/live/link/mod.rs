//! Network interfaces of a live run: their properties and state, and interfaces that the run
//! creates.
//!
//! - [`Interface`]: properties of an interface;
//! - [`LinkWatch`]: whether it is up, down or gone;
//! - `VethPair`, `Tap`: interfaces that an AF_XDP run creates, and that vanish with it.
//!
//! Everything uses rtnetlink(7) in the thread's network namespace. `/sys` is not consulted, because
//! it shows the namespace in which it was mounted. The few messages needed are encoded in
//! `netlink`: the crates for it describe all of rtnetlink, in several times the code of this
//! module.
#![allow(unsafe_code)]

#[cfg(feature = "af-xdp")]
mod configure;
mod error;
mod interface;
#[cfg(feature = "af-xdp")]
mod reserved_name;
#[cfg(feature = "af-xdp")]
mod tap;
#[cfg(feature = "af-xdp")]
mod veth;
mod watch;

pub(crate) use crate::netlink;
#[cfg(feature = "af-xdp")]
pub(crate) use configure::LinkConfigurator;
pub use error::LinkError;
#[cfg(feature = "af-xdp")]
pub(crate) use error::no_interface;
pub use interface::Interface;
pub(crate) use interface::interface_name;
#[cfg(feature = "af-xdp")]
pub(crate) use reserved_name::ALIAS;
#[cfg(feature = "af-xdp")]
pub use tap::Tap;
#[cfg(feature = "af-xdp")]
pub use veth::VethPair;
pub use watch::{LinkState, LinkWatch};
