//! Synthetic traffic as a source.

use portcullis_core::packet::{Arena, Batch, ResizeRoom};

use super::{Generator, Spec};
use crate::layout::{Collector, Pool, Ready, Slots};
use crate::source::{CaptureFormat, Progress, Source, SourceError, SourceOptions};

/// Makes packets straight into arenas.
#[derive(Debug)]
pub struct SynthSource {
    generator: Generator,
    packets: u64,
    done: u64,
    options: SourceOptions,
    format: CaptureFormat,
    pool: Pool,
    collector: Collector,
    ready: Ready,
}

impl SynthSource {
    /// A source of the packets that `spec` orders. They do not depend on `options`.
    pub fn new(spec: &Spec, options: &SourceOptions) -> SynthSource {
        SynthSource {
            generator: Generator::new(spec),
            packets: spec.packets,
            done: 0,
            options: options.clone(),
            format: CaptureFormat::default(),
            pool: Pool::new(),
            collector: Collector::new(options.max_packets, options.metadata),
            ready: Ready::none(),
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
        let slot = Slots::stride(Generator::MAX_PACKET);
        let mut arena = self.pool.take(self.options.block_size.clamp(slot, Arena::MAX_LEN))?;
        let mut slots = Slots::default();
        let mut next = 0;
        while self.done < self.packets && next + slot <= arena.len() {
            let place = &mut arena[next..];
            let (at, metadata, length);
            match self.options.room {
                ResizeRoom::None => {
                    (length, metadata) = self.generator.next_packet(place);
                    at = next;
                    // The next word is another packet's.
                    next = (next + length).next_multiple_of(4);
                }
                ResizeRoom::Both => {
                    let margin = portcullis_core::packet::RESIZE_ROOM as usize;
                    (length, metadata) = self.generator.next_packet(&mut place[margin..]);
                    at = slots.place(length, arena.len()).expect("there is a slot for the longest packet");
                    next += Slots::stride(length);
                }
            }
            self.collector.push(at, length, metadata);
            self.done += 1;
        }
        self.collector.carve(arena, &self.pool, self.options.room, &mut self.ready);
        Ok(self.ready.next())
    }

    fn format(&self) -> &CaptureFormat {
        &self.format
    }

    fn progress(&self) -> Progress {
        Progress { done: self.done, total: Some(self.packets) }
    }
}
