//! Tells when links of interfaces go down and come up, as events.

use std::io::{self, PipeReader, PipeWriter};
use std::thread::{self, JoinHandle};

use portcullis_io::live::link::{LinkError, LinkState, LinkWatch};
use rustix::event::{PollFd, PollFlags, poll};

/// Watches interfaces until it is dropped.
#[derive(Debug)]
pub struct Links {
    /// Closed to end the thread.
    wake: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

/// Why nobody watches.
#[derive(Debug, thiserror::Error)]
pub enum LinksError {
    /// An interface cannot be watched.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// There is no thread for it, or nothing to wake it by.
    #[error("watching links: {}", portcullis_core::reason(.0))]
    System(#[from] io::Error),
}

impl Links {
    /// Watches interfaces of this thread's network namespace.
    ///
    /// # Errors
    /// [`LinksError`]: among others, there is no such interface.
    pub fn watch<'n>(interfaces: impl IntoIterator<Item = &'n str>) -> Result<Links, LinksError> {
        let watches = interfaces.into_iter().map(|name| Ok((name.to_owned(), LinkWatch::new(name)?)));
        let watches = watches.collect::<Result<Vec<_>, LinkError>>()?;
        for (interface, watch) in &watches {
            if watch.state() == LinkState::Down {
                tracing::warn!(%interface, "the link is down");
            }
        }
        let (woken, wake) = io::pipe()?;
        let span = tracing::Span::current();
        let watch = move || span.in_scope(|| tell(watches, &woken));
        let thread = thread::Builder::new().name("links".into()).spawn(watch)?;
        Ok(Links { wake: Some(wake), thread: Some(thread) })
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        drop(self.wake.take());
        if let Some(thread) = self.thread.take() {
            // If it died, its last words have been printed.
            let _ = thread.join();
        }
    }
}

fn tell(mut watches: Vec<(String, LinkWatch)>, woken: &PipeReader) {
    while !watches.is_empty() {
        let mut waits = vec![PollFd::new(woken, PollFlags::IN)];
        waits.extend(watches.iter().map(|(_, watch)| PollFd::new(watch, PollFlags::IN)));
        match poll(&mut waits, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return,
        }
        if !waits[0].revents().is_empty() {
            return;
        }
        drop(waits);
        watches.retain_mut(|(interface, watch)| {
            let before = watch.state();
            match watch.poll() {
                Ok(now) if now == before => {}
                Ok(LinkState::Down) => tracing::warn!(%interface, "the link is down"),
                Ok(LinkState::Up) => tracing::warn!(%interface, "the link is up again"),
                Ok(LinkState::Gone) => {
                    tracing::warn!(%interface, "the interface is gone");
                    return false;
                }
                Err(error) => {
                    tracing::warn!(%interface, %error, "the link is watched no longer");
                    return false;
                }
            }
            true
        });
    }
}
