//! Where batches wait for those before them, of filters whose packets share something: maps, or flows whose order
//! goes on from batch to batch. What is done to maps between batches is done here.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use portcullis_core::map::compactor::MapCompactor;
use portcullis_core::program::Program;

use super::job::Job;
use crate::maps::Idle;

pub(super) struct Gate {
    inside: Mutex<Inside>,
}

struct Inside {
    /// A batch is under way, or about to be.
    busy: bool,
    /// Those behind it, each with the threads that it asks for.
    waiting: VecDeque<(Arc<Job>, usize)>,
    compactor: Option<MapCompactor>,
}

impl Gate {
    pub fn new(program: &Program) -> Gate {
        let compactor = MapCompactor::new(program);
        Gate { inside: Mutex::new(Inside { busy: false, waiting: VecDeque::new(), compactor }) }
    }

    /// Has a job begin with so many threads of the pool as soon as its turn has come: at once, where the filter has no
    /// gate.
    pub fn enter(job: &Arc<Job>, threads: usize) {
        let Some(gate) = job.gate() else { return job.call(threads) };
        let mut inside = gate.inside.lock().unwrap_or_else(PoisonError::into_inner);
        if inside.busy {
            inside.waiting.push_back((job.clone(), threads));
            return;
        }
        inside.busy = true;
        inside.begin(job, threads);
    }

    /// Forgets those that wait: nobody wants them any more.
    pub fn close(&self) {
        let waiting = std::mem::take(&mut self.inside.lock().unwrap_or_else(PoisonError::into_inner).waiting);
        drop(waiting);
    }

    /// Lets the next job in: the one before has ended.
    pub fn leave(&self) {
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        match inside.waiting.pop_front() {
            Some((job, threads)) => inside.begin(&job, threads),
            None => inside.busy = false,
        }
    }
}

impl Inside {
    fn begin(&mut self, job: &Arc<Job>, threads: usize) {
        if let Some(compactor) = &mut self.compactor {
            // SAFETY: the job before has ended, this one has not begun, and the gate is locked.
            let mut maps = unsafe { Idle::new(job.maps()) };
            let Ok(()) = compactor.compact_if_needed(job.packets(), &mut maps);
        }
        job.call(threads);
    }
}
