//! Applies verdicts to captures: writes each packet to the sinks that its verdict selects.

use portcullis_core::device::Completion;
use portcullis_core::packet::Action;
use portcullis_io::{RedirectGroups, RedirectSink, Sink, SinkError};

use super::Broadcasts;

/// Sinks by verdict. Dropped and aborted packets are not written.
#[derive(Default)]
pub struct Outputs {
    /// Sink for packets with verdict PASS.
    pub pass: Option<Box<dyn Sink>>,
    /// Sink for packets with verdict TX.
    pub tx: Option<Box<dyn Sink>>,
    /// Sink for packets with verdict REDIRECT, by target.
    pub redirect: Option<RedirectSink>,
    /// Broadcast targets of the filter, if it has any ([`Broadcasts::from_program`]).
    pub broadcasts: Option<Broadcasts>,
    indices: Vec<u32>,
}

impl Outputs {
    /// Creates outputs from sinks for PASS, TX and REDIRECT, with no broadcasts.
    pub fn new(pass: Option<Box<dyn Sink>>, tx: Option<Box<dyn Sink>>, redirect: Option<RedirectSink>) -> Outputs {
        Outputs { pass, tx, redirect, broadcasts: None, indices: Vec::new() }
    }

    /// Whether no sink is set, so that nothing is written.
    pub fn is_empty(&self) -> bool {
        self.pass.is_none() && self.tx.is_none() && self.redirect.is_none()
    }

    /// Writes the packets of a completed batch to their sinks, to each sink even if another fails.
    ///
    /// # Errors
    /// The first error of a sink. The PASS or TX sink that failed is removed; the others can still
    /// be finished.
    pub fn write(&mut self, done: &Completion) -> Result<(), SinkError> {
        self.write_with_broadcasts(done, None)
    }

    /// Variant of [`write`](Self::write) that sends packets for a redirect group to each of its
    /// ports.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_with_broadcasts(
        &mut self,
        done: &Completion,
        redirect_groups: Option<&RedirectGroups>,
    ) -> Result<(), SinkError> {
        let Outputs { pass, tx, redirect, indices, .. } = self;
        let mut result = Ok(());
        for (action, sink) in [(Action::Pass, pass), (Action::Tx, tx)] {
            if let Some(open) = sink {
                indices.clear();
                done.verdicts.indices(action, indices);
                if !indices.is_empty() {
                    result = result.and(open.write(&done.batch, indices).inspect_err(|_| *sink = None));
                }
            }
        }
        if let Some(open) = redirect {
            indices.clear();
            done.verdicts.indices(Action::Redirect, indices);
            if !indices.is_empty() {
                // Keep the redirect sink after an error: only one of its files failed.
                result = result.and(match redirect_groups {
                    None => open.write(&done.batch, indices, done.verdicts.targets()),
                    Some(redirect_groups) => {
                        let to = |&index: &u32| {
                            redirect_targets(done, redirect_groups, index as usize).map(move |target| (index, target))
                        };
                        open.write_to(&done.batch, indices.iter().flat_map(to))
                    }
                });
            }
        }
        result
    }

    /// Finishes every sink, even if another fails.
    ///
    /// # Errors
    /// The first error of a sink.
    pub fn finish(self) -> Result<(), SinkError> {
        let one = |sink: Option<Box<dyn Sink>>| sink.map_or(Ok(()), |sink| sink.finish().map(drop));
        let (pass, tx) = (one(self.pass), one(self.tx));
        let redirect = self.redirect.map_or(Ok(()), |sink| sink.finish().map(drop));
        pass.and(tx).and(redirect)
    }
}

/// The ports that the redirected packet `index` goes to: those of its group, or its target itself.
pub(super) fn redirect_targets<'s>(
    done: &Completion,
    redirect_groups: &'s RedirectGroups,
    index: usize,
) -> impl Iterator<Item = u32> + use<'s> {
    let target = done.verdicts.targets()[index];
    let ports = redirect_groups.ports(target, done.batch.metadata_of(index).port);
    let itself = if ports.is_none() { Some(target) } else { None };
    ports.into_iter().flatten().chain(itself)
}
