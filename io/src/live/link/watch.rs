//! Watching whether an interface is up, down or gone.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use super::error::LinkError;
use super::interface::{Header, Interface};
use super::netlink::{Message, Netlink};

/// State of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    /// Up, with carrier.
    Up,
    /// Down, or without carrier.
    Down,
    /// Removed from this network namespace, for good: a later interface of the same name is another
    /// one.
    Gone,
}

/// Tracks the state of an interface through rtnetlink events.
#[derive(Debug)]
pub struct LinkWatch {
    events: Netlink,
    queries: Netlink,
    interface: String,
    index: u32,
    state: LinkState,
}

impl LinkWatch {
    /// Starts watching an interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// [`LinkError`], for example if there is no such interface.
    pub fn new(interface: &str) -> Result<LinkWatch, LinkError> {
        let open =
            |groups| Netlink::open(groups).map_err(|error| LinkError::new(interface, "watching its state", error));
        // Subscribe to events before the query, so that no change in between is missed.
        let (events, queries) = (open(libc::RTMGRP_LINK as u32)?, open(0)?);
        let found = Interface::find(interface)?;
        let state = if found.is_up && found.has_link { LinkState::Up } else { LinkState::Down };
        Ok(LinkWatch { events, queries, interface: interface.to_owned(), index: found.index, state })
    }

    /// The state found by the last poll.
    pub fn state(&self) -> LinkState {
        self.state
    }

    /// Updates the state without blocking; takes one system call if nothing has happened.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn poll(&mut self) -> Result<LinkState, LinkError> {
        let (mut state, index) = (self.state, self.index);
        let mut some_lost = false;
        loop {
            let ended = self.events.drain_events(|answer| {
                // Ignore events of other families, such as a bridge's about its ports.
                let is_its = |header: &Header| header.index == index && i32::from(header.family) == libc::AF_UNSPEC;
                let Some(header) = Header::parse(answer.body).filter(is_its) else { return };
                state = match answer.kind {
                    // Gone is final: indexes are reused eventually.
                    _ if state == LinkState::Gone => LinkState::Gone,
                    libc::RTM_DELLINK if header.changed == u32::MAX => LinkState::Gone,
                    libc::RTM_NEWLINK => LinkState::of(&header),
                    _ => state,
                };
            });
            match ended.raw_os_error() {
                _ if ended.kind() == io::ErrorKind::WouldBlock => break,
                // The event queue overflowed: newer events are lost while older ones are still
                // queued.
                Some(libc::ENOBUFS) => some_lost = true,
                _ => return Err(self.failed(ended)),
            }
        }
        self.state = state;
        if some_lost {
            self.ask()?;
        }
        Ok(self.state)
    }

    fn ask(&mut self) -> Result<(), LinkError> {
        self.state = match self.queries.query(libc::RTM_GETLINK, &Message::link(self.index, 0, 0)) {
            _ if self.state == LinkState::Gone => LinkState::Gone,
            Ok(answer) => Header::parse(&answer).map_or(self.state, |header| LinkState::of(&header)),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => LinkState::Gone,
            Err(error) => return Err(self.failed(error)),
        };
        Ok(())
    }

    fn failed(&self, error: io::Error) -> LinkError {
        LinkError::new(&self.interface, "watching its state", error)
    }
}

impl LinkState {
    fn of(header: &Header) -> LinkState {
        if header.is_up() && header.has_link() { LinkState::Up } else { LinkState::Down }
    }
}

/// The descriptor is readable after any event, perhaps about another interface; poll it together
/// with others.
impl AsRawFd for LinkWatch {
    fn as_raw_fd(&self) -> RawFd {
        self.events.as_raw_fd()
    }
}

/// The descriptor of `as_raw_fd`, borrowed.
impl AsFd for LinkWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}
