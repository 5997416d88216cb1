//! The columns of actions and redirect targets that a device returns.
//!
//! A launcher that lends memory ([`VerdictMemory`]) has the device write each chunk's verdicts to
//! their place in it. From other launchers verdicts are read chunk by chunk, and appended to memory
//! of the session's. Either is handed out as it is, and reused once the caller has dropped it.
#![allow(unsafe_code)]

use std::any::Any;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::packet::{Action, Column, Verdicts};

/// Memory for a batch's verdicts that a launcher lends. The launcher reuses it once it holds the
/// only reference.
pub trait VerdictMemory: Any + Send + Sync {
    /// The first action byte. From here on are as many initialised bytes as packets were asked for,
    /// which only the device and the session write to while the memory is lent.
    fn actions(&self) -> NonNull<u8>;

    /// The first redirect target, likewise one for each packet; `None` if the kernel returns none.
    fn targets(&self) -> Option<NonNull<u32>>;
}

/// The type of verdict memory of launchers that lend none; it has no values.
#[derive(Debug)]
pub enum NoVerdictMemory {}

impl VerdictMemory for NoVerdictMemory {
    fn actions(&self) -> NonNull<u8> {
        match *self {}
    }

    fn targets(&self) -> Option<NonNull<u32>> {
        match *self {}
    }
}

/// Returns an item of a pool that fits and that nobody outside the pool refers to.
pub fn find_unused<T>(pool: &mut [Arc<T>], fits: impl Fn(&T) -> bool) -> Option<Arc<T>> {
    // `get_mut` succeeds for items whose other references are gone, and orders what their holders
    // did before.
    pool.iter_mut().find_map(|item| (fits(item) && Arc::get_mut(item).is_some()).then(|| item.clone()))
}

/// Verdict memory of a launcher, in use by callers or free.
#[derive(Debug)]
pub struct VerdictPool<M> {
    all: Vec<Arc<M>>,
    /// Number of batches that still go without because memory was refused: asking may wait for the
    /// device.
    refused: u32,
}

impl<M> Default for VerdictPool<M> {
    fn default() -> VerdictPool<M> {
        VerdictPool { all: Vec::new(), refused: 0 }
    }
}

impl<M> VerdictPool<M> {
    /// Maximum number of batches whose verdicts callers hold at a time. With more, verdicts are
    /// copied to ordinary memory: pinned memory is scarce.
    const CAPACITY: usize = 32;

    /// Least capacity of new memory, in packets.
    const MIN_PACKETS: usize = 4096;

    /// Batches after which memory is requested again if it was refused.
    const RETRY_BATCHES: u32 = 256;

    /// Returns memory for `packets` packets that nobody uses; `None` if there is none.
    /// `capacity_of` returns the capacity in packets, and `allocate` makes memory of a capacity, or
    /// returns `None` if it is refused.
    ///
    /// # Errors
    /// Errors of `allocate`.
    pub fn lend<E>(
        &mut self,
        packets: usize,
        capacity_of: impl Fn(&M) -> usize,
        allocate: impl FnOnce(usize) -> Result<Option<M>, E>,
    ) -> Result<Option<Arc<M>>, E> {
        if let Some(memory) = find_unused(&mut self.all, |memory| capacity_of(memory) >= packets) {
            return Ok(Some(memory));
        }
        self.refused = self.refused.saturating_sub(1);
        if self.refused > 0 {
            return Ok(None);
        }
        // The unused ones are too small.
        self.all.retain(|memory| Arc::strong_count(memory) > 1);
        if self.all.len() >= Self::CAPACITY {
            return Ok(None);
        }
        let Some(memory) = allocate(packets.next_power_of_two().max(Self::MIN_PACKETS))? else {
            self.refused = Self::RETRY_BATCHES;
            return Ok(None);
        };
        self.all.push(Arc::new(memory));
        Ok(self.all.last().cloned())
    }
}

/// Columns in the host's memory.
#[derive(Debug)]
pub struct HostVerdicts {
    actions: Box<[UnsafeCell<u8>]>,
    /// Empty if the kernel returns no targets.
    targets: Box<[UnsafeCell<u32>]>,
}

// SAFETY: the items are accessed through pointers only, under the rules of `VerdictMemory`.
unsafe impl Sync for HostVerdicts {}

impl HostVerdicts {
    /// Columns for `packets` packets, at least one, with targets if the kernel returns them.
    pub fn new(packets: usize, redirects: bool) -> HostVerdicts {
        let targets = if redirects { packets } else { 0 };
        HostVerdicts {
            actions: std::iter::repeat_with(UnsafeCell::default).take(packets).collect(),
            targets: std::iter::repeat_with(UnsafeCell::default).take(targets).collect(),
        }
    }

    /// Capacity in packets.
    pub fn packets(&self) -> usize {
        self.actions.len()
    }
}

impl VerdictMemory for HostVerdicts {
    fn actions(&self) -> NonNull<u8> {
        NonNull::from(&*self.actions).cast()
    }

