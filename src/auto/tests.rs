//! Tests of `auto` on fake devices of known cost: they filter by the interpreter and take their
//! time on a simulated clock.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use portcullis_cache::Cache;
use portcullis_core::device::{Completion, Imported, Instrumented, StageTimes, SubmitError, check_submission};
use portcullis_core::interp::InterpDevice;
use portcullis_core::packet::{Action, Batch, Span, Verdicts};

use super::chooser::Choice;
use super::*;
use crate::Filter;

/// A clock that advances only when told to.
#[derive(Debug, Default)]
struct SimulatedClock(AtomicU64);

impl Clock for SimulatedClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

impl SimulatedClock {
    fn wait_until(&self, at: u64) {
        self.0.fetch_max(at, Ordering::Relaxed);
    }

    fn nanos(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Behaviour of a fake device.
#[derive(Clone, Copy, PartialEq)]
enum FilterBehavior {
    /// Filters like the reference interpreter.
    Reference,
    /// Passes all packets unfiltered, which is fast for any number.
    PassAll,
}

/// Number of batches in flight.
const DEPTH: usize = 3;

/// A device of known cost.
#[derive(Clone)]
struct FakeDevice {
    info: DeviceInfo,
    clock: Arc<SimulatedClock>,
    /// Nanoseconds per batch and per packet.
    fixed: u64,
    packet: u64,
    behavior: FilterBehavior,
    /// Batch size, and the number of batches of that size that take six times as long because of
    /// other load.
    slowed_batches: (usize, usize),
    /// Maximum number of packets in a batch.
    max_packets: usize,
    /// Number of batches after which it fails.
    fails_after: usize,
    loads: Arc<AtomicUsize>,
    /// Number of packets of each submitted batch.
    batch_sizes: Arc<Mutex<Vec<usize>>>,
    refuses: Option<&'static str>,
}

impl FakeDevice {
    fn new(id: &str, kind: DeviceKind, clock: &Arc<SimulatedClock>, fixed: u64, packet: u64) -> FakeDevice {
        let info =
            DeviceInfo { id: id.into(), name: format!("{id} of a test"), kind, ..InterpDevice::new().info().clone() };
        FakeDevice {
            info,
            clock: clock.clone(),
            fixed,
            packet,
            behavior: FilterBehavior::Reference,
            slowed_batches: (0, 0),
            max_packets: usize::MAX,
            fails_after: usize::MAX,
            loads: Arc::default(),
            batch_sizes: Arc::default(),
            refuses: None,
        }
    }

    fn cost(&self, packets: usize) -> u64 {
        self.fixed + self.packet * packets as u64
    }

    /// Loads a program for an `AutoSession`.
    fn loaded(&self, program: &Arc<Program>, depth: usize) -> Option<LoadedDevice> {
        let session = self.load(program, &LoadOptions::default().with_depth(depth)).unwrap();
        Some(LoadedDevice { id: self.info.id.clone(), session })
    }
}

struct FakeSession {
    /// Copy of the device, whose `slowed_batches` and `fails_after` count down.
    device: FakeDevice,
    program: Arc<Program>,
    reference: Box<dyn Session>,
    queue: VecDeque<(Batch, u64)>,
    busy_until: u64,
    depth: usize,
}

impl Device for FakeDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn load(&self, program: &Arc<Program>, options: &LoadOptions) -> Result<Box<dyn Session>, DeviceError> {
        if let Some(reason) = self.refuses {
            return Err(DeviceError::Unsupported { device: self.info.id.clone(), reason: reason.into() });
        }
        self.loads.fetch_add(1, Ordering::Relaxed);
        let dispatch = Dispatch::select(&self.info, options)?;
        Ok(dispatch.wrap(FakeSession {
            device: self.clone(),
            program: program.clone(),
            reference: InterpDevice::new().load(program, &LoadOptions::default())?,
            queue: VecDeque::new(),
            busy_until: 0,
            depth: options.depth,
        }))
    }
}

impl Session for FakeSession {
    fn import(&mut self, _: &Arc<Span>) -> Result<Imported, DeviceError> {
        Ok(if self.device.info.id == "gpu" { Imported::Copied } else { Imported::InPlace })
    }

