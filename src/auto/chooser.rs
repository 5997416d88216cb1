//! Chooses the device for each batch from the calibrated costs, and corrects these by the time that
//! batches take.
//!
//! A calibration may have been made on a busy machine or for other traffic, so measured times
//! correct it. Devices that get no batches would never be corrected: from time to time one that is
//! nearly as good gets a few batches in a row, a trial, whose expected loss is limited to
//! `TRIAL_SHARE` of all work.

use super::costs::{Costs, LENGTH_CLASSES, Placement};

/// Fraction of all work that trials of other devices may lose.
const TRIAL_SHARE: f64 = 0.005;

/// Maximum loss that can be saved up for trials, in nanoseconds.
const MAX_CREDIT_NS: f64 = 20e6;

/// A device whose cost is this many times the best is not tried: measurements may be off because of
/// other load, but hardly by this much.
const DISCARD_RATIO: f64 = 1.25;

/// Number of batches of a trial. The first ones fill the device's queue and are not representative.
const TRIAL_BATCHES: u32 = 8;

/// Minimum number of batches between two trials, at first and after a change of device. It doubles
/// up to `MAX_TRIAL_INTERVAL` while nothing changes.
const MIN_TRIAL_INTERVAL: u32 = 128;
const MAX_TRIAL_INTERVAL: u32 = 8192;

/// Another placement replaces the current one if its cost is below this fraction of the current
/// cost.
const SWITCH_THRESHOLD: f64 = 0.95;

/// Batches below this cost in nanoseconds are only sampled: reading the clock twice costs as much
/// as filtering ten packets.
const SAMPLING_LIMIT_NS: f64 = 30_000.0;

/// Period of sampling: of this many short batches, two in a row are timed.
const SAMPLING_PERIOD: u32 = 256;

/// Short batches to send the same way at a time while a trial is due but its loss is not saved up
/// yet.
const UNFUNDED_REPEATS: u32 = 31;

/// Number of size buckets, four per power of two.
const SIZE_BUCKETS: usize = 34 * 4;

/// Cached decision for batches of one bucket.
#[derive(Debug, Clone, Copy)]
struct Decision {
    placement: Placement,
    ns: f64,
    /// The next best placement that is worth a trial, and its additional cost.
    runner_up: Option<(Placement, f64)>,
    /// Version of the costs that it was made from.
    version: u32,
}

/// A trial in progress.
#[derive(Debug, Clone, Copy)]
struct Trial {
    placement: Placement,
    at: (usize, usize),
    left: u32,
}

/// Chooses a placement for each batch and learns from measured times.
#[derive(Debug)]
pub struct Chooser {
    costs: Costs,
    /// Which devices may be chosen.
    usable: Vec<bool>,
    table: Vec<Option<Decision>>,
    version: u32,
    credit: f64,
    trial: Option<Trial>,
    until_trial: u32,
    interval: u32,
    count: u32,
    /// Cost of the batches that [`Chooser::reserve_repeats`] returned last.
    repeat_ns: f64,
    /// Two devices that share all batches, for calibration.
    shared_by: Option<(usize, usize)>,
}

/// A batch's placement, and whether to time it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// The placement of the batch.
    pub placement: Placement,
    /// Whether [`Chooser::record_time`] needs the batch's time.
    pub timed: bool,
}

impl Chooser {
    /// Creates a chooser among the devices that are `usable`.
    ///
    /// # Panics
    /// If no usable device has known costs.
    pub fn new(mut costs: Costs, usable: Vec<bool>) -> Chooser {
        for (device, usable) in costs.devices.iter_mut().zip(&usable) {
            device.take_if(|_| !usable);
        }
        if costs.split.as_ref().is_some_and(|split| !(usable[split.first] && usable[split.second])) {
            costs.split = None;
        }
        assert!(costs.devices.iter().any(Option::is_some), "a usable device has known costs");
        Chooser {
            costs,
            usable,
            table: vec![None; LENGTH_CLASSES.len() * SIZE_BUCKETS],
            version: 0,
            credit: 0.0,
            trial: None,
            until_trial: MIN_TRIAL_INTERVAL,
            interval: MIN_TRIAL_INTERVAL,
            count: 0,
            repeat_ns: 0.0,
            shared_by: None,
        }
    }

