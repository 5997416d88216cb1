//! Sessions for test devices that run a kernel on memory of their own: copy a batch in, launch the
//! kernel, copy the results back and check them.

use std::collections::VecDeque;
use std::sync::Arc;

use portcullis_core::device::{
    Completion, DeviceError, Imported, Instrumented, LoadOptions, Session, StageTimes, SubmitError, check_submission,
};
use portcullis_core::map::layout::Layout;
use portcullis_core::packet::{Batch, Descriptor, READABLE_PAST_END, RESIZE_ROOM, ResizeRoom, Span, Verdicts};
use portcullis_core::program::Program;

/// Fill byte outside packets.
const FILL: u8 = 0xa5;

/// Offset given to packets without bytes, far outside every arena; the ABI allows any.
const NOWHERE: usize = 0xffff_fff0;

/// A kernel's inputs and outputs, as in `docs/reference/abi.md`.
#[derive(Debug)]
pub struct Memory {
    /// The packets' bytes, and the padding that may be read past their end.
    pub arena: Vec<u8>,
    /// Two words per packet: offset and length.
    pub descriptors: Vec<u32>,
    /// Five words per packet.
    pub metadata: Vec<u32>,
    /// One byte per packet, initially non-zero.
    pub verdicts: Vec<u8>,
    /// One word per packet.
    pub targets: Vec<u32>,
    /// Words of each of the filter's maps.
    pub maps: Vec<Vec<u32>>,
}

/// Function that runs the kernel over all packets, or returns a description of the failure.
pub type Launch = Box<dyn FnMut(&mut Memory) -> Result<(), String> + Send>;

/// A session that runs a [`Launch`] for each batch.
pub struct LaunchSession {
    device: String,
    program: Arc<Program>,
    /// Set if each packet must start at a multiple of a word.
    aligned: bool,
    /// Set if packets without bytes are placed far outside the arena.
    nowhere: bool,
    launch: Launch,
    maps: Vec<Vec<u32>>,
    queue: VecDeque<Batch>,
    depth: usize,
}

impl LaunchSession {
    /// Creates a session for the device with this id.
    pub fn new(
        device: &str,
        program: &Arc<Program>,
        options: &LoadOptions,
        aligned: bool,
        launch: Launch,
    ) -> LaunchSession {
        assert!(!program.has_flows(), "nothing here tells lanes of runs");
        let (device, program, depth) = (device.to_owned(), program.clone(), options.depth.max(1));
        let maps = program.maps().iter().map(|map| vec![0; Layout::of(map).words()]).collect();
        LaunchSession { device, program, aligned, nowhere: false, launch, maps, queue: VecDeque::new(), depth }
    }

    /// Places packets without bytes outside the arena: a kernel may read nothing but their length.
    #[must_use]
    pub fn with_empty_packets_nowhere(mut self) -> LaunchSession {
        self.nowhere = true;
        self
    }

    fn failed(&self, reason: impl std::fmt::Display) -> DeviceError {
        DeviceError::Failed { device: self.device.clone(), reason: reason.to_string() }
    }

