//! Reports link changes of interfaces as log events.

use std::io::{self, PipeReader, PipeWriter};
use std::thread::{self, JoinHandle};

use portcullis_io::live::link::{LinkError, LinkState, LinkWatch};
use rustix::event::{PollFd, PollFlags, poll};

/// Watches interfaces on a thread of its own until dropped.
#[derive(Debug)]
pub struct LinkMonitor {
    /// Closing the pipe ends the thread.
    wake: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

/// Why interfaces cannot be watched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkMonitorError {
    /// An interface cannot be watched.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The thread or its wake-up pipe could not be created.
    #[error("cannot watch links: {}", portcullis_core::reason(.0))]
    System(#[from] io::Error),
}

impl LinkMonitor {
    /// Watches interfaces of the calling thread's network namespace.
    ///
    /// # Errors
    /// [`LinkMonitorError`], for example if an interface does not exist.
    pub fn watch<'n>(interfaces: impl IntoIterator<Item = &'n str>) -> Result<LinkMonitor, LinkMonitorError> {
        let watches = interfaces.into_iter().map(|name| Ok((name.to_owned(), LinkWatch::new(name)?)));
        let watches = watches.collect::<Result<Vec<_>, LinkError>>()?;
        for (interface, watch) in &watches {
            if watch.state() == LinkState::Down {
                tracing::warn!(%interface, "the link is down");
            }
        }
        let (wake_reader, wake) = io::pipe()?;
        let span = tracing::Span::current();
        let watch = move || span.in_scope(|| watch_links(watches, &wake_reader));
        let thread = thread::Builder::new().name("links".into()).spawn(watch)?;
        Ok(LinkMonitor { wake: Some(wake), thread: Some(thread) })
    }
}

impl Drop for LinkMonitor {
    fn drop(&mut self) {
        drop(self.wake.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported already.
            let _ = thread.join();
        }
    }
}

fn watch_links(mut watches: Vec<(String, LinkWatch)>, wake_reader: &PipeReader) {
    while !watches.is_empty() {
        let mut waits = vec![PollFd::new(wake_reader, PollFlags::IN)];
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
                    tracing::warn!(%interface, %error, "stopped watching the link");
                    return false;
                }
            }
            true
        });
    }
}