    fn submit(&mut self, batch: Batch) -> Result<(), SubmitError> {
        let device = &mut self.device;
        let fits = check_submission(&self.program, &batch, self.queue.len(), self.depth);
        let fits = fits.and_then(|()| match batch.len() > device.max_packets {
            true => Err(DeviceError::Refused(format!("{} takes {} packets", device.info.id, device.max_packets))),
            false => Ok(()),
        });
        if let Err(error) = fits {
            return Err(SubmitError { batch: Box::new(batch), error });
        }
        let mut cost = device.cost(batch.len());
        if let (size, left @ 1..) = device.slowed_batches
            && size == batch.len()
        {
            device.slowed_batches.1 = left - 1;
            cost *= 6;
        }
        self.busy_until = self.busy_until.max(device.clock.nanos()) + cost;
        device.batch_sizes.lock().unwrap().push(batch.len());
        self.queue.push_back((batch, self.busy_until));
        Ok(())
    }

    fn complete(&mut self) -> Result<Option<Completion>, DeviceError> {
        let Some((batch, at)) = self.queue.pop_front() else { return Ok(None) };
        self.device.clock.wait_until(at);
        self.device.fails_after = self.device.fails_after.wrapping_sub(1);
        if self.device.fails_after == 0 {
            return Err(DeviceError::Failed { device: self.device.info.id.clone(), reason: "fell off the bus".into() });
        }
        match self.device.behavior {
            FilterBehavior::Reference => self.reference.run(batch).map(Some),
            FilterBehavior::PassAll => {
                let verdicts = Verdicts::new(vec![Action::Pass as u8; batch.len()], Vec::new());
                Ok(Some(Completion { batch, verdicts, times: StageTimes::default() }))
            }
        }
    }

    fn map_words(&mut self, map: usize) -> Result<Vec<u32>, DeviceError> {
        while let Some((batch, _)) = self.queue.pop_front() {
            self.reference.run(batch)?;
        }
        self.reference.map_words(map)
    }

    fn in_flight(&self) -> usize {
        self.queue.len()
    }

    fn depth(&self) -> usize {
        self.depth
    }
}

impl Instrumented for FakeSession {}

fn program(text: &str) -> Arc<Program> {
    Filter::wgsl(text).compile().unwrap()
}

/// A filter with all verdicts, and changes of content and length, depending on the packet's first
/// bytes.
const BUSY: &str = "fn xdp_filter(pkt: u32) -> u32 {
    let kind = load_u8(pkt, 0u) % 7u;
    store_u8(pkt, 1u, load_u8(pkt, 2u) + 1u);
    if kind == 0u { return redirect(load_u8(pkt, 3u)); }
    if kind == 1u { if adjust_tail(pkt, 3i) { store_u8(pkt, pkt_len(pkt) - 1u, 9u); } return XDP_TX; }
    if kind == 2u { if adjust_head(pkt, -4i) { store_u8(pkt, 0u, 8u); } return XDP_PASS; }
    return kind - 3u;
}";

const PLAIN: &str = "fn xdp_filter(pkt: u32) -> u32 { return select(XDP_DROP, XDP_PASS, load_u8(pkt, 0u) > 9u); }";

const COUNTS: &str = "//! map m: array value=1 entries=2
fn xdp_filter(pkt: u32) -> u32 { m_add(1u, 0u, 2u); return XDP_PASS; }";

const FLOWS: &str = "fn xdp_flow(pkt: u32) -> u32 { return load_u8(pkt, 0u); }
fn xdp_filter(pkt: u32) -> u32 { return XDP_PASS; }";

fn packets(count: usize, seed: u64) -> Vec<Vec<u8>> {
    let mut random = portcullis_io::synth::Random::new(seed, 0);
    let mut packet = || {
        let mut packet = vec![0; 14 + random.below(90) as usize];
        random.fill(&mut packet);
        packet
    };
    (0..count).map(|_| packet()).collect()
}

/// A GPU and a CPU whose costs cross at about 20 000 packets.
fn gpu_and_cpu(clock: &Arc<SimulatedClock>) -> [FakeDevice; 2] {
    [
        FakeDevice::new("gpu", DeviceKind::DiscreteGpu, clock, 60_000, 1),
        FakeDevice::new("cpu", DeviceKind::Cpu, clock, 400, 4),
    ]
}

/// Variant of [`gpu_and_cpu`] that passes all packets, because the interpreter is slow.
fn pass_all_gpu_and_cpu(clock: &Arc<SimulatedClock>) -> [FakeDevice; 2] {
    gpu_and_cpu(clock).map(|fake| FakeDevice { behavior: FilterBehavior::PassAll, ..fake })
}