    /// Creates a chooser that splits every batch that is large enough between two devices and
    /// learns nothing, to calibrate that.
    pub fn split_all(costs: Costs, first: usize, second: usize) -> Chooser {
        let usable = (0..costs.devices.len()).map(|device| device == first || device == second).collect();
        Chooser { shared_by: Some((first, second)), ..Chooser::new(costs, usable) }
    }

    /// Returns the costs, as corrected so far.
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    /// Chooses the placement for the next batch.
    pub fn choose(&mut self, class: usize, packets: usize) -> Choice {
        if let Some((first, second)) = self.shared_by {
            let placement = self.costs.balance_split(first, second, class, packets).unwrap_or(Placement::Single(first));
            return Choice { placement, timed: false };
        }
        let bucket = bucket(packets);
        let entry = self.decide(class, bucket);
        self.credit = (self.credit + entry.ns * TRIAL_SHARE).min(MAX_CREDIT_NS);
        self.count = self.count.wrapping_add(1);
        if let Some(trial) = &mut self.trial
            && trial.at == (class, bucket)
        {
            let placement = trial.placement;
            trial.left -= 1;
            if trial.left == 0 {
                self.trial = None;
            }
            return Choice { placement, timed: true };
        }
        self.until_trial = self.until_trial.saturating_sub(1);
        if self.until_trial == 0
            && let Some((placement, more)) = entry.runner_up
            && self.credit >= more * f64::from(TRIAL_BATCHES)
        {
            self.credit -= more * f64::from(TRIAL_BATCHES);
            self.trial = Some(Trial { placement, at: (class, bucket), left: TRIAL_BATCHES - 1 });
            self.until_trial = self.interval;
            self.interval = (self.interval * 2).min(MAX_TRIAL_INTERVAL);
            return Choice { placement, timed: true };
        }
        Choice { placement: entry.placement, timed: entry.ns >= SAMPLING_LIMIT_NS || self.count % SAMPLING_PERIOD < 2 }
    }

    /// Whether a trial with such batches is in progress. Trials of other batches are ignored, as
    /// such batches may never come again.
    fn has_trial(&self, class: usize, bucket: usize) -> bool {
        self.trial.is_some_and(|trial| trial.at == (class, bucket))
    }

    /// Reserves a number of further batches like the last chosen one that go the same way untimed,
    /// and counts them as chosen.
    pub fn reserve_repeats(&mut self, class: usize, packets: usize) -> u32 {
        let Some(entry) =
            self.table[class * SIZE_BUCKETS + bucket(packets)].filter(|entry| entry.version == self.version)
        else {
            return 0;
        };
        let has_trial = self.has_trial(class, bucket(packets)) || self.shared_by.is_some();
        if has_trial || entry.ns >= SAMPLING_LIMIT_NS || self.count % SAMPLING_PERIOD < 1 {
            return 0;
        }
        let until_trial = match (entry.runner_up, self.until_trial) {
            (None, _) => SAMPLING_PERIOD,
            // A trial is due, and its loss is not saved up yet.
            (Some(_), 0) => UNFUNDED_REPEATS,
            (Some(_), until) => until - 1,
        };
        let again = (SAMPLING_PERIOD - 1 - self.count % SAMPLING_PERIOD).min(until_trial);
        self.count = self.count.wrapping_add(again);
        self.until_trial = self.until_trial.saturating_sub(again);
        self.repeat_ns = entry.ns;
        self.credit = (self.credit + entry.ns * TRIAL_SHARE * f64::from(again)).min(MAX_CREDIT_NS);
        again
    }