    fn targets(&self) -> Option<NonNull<u32>> {
        (!self.targets.is_empty()).then(|| NonNull::from(&*self.targets).cast())
    }
}

/// A session's columns in the host's memory, in use by callers or free.
#[derive(Debug, Default)]
pub struct HostVerdictPool(Vec<Arc<HostVerdicts>>);

impl HostVerdictPool {
    /// Maximum number of columns that are kept for reuse.
    const CAPACITY: usize = 32;

    /// Least capacity of new columns, in packets.
    const MIN_PACKETS: usize = 1024;

    /// Returns columns for `packets` packets that nobody uses.
    pub fn lend(&mut self, packets: usize, redirects: bool) -> Arc<HostVerdicts> {
        if let Some(columns) = find_unused(&mut self.0, |columns| columns.actions.len() >= packets) {
            return columns;
        }
        // The unused ones are too small.
        self.0.retain(|columns| Arc::strong_count(columns) > 1);
        if self.0.len() >= Self::CAPACITY {
            // Its holder frees it.
            self.0.remove(0);
        }
        let columns = Arc::new(HostVerdicts::new(packets.max(Self::MIN_PACKETS), redirects));
        self.0.push(columns.clone());
        columns
    }
}

/// The verdicts of a batch whose chunks complete one by one.
#[derive(Debug)]
pub struct VerdictColumns {
    actions: NonNull<u8>,
    targets: Option<NonNull<u32>>,
    owner: Arc<dyn Any + Send + Sync>,
    /// Whether the device writes to the columns, so that nothing is appended.
    are_lent: bool,
    /// Number of packets in the batch, and of actions and targets appended so far.
    packets: usize,
    appended: [usize; 2],
}

// SAFETY: the pointers are into memory that `owner` keeps, and that only the session uses.
unsafe impl Send for VerdictColumns {}

impl VerdictColumns {
    fn new<M: VerdictMemory>(packets: usize, memory: Arc<M>, are_lent: bool) -> VerdictColumns {
        let (actions, targets) = (memory.actions(), memory.targets());
        VerdictColumns { actions, targets, owner: memory, are_lent, packets, appended: [0; 2] }
    }

    /// Columns for a batch of `packets` packets, to which the device writes.
    pub(super) fn lent<M: VerdictMemory>(packets: usize, memory: Arc<M>) -> VerdictColumns {
        VerdictColumns::new(packets, memory, true)
    }

    /// Columns to which chunks are appended.
    pub(super) fn appended(packets: usize, memory: Arc<HostVerdicts>) -> VerdictColumns {
        VerdictColumns::new(packets, memory, false)
    }

    /// Whether the device writes the verdicts itself, so that none are read.
    pub(super) fn are_lent(&self) -> bool {
        self.are_lent
    }

    /// The verdicts, after all chunks were collected.
    pub(super) fn into_verdicts(self) -> Verdicts {
        let [actions, targets] = if self.are_lent { [self.packets; 2] } else { self.appended };
        // SAFETY: `VerdictMemory` promises columns of this length. The device is done with it, and
        // nobody writes to it again before this reference is gone.
        unsafe {
            let column = |start| Column::lent(start, targets, self.owner.clone());
            let targets = self.targets.filter(|_| targets > 0).map(column).unwrap_or_default();
            Verdicts::from_columns(Column::lent(self.actions, actions, self.owner), targets)
        }
    }

    /// The items of these packets, with whose verdicts the device is done. It may be writing
    /// others.
    fn items(&mut self, packets: Range<usize>) -> (&mut [u8], &mut [u32]) {
        let first = packets.start.min(self.packets);
        let count = packets.end.clamp(first, self.packets) - first;
        // SAFETY: `VerdictMemory` promises columns of `self.packets` items, which only the session
        // and the device use while they are not handed out.
        unsafe {
            let targets = self.targets.map(|at| std::slice::from_raw_parts_mut(at.add(first).as_ptr(), count));
            (std::slice::from_raw_parts_mut(self.actions.add(first).as_ptr(), count), targets.unwrap_or_default())
        }
    }

    /// Appends action bytes, one per packet. An invalid byte, as from a broken driver, becomes
    /// [`Action::Aborted`].
    pub fn append(&mut self, actions: impl Iterator<Item = u8>) {
        let first = self.appended[0];
        let items = self.items(first..self.packets).0.iter_mut().zip(actions);
        // Branch-free, and combined with the copy to save a pass over the column.
        self.appended[0] += items.map(|(to, action)| *to = valid_action(action)).count();
    }

    /// Appends redirect targets, one per packet, if the kernel returns them.
    pub fn append_targets(&mut self, targets: impl Iterator<Item = u32>) {
        let first = self.appended[1];
        let items = self.items(first..self.packets).1.iter_mut().zip(targets);
        self.appended[1] += items.map(|(to, target)| *to = target).count();
    }
}

/// Replaces an invalid action byte by that of [`Action::Aborted`].
fn valid_action(byte: u8) -> u8 {
    if byte > Action::Redirect as u8 { Action::Aborted as u8 } else { byte }
}