/// Costs of devices that take `packet_ns` per packet and nothing per batch.
fn proportional_costs(packet_ns: [f64; 2]) -> Costs {
    let curve = |packet: f64| curve::CostCurve::new([64, 65_536].map(|n| (n, packet * f64::from(n))).to_vec()).unwrap();
    Costs { devices: packet_ns.map(|packet| Some(std::array::from_fn(|_| curve(packet)))).to_vec(), split: None }
}

/// A store of calibrations in a folder.
fn store_in(folder: &tempfile::TempDir) -> CalibrationStore {
    CalibrationStore::with_cache(Cache::at(&folder.path().join("auto"), 1 << 20).unwrap())
}

/// Total number of batches submitted to the devices.
fn batch_count(fakes: &[Arc<FakeDevice>]) -> usize {
    fakes.iter().map(|fake| fake.batch_sizes.lock().unwrap().len()).sum()
}

fn settings(clock: &Arc<SimulatedClock>) -> Settings {
    // Enough for batches of up to 2,048 packets: larger ones have the same simulated slope.
    Settings::default().with_store(CalibrationStore::disabled()).with_clock(clock.clone()).with_max_packets(1 << 13)
}

/// Builds an `AutoDevice` and returns handles to its fakes.
fn auto(fakes: Vec<FakeDevice>, settings: Settings) -> (AutoDevice, Vec<Arc<FakeDevice>>) {
    let fakes: Vec<Arc<FakeDevice>> = fakes.into_iter().map(Arc::new).collect();
    let devices = fakes.iter().map(|fake| fake.clone() as Arc<dyn Device>).collect();
    (AutoDevice::new(devices, settings), fakes)
}

/// Verdicts and packets of a completed batch.
fn contents(done: &Completion) -> (Vec<u32>, Vec<Vec<u8>>) {
    let verdicts = done.verdicts.iter().map(|verdict| verdict.to_return()).collect();
    (verdicts, done.batch.packets().map(<[u8]>::to_vec).collect())
}

fn reference(program: &Arc<Program>, packets: &[Vec<u8>]) -> (Vec<u32>, Vec<Vec<u8>>) {
    let mut session = InterpDevice::new().load(program, &LoadOptions::default()).unwrap();
    contents(&session.run(Batch::from_packets(packets).unwrap()).unwrap())
}

#[test]
fn split_batches_match_the_interpreter_for_every_share() {
    let program = program(BUSY);
    let all = packets(1500, 77);
    let expected = reference(&program, &all);
    let clock = Arc::new(SimulatedClock::default());
    for share in [0.2f32, 0.33, 0.5, 0.71, 0.8] {
        // Costs with which any batch is split with this share.
        let costs = proportional_costs([1.0 - f64::from(share), f64::from(share)]);
        let [second, first] = gpu_and_cpu(&clock);
        let batch_sizes = [first.batch_sizes.clone(), second.batch_sizes.clone()];
        let chooser = Chooser::split_all(costs, 0, 1);
        let devices = [first, second].map(|fake| fake.loaded(&program, DEPTH)).into();
        let mut session = AutoSession::new(&program, devices, chooser, clock.clone(), 3);
        for make in [Batch::from_packets::<Vec<u8>>, Batch::in_frames::<Vec<u8>>] {
            let done = session.run(make(&all).unwrap()).unwrap();
            assert_eq!(contents(&done), expected, "{share}");
        }
        let [first, second] = batch_sizes.map(|batch_sizes| batch_sizes.lock().unwrap().clone());
        assert!(first.len() == 2 && first.iter().zip(&second).all(|(a, b)| a + b == 1500), "{first:?}, {second:?}");
        assert!((first[0] as f32 / 1500.0 - share).abs() < 0.05, "{share}: {first:?}");
    }
}

