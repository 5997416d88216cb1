//! Tests the sizer on a model of a lane in virtual time: Poisson arrivals, a bounded RX ring, a
//! bounded queue of batches, and a device with noisy costs.

use std::collections::VecDeque;

use super::*;

/// Capacity of the RX ring in packets.
const RING_PACKETS: usize = 2048;

/// Maximum number of closed batches that are not completed.
const MAX_IN_FLIGHT: usize = 5;

/// xorshift64* pseudorandom numbers.
struct Random(u64);

impl Random {
    /// Returns a number in (0, 1].
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
}

/// Costs of a batch, in seconds.
#[derive(Debug, Clone, Copy)]
struct Device {
    fixed: f64,
    packet: f64,
    /// Costs vary by up to this fraction in both directions.
    noise: f64,
}

impl Device {
    /// The smallest batch size with which the device keeps up and is idle for this fraction of its
    /// time.
    fn smallest_sufficient(&self, rate: f64, spare: f64, max_packets: usize) -> Option<usize> {
        (1..=max_packets).find(|n| (self.fixed + self.packet * *n as f64) * (1.0 + spare) <= *n as f64 / rate)
    }
}

/// A completed batch.
#[derive(Debug, Clone, Copy)]
struct CompletedBatch {
    /// When its verdicts were executed, in seconds.
    done: f64,
    /// Time from the arrival of its first packet until then.
    latency: f64,
    packets: usize,
    sizing: Sizing,
}

/// Simulation of a lane in virtual time.
struct LaneModel {
    device: Device,
    sizer: BatchSizer,
    rate: ArrivalRate,
    random: Random,
    begun: Instant,
    /// Packets that a batch may always have if they are queued.
    at_once: usize,
    max_packets: usize,
    /// Arrival times of the packets in the ring, and of the next packet.
    ring: VecDeque<f64>,
    next: f64,
    lost: u64,
    now: f64,
    /// Completion times of the batches in flight, and the sizing that is known then.
    in_flight: VecDeque<(f64, Sizing)>,
    wanted: (usize, f64),
}

impl LaneModel {
    fn new(device: Device, max_packets: usize, delay: Duration) -> LaneModel {
        let begun = Instant::now();
        LaneModel {
            device,
            sizer: BatchSizer::new(BatchPolicy { max_packets, delay, adaptive: true }, false),
            rate: ArrivalRate::new(begun),
            random: Random(0x9e37_79b9_7f4a_7c15),
            begun,
            at_once: 256,
            max_packets,
            ring: VecDeque::new(),
            next: 0.0,
            lost: 0,
            now: 0.0,
            in_flight: VecDeque::new(),
            wanted: (1, 0.0),
        }
    }

    /// Lets packets arrive until `until`.
    fn arrive(&mut self, until: f64, rate: f64) {
        while self.next <= until {
            match self.ring.len() < RING_PACKETS {
                true => self.ring.push_back(self.next),
                false => self.lost += 1,
            }
            self.next -= self.random.next().ln() / rate;
        }
    }

    /// Runs until `until` with `rate` packets per second.
    fn run(&mut self, until: f64, rate: f64) -> Vec<CompletedBatch> {
        let mut completed = Vec::new();
        self.next = self.next.min(self.now - self.random.next().ln() / rate);
        while self.now < until {
            // The RX thread blocks while too many batches are in flight.
            while self.in_flight.len() >= MAX_IN_FLIGHT {
                let (done, sizing) = self.in_flight.pop_front().unwrap();
                self.now = self.now.max(done);
                self.wanted = (sizing.batch, sizing.delay.as_secs_f64());
            }
            self.arrive(self.now, rate);
            if self.ring.is_empty() {
                self.now = self.next;
                self.arrive(self.now, rate);
            }
            while self.in_flight.front().is_some_and(|(done, _)| *done <= self.now) {
                let (_, sizing) = self.in_flight.pop_front().unwrap();
                self.wanted = (sizing.batch, sizing.delay.as_secs_f64());
            }
            let (enough, delay) = self.wanted;
            let closes = self.now + delay;
            while self.ring.len() < enough && self.next <= closes {
                self.now = self.next;
                self.arrive(self.now, rate);
            }
            if self.ring.len() < enough {
                self.now = closes;
            }
            let packets = self.ring.len().min(enough.max(self.at_once).min(self.max_packets));
            let first = self.ring.drain(..packets).next().unwrap();
            let Device { fixed, packet, noise } = self.device;
            let cost = (fixed + packet * packets as f64) * (1.0 + noise * (2.0 * self.random.next() - 1.0));
            let before = self.in_flight.back().map_or(0.0, |(done, _)| *done);
            let begun = self.now.max(before);
            let done = begun + cost;
            let rate = self.rate.record(packets, self.begun + Duration::from_secs_f64(self.now));
            let sizing = self.sizer.record_batch(packets, Duration::from_secs_f64(done - begun), rate);
            assert!((1..=self.max_packets).contains(&sizing.batch), "{sizing:?}");
            assert!(
                sizing.delay <= self.sizer.max_delay && (sizing.delay.is_zero() || sizing.delay >= MIN_DELAY),
                "{sizing:?}"
            );
            self.in_flight.push_back((done, sizing));
            completed.push(CompletedBatch { done, latency: done - first, packets, sizing });
        }
        completed
    }
}

