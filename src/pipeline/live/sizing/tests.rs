//! The sizer against a model of a lane in virtual time: packets that come at random, a ring that holds some of them, batches
//! that wait in a queue, and a device that takes its time.

use std::collections::VecDeque;

use super::*;

/// Packets that wait to be received, at most.
const RING: usize = 2048;

/// Batches that were closed and are not done, at most.
const UNDER_WAY: usize = 5;

/// Random numbers (xorshift64*).
struct Random(u64);

impl Random {
    /// Above 0, up to 1.
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
}

/// What a batch costs, in seconds.
#[derive(Debug, Clone, Copy)]
struct Device {
    fixed: f64,
    packet: f64,
    /// Costs vary by this part, to both sides.
    noise: f64,
}

impl Device {
    /// The least size, within bounds, by which it keeps up with this part of its time to spare.
    fn least(&self, rate: f64, spare: f64, max_packets: usize) -> Option<usize> {
        (1..=max_packets).find(|n| (self.fixed + self.packet * *n as f64) * (1.0 + spare) <= *n as f64 / rate)
    }
}

/// A batch that has come through.
#[derive(Debug, Clone, Copy)]
struct Served {
    /// When its verdicts were carried out, in seconds.
    done: f64,
    /// For how long its first packet was under way.
    latency: f64,
    packets: usize,
    sizing: Sizing,
}

/// A lane.
struct Model {
    device: Device,
    sizer: BatchSizer,
    rate: ArrivalRate,
    random: Random,
    begun: Instant,
    /// Packets beyond what is enough that a batch may have where they are there.
    at_once: usize,
    max_packets: usize,
    /// When packets came that nobody has taken, and when the next one comes.
    ring: VecDeque<f64>,
    next: f64,
    lost: u64,
    now: f64,
    /// When the batches that were closed last are done, and what is known then.
    under_way: VecDeque<(f64, Sizing)>,
    wanted: (usize, f64),
}

impl Model {
    fn new(device: Device, max_packets: usize, delay: Duration) -> Model {
        let begun = Instant::now();
        Model {
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
            under_way: VecDeque::new(),
            wanted: (1, 0.0),
        }
    }

    /// Has packets come up to a time.
    fn arrive(&mut self, until: f64, rate: f64) {
        while self.next <= until {
            match self.ring.len() < RING {
                true => self.ring.push_back(self.next),
                false => self.lost += 1,
            }
            self.next -= self.random.next().ln() / rate;
        }
    }