    /// Takes back reserved batches that did not come.
    pub fn return_repeats(&mut self, batches: u32) {
        self.count = self.count.wrapping_sub(batches);
        self.until_trial += batches;
        self.credit -= self.repeat_ns * TRIAL_SHARE * f64::from(batches);
    }

    /// Returns another placement for a batch that `refused` did not accept.
    pub fn alternative(&self, refused: &Placement, class: usize, packets: usize) -> Option<Placement> {
        let one = self.costs.ranked_placements(class, packets).into_iter().map(|(placement, _)| placement);
        one.filter(|placement| matches!(placement, Placement::Single(_)))
            .find(|placement| !placement.has_same_devices(refused))
    }

    /// Records that a batch took between `least` and `most` nanoseconds; the exact time is unknown
    /// because devices are not polled.
    pub fn record_time(&mut self, placement: &Placement, class: usize, packets: usize, least: f64, most: f64) {
        let Some(expected) = self.costs.predict(placement, class, packets) else { return };
        let ns = expected.clamp(least.min(most), most);
        let best = self.decide(class, bucket(packets));
        if !best.placement.has_same_devices(placement) {
            // Charge a trial's unexpected loss as well.
            self.credit -= (ns - expected).max(0.0);
        }
        if (ns / expected - 1.0).abs() < 0.01 {
            return;
        }
        match placement {
            Placement::Single(device) => {
                if let Some(curves) = &mut self.costs.devices[*device] {
                    curves[class].correct(packets, ns);
                }
            }
            Placement::Split { .. } => {
                if let Some(curve) = self.costs.split.as_mut().and_then(|split| split.curves[class].as_mut()) {
                    curve.correct(packets, ns);
                }
            }
        }
        self.version = self.version.wrapping_add(1);
    }

    /// The decision for a bucket, made anew if the costs have changed.
    fn decide(&mut self, class: usize, bucket: usize) -> Decision {
        let at = class * SIZE_BUCKETS + bucket;
        if let Some(entry) = self.table[at].filter(|entry| entry.version == self.version) {
            return entry;
        }
        let packets = middle(bucket);
        let ranked_placements = self.costs.ranked_placements(class, packets);
        let mut chosen = ranked_placements[0];
        if let Some(before) = &self.table[at] {
            let now = ranked_placements.iter().find(|(placement, _)| placement.has_same_devices(&before.placement));
            match now {
                Some(now) if chosen.1 >= now.1 * SWITCH_THRESHOLD => chosen = *now,
                _ if !chosen.0.has_same_devices(&before.placement) => {
                    self.interval = MIN_TRIAL_INTERVAL;
                    self.until_trial = MIN_TRIAL_INTERVAL;
                }
                _ => {}
            }
        }
        let runner_up = ranked_placements
            .iter()
            .find(|(placement, ns)| !placement.has_same_devices(&chosen.0) && *ns < chosen.1 * DISCARD_RATIO);
        let runner_up = runner_up.map(|(placement, ns)| (*placement, (ns - chosen.1).max(chosen.1 * 0.02)));
        let entry = Decision { placement: chosen.0, ns: chosen.1, runner_up, version: self.version };
        self.table[at] = Some(entry);
        entry
    }

    /// Returns which devices may be chosen.
    pub fn usable(&self) -> &[bool] {
        &self.usable
    }
}

/// The bucket of a batch size: its binary order of magnitude and its next two bits.
fn bucket(packets: usize) -> usize {
    let packets = packets.clamp(4, u32::MAX as usize);
    let order = packets.ilog2() as usize;
    order * 4 + (packets >> (order - 2) & 3)
}

/// The size in the middle of a bucket.
fn middle(bucket: usize) -> usize {
    let (order, quarter) = (bucket / 4, bucket % 4);
    // In eighths of the power of two: 8 + 2 quarter is the lower bound, 1 more the middle.
    ((8 + 2 * quarter + 1) << order) >> 3
}

#[cfg(test)]
mod tests {
    use super::super::curve::CostCurve;
    use super::*;

