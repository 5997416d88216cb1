//! Interfaces of the kernel's that ports are.

use std::time::{Duration, Instant};

use crate::live::LiveError;
use crate::live::link::{LinkError, LinkState, LinkWatch};

/// How often is looked whether they are still there.
const LOOKED: Duration = Duration::from_millis(100);

/// Questions between two looks at the clock, which costs as much as receiving some packets.
const QUESTIONS: u32 = 64;

/// Interfaces that a run is of no use without. Their drivers do not say that they are gone: nothing comes any more, and what is sent
/// is lost.
#[derive(Debug)]
pub(super) struct Interfaces {
    watches: Vec<(String, LinkWatch)>,
    /// One that was gone before it could be watched.
    gone: Option<String>,
    questions: u32,
    looked: Instant,
}

impl Interfaces {
    /// Watches interfaces of this thread's network namespace. Packets come and go without, and so those that the system does not have
    /// watched are not.
    pub fn watch(names: impl IntoIterator<Item = String>) -> Interfaces {
        let (mut watches, mut gone) = (Vec::new(), None);
        for name in names {
            match LinkWatch::new(&name) {
                Ok(watch) => watches.push((name, watch)),
                Err(LinkError::NoInterface { .. }) => gone = Some(name),
                Err(_) => {}
            }
        }
        Interfaces { watches, gone, questions: 0, looked: Instant::now() }
    }

    /// To be called again and again.
    ///
    /// # Errors
    /// [`LiveError::Gone`]: one of them is.
    pub fn poll(&mut self) -> Result<(), LiveError> {
        self.questions = self.questions.wrapping_add(1);
        if !self.questions.is_multiple_of(QUESTIONS) || self.looked.elapsed() < LOOKED {
            return Ok(());
        }
        self.looked = Instant::now();
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
