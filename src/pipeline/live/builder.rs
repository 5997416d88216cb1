//! Live packets, filtered until the run is stopped: the second level of the library's interface.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Instant;

use portcullis_core::device::{CancelToken, DeviceKind, Dispatch, LoadOptions};
use portcullis_core::packet::ResizeRoom;
use portcullis_core::program::Program;
use portcullis_core::program::facts::Window;
use portcullis_io::live::Lane;

use super::{BatchPolicy, LaneStats, LiveLane, LiveOptions, RunSnapshot, run_live};
use crate::pipeline::{Broadcasts, Event, Observer};
use crate::{Device, Error};

/// How a filter needs live packets to be received: the part of a source's options that depends on
/// the filter.
#[derive(Debug, Clone, Copy)]
pub struct LaneRequirements {
    /// Headroom and tailroom of each packet.
    pub room: ResizeRoom,
    /// Whether packets come with their time, port and original length.
    pub metadata: bool,
    /// Bytes of a packet that the filter may write to.
    pub writes: Window,
}

impl LaneRequirements {
    /// Returns what `program` needs; with `any_filter`, what any filter needs that may replace it
    /// during the run.
    pub fn of(program: &Program, any_filter: bool) -> LaneRequirements {
        let facts = program.facts();
        LaneRequirements {
            room: if any_filter || facts.changes_length { ResizeRoom::Both } else { ResizeRoom::None },
            metadata: any_filter || facts.uses_metadata || Broadcasts::needs_ingress_port(program),
            writes: if any_filter { Window::WholePacket } else { facts.writes },
        }
    }

    /// Whether packets may change.
    pub fn rewrites(&self) -> bool {
        self.room == ResizeRoom::Both || self.writes.max_bytes() > 0
    }
}

/// Lanes of live packets, which a filter decides on until the run is stopped.
///
/// Lanes come from a source that was opened with the filter's [`LaneRequirements`]: `af_xdp::open`,
/// `dpdk::open` or `nfqueue::open` in [`packet_io`](crate::packet_io). Each lane has a session of
/// its own, and with it maps of its own, so a filter with maps should have one lane.
///
#[cfg_attr(feature = "nfqueue", doc = "```no_run")]
#[cfg_attr(not(feature = "nfqueue"), doc = "```ignore")]
/// use portcullis::device::CancelToken;
/// use portcullis::packet_io::live::Lane;
/// use portcullis::packet_io::nfqueue::{self, QueueOptions};
/// use portcullis::pipeline::live::{LaneRequirements, LivePipeline};
/// use portcullis::{Device, Filter};
///
/// let program = Filter::stock("port_filter")?.compile()?;
/// let needs = LaneRequirements::of(&program, false);
/// let (room, writes) = (needs.room, needs.writes);
/// let options = QueueOptions::default().with_queue(7).with_room(room).with_writes(writes);
/// let (receiver, executor) = nfqueue::open(&options)?;
/// let (receiver, executor) = (Box::new(receiver), Box::new(executor));
/// let lane = Lane { name: "queue 7".into(), memory: None, receiver, executor };
///
/// let stop = CancelToken::new(); // cancelled by another thread, or a signal handler
/// let totals = LivePipeline::new(vec![lane]).run(&program, &Device::auto()?, &stop)?;
/// for (lane, counts) in totals.lanes {
///     println!("{lane}: {} received, {} dropped", counts.received.packets, counts.verdicts.drop);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct LivePipeline {
    lanes: Vec<Lane>,
    options: Option<LiveOptions>,
}

impl LivePipeline {
    /// A run over these lanes, with adaptive batches.
    pub fn new(lanes: Vec<Lane>) -> LivePipeline {
        LivePipeline { lanes, options: None }
    }

    /// Sets batching, dispatch, pinning and overload policy. Without them batches adapt, and a lane
    /// has a second thread for receiving unless the device is the CPU.
    pub fn with_options(self, options: LiveOptions) -> LivePipeline {
        LivePipeline { options: Some(options), ..self }
    }

    /// Filters packets until `stop` is cancelled; those received by then are still decided on.
    /// Returns what each lane has counted.
    ///
    /// # Errors
    /// [`Error::Device`] if the device refuses the filter, [`Error::Live`] if a lane fails, which
    /// ends the others.
    pub fn run(self, program: &Arc<Program>, device: &Device, stop: &CancelToken) -> Result<RunSnapshot, Error> {
        self.run_observed(program, device, stop, || (), &mut |_: Event<'_>| {})
    }

    /// Variant of [`run`](LivePipeline::run) that gives access to the first lane's maps between
    /// batches. `at_stop` should stop the inflow of packets; it is called once, when the run is to
    /// stop.
    ///
    /// # Errors
    /// As [`run`](LivePipeline::run).
    pub fn run_observed(
        self,
        program: &Arc<Program>,
        device: &Device,
        stop: &CancelToken,
        at_stop: impl FnOnce() + Send,
        observer: &mut dyn Observer,
    ) -> Result<RunSnapshot, Error> {
        let is_cpu = matches!(device.info().kind, DeviceKind::Cpu | DeviceKind::Reference);
        let dispatch = self.options.as_ref().map(|options| options.dispatch);
        // A lane's batches are small, and its thread works on nothing else.
        let load_options = LoadOptions::default()
            .with_threads(NonZeroUsize::new(1))
            .with_dispatch(dispatch.or(is_cpu.then_some(Dispatch::Inline)));
        let dispatch = Dispatch::select(device.info(), &load_options)?;
        let options = self.options.unwrap_or_else(|| LiveOptions::new(BatchPolicy::adaptive(), dispatch));
        let mut lanes = Vec::new();
        for lane in self.lanes {
            let mut session = device.as_dyn().load(program, &load_options)?;
            if let Some(memory) = &lane.memory {
                session.import(memory)?;
            }
            let lane = LiveLane::new(lane, session);
            lanes.push(LiveLane { broadcasts: Broadcasts::from_program(program), ..lane });
        }
        let names: Vec<String> = lanes.iter().map(|lane| lane.lane.name.clone()).collect();
        let stats: Vec<Arc<LaneStats>> = names.iter().map(|_| Arc::default()).collect();
        let start = Instant::now();
        let (lanes, error) = run_live(lanes, &stats, &options, stop, at_stop, observer);
        let elapsed = start.elapsed();
        // Sessions end before the caller learns of it.
        drop(lanes);
        match error {
            Some(error) => Err(error.into()),
            None => {
                let snapshots = names.into_iter().zip(stats.iter().map(|stats| stats.snapshot()));
                Ok(RunSnapshot { elapsed, lanes: snapshots.collect() })
            }
        }
    }
}
