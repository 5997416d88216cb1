//! Watching the kernel's routes for changes.
//!
//! A background thread polls rtnetlink events a few times a second and rereads all tables after a
//! change: single events do not mention the routes that vanish with an interface. The latest tables
//! are kept until they are taken.

use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use portcullis_core::routes::RoutingTables;

use super::RoutesError;
use super::read::Reader;
use crate::netlink::Netlink;

/// Interval between polls for events.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Multicast groups: changes of interfaces, neighbours, addresses and routes (`RTMGRP_*`,
/// linux/rtnetlink.h).
const GROUPS: i32 = libc::RTMGRP_LINK
    | libc::RTMGRP_NEIGH
    | libc::RTMGRP_IPV4_IFADDR
    | libc::RTMGRP_IPV6_IFADDR
    | libc::RTMGRP_IPV4_ROUTE
    | libc::RTMGRP_IPV6_ROUTE
    | GROUP_NETCONF;

/// Changes of interfaces' forwarding flags: `RTNLGRP_IPV4_NETCONF` (24) and `RTNLGRP_IPV6_NETCONF`
/// (25), as bits.
const GROUP_NETCONF: i32 = 1 << 23 | 1 << 24;

/// The latest tables or error, until taken.
type Latest = Mutex<Option<Result<RoutingTables, RoutesError>>>;

/// Watches the kernel's routes until dropped.
#[derive(Debug)]
pub struct RouteWatch {
    latest: Arc<Latest>,
}

impl RouteWatch {
    /// Reads the tables of the calling thread's network namespace and starts watching them.
    ///
    /// # Errors
    /// [`RoutesError`].
    pub fn start() -> Result<(RoutingTables, RouteWatch), RoutesError> {
        let failed = |error| RoutesError { what: "watching the kernel's routes", error };
        // Subscribe before the first read, so that no change in between is missed.
        let mut events = Netlink::open(GROUPS as u32).map_err(failed)?;
        let mut reader = Reader::open()?;
        let mut known = reader.read()?;
        let first = known.clone();
        let latest: Arc<Latest> = Arc::default();
        let of_thread: Weak<Latest> = Arc::downgrade(&latest);
        let watch = move || {
            loop {
                thread::sleep(POLL_INTERVAL);
                let Some(latest) = of_thread.upgrade() else { return };
                let mut heard = false;
                let ended = events.drain_events(|_| heard = true);
                // ENOBUFS: events were lost, so there were some.
                heard |= ended.raw_os_error() == Some(libc::ENOBUFS);
                let read = match ended.kind() {
                    _ if heard => reader.read(),
                    io::ErrorKind::WouldBlock => continue,
                    _ => Err(failed(ended)),
                };
                let is_over = read.is_err();
                match &read {
                    // Neighbour events also arrive when an entry is merely confirmed.
                    Ok(tables) if *tables == known => continue,
                    Ok(tables) => known = tables.clone(),
                    Err(_) => {}
                }
                *latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(read);
                if is_over {
                    return;
                }
            }
        };
        thread::Builder::new().name("routes".into()).spawn(watch).map_err(failed)?;
        Ok((first, RouteWatch { latest }))
    }

    /// Takes the current tables if they have changed since the last call. After an error no more
    /// updates follow.
    pub fn take(&mut self) -> Option<Result<RoutingTables, RoutesError>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
