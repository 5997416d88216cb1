//! Where the kernel has packets go: its interfaces, routes and neighbours, by rtnetlink(7), as the maps by which programs of XDP
//! look for routes have them ([`RoutingTables`]).
//!
//! Rules (`ip rule`) are not followed, nor are tables of VRFs: the local table comes first, then the main one, then the default
//! one. Of a route with several next routers the first that is alive counts.

mod read;
mod watch;

use std::io;

use portcullis_core::routes::RoutingTables;

pub use watch::RouteWatch;

/// Why the kernel's routes cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {}", portcullis_core::reason(.error))]
pub struct RoutesError {
    /// What was to be done.
    what: &'static str,
    /// The system's.
    error: io::Error,
}

/// What there is in this thread's network namespace.
///
/// # Errors
/// The kernel's.
pub fn read() -> Result<RoutingTables, RoutesError> {
    read::Reader::open()?.read()
}
