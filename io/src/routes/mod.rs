//! The kernel's interfaces, routes and neighbours, read by rtnetlink(7) into [`RoutingTables`],
//! against which programs' `bpf_fib_lookup` calls are answered.
//!
//! Policy rules (`ip rule`) and VRF tables are ignored: the lookup order is the local table, the
//! main table, the default table. Of a multipath route the first live next hop is used.

mod read;
mod watch;

use std::io;

use portcullis_core::routes::RoutingTables;

pub use watch::RouteWatch;

/// Why the kernel's routes cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {}", portcullis_core::reason(.error))]
pub struct RoutesError {
    /// The operation that failed.
    what: &'static str,
    /// The system's error.
    error: io::Error,
}

/// Reads the tables of the calling thread's network namespace.
///
/// # Errors
/// [`RoutesError`].
pub fn read() -> Result<RoutingTables, RoutesError> {
    read::Reader::open()?.read()
}