/// A full device has its oldest batch completed, which may require completing earlier batches of
/// others.
#[test]
fn batches_complete_in_order_when_devices_are_full() {
    let program = program(BUSY);
    let clock = Arc::new(SimulatedClock::default());
    let (one, split) = (Placement::Single, |share| Placement::Split { first: 0, second: 1, share });
    for placements in [
        [one(1), split(0.5), one(0), one(1), split(0.3)],
        [one(0), one(1), split(0.5), split(0.5), one(0)],
        [split(0.2), one(1), one(1), one(0), split(0.7)],
    ] {
        for depths in [[1, 6], [6, 1], [1, 1], [2, 1]] {
            let [second, first] = gpu_and_cpu(&clock);
            let devices = vec![first.loaded(&program, depths[0]), second.loaded(&program, depths[1])];
            let chooser = Chooser::new(proportional_costs([1.0, 1.0]), vec![true; 2]);
            let mut session = AutoSession::new(&program, devices, chooser, clock.clone(), placements.len());
            let batches: Vec<_> = (0..placements.len()).map(|i| packets(100 + 7 * i, i as u64)).collect();
            for (batch, placement) in batches.iter().zip(placements) {
                session
                    .submit_with(Batch::from_packets(batch).unwrap(), Choice { placement, timed: false }, 0)
                    .unwrap();
            }
            for batch in &batches {
                let done = session.complete().unwrap().unwrap();
                assert_eq!(contents(&done), reference(&program, batch), "{placements:?}, {depths:?}");
            }
        }
    }
}

#[test]
fn batches_of_any_sizes_complete_in_order() {
    for (cpu_dispatch, depth) in [(None, 3), (None, 1), (Some(Dispatch::Inline), 4)] {
        let clock = Arc::new(SimulatedClock::default());
        // With a crossover at 100 packets, the interpreter has little to do.
        let fakes = |behavior| {
            let mut fakes = gpu_and_cpu(&clock);
            fakes[0].fixed = 700;
            fakes.iter_mut().for_each(|fake| fake.behavior = behavior);
            Vec::from(fakes)
        };
        let program = program(BUSY);
        let options = LoadOptions::default().with_depth(depth);
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(&clock).with_store(store_in(&folder)).with_cpu_dispatch(cpu_dispatch);
        auto(fakes(FilterBehavior::PassAll), settings.clone()).0.load(&program, &options).unwrap();
        let (device, fakes) = auto(fakes(FilterBehavior::Reference), settings);
        let mut session = device.load(&program, &options).unwrap();
        assert_eq!((session.depth(), session.in_flight()), (depth, 0));
        let before: Vec<usize> = fakes.iter().map(|fake| fake.batch_sizes.lock().unwrap().len()).collect();
        let mut sent = VecDeque::new();
        let complete = |session: &mut dyn Session, sent: &mut VecDeque<Vec<Vec<u8>>>| {
            let done = session.complete().unwrap().unwrap();
            assert_eq!(contents(&done), reference(&program, &sent.pop_front().unwrap()));
        };
        for round in 0..120usize {
            let packets = packets([5, 300, 90, 700, 0, 40, 1][round % 7], round as u64);
            while session.in_flight() == session.depth() {
                complete(&mut *session, &mut sent);
            }
            session.submit(Batch::from_packets(&packets).unwrap()).unwrap();
            sent.push_back(packets);
            assert_eq!(session.in_flight(), sent.len());
        }
        if depth > 1 {
            let batch = || Batch::from_packets(&packets(3, 5)).unwrap();
            while session.in_flight() < depth {
                session.submit(batch()).unwrap();
                sent.push_back(packets(3, 5));
            }
            let refused = session.submit(batch()).unwrap_err();
            assert_eq!(refused.batch.len(), 3);
        }
        while !sent.is_empty() {
            complete(&mut *session, &mut sent);
        }
        assert!(session.complete().unwrap().is_none());
        for (fake, before) in fakes.iter().zip(before) {
            assert!(fake.batch_sizes.lock().unwrap().len() > before + 10, "{} got its batches", fake.info.id);
        }
    }
}

/// Nanoseconds per batch with several in flight.
fn throughput(session: &mut dyn Session, clock: &SimulatedClock, batch: &mut Vec<Batch>, rounds: usize) -> f64 {
    let begun = clock.nanos();
    for _ in 0..rounds {
        if session.in_flight() == session.depth() || batch.is_empty() {
            batch.push(session.complete().unwrap().unwrap().batch);
        }
        session.submit(batch.pop().unwrap()).unwrap();
    }
    while let Some(done) = session.complete().unwrap() {
        batch.push(done.batch);
    }
    (clock.nanos() - begun) as f64 / rounds as f64
}