    /// Runs until a time at which so many packets come in a second.
    fn run(&mut self, until: f64, rate: f64) -> Vec<Served> {
        let mut served = Vec::new();
        self.next = self.next.min(self.now - self.random.next().ln() / rate);
        while self.now < until {
            // Whoever hands on waits where too many are under way.
            while self.under_way.len() >= UNDER_WAY {
                let (done, sizing) = self.under_way.pop_front().unwrap();
                self.now = self.now.max(done);
                self.wanted = (sizing.batch, sizing.delay.as_secs_f64());
            }
            self.arrive(self.now, rate);
            if self.ring.is_empty() {
                self.now = self.next;
                self.arrive(self.now, rate);
            }
            while self.under_way.front().is_some_and(|(done, _)| *done <= self.now) {
                let (_, sizing) = self.under_way.pop_front().unwrap();
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
            let before = self.under_way.back().map_or(0.0, |(done, _)| *done);
            let begun = self.now.max(before);
            let done = begun + cost;
            let rate = self.rate.record(packets, self.begun + Duration::from_secs_f64(self.now));
            let sizing = self.sizer.record_batch(packets, Duration::from_secs_f64(done - begun), rate);
            assert!((1..=self.max_packets).contains(&sizing.batch), "{sizing:?}");
            assert!(
                sizing.delay <= self.sizer.max_delay && (sizing.delay.is_zero() || sizing.delay >= MIN_DELAY),
                "{sizing:?}"
            );
            self.under_way.push_back((done, sizing));
            served.push(Served { done, latency: done - first, packets, sizing });
        }
        served
    }
}

const GPU: Device = Device { fixed: 100e-6, packet: 0.1e-6, noise: 0.1 };
const SLOW: Device = Device { fixed: 1e-3, packet: 0.2e-6, noise: 0.3 };
const CPU: Device = Device { fixed: 0.5e-6, packet: 0.1e-6, noise: 0.1 };

fn sizes(served: &[Served], from: f64) -> impl Iterator<Item = usize> {
    served.iter().filter(move |it| it.done >= from).map(|it| it.sizing.batch)
}

#[test]
fn costs_are_told_apart_and_forgotten() {
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
fn batches_that_are_all_alike_say_only_what_they_cost() {
    for packets in [1.0, 256.0] {
        let mut costs = CostModel::default();
        (0..1000).for_each(|_| costs.record(packets, 1e-4));
        let (fixed, packet) = costs.fit();
        assert!((fixed - 1e-4).abs() < 1e-9 && packet == 0.0, "{fixed} {packet}");
    }
    // What was known of a packet's cost stays, and never makes for more than there is.
    let mut costs = CostModel::default();
    (0..100).for_each(|n| costs.record(f64::from(n % 10 + 1), 1e-5 + 1e-6 * f64::from(n % 10 + 1)));
    (0..2000).for_each(|_| costs.record(100.0, 1.1e-4));
    let (fixed, packet) = costs.fit();
    assert!((fixed - 1e-5).abs() < 1e-7 && (packet - 1e-6).abs() < 1e-8, "{fixed} {packet}");
    (0..2000).for_each(|_| costs.record(100.0, 1e-5));
    let (fixed, packet) = costs.fit();
    assert!(fixed >= 0.0 && packet >= 0.0 && (fixed + 100.0 * packet - 1e-5).abs() < 1e-7, "{fixed} {packet}");
    // Nor is there a cost below nothing.
    let mut costs = CostModel::default();
    (0..100).for_each(|n| costs.record(f64::from(n % 10 + 1), 1e-4 / f64::from(n % 10 + 1)));
    let (fixed, packet) = costs.fit();
    assert!(fixed > 0.0 && packet == 0.0, "{fixed} {packet}");
}

#[test]
fn a_batch_that_the_system_held_up_changes_little() {
    let mut sizer = BatchSizer::new(BatchPolicy::adaptive(), false);
    for packets in (1..=100).cycle().take(500) {
        sizer.record_batch(packets, Duration::from_nanos(10_000 + 100 * packets as u64), 1e6);
    }
    let before = sizer.record_batch(50, Duration::from_micros(15), 1e6);
    let after = sizer.record_batch(50, Duration::from_secs(1), 1e6);
    assert!((before.batch..=before.batch + before.batch / 4).contains(&after.batch), "{before:?} {after:?}");
}

#[test]
fn the_least_batch_is_found_by_which_the_device_keeps_up_and_kept() {
    for (device, rate) in [(GPU, 1e6), (GPU, 3e6), (GPU, 1e5), (SLOW, 1e5), (CPU, 4e6)] {
        let mut model = Model::new(device, 1024, Duration::from_secs(1));
        let (begin, end) = (300.0 * device.fixed + 0.05, 900.0 * device.fixed + 0.1);
        let served = model.run(end, rate);
        let want = device.least(rate, HEADROOM - 1.0, 1024).unwrap();
        for size in sizes(&served, begin) {
            assert!(size * 3 >= want * 2 && size * 2 <= want * 3 + 2, "{device:?} at {rate}: {size}, not {want}");
        }
        // Nobody waits much longer than it takes to fill a batch and to run two.
        let two = 2.0 * (device.fixed + device.packet * want as f64);
        let max_packets = 2.0 * (want as f64 / rate + two);
        let late = served.iter().filter(|it| it.done > begin && it.latency > max_packets).count();
        assert!(late * 100 <= served.len(), "{device:?} at {rate}: {late} of {} batches are late", served.len());
    }
}

#[test]
fn where_there_is_time_for_each_packet_none_waits() {
    for (device, rate) in [(CPU, 1e5), (GPU, 1000.0), (SLOW, 100.0), (CPU, 1.0)] {
        let mut model = Model::new(device, 1024, Duration::from_millis(1));
        let (begin, end) = (50.0 / rate, 1000.0 / rate);
        for it in model.run(end, rate).iter().filter(|it| it.done > begin) {
            assert_eq!((it.sizing.batch, it.sizing.delay), (1, Duration::ZERO), "{device:?} at {rate}");
        }
    }
}

#[test]
fn a_rate_that_changes_by_a_hundred_times_is_followed() {
    let mut model = Model::new(GPU, 4096, Duration::from_millis(1));
    for (round, rate) in [2e4, 2e6, 2e4, 2e6].into_iter().enumerate() {
        let from = model.now;
        let lost = model.lost;
        let served = model.run(from + 0.2, rate);
        let want = GPU.least(rate, HEADROOM - 1.0, 4096).unwrap();
        let mut last = sizes(&served, from + 0.1);
        assert!(last.all(|it| it * 3 >= want * 2 && it * 2 <= want * 3 + 2), "round {round}: {want}");
        // What the ring holds bridges the change.
        assert_eq!(model.lost, lost, "round {round}");
    }
}

#[test]
fn a_device_keeps_up_whenever_a_size_lets_it() {
    for fixed in [1e-7, 1e-6, 2e-5, 5e-4] {
        for packet in [0.0, 1e-7, 1e-6] {
            for rate in [1e3, 1e5, 8e5] {
                let device = Device { fixed, packet, noise: 0.05 };
                if device.least(rate, 0.1, 1024).is_none() {
                    continue;
                }
                // With and without the help of batches that are larger than was wanted.
                for at_once in [1, 256] {
                    let mut model = Model::new(device, 1024, Duration::from_millis(1));
                    model.at_once = at_once;
                    // By itself a size of 1 that is far too small grows by a part in the time that a rate takes to be seen.
                    let time = (1000.0 / rate).max(0.4);
                    model.run(time, rate);
                    let lost = model.lost;
                    let served = model.run(2.0 * time, rate);
                    assert_eq!(model.lost, lost, "{device:?} at {rate}, {at_once} at once: {:?}", served.last());
                }
            }
        }
    }
}

#[test]
fn where_no_size_is_enough_batches_are_as_large_as_they_may_be() {
    for max_packets in [1, 100, 1024] {
        let mut model =
            Model::new(Device { fixed: 1e-5, packet: 1e-6, noise: 0.2 }, max_packets, Duration::from_millis(1));
        let served = model.run(0.2, 5e6);
        assert!(sizes(&served, 0.1).all(|size| size == max_packets));
        assert!(served.iter().all(|it| it.packets <= max_packets));
        assert!(model.lost > 0);
    }
}

#[test]
fn nothing_that_is_measured_is_out_of_bounds() {
    let mut random = Random(3);
    let mut sizer =
        BatchSizer::new(BatchPolicy { max_packets: 500, delay: Duration::from_millis(2), adaptive: true }, false);
    for _ in 0..100_000 {
        let mut any = |max_packets: i32| random.next() * 10f64.powi((random.next() * f64::from(max_packets)) as i32);
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
fn what_waits_in_any_case_waits_for_nothing_more() {
    let mut sizer = BatchSizer::new(BatchPolicy::adaptive(), true);
    let mut last = None;
    for _ in 0..200 {
        last = Some(sizer.record_batch(100, Duration::from_micros(900), 1e5));
    }
    let Sizing { batch, delay, .. } = last.unwrap();
    assert!(batch > 50 && delay.is_zero(), "{batch} {delay:?}");
}
