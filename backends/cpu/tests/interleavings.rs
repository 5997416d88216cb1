//! Every interleaving of a few threads that hand tasks over and work in steps, under a model
//! checker that also reorders memory accesses as far as their orderings allow.
#![allow(dead_code, reason = "the modules are compiled for what is modelled of them")]
#![expect(unsafe_code, reason = "cells whose accesses the model checker checks")]

#[path = "../src/session/queue.rs"]
mod queue;
#[path = "../src/session/steps.rs"]
mod steps;

/// What the modules use instead of the standard library's primitives.
mod sync {
    pub use std::sync::{PoisonError, TryLockError};

    pub use crossbeam_utils::CachePadded;
    pub use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
    pub use loom::sync::{Arc, Mutex, MutexGuard};
}

use loom::cell::UnsafeCell;
use loom::thread;
use queue::{Next, Participant, RequestQueue};
use steps::Steps;
use sync::{Arc, AtomicUsize, Mutex, Ordering};

/// How often each task has run.
type Task = AtomicUsize;

/// Runs tasks until there is none.
fn serve(queue: &RequestQueue<Task>, participant: Participant, mut next: Next<Task>) {
    loop {
        if let Next::Idle = next {
            next = queue.stop_polling(participant);
        }
        let Next::Run(task) = next else { return };
        task.fetch_add(1, Ordering::Relaxed);
        next = queue.start_polling();
    }
}

fn wake(queue: &Arc<RequestQueue<Task>>, count: usize) -> Vec<thread::JoinHandle<()>> {
    let worker = |_| {
        let queue = queue.clone();
        thread::spawn(move || serve(&queue, Participant::Worker, queue.poll()))
    };
    (0..count).map(worker).collect()
}

#[test]
fn no_request_is_lost_and_no_worker_is_woken_twice() {
    loom::model(|| {
        let queue = Arc::new(RequestQueue::new(2));
        let tasks = [Arc::new(Task::new(0)), Arc::new(Task::new(0))];
        let mut woken = wake(&queue, queue.request(&tasks[0], 1));
        // The first worker may be looking, running the first task, or asleep again.
        woken.extend(wake(&queue, queue.request(&tasks[1], 1)));
        woken.into_iter().for_each(|worker| worker.join().unwrap());
        assert_eq!(tasks.map(|task| task.load(Ordering::Relaxed)), [1, 1]);
        assert_eq!(queue.polling(), 0);
        // All workers are asleep, so both can be woken.
        assert_eq!(queue.request(&Arc::new(Task::new(0)), 3), 2);
    });
}

#[test]
fn a_caller_takes_requests_like_a_worker() {
    loom::model(|| {
        let queue = Arc::new(RequestQueue::new(1));
        let task = Arc::new(Task::new(0));
        let caller = {
            let queue = queue.clone();
            thread::spawn(move || serve(&queue, Participant::Caller, queue.start_polling()))
        };
        let woken = wake(&queue, queue.request(&task, 1));
        woken.into_iter().for_each(|worker| worker.join().unwrap());
        caller.join().unwrap();
        assert_eq!(task.load(Ordering::Relaxed), 1);
        assert_eq!(queue.polling(), 0);
        assert_eq!(queue.request(&task, 1), 1, "the worker is asleep");
    });
}

/// Units of each step.
const UNITS: [usize; 3] = [2, 2, 0];

/// Work in steps; a unit adds to its own cell and reads all cells of the step before.
struct Work {
    steps: Steps,
    cells: [[UnsafeCell<usize>; 2]; 2],
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
}

/// Does units until none of the current step is left. Where a step begins another thread joins
/// in, as those that found no unit have left.
fn participate(work: &Arc<Work>) {
    while let Some(unit) = work.steps.take(|step| UNITS[step]) {
        let mut sum = 1;
        if let Some(before) = unit.step.checked_sub(1) {
            for cell in &work.cells[before][..UNITS[before]] {
                // SAFETY: the model checker fails if another thread may write it.
                sum += cell.with(|value| unsafe { *value });
            }
        }
        // SAFETY: the model checker fails if another thread may access it.
        work.cells[unit.step][unit.number].with_mut(|value| unsafe { *value += sum });
        if work.steps.finish_unit() && UNITS[unit.step + 1] > 0 {
            work.steps.begin(unit.step + 1, UNITS[unit.step + 1]);
            join_in(work);
        }
    }
}

fn join_in(work: &Arc<Work>) {
    let other = work.clone();
    let thread = thread::spawn(move || participate(&other));
    work.threads.lock().unwrap().push(thread);
}

#[test]
fn a_step_sees_what_the_one_before_did_and_each_unit_is_done_once() {
    // More interruptions of a thread take minutes and show nothing else.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let cells = || std::array::from_fn(|_| UnsafeCell::new(0));
        let cells = [cells(), cells()];
        let work = Arc::new(Work { steps: Steps::new(UNITS[0]), cells, threads: Mutex::new(Vec::new()) });
        join_in(&work);
        participate(&work);
        // A thread that starts another one does so before it ends.
        while let Some(thread) = { work.threads.lock().unwrap().pop() } {
            thread.join().unwrap();
        }
        for (step, expected) in [1, 3].into_iter().enumerate() {
            // SAFETY: all threads have ended.
            let values = work.cells[step].each_ref().map(|cell| cell.with(|value| unsafe { *value }));
            assert_eq!(values, [expected; 2], "step {step}");
        }
    });
}
