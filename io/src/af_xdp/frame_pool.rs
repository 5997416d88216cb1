//! Ownership of the UMEM's frames: free frames per lane, and the frames of batches in flight.
//!
//! Every frame belongs to one lane for the whole run. It is in exactly one place at a time: in the
//! lane's free list here, in a fill or TX ring, or attached to a batch as [`BatchFrames`]. Dropping
//! a batch returns its frames, so none leaks when a filter or a device fails.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portcullis_core::packet::{Descriptor, Metadata, MetadataAccumulator};

use super::umem::{Frame, PacketMemory, ReassemblyBuffer};

/// Free frames, reassembly buffers and batch buffers of every lane.
#[derive(Debug)]
pub(crate) struct FramePool {
    frame_size: usize,
    frames_per_lane: usize,
    lanes: Vec<Mutex<LanePool>>,
}

#[derive(Debug, Default)]
struct LanePool {
    frames: Vec<Frame>,
    reassembly: Vec<ReassemblyBuffer>,
    buffers: Vec<BatchBuffers>,
}

/// The vectors that a batch is built from. They are recycled empty but with their capacity, so that
/// building the next batch allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct BatchBuffers {
    pub descriptors: Vec<Descriptor>,
    pub metadata: Vec<Metadata>,
    pub metadata_summary: MetadataAccumulator,
    pub memory: Vec<PacketMemory>,
    /// The RX queue of each packet; empty if the lane has a single queue.
    pub queues: Vec<u16>,
}

impl FramePool {
    /// Divides `frames` equally among `lanes`; a remainder stays unused. Each lane sets
    /// `buffers` × `buffer_frames` of its share aside for reassembly.
    ///
    /// # Panics
    ///
    /// If the reassembly buffers take all of a lane's frames.
    pub fn new(frames: Vec<Frame>, lanes: usize, buffers: usize, buffer_frames: usize, frame_size: usize) -> FramePool {
        let frames_per_lane = frames.len() / lanes;
        let reserved = buffers * buffer_frames;
        assert!(reserved < frames_per_lane, "reassembly buffers leave a lane at least one frame");
        let mut frames = frames.into_iter();
        let lanes = (0..lanes)
            .map(|_| {
                let mut take = |count| frames.by_ref().take(count).collect::<Vec<_>>();
                let reassembly = (0..buffers).map(|_| ReassemblyBuffer::new(take(buffer_frames), frame_size)).collect();
                Mutex::new(LanePool { reassembly, frames: take(frames_per_lane - reserved), buffers: Vec::new() })
            })
            .collect();
        FramePool { frame_size, frames_per_lane, lanes }
    }

