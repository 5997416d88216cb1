//! Interfaces of the kernel's that ports are.

use std::time::{Duration, Instant};

use crate::live::LiveError;
use crate::live::link::{State, Watch};

/// How often is looked whether they are still there.
const LOOKED: Duration = Duration::from_millis(100);

/// Interfaces that a run is of no use without. Their drivers do not say that they are gone: nothing comes any more, and what is sent
/// is lost.
#[derive(Debug)]
pub(super) struct Interfaces {
    watches: Vec<(String, Watch)>,
    looked: Instant,
}

impl Interfaces {
    /// Watches interfaces of this thread's network namespace. Packets come and go without, and so those that cannot be watched are
    /// not.
    pub fn watch(names: impl IntoIterator<Item = String>) -> Interfaces {
        let watch = |name: String| Watch::new(&name).ok().map(|watch| (name, watch));
        Interfaces { watches: names.into_iter().filter_map(watch).collect(), looked: Instant::now() }
    }

    /// To be called again and again.
    ///
    /// # Errors
    /// [`LiveError::Gone`]: one of them is.
    pub fn look(&mut self) -> Result<(), LiveError> {
        if self.watches.is_empty() || self.looked.elapsed() < LOOKED {
            return Ok(());
        }
        self.looked = Instant::now();
        for (interface, watch) in &mut self.watches {
            if matches!(watch.look(), Ok(State::Gone)) {
                return Err(LiveError::Gone { interface: interface.clone() });
            }
        }
        Ok(())
    }
}
