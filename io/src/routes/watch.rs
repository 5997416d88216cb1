//! Routes that change.
//!
//! A thread of its own looks a few times a second whether the kernel has told of a change, and reads everything again when it
//! has: what it tells of one by one leaves out what goes with an interface. What was read waits until it is asked for.

use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use portcullis_core::routes::RoutingTables;

use super::RoutesError;
use super::read::Reader;
use crate::netlink::Netlink;

/// How often the kernel is asked whether anything has changed.
const PERIOD: Duration = Duration::from_millis(250);

/// Changes of interfaces, neighbours, addresses and routes: `RTMGRP_*`, linux/rtnetlink.h.
const GROUPS: i32 = libc::RTMGRP_LINK
    | libc::RTMGRP_NEIGH
    | libc::RTMGRP_IPV4_IFADDR
    | libc::RTMGRP_IPV6_IFADDR
    | libc::RTMGRP_IPV4_ROUTE
    | libc::RTMGRP_IPV6_ROUTE
    | GROUP_NETCONF;

/// Whether interfaces forward packets: `RTNLGRP_IPV4_NETCONF` (24) and `RTNLGRP_IPV6_NETCONF` (25), as bits.
const GROUP_NETCONF: i32 = 1 << 23 | 1 << 24;

/// What nobody has asked for yet.
type Latest = Mutex<Option<Result<RoutingTables, RoutesError>>>;

/// Routes that are being watched, until this is dropped.
#[derive(Debug)]
pub struct RouteWatch {
    latest: Arc<Latest>,
}

impl RouteWatch {
    /// What there is in this thread's network namespace, and what becomes of it from then on.
    ///
    /// # Errors
    /// The kernel's.
    pub fn start() -> Result<(RoutingTables, RouteWatch), RoutesError> {
        let failed = |error| RoutesError { what: "watching the kernel's routes", error };
        // First the changes, so that none falls between.
        let mut events = Netlink::open(GROUPS as u32).map_err(failed)?;
        let mut reader = Reader::open()?;
        let mut known = reader.read()?;
        let first = known.clone();
        let latest: Arc<Latest> = Arc::default();
        let of_thread: Weak<Latest> = Arc::downgrade(&latest);
        let watch = move || {
            loop {
                thread::sleep(PERIOD);
                let Some(latest) = of_thread.upgrade() else { return };
                let mut heard = false;
                let ended = events.heard(|_| heard = true);
                // Some were lost, as there was no room for them: there were some.
                heard |= ended.raw_os_error() == Some(libc::ENOBUFS);
                let read = match ended.kind() {
                    _ if heard => reader.read(),
                    io::ErrorKind::WouldBlock => continue,
                    _ => Err(failed(ended)),
                };
                let is_over = read.is_err();
                match &read {
                    // Neighbours are told of when they are asked again, and are the same.
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

    /// What there is now, where that has changed since this was asked; an error is the last that is heard.
    pub fn take(&mut self) -> Option<Result<RoutingTables, RoutesError>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