    fn line(fixed: f64, packet: f64) -> [CostCurve; 3] {
        let points: Vec<_> = [64u32, 1024, 16_384, 262_144].map(|n| (n, fixed + packet * f64::from(n))).to_vec();
        std::array::from_fn(|_| CostCurve::new(points.clone()).unwrap())
    }

    /// Costs of devices with these fixed and per-packet costs.
    fn costs(devices: &[(f64, f64)]) -> Costs {
        Costs { devices: devices.iter().map(|&(fixed, packet)| Some(line(fixed, packet))).collect(), split: None }
    }

    fn sizes() -> impl Iterator<Item = usize> {
        (2..22).flat_map(|order| [1 << order, (1 << order) + (1 << order) / 3])
    }

    #[test]
    fn buckets_contain_their_middles_and_are_narrow() {
        for packets in (4..5000).chain(sizes()) {
            let (bucket, ratio) = (bucket(packets), packets as f64 / middle(bucket(packets)) as f64);
            assert!(bucket < SIZE_BUCKETS && (0.79..1.27).contains(&ratio), "{packets}: {}", middle(bucket));
        }
        assert!(bucket(usize::MAX) < SIZE_BUCKETS && bucket(0) == bucket(4));
    }

    #[test]
    fn each_size_gets_the_cheapest_device() {
        for devices in [[(300.0, 4.0), (40_000.0, 0.5)], [(300.0, 1.0), (40_000.0, 2.0)], [(9e4, 1.0), (1e4, 1.0)]] {
            let mut chooser = Chooser::new(costs(&devices), vec![true; 2]);
            for packets in sizes() {
                let by_hand = devices.map(|(fixed, packet)| fixed + packet * packets as f64);
                let best = by_hand[0].min(by_hand[1]);
                let Placement::Single(chosen) = chooser.choose(1, packets).placement else {
                    panic!("no batch is split")
                };
                assert!(best / by_hand[chosen] > 0.9, "{devices:?}, {packets}: {by_hand:?}, chose {chosen}");
            }
        }
    }

    /// Tests a change of traffic in the middle of a trial.
    #[test]
    fn an_unfinished_trial_does_not_block_other_sizes() {
        let mut chooser = Chooser::new(costs(&[(300.0, 4.0), (300.0, 5.0)]), vec![true; 2]);
        let begun = (0..1_000_000).any(|_| chooser.choose(0, 64).placement == Placement::Single(1));
        assert!(begun, "a trial begins");
        let (mut trials, mut reserved) = (0, 0);
        for _ in 0..100_000 {
            let choice = chooser.choose(0, 1024);
            trials += u32::from(choice.placement == Placement::Single(1));
            reserved += if choice.placement == Placement::Single(0) { chooser.reserve_repeats(0, 1024) } else { 0 };
        }
        assert!(trials >= 2 * TRIAL_BATCHES && reserved > 1_000_000, "{trials} of trials, {reserved} foreseen");
    }

    #[test]
    fn devices_that_are_not_usable_get_no_batches() {
        let mut chooser = Chooser::new(costs(&[(300.0, 4.0), (300.0, 1.0)]), vec![true, false]);
        assert!(sizes().all(|packets| chooser.choose(0, packets).placement == Placement::Single(0)));
        assert_eq!(chooser.alternative(&Placement::Single(0), 0, 100), None);
    }

    /// Runs batches one after the other on devices of these true costs. Returns the ratio of the
    /// minimum time to the time taken, and the number of batches per device.
    fn simulate(chooser: &mut Chooser, truth: &[(f64, f64)], batches: usize, packets: usize) -> (f64, Vec<u32>) {
        let (mut taken, mut least, mut chosen) = (0.0, 0.0, vec![0; truth.len()]);
        for _ in 0..batches {
            let Choice { placement, timed } = chooser.choose(0, packets);
            let Placement::Single(device) = placement else { panic!("no batch is split") };
            let costs: Vec<f64> = truth.iter().map(|(fixed, packet)| fixed + packet * packets as f64).collect();
            taken += costs[device];
            least += costs.iter().copied().fold(f64::INFINITY, f64::min);
            chosen[device] += 1;
            if timed {
                chooser.record_time(&placement, 0, packets, costs[device], costs[device]);
            }
        }
        (least / taken, chosen)
    }