#[test]
fn throughput_is_at_least_nine_tenths_of_the_best_device() {
    // (fixed, packet) of a GPU and a CPU.
    for (gpu, cpu) in
        [((60_000, 1), (400, 4)), ((20_000, 5), (300, 4)), ((900, 2), (4000, 8)), ((200_000, 1), (500, 30))]
    {
        let clock = Arc::new(SimulatedClock::default());
        let mut fakes = pass_all_gpu_and_cpu(&clock);
        for (fake, costs) in fakes.iter_mut().zip([gpu, cpu]) {
            (fake.fixed, fake.packet) = costs;
        }
        let (device, fakes) = auto(fakes.into(), settings(&clock));
        let program = program(PLAIN);
        let mut session = device.load(&program, &LoadOptions::default()).unwrap();
        for order in 6..18 {
            for size in [1usize << order, (1 << order) + (1 << order) / 2] {
                let all = vec![[7u8; 60]; size];
                let mut batches: Vec<_> = (0..3).map(|_| Batch::from_packets(&all).unwrap()).collect();
                let taken = throughput(&mut *session, &clock, &mut batches, 400);
                let best = fakes.iter().map(|fake| fake.cost(size)).min().unwrap() as f64;
                assert!(best / taken >= 0.9, "{gpu:?}, {cpu:?}: {size} packets: {taken} ns, the best is {best}");
            }
        }
    }
}

#[test]
fn two_devices_are_faster_than_one_with_large_batches() {
    let clock = Arc::new(SimulatedClock::default());
    let [mut gpu, mut cpu] = pass_all_gpu_and_cpu(&clock);
    (gpu.fixed, gpu.packet, cpu.packet) = (1000, 3, 3);
    let (device, fakes) = auto(vec![gpu, cpu], settings(&clock));
    let mut session = device.load(&program(PLAIN), &LoadOptions::default()).unwrap();
    let (costs, origin) = device.costs().unwrap();
    let split = costs.split.expect("the devices do not slow each other");
    assert_eq!((origin, split.first, split.second), (CostsOrigin::Measured, 1, 0));
    let all = vec![[7u8; 60]; 200_000];
    let mut batches: Vec<_> = (0..3).map(|_| Batch::from_packets(&all).unwrap()).collect();
    let taken = throughput(&mut *session, &clock, &mut batches, 50);
    // 400 + 3 x = 1000 + 3 (n - x), and all rounds but the first ones are as long as either part.
    let n = all.len() as f64;
    let by_hand = 400.0 + 3.0 * (n + 200.0) / 2.0;
    assert!(taken < by_hand * 1.05, "{taken}, by hand {by_hand}; alone {}", fakes[1].cost(all.len()));
    // The smallest measured size at which the split takes less than 0.9 of the better device's
    // time: 400 + 1.5 (n + 200) < 0.9 (400 + 3 n) from 283 packets on; the CPU's part is (n + 200)
    // / 2 of n, at 1024 packets 60 %.
    let text = device.explain().unwrap().to_string();
    assert!(text.contains("from 1024 packets on: cpu 60 % + gpu 40 %"), "{text}");
}

#[test]
fn crossovers_match_the_computed_ones() {
    let clock = Arc::new(SimulatedClock::default());
    let (device, _) = auto(pass_all_gpu_and_cpu(&clock).into(), settings(&clock));
    device.load(&program(PLAIN), &LoadOptions::default()).unwrap();
    let (costs, _) = device.costs().unwrap();
    let alone = Costs { split: None, ..costs };
    let crossovers = Explanation::crossovers(&alone, 0);
    let placements: Vec<_> = crossovers.iter().map(|(_, placement)| *placement).collect();
    assert_eq!(placements, [Placement::Single(1), Placement::Single(0)]);
    // 400 + 4 n = 60 000 + n.
    let by_hand = 59_600.0 / 3.0;
    assert!((crossovers[1].0 as f64 / by_hand - 1.0).abs() < 0.1, "{crossovers:?}, by hand {by_hand}");
}

