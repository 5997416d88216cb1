//! Watching the kernel interfaces behind ports.

use std::time::{Duration, Instant};

use crate::live::LiveError;
use crate::live::link::{LinkError, LinkState, LinkWatch};

/// Minimum time between checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Number of calls between two reads of the clock, each of which costs as much as receiving some
/// packets.
const CALLS_PER_CLOCK_READ: u32 = 64;

/// The interfaces that a run depends on. Drivers do not report their removal: they just receive
/// nothing and lose what is sent.
#[derive(Debug)]
pub(super) struct InterfaceWatch {
    watches: Vec<(String, LinkWatch)>,
    /// An interface that was gone before it could be watched.
    gone: Option<String>,
    calls: u32,
    last_check: Instant,
}

impl InterfaceWatch {
    /// Watches interfaces of the calling thread's network namespace. Interfaces that cannot be
    /// watched are skipped, because packets flow regardless.
    pub fn watch(names: impl IntoIterator<Item = String>) -> InterfaceWatch {
        let (mut watches, mut gone) = (Vec::new(), None);
        for name in names {
            match LinkWatch::new(&name) {
                Ok(watch) => watches.push((name, watch)),
                Err(LinkError::NoInterface { .. }) => gone = Some(name),
                Err(_) => {}
            }
        }
        InterfaceWatch { watches, gone, calls: 0, last_check: Instant::now() }
    }

    /// Checks the interfaces now and then; call this regularly.
    ///
    /// # Errors
    /// [`LiveError::Gone`] if an interface was removed.
    pub fn poll(&mut self) -> Result<(), LiveError> {
        self.calls = self.calls.wrapping_add(1);
        if !self.calls.is_multiple_of(CALLS_PER_CLOCK_READ) || self.last_check.elapsed() < CHECK_INTERVAL {
            return Ok(());
        }
        self.last_check = Instant::now();
        let gone = self.watches.iter_mut().find_map(|(name, watch)| match watch.poll() {
            Ok(LinkState::Gone) => Some(&*name),
            _ => None,
        });
        match gone.or(self.gone.as_ref()) {
            Some(interface) => Err(LiveError::Gone { interface: interface.clone() }),
            None => Ok(()),
        }
    }
}