    #[test]
    fn wrong_measurements_are_corrected() {
        // The first device is believed to be fast and is not.
        for packets in [64, 2000, 100_000] {
            let mut chooser = Chooser::new(costs(&[(1000.0, 1.0), (2000.0, 2.0)]), vec![true; 2]);
            let truth = [(8000.0, 8.0), (2000.0, 2.0)];
            simulate(&mut chooser, &truth, 2000, packets);
            let (part, chosen) = simulate(&mut chooser, &truth, 20_000, packets);
            assert!(part > 0.98, "{packets}: {part}, {chosen:?}");
        }
    }

    #[test]
    fn a_device_that_has_become_faster_is_found() {
        // Believed to be 20 % slower, having been measured on a busy machine; it is twice as fast.
        let mut chooser = Chooser::new(costs(&[(1000.0, 1.0), (1200.0, 1.2)]), vec![true; 2]);
        let truth = [(1000.0, 1.0), (500.0, 0.5)];
        simulate(&mut chooser, &truth, 20_000, 20_000);
        let (part, chosen) = simulate(&mut chooser, &truth, 20_000, 20_000);
        assert!(part > 0.98, "{part}, {chosen:?}");
    }

    #[test]
    fn trials_cost_less_than_one_percent() {
        for (other, packets) in [(1.2, 64), (1.2, 20_000), (1.05, 3000), (4.0, 3000)] {
            // The other device is slower than believed.
            let mut chooser = Chooser::new(costs(&[(1000.0, 1.0), (1000.0 * other, other)]), vec![true; 2]);
            let truth = [(1000.0, 1.0), (3000.0 * other, 3.0 * other)];
            let (part, chosen) = simulate(&mut chooser, &truth, 200_000, packets);
            assert!(part > 0.99, "{other}, {packets}: {part}, {chosen:?}");
            assert!(other > DISCARD_RATIO || chosen[1] > 0, "it was never tried: {other}, {packets}");
        }
    }

    #[test]
    fn small_batches_mostly_repeat_a_decision() {
        // With another device that is never tried, one that is, and without another.
        for devices in [&[(300.0, 1.0), (9000.0, 1.0)][..], &[(300.0, 1.0), (330.0, 1.1)], &[(300.0, 1.0)]] {
            let mut chooser = Chooser::new(costs(devices), vec![true; devices.len()]);
            let (mut asked, mut batches) = (0, 0);
            while batches < 200_000 {
                let Choice { placement, timed } = chooser.choose(0, 64);
                if timed {
                    let ns = chooser.costs().predict(&placement, 0, 64).unwrap();
                    chooser.record_time(&placement, 0, 64, ns, ns);
                }
                (asked, batches) = (asked + 1, batches + 1 + chooser.reserve_repeats(0, 64));
            }
            assert!(asked < batches / 12, "{devices:?}: {asked} of {batches}");
        }
    }

    #[test]
    fn returned_repeats_count_for_nothing() {
        // Alternating sizes, and another device that is tried at times and is slower than believed.
        let mut chooser = Chooser::new(costs(&[(300.0, 1.0), (330.0, 1.1)]), vec![true; 2]);
        let truth = [(300.0, 1.0), (900.0, 3.0)];
        let (mut timed_ones, mut taken, mut least) = (0, 0.0, 0.0);
        const BATCHES: u32 = 200_000;
        for batch in 0..BATCHES {
            let packets = [64, 300][batch as usize % 2];
            let Choice { placement, timed } = chooser.choose(0, packets);
            let again = chooser.reserve_repeats(0, packets);
            chooser.return_repeats(again);
            let Placement::Single(device) = placement else { panic!("no batch is split") };
            let cost = |(fixed, packet): (f64, f64)| fixed + packet * packets as f64;
            (taken, least) = (taken + cost(truth[device]), least + cost(truth[0]));
            if timed {
                timed_ones += 1;
                chooser.record_time(&placement, 0, packets, cost(truth[device]), cost(truth[device]));
            }
        }
        assert!(timed_ones < BATCHES / 50, "{timed_ones}");
        assert!(least / taken > 0.99, "{}", least / taken);
    }