    /// Returns packets' memory to the lanes that own it.
    pub fn release(&self, memory: impl IntoIterator<Item = PacketMemory>) {
        let mut locked: Option<(usize, MutexGuard<'_, LanePool>)> = None;
        for memory in memory {
            let address = match &memory {
                PacketMemory::Frame(frame) => frame.address(),
                PacketMemory::Reassembled(buffer) => buffer.memory().0,
            };
            let lane = address / self.frame_size / self.frames_per_lane;
            if locked.as_ref().is_none_or(|(held, _)| *held != lane) {
                // Unlock the previous lane first: two locks held at once would need a lock order.
                drop(locked.take());
                locked = Some((lane, self.lock(lane)));
            }
            let Some((_, pool)) = &mut locked else { unreachable!("locked above") };
            match memory {
                PacketMemory::Frame(frame) => pool.frames.push(frame),
                PacketMemory::Reassembled(buffer) => pool.reassembly.push(buffer),
            }
        }
    }

    /// Moves up to `max` free frames of `lane` to the end of `into`.
    pub fn take_frames(&self, lane: usize, max: usize, into: &mut Vec<Frame>) {
        let frames = &mut self.lock(lane).frames;
        let from = frames.len() - max.min(frames.len());
        into.extend(frames.drain(from..));
    }

    /// Takes a free reassembly buffer of `lane`, if there is one.
    pub fn take_reassembly_buffer(&self, lane: usize) -> Option<ReassemblyBuffer> {
        self.lock(lane).reassembly.pop()
    }

    /// Takes empty batch buffers, recycled ones if there are any.
    pub fn take_batch_buffers(&self, lane: usize) -> BatchBuffers {
        self.lock(lane).buffers.pop().unwrap_or_default()
    }

    /// Recycles batch buffers and releases the packet memory left in them.
    pub fn recycle_batch_buffers(&self, lane: usize, mut buffers: BatchBuffers) {
        self.release(buffers.memory.drain(..));
        buffers.descriptors.clear();
        buffers.metadata.clear();
        buffers.metadata_summary = MetadataAccumulator::default();
        buffers.queues.clear();
        self.lock(lane).buffers.push(buffers);
    }

    /// Number of frames that each lane owns, free or in use.
    pub fn frames_per_lane(&self) -> usize {
        self.frames_per_lane
    }

    /// Number of frames that all lanes own, free or in use.
    pub fn total_frames(&self) -> usize {
        self.frames_per_lane * self.lanes.len()
    }

    /// Number of free frames, those of free reassembly buffers included.
    pub fn free_frames(&self) -> usize {
        let free = |pool: &LanePool| {
            pool.frames.len() + pool.reassembly.iter().map(|buffer| buffer.frame_count()).sum::<usize>()
        };
        (0..self.lanes.len()).map(|lane| free(&self.lock(lane))).sum()
    }

    fn lock(&self, lane: usize) -> MutexGuard<'_, LanePool> {
        // Free lists are valid between any two pushes and pops, so a panic elsewhere does not spoil
        // them.
        self.lanes[lane].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The packet memory of a batch in flight; dropping it releases the memory to the pool.
#[derive(Debug)]
pub(crate) struct BatchFrames {
    /// One for each packet, in the batch's order.
    memory: Vec<PacketMemory>,
    /// The RX queue of each packet; empty if the lane has a single queue.
    queues: Vec<u16>,
    pool: Arc<FramePool>,
}

impl BatchFrames {
    pub fn new(memory: Vec<PacketMemory>, queues: Vec<u16>, pool: Arc<FramePool>) -> BatchFrames {
        BatchFrames { memory, queues, pool }
    }

    /// Hands memory and queues to the caller, who then has to release the memory.
    pub fn into_parts(mut self) -> (Vec<PacketMemory>, Vec<u16>) {
        (std::mem::take(&mut self.memory), std::mem::take(&mut self.queues))
    }
}

impl Drop for BatchFrames {
    fn drop(&mut self) {
        self.pool.release(self.memory.drain(..));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::af_xdp::umem::tests::umem;

    fn in_frames(frames: Vec<Frame>) -> Vec<PacketMemory> {
        frames.into_iter().map(PacketMemory::Frame).collect()
    }

    #[test]
    fn frames_are_divided_among_lanes_and_the_remainder_is_unused() {
        let (umem, frames) = umem(13);
        let pool = FramePool::new(frames, 2, 1, 2, umem.frame_size());
        assert_eq!((pool.total_frames(), pool.free_frames()), (12, 12));
        let (mut first, mut second) = (Vec::new(), Vec::new());
        pool.take_frames(0, 10, &mut first);
        pool.take_frames(1, 3, &mut second);
        let numbers = |frames: &[Frame]| frames.iter().map(|frame| umem.index(frame)).collect::<Vec<_>>();
        assert_eq!((numbers(&first), numbers(&second)), (vec![2, 3, 4, 5], vec![9, 10, 11]));
        assert_eq!(pool.free_frames(), 5);
        let buffer = pool.take_reassembly_buffer(1).unwrap();
        assert_eq!((buffer.address(), buffer.capacity()), (6 * 2048 + 128, 4096 - 256));
        assert!(pool.take_reassembly_buffer(1).is_none());
    }

    #[test]
    fn dropping_a_batch_returns_each_frame_to_its_own_lane() {
        let (umem, frames) = umem(12);
        let pool = Arc::new(FramePool::new(frames, 2, 1, 2, umem.frame_size()));
        let (mut first, mut second) = (Vec::new(), Vec::new());
        pool.take_frames(0, 4, &mut first);
        pool.take_frames(1, 4, &mut second);
        let buffer = pool.take_reassembly_buffer(1).unwrap();
        let mut memory = in_frames(vec![first.pop().unwrap(), second.pop().unwrap(), first.pop().unwrap()]);
        memory.push(PacketMemory::Reassembled(buffer));
        drop(BatchFrames::new(memory, vec![], pool.clone()));
        let mut returned = Vec::new();
        pool.take_frames(0, 10, &mut returned);
        assert_eq!(returned.iter().map(|frame| umem.index(frame)).collect::<Vec<_>>(), [5, 4]);
        assert!(pool.take_reassembly_buffer(1).is_some());
    }

    #[test]
    fn frames_handed_out_of_a_batch_are_not_released_by_it() {
        let (umem, frames) = umem(4);
        let pool = Arc::new(FramePool::new(frames, 1, 0, 1, umem.frame_size()));
        let mut taken = Vec::new();
        pool.take_frames(0, 2, &mut taken);
        let (memory, queues) = BatchFrames::new(in_frames(taken), vec![7], pool.clone()).into_parts();
        assert_eq!((memory.len(), queues, pool.free_frames()), (2, vec![7], 2));
    }

    #[test]
    fn recycled_batch_buffers_are_empty_and_keep_their_capacity() {
        let (umem, frames) = umem(4);
        let pool = FramePool::new(frames, 1, 0, 1, umem.frame_size());
        let mut buffers = pool.take_batch_buffers(0);
        let mut taken = Vec::new();
        pool.take_frames(0, 3, &mut taken);
        buffers.memory.extend(in_frames(taken));
        buffers.descriptors.resize(3, Descriptor::default());
        buffers.metadata.resize(3, Metadata::default());
        buffers.queues.resize(3, 1);
        pool.recycle_batch_buffers(0, buffers);
        assert_eq!(pool.free_frames(), 4);
        let BatchBuffers { descriptors, metadata, memory, queues, .. } = pool.take_batch_buffers(0);
        assert_eq!((descriptors.len(), metadata.len(), memory.len(), queues.len()), (0, 0, 0, 0));
        for capacity in [descriptors.capacity(), metadata.capacity(), memory.capacity(), queues.capacity()] {
            assert!(capacity >= 3, "{capacity}");
        }
    }
}