#[test]
fn filters_with_state_stay_on_one_device() {
    for (text, expected, where_to) in [(COUNTS, 1000, 1), (COUNTS, 100_000, 0), (FLOWS, 1000, 1), (FLOWS, 100_000, 0)] {
        let clock = Arc::new(SimulatedClock::default());
        let folder = tempfile::tempdir().unwrap();
        let store = store_in(&folder);
        let with =
            |measure| settings(&clock).with_store(store.clone()).with_mode(measure).with_expected_packets(expected);
        let program = program(text);
        let (calibrated, _) = auto(pass_all_gpu_and_cpu(&clock).into(), with(CalibrationMode::FirstLoad));
        calibrated.load(&program, &LoadOptions::default()).unwrap();

        let (device, fakes) = auto(gpu_and_cpu(&clock).into(), with(CalibrationMode::Never));
        let mut session = device.load(&program, &LoadOptions::default()).unwrap();
        assert_eq!(device.costs().unwrap().1, CostsOrigin::Cached);
        let sizes = [3usize, 900, 40, 2000];
        for size in sizes {
            session.run(Batch::from_packets(&vec![[7u8; 60]; size]).unwrap()).unwrap();
        }
        let batch_sizes: Vec<usize> = fakes.iter().map(|fake| fake.batch_sizes.lock().unwrap().len()).collect();
        assert_eq!((batch_sizes[where_to], batch_sizes[1 - where_to]), (4, 0), "{text}");
        if text == COUNTS {
            let words = session.map_words(0).unwrap();
            assert_eq!(words.last(), Some(&(2 * sizes.iter().sum::<usize>() as u32)));
        }
        assert!(device.explain().unwrap().to_string().contains("the filter keeps state"));
    }
}

#[test]
fn costs_are_measured_once_and_cached() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_in(&folder);
    let clock = Arc::new(SimulatedClock::default());
    let fakes = || pass_all_gpu_and_cpu(&clock).to_vec();
    let (one, other) = (program(PLAIN), program("fn xdp_filter(pkt: u32) -> u32 { return XDP_DROP; }"));
    let options = LoadOptions::default();
    // Devices that have loaded the first program.
    let loaded = |fakes, mode| {
        let (device, tested) = auto(fakes, settings(&clock).with_store(store.clone()).with_mode(mode));
        device.load(&one, &options).unwrap();
        (device, tested)
    };

    // Without calibration, the first candidate is used.
    let (device, tested) = loaded(fakes(), CalibrationMode::Never);
    assert_eq!((batch_count(&tested), device.costs()), (0, None));
    assert_eq!([0, 1].map(|at| tested[at].loads.load(Ordering::Relaxed)), [1, 0], "the GPU");
    assert!(device.explain().unwrap().to_string().contains("calibration: none"));

    let (device, tested) = loaded(fakes(), CalibrationMode::FirstLoad);
    let measured = batch_count(&tested);
    assert!(measured > 0 && device.take_warnings().is_empty());
    device.load(&one, &options).unwrap();
    // Packets may flow by now, so nothing is measured.
    device.load(&other, &options).unwrap();
    assert_eq!((batch_count(&tested), device.costs()), (measured, None));

    let (device, tested) = loaded(fakes(), CalibrationMode::FirstLoad);
    assert_eq!((batch_count(&tested), device.costs().unwrap().1), (0, CostsOrigin::Cached));
    assert!(device.explain().unwrap().to_string().contains("cached by an earlier run"));

    // A new driver.
    let mut changed = fakes();
    changed[0].info.driver = "2".into();
    let (_, tested) = loaded(changed, CalibrationMode::FirstLoad);
    assert!(batch_count(&tested) > 0);

    // Damaged files are reported and measured again.
    for file in std::fs::read_dir(folder.path().join("auto")).unwrap() {
        std::fs::write(file.unwrap().path(), "nothing").unwrap();
    }
    let (device, tested) = loaded(fakes(), CalibrationMode::FirstLoad);
    let notes = device.take_warnings();
    assert!(batch_count(&tested) > 0 && notes.len() == 1, "{notes:?}");
    assert!(notes[0].starts_with("ignoring the cached calibration: ") && notes[0].contains("damaged"), "{notes:?}");

    let (_, tested) = loaded(fakes(), CalibrationMode::Always);
    assert!(batch_count(&tested) > 0);
    let (device, _) = auto(fakes(), settings(&clock));
    device.load(&one, &options).unwrap();
    assert_eq!(device.take_warnings(), ["cannot cache the calibration: caching is disabled"]);
}