    #[test]
    fn equal_devices_do_not_alternate() {
        let mut chooser = Chooser::new(costs(&[(1000.0, 1.0), (1000.0, 1.0)]), vec![true; 2]);
        let (mut changes, mut before) = (0, None);
        for round in 0..10_000u32 {
            let Choice { placement, timed } = chooser.choose(0, 5000);
            if timed {
                // Up to 5 % of noise.
                let ns = 6000.0 * (1.0 + f64::from(round * 7919 % 100) / 2000.0);
                chooser.record_time(&placement, 0, 5000, ns, ns);
            }
            changes += u32::from(before.is_some_and(|before: Placement| !before.has_same_devices(&placement)));
            before = Some(placement);
        }
        assert!(changes < 100, "{changes}");
    }

    #[test]
    fn a_time_range_corrects_no_further_than_necessary() {
        let mut chooser = Chooser::new(costs(&[(1000.0, 1.0)]), vec![true]);
        let before = chooser.costs().clone();
        chooser.record_time(&Placement::Single(0), 0, 64, 10.0, 1e9);
        assert_eq!(*chooser.costs(), before);
        chooser.record_time(&Placement::Single(0), 0, 64, 5000.0, 1e9);
        assert!(chooser.costs().predict(&Placement::Single(0), 0, 64).unwrap() > 1064.0);
    }

    #[test]
    fn a_split_is_used_where_it_pays() {
        let devices = [(1000.0, 4.0), (50_000.0, 2.0)];
        let mut all = costs(&devices);
        let sizes = [65_536u32, 262_144];
        // At the first size the devices slow each other so much that nothing is gained.
        let measured = [(sizes[0], 180_000.0), (sizes[1], 400_000.0)];
        all.split = Some(super::super::costs::SplitCosts {
            first: 0,
            second: 1,
            curves: std::array::from_fn(|_| Some(CostCurve::new(measured.to_vec()).unwrap())),
        });
        let mut chooser = Chooser::new(all.clone(), vec![true; 2]);
        assert_eq!(chooser.choose(0, 60_000).placement, Placement::Single(1));
        assert_eq!(chooser.choose(0, 66_000).placement, Placement::Single(1));
        let Placement::Split { first: 0, second: 1, share } = chooser.choose(0, 262_144).placement else {
            panic!("no split")
        };
        // Both finish at once: x * 4000 + 1 = 50 + (1 - x) * 2000, in units of 1000 packets.
        let packets = middle(bucket(262_144)) as f64;
        let by_hand = (49_000.0 + 2.0 * packets) / 6.0 / packets;
        assert!((f64::from(share) / by_hand - 1.0).abs() < 0.01, "{share}, not {by_hand}");
        // The split is abandoned once it turns out to cost more.
        for _ in 0..200 {
            let Choice { placement, timed } = chooser.choose(0, 262_144);
            assert!(timed);
            let truth = if matches!(placement, Placement::Split { .. }) { 900_000.0 } else { 574_288.0 };
            chooser.record_time(&placement, 0, 262_144, truth, truth);
        }
        assert_eq!(chooser.choose(0, 262_144).placement, Placement::Single(1));
        // A device that is not usable takes no part.
        let mut chooser = Chooser::new(all, vec![true, false]);
        assert_eq!(chooser.choose(0, 262_144).placement, Placement::Single(0));
    }
}
