//! A program loaded on the CPU: batches go to worker threads and come back in order.
//!
//! - `shared`: what the session shares with its workers;
//! - `workers`: threads that stay awake between tasks for a while; `queue`: their task queue;
//! - `job`: one batch, split into chunks among threads;
//! - `default_metadata`: metadata of packets that have none;
//! - `partitions`: a batch split by flow, so that each flow's packets stay in order; `steps`: what
//!   has to be done before what; `column`: memory that threads share;
//! - `sequencer`: one batch at a time for filters whose packets share state;
//! - `variant_selector`: measures which variant of the code is fastest;
//! - `synthetic_work`: extra work per packet, for benchmarks.

mod column;
mod default_metadata;
mod job;
mod partitions;
mod queue;
mod sequencer;
pub(crate) mod shared;
mod steps;
mod sync;
mod synthetic_work;
mod variant_selector;
mod workers;

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::sync::Arc;

use portcullis_core::device::{
    Completion, DeviceError, Imported, Instrumented, LoadOptions, Session, Stages, SubmitError, check_map_range,
    check_submission, map_layout,
};
use portcullis_core::packet::{Batch, Span};
use portcullis_core::program::Program;

use crate::compile::filter_code::FilterCode;
use job::{Job, run_inline, runs_inline};
use shared::Shared;

/// A batch in flight.
enum InFlight {
    /// The caller of `complete` will filter it, alone.
    Deferred(Batch),
    /// Workers filter it; with `caller_helps`, so does the caller of `complete`.
    Job { job: Arc<Job>, caller_helps: bool },
    /// Finished before `complete` asked for it, because the caller accessed the maps.
    Finished(Box<Result<Completion, DeviceError>>),
}

impl InFlight {
    /// Filters the batch or waits for it.
    fn finish(self, shared: &Shared) -> Result<Completion, DeviceError> {
        match self {
            InFlight::Deferred(batch) => run_inline(shared, batch),
            InFlight::Job { job, caller_helps } => {
                if caller_helps {
                    job.participate();
                    job.help();
                }
                job.wait_result()
            }
            InFlight::Finished(done) => *done,
        }
    }
}

/// The CPU's [`Session`].
pub(crate) struct CpuSession {
    shared: Arc<Shared>,
    queue: VecDeque<InFlight>,
    depth: usize,
    /// Time per stage, if the caller asked for it.
    stages: Option<Stages>,
}

impl CpuSession {
    /// Starts the workers. `flows` is the code that computes flow numbers, for filters with
    /// flows; `work` is extra work per packet in nanoseconds; `is_inline` says that callers wait
    /// for each batch as soon as they have submitted it.
    pub fn new(
        program: Arc<Program>,
        code: FilterCode,
        flows: Option<FilterCode>,
        work: Option<NonZeroU64>,
        is_inline: bool,
        options: &LoadOptions,
    ) -> Result<CpuSession, DeviceError> {
        options.refuse_copies("cpu")?;
        let shared = Arc::new(Shared::new(program, code, flows, work, is_inline, options)?);
        let stages = options.measure.record_stages.then(Stages::default);
        Ok(CpuSession { shared, queue: VecDeque::new(), depth: options.depth.max(1), stages })
    }

    /// Adds a completed batch to the time per stage.
    fn record_stages(&mut self, done: &Completion) {
        if let Some(stages) = &mut self.stages {
            stages.record_batch(done.batch.len(), done.times.kernel);
        }
    }

    /// Finishes all batches in flight and keeps their results in the queue.
    fn finish_all(&mut self) {
        for in_flight in &mut self.queue {
            // A placeholder, replaced before control leaves this loop.
            let batch = std::mem::replace(in_flight, InFlight::Finished(Box::new(Err(DeviceError::Cancelled))));
            *in_flight = InFlight::Finished(Box::new(batch.finish(&self.shared)));
        }
    }
}

impl Drop for CpuSession {
    fn drop(&mut self) {
        // Waiting jobs hold the session's memory: shared state and job own each other.
        if let Some(sequencer) = &self.shared.sequencer {
            sequencer.clear_waiting();
        }
    }
}

impl Session for CpuSession {
    fn import(&mut self, _: &Arc<Span>) -> Result<Imported, DeviceError> {
        Ok(Imported::InPlace)
    }

    fn submit(&mut self, batch: Batch) -> Result<(), SubmitError> {
        if let Err(error) = check_submission(&self.shared.program, &batch, self.queue.len(), self.depth) {
            return Err(SubmitError { batch: Box::new(batch), error });
        }
        // A caller that waits at once takes part instead.
        let caller_helps = self.shared.is_inline && self.shared.fits_callers_stack();
        let threads = self.shared.estimate_threads(batch.len(), usize::from(caller_helps));
        if runs_inline(&self.shared, threads, batch.len()) {
            self.queue.push_back(InFlight::Deferred(batch));
            return Ok(());
        }
        let job = Arc::new(Job::new(self.shared.clone(), batch, threads.max(1)));
        job.start(threads.saturating_sub(usize::from(caller_helps)));
        self.queue.push_back(InFlight::Job { job, caller_helps: caller_helps || threads == 0 });
        Ok(())
    }

    fn complete(&mut self) -> Result<Option<Completion>, DeviceError> {
        let Some(in_flight) = self.queue.pop_front() else { return Ok(None) };
        let done = in_flight.finish(&self.shared)?;
        self.record_stages(&done);
        Ok(Some(done))
    }

    fn run(&mut self, batch: Batch) -> Result<Completion, DeviceError> {
        assert_eq!(self.in_flight(), 0, "run needs an idle session");
        if !self.shared.fits_callers_stack() {
            self.submit(batch).map_err(|refused| refused.error)?;
            return Ok(self.complete()?.expect("one batch is in flight"));
        }
        check_submission(&self.shared.program, &batch, 0, self.depth)?;
        let threads = self.shared.estimate_threads(batch.len(), 1);
        if runs_inline(&self.shared, threads, batch.len()) {
            let done = run_inline(&self.shared, batch)?;
            self.record_stages(&done);
            return Ok(done);
        }
        // The calling thread is awake already: it takes part, so that one thread less is woken.
        let threads = threads.max(1);
        let job = Arc::new(Job::new(self.shared.clone(), batch, threads));
        job.start(threads - 1);
        job.participate();
        job.help();
        let done = job.wait_result()?;
        self.record_stages(&done);
        Ok(done)
    }

    fn map_words(&mut self, map: usize) -> Result<Vec<u32>, DeviceError> {
        let words = map_layout(&self.shared.program, map)?.words();
        self.map_words_at(map, 0, words)
    }

    fn map_words_at(&mut self, map: usize, at: usize, words: usize) -> Result<Vec<u32>, DeviceError> {
        check_map_range(&self.shared.program, map, at, words)?;
        self.finish_all();
        Ok(self.shared.maps.words(map, at, words))
    }

    fn set_map_words(&mut self, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        check_map_range(&self.shared.program, map, at, words.len())?;
        self.finish_all();
        self.shared.maps.set_words(map, at, words);
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.queue.len()
    }

    fn depth(&self) -> usize {
        self.depth
    }
}

impl Instrumented for CpuSession {
    fn finish_background_work(&mut self) {
        let code = [Some(&self.shared.code), self.shared.flows.as_ref()];
        code.into_iter().flatten().filter_map(FilterCode::background).for_each(|background| background.wait());
    }

    fn stages(&self) -> Option<Stages> {
        self.stages
    }
}

#[cfg(test)]
mod tests;