    fn run_batch(&mut self, mut batch: Batch) -> Result<Completion, DeviceError> {
        // Give each packet separate memory, and keep its offset within a word.
        let margin = if batch.room() == ResizeRoom::Both { RESIZE_ROOM as usize } else { 0 };
        let (mut arena, mut descriptors, mut owned) = (Vec::new(), Vec::new(), Vec::new());
        for (index, packet) in batch.packets().enumerate() {
            let shift = if self.aligned { 0 } else { batch.descriptors()[index].offset as usize % 4 };
            if self.nowhere && packet.is_empty() && batch.room() == ResizeRoom::None {
                descriptors.push(Descriptor { offset: (NOWHERE + shift) as u32, length: 0 });
                continue;
            }
            let offset = (arena.len() + margin).next_multiple_of(4) + shift;
            arena.resize(offset, FILL);
            arena.extend_from_slice(packet);
            owned.push(offset - margin..arena.len() + margin);
            arena.resize(arena.len() + margin, FILL);
            descriptors.push(Descriptor { offset: offset as u32, length: packet.len() as u32 });
        }
        let end = arena.len();
        arena.resize(end + READABLE_PAST_END, FILL);

        let count = batch.len();
        let metadata = (0..count).flat_map(|i| {
            let m = batch.metadata_of(i);
            [m.wire_length, m.port, m.time_low, m.time_high, m.time_ms]
        });
        let mut memory = Memory {
            arena,
            descriptors: descriptors.iter().flat_map(|d| [d.offset, d.length]).collect(),
            metadata: metadata.collect(),
            verdicts: vec![0xee; count],
            targets: vec![0; count],
            maps: std::mem::take(&mut self.maps),
        };
        (self.launch)(&mut memory).map_err(|reason| self.failed(reason))?;
        let Memory { arena: after, descriptors: places, verdicts, targets, maps, .. } = memory;
        self.maps = maps;

        let mut from = 0;
        for range in owned.iter().cloned().chain(std::iter::once(end..end)) {
            if let Some(at) = (from..range.start).find(|&at| after[at] != FILL) {
                return Err(self.failed(format!("byte {at} of the arena belongs to no packet and was written to")));
            }
            from = range.end;
        }
        if let Some(at) = (end..after.len()).find(|&at| after[at] != FILL) {
            return Err(self.failed(format!("byte {at} lies past the arena's end and was written to")));
        }
        let mut moved = Vec::with_capacity(count);
        for (index, (new, old)) in places.chunks_exact(2).zip(&descriptors).enumerate() {
            let offset = batch.descriptors()[index].offset.wrapping_add(new[0]).wrapping_sub(old.offset);
            moved.push(Descriptor { offset, length: new[1] });
        }
        if moved != batch.descriptors() {
            let broken = |error| DeviceError::InvalidResult { device: self.device.clone(), error };
            batch.resize(moved).map_err(broken)?;
        }
        for (index, new) in places.chunks_exact(2).enumerate().filter(|(_, new)| new[1] > 0) {
            let bytes = after.get(new[0] as usize..new[0] as usize + new[1] as usize);
            let bytes = bytes.ok_or_else(|| self.failed("a packet outside the arena"))?;
            batch.packet_mut(index).copy_from_slice(bytes);
        }
        let targets = if self.program.facts().redirects { targets } else { Vec::new() };
        let verdicts = Verdicts::from_columns(verdicts, targets);
        Ok(Completion { batch, verdicts, times: StageTimes::default() })
    }
}

impl Session for LaunchSession {
    fn import(&mut self, _: &Arc<Span>) -> Result<Imported, DeviceError> {
        Ok(Imported::Copied)
    }

    fn submit(&mut self, batch: Batch) -> Result<(), SubmitError> {
        if let Err(error) = check_submission(&self.program, &batch, self.queue.len(), self.depth) {
            return Err(SubmitError { batch: Box::new(batch), error });
        }
        self.queue.push_back(batch);
        Ok(())
    }

    fn complete(&mut self) -> Result<Option<Completion>, DeviceError> {
        let batch = self.queue.pop_front();
        batch.map(|batch| self.run_batch(batch)).transpose()
    }

    fn map_words(&mut self, map: usize) -> Result<Vec<u32>, DeviceError> {
        assert!(self.queue.is_empty(), "tests look at maps between batches");
        Ok(self.maps[map].clone())
    }

    fn set_map_words(&mut self, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        assert!(self.queue.is_empty(), "tests change maps between batches");
        self.maps[map][at..at + words.len()].copy_from_slice(words);
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.queue.len()
    }

    fn depth(&self) -> usize {
        self.depth
    }
}

impl Instrumented for LaunchSession {}
