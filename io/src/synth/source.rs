//! Synthetic traffic as a source.

use portcullis_core::packet::{Arena, Batch, ResizeRoom};

use super::{Generator, Spec};
use crate::batching::{ArenaPool, BatchCollector, ReadyBatches, SlotAllocator};
use crate::source::{CaptureFormat, Progress, Source, SourceError, SourceOptions};

/// A source that generates packets directly into arenas.
#[derive(Debug)]
pub struct SynthSource {
    generator: Generator,
    packets: u64,
    done: u64,
    options: SourceOptions,
    format: CaptureFormat,
    pool: ArenaPool,
    collector: BatchCollector,
    ready: ReadyBatches,
}

impl SynthSource {
    /// Creates a source of the packets that `spec` describes. They do not depend on `options`.
    pub fn new(spec: &Spec, options: &SourceOptions) -> SynthSource {
        SynthSource {
            generator: Generator::new(spec),
            packets: spec.packets,
            done: 0,
            options: options.clone(),
            format: CaptureFormat::default(),
            pool: ArenaPool::new(),
            collector: BatchCollector::new(options.max_packets, options.metadata),
            ready: ReadyBatches::empty(),
        }
    }
}

impl Source for SynthSource {
    fn next_batch(&mut self) -> Result<Option<Batch>, SourceError> {
        if let Some(batch) = self.ready.next() {
            return Ok(Some(batch));
        }
        if self.done == self.packets {
            return Ok(None);
        }
        let slot = SlotAllocator::stride(Generator::MAX_PACKET);
        let mut arena = self.pool.take(self.options.block_size.clamp(slot, Arena::MAX_LEN))?;
        let mut slots = SlotAllocator::default();
        let mut next = 0;
        while self.done < self.packets && next + slot <= arena.len() {
            let place = &mut arena[next..];
            let (at, metadata, length);
            match self.options.room {
                ResizeRoom::None => {
                    (length, metadata) = self.generator.next_packet(place);
                    at = next;
                    // Devices write whole words: no word may belong to two packets.
                    next = (next + length).next_multiple_of(4);
                }
                ResizeRoom::Both => {
                    let margin = portcullis_core::packet::RESIZE_ROOM as usize;
                    (length, metadata) = self.generator.next_packet(&mut place[margin..]);
                    at = slots.allocate(length, arena.len()).expect("there is a slot for the longest packet");
                    next += SlotAllocator::stride(length);
                }
            }
            self.collector.push(at, length, metadata);
            self.done += 1;
        }
        self.collector.finish_arena(arena, &self.pool, self.options.room, &mut self.ready);
        Ok(self.ready.next())
    }

    fn format(&self) -> &CaptureFormat {
        &self.format
    }

    fn progress(&self) -> Progress {
        Progress { done: self.done, total: Some(self.packets) }
    }
}
