//! Carrying out verdicts: which packets go to which sink.

use portcullis_core::device::Completion;
use portcullis_core::packet::Action;
use portcullis_io::{RedirectGroups, RedirectSink, Sink, SinkError};

use super::Broadcasts;

/// Where packets go by their verdicts. Dropped and aborted packets go nowhere.
#[derive(Default)]
pub struct Outputs {
    /// For packets that pass.
    pub pass: Option<Box<dyn Sink>>,
    /// For packets that go out where they came from.
    pub tx: Option<Box<dyn Sink>>,
    /// For redirected packets.
    pub redirect: Option<RedirectSink>,
    /// Targets that stand for several, where the filter has such ([`Broadcasts::from_program`]).
    pub broadcasts: Option<Broadcasts>,
    indices: Vec<u32>,
}

impl Outputs {
    /// Sinks for the packets that pass, are sent back, and are redirected.
    pub fn new(pass: Option<Box<dyn Sink>>, tx: Option<Box<dyn Sink>>, redirect: Option<RedirectSink>) -> Outputs {
        Outputs { pass, tx, redirect, broadcasts: None, indices: Vec::new() }
    }

    /// Whether nothing is written at all.
    pub fn is_empty(&self) -> bool {
        self.pass.is_none() && self.tx.is_none() && self.redirect.is_none()
    }

    /// Gives the packets of a batch to their sinks, to each even where another fails.
    ///
    /// # Errors
    /// The first sink's that failed, which is gone then; the others may still be finished.
    pub fn write(&mut self, done: &Completion) -> Result<(), SinkError> {
        self.write_with_broadcasts(done, None)
    }

    /// The same, where some targets stand for several.
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
                // The files but the one that failed are of use still.
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

    /// Finishes every sink, even where another fails.
    ///
    /// # Errors
    /// The first sink's that failed.
    pub fn finish(self) -> Result<(), SinkError> {
        let one = |sink: Option<Box<dyn Sink>>| sink.map_or(Ok(()), |sink| sink.finish().map(drop));
        let (pass, tx) = (one(self.pass), one(self.tx));
        let redirect = self.redirect.map_or(Ok(()), |sink| sink.finish().map(drop));
        pass.and(tx).and(redirect)
    }
}

/// Where a packet goes that is redirected.
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