#[test]
fn the_calibration_stays_within_its_budget() {
    // With a millisecond per packet, a batch of 64 exceeds the whole budget.
    for packet in [1_000_000, 30_000, 1000, 1] {
        let clock = Arc::new(SimulatedClock::default());
        let mut cpu = FakeDevice::new("cpu", DeviceKind::Cpu, &clock, 400, packet);
        cpu.behavior = FilterBehavior::PassAll;
        let (device, _) = auto(vec![cpu], settings(&clock));
        device.load(&program(PLAIN), &LoadOptions::default()).unwrap();
        let (costs, _) = device.costs().unwrap();
        let curves = costs.devices[0].as_ref().unwrap();
        // Two rounds of the smallest size, one of them the untimed warm-up, for each class.
        let least = 2 * 8 * 64 * packet * 3;
        let most = measure::BUDGET.as_nanos() as u64 * 5 / 4 + least;
        assert!(clock.nanos() <= most, "{packet}: {} ns, at most {most}", clock.nanos());
        for curve in curves {
            let error = curve.cost_at(64) / (400.0 + 64.0 * packet as f64) - 1.0;
            assert!(error.abs() < 0.05, "{packet}: {error}");
        }
    }
}

#[test]
fn outliers_from_other_load_are_measured_again() {
    for size in [1024, 4096] {
        let clock = Arc::new(SimulatedClock::default());
        let mut cpu = FakeDevice::new("cpu", DeviceKind::Cpu, &clock, 400, 2);
        (cpu.behavior, cpu.slowed_batches) = (FilterBehavior::PassAll, (size, 10 * 8.min((1 << 13) / size)));
        let (device, _) = auto(vec![cpu], settings(&clock));
        device.load(&program(PLAIN), &LoadOptions::default()).unwrap();
        let (costs, _) = device.costs().unwrap();
        for curve in costs.devices[0].as_ref().unwrap() {
            let error = curve.cost_at(size) / (400.0 + 2.0 * size as f64) - 1.0;
            assert!(error.abs() < 0.05, "{size}: {error}, {:?}", curve.points());
        }
        assert!(clock.nanos() < measure::BUDGET.as_nanos() as u64 * 5 / 4, "{} ns", clock.nanos());
    }
}

#[test]
fn predictions_match_the_choice_and_load_nothing() {
    let clock = Arc::new(SimulatedClock::default());
    let folder = tempfile::tempdir().unwrap();
    let (device, fakes) = auto(gpu_and_cpu(&clock).into(), settings(&clock).with_store(store_in(&folder)));
    let loads = || fakes.iter().map(|fake| fake.loads.load(Ordering::Relaxed)).collect::<Vec<_>>();
    for text in [PLAIN, COUNTS] {
        let (program, options) = (program(text), LoadOptions::default());
        let before = device.predict(&program, &options).unwrap().to_string();
        assert!(before.contains("without a calibration"), "{before}");
        device.load(&program, &options).unwrap();
        let loaded = loads();
        let (foreseen, explained) = (device.predict(&program, &options).unwrap(), device.explain().unwrap());
        let told = |explanation: Explanation| {
            explanation.to_string().replace("made for this run and cached for later ones", "")
        };
        let kept =
            foreseen.to_string().replace("cached by an earlier run for these devices, drivers and this filter", "");
        assert_eq!(kept, told(explained));
        assert_eq!(loaded, loads());
    }
}

#[test]
fn a_gpus_dispatch_methods_are_chosen_by_batch_size() {
    let program = program(PLAIN);
    let clock = Arc::new(SimulatedClock::default());
    // They cost the same for 11,000 packets.
    let fakes = [("gpu", 60_000, 1), ("gpu persistent", 5_000, 6)]
        .map(|(id, fixed, packet)| FakeDevice::new(id, DeviceKind::DiscreteGpu, &clock, fixed, packet))
        .map(|fake| FakeDevice { behavior: FilterBehavior::PassAll, ..fake });
    let (device, fakes) = auto(fakes.clone().into(), settings(&clock));
    let mut session = device.load(&program, &LoadOptions::default()).unwrap();
    fakes.iter().for_each(|fake| fake.batch_sizes.lock().unwrap().clear());
    for packets in [64, 1024, 32_768] {
        session.run(Batch::from_packets(&vec![[0; 60]; packets]).unwrap()).unwrap();
    }
    let sizes = |index: usize| fakes[index].batch_sizes.lock().unwrap().clone();
    assert_eq!([sizes(0), sizes(1)], [vec![32_768], vec![64, 1024]]);

    // A method that the user names is not loaded twice.
    let loads = |index: usize| fakes[index].loads.load(Ordering::Relaxed);
    let before = loads(1);
    device.load(&program, &LoadOptions::default().with_dispatch(Dispatch::Inline)).unwrap();
    assert_eq!(loads(1), before);
}