const GPU: Device = Device { fixed: 100e-6, packet: 0.1e-6, noise: 0.1 };
const SLOW: Device = Device { fixed: 1e-3, packet: 0.2e-6, noise: 0.3 };
const CPU: Device = Device { fixed: 0.5e-6, packet: 0.1e-6, noise: 0.1 };

fn sizes(completed: &[CompletedBatch], from: f64) -> impl Iterator<Item = usize> {
    completed.iter().filter(move |it| it.done >= from).map(|it| it.sizing.batch)
}

#[test]
fn fixed_and_per_packet_costs_are_separated_and_decay() {
    let mut costs = CostModel::default();
    assert_eq!(costs.fit(), (0.0, 0.0));
    let mut random = Random(1);
    let mut note = |costs: &mut CostModel, fixed: f64, packet: f64| {
        for _ in 0..1500 {
            let packets = (random.next() * 100.0).ceil();
            costs.record(packets, fixed + packet * packets);
        }
        let (a, b) = costs.fit();
        assert!((a / fixed - 1.0).abs() < 0.01 && (b / packet - 1.0).abs() < 0.01, "{a} {b}");
    };
    note(&mut costs, 1e-4, 1e-6);
    note(&mut costs, 1e-5, 5e-6);
    note(&mut costs, 1e-3, 1e-7);
}

#[test]
fn batches_of_equal_size_determine_only_the_total_cost() {
    for packets in [1.0, 256.0] {
        let mut costs = CostModel::default();
        (0..1000).for_each(|_| costs.record(packets, 1e-4));
        let (fixed, packet) = costs.fit();
        assert!((fixed - 1e-4).abs() < 1e-9 && packet == 0.0, "{fixed} {packet}");
    }
    // A known cost per packet is kept, but never exceeds the total cost.
    let mut costs = CostModel::default();
    (0..100).for_each(|n| costs.record(f64::from(n % 10 + 1), 1e-5 + 1e-6 * f64::from(n % 10 + 1)));
    (0..2000).for_each(|_| costs.record(100.0, 1.1e-4));
    let (fixed, packet) = costs.fit();
    assert!((fixed - 1e-5).abs() < 1e-7 && (packet - 1e-6).abs() < 1e-8, "{fixed} {packet}");
    (0..2000).for_each(|_| costs.record(100.0, 1e-5));
    let (fixed, packet) = costs.fit();
    assert!(fixed >= 0.0 && packet >= 0.0 && (fixed + 100.0 * packet - 1e-5).abs() < 1e-7, "{fixed} {packet}");
    // Costs are never negative.
    let mut costs = CostModel::default();
    (0..100).for_each(|n| costs.record(f64::from(n % 10 + 1), 1e-4 / f64::from(n % 10 + 1)));
    let (fixed, packet) = costs.fit();
    assert!(fixed > 0.0 && packet == 0.0, "{fixed} {packet}");
}

#[test]
fn an_outlier_changes_little() {
    let mut sizer = BatchSizer::new(BatchPolicy::adaptive(), false);
    for packets in (1..=100).cycle().take(500) {
        sizer.record_batch(packets, Duration::from_nanos(10_000 + 100 * packets as u64), 1e6);
    }
    let before = sizer.record_batch(50, Duration::from_micros(15), 1e6);
    let after = sizer.record_batch(50, Duration::from_secs(1), 1e6);
    assert!((before.batch..=before.batch + before.batch / 4).contains(&after.batch), "{before:?} {after:?}");
}

#[test]
fn the_smallest_sufficient_batch_size_is_found_and_kept() {
    for (device, rate) in [(GPU, 1e6), (GPU, 3e6), (GPU, 1e5), (SLOW, 1e5), (CPU, 4e6)] {
        let mut model = LaneModel::new(device, 1024, Duration::from_secs(1));
        let (begin, end) = (300.0 * device.fixed + 0.05, 900.0 * device.fixed + 0.1);
        let completed = model.run(end, rate);
        let want = device.smallest_sufficient(rate, HEADROOM - 1.0, 1024).unwrap();
        for size in sizes(&completed, begin) {
            assert!(size * 3 >= want * 2 && size * 2 <= want * 3 + 2, "{device:?} at {rate}: {size}, not {want}");
        }
        // Latencies stay near the time to fill one batch and run two.
        let two = 2.0 * (device.fixed + device.packet * want as f64);
        let max_latency = 2.0 * (want as f64 / rate + two);
        let late = completed.iter().filter(|it| it.done > begin && it.latency > max_latency).count();
        assert!(late * 100 <= completed.len(), "{device:?} at {rate}: {late} of {} batches are late", completed.len());
    }
}

