//! Whether an interface is up, down or gone.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use super::error::LinkError;
use super::interface::{Header, Interface};
use super::netlink::{Message, Netlink};

/// How it is with an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    /// It is up and has a link.
    Up,
    /// It was set down, or the other end is not there.
    Down,
    /// It is no more, at least in this network namespace, and will not come back: another one of its name is another.
    Gone,
}

/// Hears what becomes of an interface.
#[derive(Debug)]
pub struct LinkWatch {
    events: Netlink,
    questions: Netlink,
    interface: String,
    index: u32,
    state: LinkState,
}

impl LinkWatch {
    /// Watches an interface of this thread's network namespace.
    ///
    /// # Errors
    /// [`LinkError`]: among others, there is no such interface.
    pub fn new(interface: &str) -> Result<LinkWatch, LinkError> {
        let open = |groups| {
            Netlink::open(groups).map_err(|error| LinkError::new(interface, "watching whether it is up", error))
        };
        // First the events, so that none falls between.
        let (events, questions) = (open(libc::RTMGRP_LINK as u32)?, open(0)?);
        let found = Interface::find(interface)?;
        let state = if found.is_up && found.has_link { LinkState::Up } else { LinkState::Down };
        Ok(LinkWatch { events, questions, interface: interface.to_owned(), index: found.index, state })
    }

    /// How it was when last looked at.
    pub fn state(&self) -> LinkState {
        self.state
    }

    /// How it is now. It does not wait, and costs one system call where nothing has happened.
    ///
    /// # Errors
    /// [`LinkError`]: the system's.
    pub fn look(&mut self) -> Result<LinkState, LinkError> {
        let (mut state, index) = (self.state, self.index);
        let mut some_lost = false;
        loop {
            let ended = self.events.drain_events(|answer| {
                // Not what a bridge says of its ports.
                let is_its = |header: &Header| header.index == index && i32::from(header.family) == libc::AF_UNSPEC;
                let Some(header) = Header::parse(answer.body).filter(is_its) else { return };
                state = match answer.kind {
                    // Gone it stays: numbers are given again some time.
                    _ if state == LinkState::Gone => LinkState::Gone,
                    libc::RTM_DELLINK if header.changed == u32::MAX => LinkState::Gone,
                    libc::RTM_NEWLINK => LinkState::of(&header),
                    _ => state,
                };
            });
            match ended.raw_os_error() {
                _ if ended.kind() == io::ErrorKind::WouldBlock => break,
                // There was no room for the latest, while older ones still wait.
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
        self.state = match self.questions.query(libc::RTM_GETLINK, &Message::link(self.index, 0, 0)) {
            _ if self.state == LinkState::Gone => LinkState::Gone,
            Ok(answer) => Header::parse(&answer).map_or(self.state, |header| LinkState::of(&header)),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => LinkState::Gone,
            Err(error) => return Err(self.failed(error)),
        };
        Ok(())
    }

    fn failed(&self, error: io::Error) -> LinkError {
        LinkError::new(&self.interface, "watching whether it is up", error)
    }
}

impl LinkState {
    fn of(header: &Header) -> LinkState {
        if header.is_up() && header.has_link() { LinkState::Up } else { LinkState::Down }
    }
}

/// To be waited for together with others: it can be read from when something has happened, maybe to another interface.
impl AsRawFd for LinkWatch {
    fn as_raw_fd(&self) -> RawFd {
        self.events.as_raw_fd()
    }
}

/// The same.
impl AsFd for LinkWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}
