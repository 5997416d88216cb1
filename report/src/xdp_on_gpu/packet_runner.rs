//! XDP-on-GPU's workloads on Portcullis: raw packets of 64 bytes, filtered end to end by a session.

use std::sync::Arc;

use portcullis_core::device::{Device, DeviceError, LoadOptions, Session};
use portcullis_core::diagnostics::Source;
use portcullis_core::packet::{Arena, Batch, BatchCutter, Descriptor, ResizeRoom};
use portcullis_core::program::{Program, ProgramOptions};
use portcullis_wgsl as wgsl;

use super::records::{Fields, traffic};
use super::workloads::Workload;

/// Bytes of a packet: the shortest Ethernet frame, with payload in place of the check sequence. The
/// worst case for packets per second.
pub const LENGTH: usize = 64;

/// Maximum packets of a batch; more packets are split into batches in flight at the same time.
pub const BATCH: usize = 1 << 17;

/// Maximum number of batches in flight.
const DEPTH: usize = 4;

/// Compiles the workload's filter.
///
/// # Panics
/// If the filter does not compile, which a test excludes.
pub fn program(workload: &Workload) -> Arc<Program> {
    let text = Source::new(format!("{}.wgsl", workload.name), workload.text());
    let compiled = wgsl::compile(&text, &ProgramOptions::default());
    Arc::new(compiled.unwrap_or_else(|errors| panic!("{}", errors.render())))
}

/// A session, and the batches that it filters repeatedly.
pub struct PacketRunner {
    session: Box<dyn Session>,
    batches: Vec<Batch>,
}

impl PacketRunner {
    /// Loads the filter and lays out `count` packets of the workload's traffic in batches of
    /// `batch`.
    ///
    /// # Errors
    /// Errors of the device, and lack of memory.
    pub fn open(
        device: &dyn Device,
        program: &Arc<Program>,
        workload: &Workload,
        count: usize,
        batch: usize,
        options: &LoadOptions,
    ) -> Result<PacketRunner, DeviceError> {
        let session = device.load(program, &options.clone().with_depth(DEPTH))?;
        let fields: Vec<Fields> = traffic(workload.traffic, count).collect();
        let no_memory = |reason: String| DeviceError::Failed { device: device.info().id.clone(), reason };
        let batches = fields
            .chunks(batch.max(1))
            .map(|fields| {
                let mut arena = Arena::new(fields.len() * LENGTH).map_err(|error| no_memory(error.to_string()))?;
                let slots = arena.chunks_exact_mut(LENGTH);
                slots.zip(fields).for_each(|(slot, fields)| fields.write_packet(slot));
                let place = |index| Descriptor { offset: (index * LENGTH) as u32, length: LENGTH as u32 };
                let descriptors = (0..fields.len()).map(place).collect();
                let batch = BatchCutter::new(arena, None).cut_batch(descriptors, Vec::new(), ResizeRoom::None);
                batch.map_err(|error| no_memory(error.to_string()))
            })
            .collect::<Result<_, _>>()?;
        Ok(PacketRunner { session, batches })
    }

    /// Filters all packets once and waits for all verdicts; `on_verdicts` gets those of each batch.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn run(&mut self, mut on_verdicts: impl FnMut(&portcullis_core::packet::Verdicts)) -> Result<(), DeviceError> {
        let mut done = Vec::with_capacity(self.batches.len());
        let mut waiting = std::mem::take(&mut self.batches).into_iter();
        loop {
            while self.session.in_flight() < self.session.depth() {
                let Some(batch) = waiting.next() else { break };
                self.session.submit(batch).map_err(|refused| refused.error)?;
            }
            let Some(ended) = self.session.complete()? else { break };
            on_verdicts(&ended.verdicts);
            done.push(ended.batch);
        }
        self.batches = done;
        Ok(())
    }

    /// Filters the batches one at a time, waiting for each.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn run_one_by_one(&mut self) -> Result<(), DeviceError> {
        for batch in &mut self.batches {
            let empty = Batch::from_packets::<[u8; 0]>(&[]).expect("no packet needs no memory");
            let done = self.session.run(std::mem::replace(batch, empty))?;
            *batch = done.batch;
        }
        Ok(())
    }
}

/// Returns what a filter must return for a packet of [`LENGTH`] bytes with these fields.
pub fn expected(workload: &Workload, fields: Fields) -> u32 {
    workload.returns((workload.rule)(Fields { length: LENGTH as u32, ..fields }))
}