#[test]
fn at_low_rates_no_packet_waits() {
    for (device, rate) in [(CPU, 1e5), (GPU, 1000.0), (SLOW, 100.0), (CPU, 1.0)] {
        let mut model = LaneModel::new(device, 1024, Duration::from_millis(1));
        let (begin, end) = (50.0 / rate, 1000.0 / rate);
        for it in model.run(end, rate).iter().filter(|it| it.done > begin) {
            assert_eq!((it.sizing.batch, it.sizing.delay), (1, Duration::ZERO), "{device:?} at {rate}");
        }
    }
}

#[test]
fn a_hundredfold_change_of_rate_is_followed() {
    let mut model = LaneModel::new(GPU, 4096, Duration::from_millis(1));
    for (round, rate) in [2e4, 2e6, 2e4, 2e6].into_iter().enumerate() {
        let from = model.now;
        let lost = model.lost;
        let completed = model.run(from + 0.2, rate);
        let want = GPU.smallest_sufficient(rate, HEADROOM - 1.0, 4096).unwrap();
        let mut last = sizes(&completed, from + 0.1);
        assert!(last.all(|it| it * 3 >= want * 2 && it * 2 <= want * 3 + 2), "round {round}: {want}");
        // The ring absorbs the change.
        assert_eq!(model.lost, lost, "round {round}");
    }
}

#[test]
fn the_device_keeps_up_if_any_size_lets_it() {
    for fixed in [1e-7, 1e-6, 2e-5, 5e-4] {
        for packet in [0.0, 1e-7, 1e-6] {
            for rate in [1e3, 1e5, 8e5] {
                let device = Device { fixed, packet, noise: 0.05 };
                if device.smallest_sufficient(rate, 0.1, 1024).is_none() {
                    continue;
                }
                // With and without batches that exceed their target because packets are queued.
                for at_once in [1, 256] {
                    let mut model = LaneModel::new(device, 1024, Duration::from_millis(1));
                    model.at_once = at_once;
                    // From a size of 1 that is far too small, the size grows by one step per time
                    // constant of the rate.
                    let time = (1000.0 / rate).max(0.4);
                    model.run(time, rate);
                    let lost = model.lost;
                    let completed = model.run(2.0 * time, rate);
                    assert_eq!(model.lost, lost, "{device:?} at {rate}, {at_once} at once: {:?}", completed.last());
                }
            }
        }
    }
}

#[test]
fn in_overload_batches_have_the_maximum_size() {
    for max_packets in [1, 100, 1024] {
        let mut model =
            LaneModel::new(Device { fixed: 1e-5, packet: 1e-6, noise: 0.2 }, max_packets, Duration::from_millis(1));
        let completed = model.run(0.2, 5e6);
        assert!(sizes(&completed, 0.1).all(|size| size == max_packets));
        assert!(completed.iter().all(|it| it.packets <= max_packets));
        assert!(model.lost > 0);
    }
}

#[test]
fn results_stay_within_bounds_for_any_input() {
    let mut random = Random(3);
    let mut sizer =
        BatchSizer::new(BatchPolicy { max_packets: 500, delay: Duration::from_millis(2), adaptive: true }, false);
    for _ in 0..100_000 {
        let mut any = |max_exponent: i32| random.next() * 10f64.powi((random.next() * f64::from(max_exponent)) as i32);
        let (packets, cost, rate) = (any(6) as usize, Duration::from_secs_f64(any(20) / 1e12), any(14) - 1.0);
        let Sizing { batch, delay, fixed, packet_ns, .. } = sizer.record_batch(packets, cost, rate.max(0.0));
        assert!((1..=500).contains(&batch) && delay <= Duration::from_millis(2));
        assert!(fixed >= Duration::ZERO && packet_ns.is_finite() && packet_ns >= 0.0);
    }
    let mut rate = ArrivalRate::new(Instant::now());
    let now = Instant::now();
    assert!([rate.record(0, now), rate.record(1000, now), rate.record(1000, now)].iter().all(|rate| rate.is_finite()));
}

#[test]
fn inline_dispatch_adds_no_delay() {
    let mut sizer = BatchSizer::new(BatchPolicy::adaptive(), true);
    let mut last = None;
    for _ in 0..200 {
        last = Some(sizer.record_batch(100, Duration::from_micros(900), 1e5));
    }
    let Sizing { batch, delay, .. } = last.unwrap();
    assert!(batch > 50 && delay.is_zero(), "{batch} {delay:?}");
}
