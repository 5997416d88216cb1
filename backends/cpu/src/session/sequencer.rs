//! Runs batches one after another, for filters whose packets share state: maps, or flows whose
//! order continues from batch to batch. Map maintenance happens between two batches.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use portcullis_core::map::compactor::MapCompactor;
use portcullis_core::program::Program;

use crate::maps::{Maps, QuiescentMaps};

/// A batch that has to wait for the batches before it.
pub(super) trait SequencedBatch: Send + Sync {
    /// Requests `threads` workers to filter the batch.
    fn start(self: Arc<Self>, threads: usize);
    fn maps(&self) -> &Maps;
    /// Number of packets.
    fn packets(&self) -> usize;
}

/// Admits one batch at a time, in the order of their arrival.
pub(super) struct BatchSequencer {
    state: Mutex<State>,
}

struct State {
    /// Set while a batch is being filtered or about to be.
    busy: bool,
    /// Batches behind it, each with the number of workers that it asks for.
    waiting: VecDeque<(Arc<dyn SequencedBatch>, usize)>,
    compactor: Option<MapCompactor>,
}

impl BatchSequencer {
    pub fn new(program: &Program) -> BatchSequencer {
        let compactor = program.map_compactor();
        BatchSequencer { state: Mutex::new(State { busy: false, waiting: VecDeque::new(), compactor }) }
    }

    /// Starts a batch with `threads` workers as soon as those before it are done.
    pub fn admit(&self, batch: Arc<dyn SequencedBatch>, threads: usize) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.busy {
            state.waiting.push_back((batch, threads));
            return;
        }
        state.busy = true;
        state.start(batch, threads);
    }

    /// Drops the batches that wait: the session is closed and their results are not wanted.
    pub fn clear_waiting(&self) {
        let waiting = std::mem::take(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner).waiting);
        // Dropped without the lock: a batch owns the session's state, this sequencer included.
        drop(waiting);
    }

    /// Starts the next batch; called when the current one is done.
    pub fn advance(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.waiting.pop_front() {
            Some((batch, threads)) => state.start(batch, threads),
            None => state.busy = false,
        }
    }
}

impl State {
    fn start(&mut self, batch: Arc<dyn SequencedBatch>, threads: usize) {
        if let Some(compactor) = &mut self.compactor {
            // SAFETY: the previous batch is done, this one has not started, and the sequencer is
            // locked.
            let mut maps = unsafe { QuiescentMaps::new(batch.maps()) };
            let Ok(()) = compactor.compact_if_needed(batch.packets(), &mut maps);
        }
        batch.start(threads);
    }
}