#[test]
fn failing_devices_are_reported_and_others_used() {
    let options = LoadOptions::default();
    let program = program(PLAIN);
    // A device cannot run the filter.
    let clock = Arc::new(SimulatedClock::default());
    let mut fakes = pass_all_gpu_and_cpu(&clock);
    fakes[0].refuses = Some("it has no arithmetic");
    let (device, _) = auto(fakes.into(), settings(&clock));
    let mut session = device.load(&program, &options).unwrap();
    session.run(Batch::from_packets(&[[0; 60]]).unwrap()).unwrap();
    let notes = device.take_warnings();
    assert!(notes[0].contains("gpu cannot run this filter: it has no arithmetic"), "{notes:?}");
    assert!(device.explain().unwrap().to_string().contains("excluded: gpu cannot run this filter"));

    // No device can.
    let mut fakes = gpu_and_cpu(&clock);
    fakes.iter_mut().for_each(|fake| fake.refuses = Some("not today"));
    let (device, _) = auto(fakes.into(), settings(&clock));
    let error = device.load(&program, &options).err().unwrap().to_string();
    assert!(error.contains("gpu cannot run this filter: not today; cpu cannot run"), "{error}");

    // A device is lost during the calibration.
    let mut fakes = pass_all_gpu_and_cpu(&clock);
    fakes[0].fails_after = 20;
    let (device, _) = auto(fakes.into(), settings(&clock));
    device.load(&program, &options).unwrap();
    let notes = device.take_warnings();
    assert!(notes[0].contains("gpu: fell off the bus"), "{notes:?}");

    // A device is lost later: the error names it.
    let [mut gpu, cpu] = gpu_and_cpu(&clock);
    gpu.fails_after = 1;
    let mut session = session_that_prefers_the_first(&program, [gpu, cpu]);
    session.submit(Batch::from_packets(&[[0; 60]]).unwrap()).unwrap();
    assert_eq!(session.complete().unwrap_err().to_string(), "gpu: fell off the bus");
}

/// A session of two devices of which the first is slightly faster with batches of any size.
fn session_that_prefers_the_first(program: &Arc<Program>, fakes: [FakeDevice; 2]) -> AutoSession {
    let chooser = Chooser::new(proportional_costs([1.0, 1.2]), vec![true; 2]);
    let clock = fakes[0].clock.clone();
    AutoSession::new(program, fakes.map(|fake| fake.loaded(program, DEPTH)).into(), chooser, clock, 3)
}

#[test]
fn a_batch_that_one_device_refuses_goes_to_another() {
    let clock = Arc::new(SimulatedClock::default());
    let program = program(BUSY);
    let [mut gpu, cpu] = gpu_and_cpu(&clock);
    gpu.max_packets = 100;
    let batch_sizes = cpu.batch_sizes.clone();
    let mut session = session_that_prefers_the_first(&program, [gpu, cpu]);
    assert_eq!(session.import(Batch::from_packets(&[[0; 60]]).unwrap().span()).unwrap(), Imported::Copied);
    let (few, many) = (packets(50, 3), packets(150, 4));
    session.submit(Batch::from_packets(&few).unwrap()).unwrap();
    session.submit(Batch::from_packets(&many).unwrap()).unwrap();
    assert_eq!(contents(&session.complete().unwrap().unwrap()), reference(&program, &few));
    assert_eq!(contents(&session.complete().unwrap().unwrap()), reference(&program, &many));
    assert_eq!(*batch_sizes.lock().unwrap(), [150]);
    // A batch that no device accepts is returned unchanged.
    let mut without_room = Batch::from_packets(&few).unwrap();
    let moved: Vec<_> = without_room
        .descriptors()
        .iter()
        .map(|d| portcullis_core::packet::Descriptor { length: d.length + 1, ..*d })
        .collect();
    without_room.resize(moved).unwrap();
    let refused = session.submit(without_room).unwrap_err();
    assert_eq!((refused.batch.len(), session.in_flight()), (50, 0));
    assert!(refused.to_string().contains("the packets have no headroom"), "{refused}");
}
