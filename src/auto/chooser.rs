//! Which device gets the next batch: by what is known of the costs, and what batches have cost since.
//!
//! A calibration may have been made while the machine was busy, or traffic may differ from what it was made with. What
//! batches cost corrects it. Of the devices that get none nothing would be learned: now and then one that is nearly as good
//! gets a few in a row, as far as `SHARE` of all work pays for it.

use super::costs::{Costs, LENGTHS, Plan};

/// The part of all work that may be lost on looking whether another device has become better.
const SHARE: f64 = 0.005;

/// Nanoseconds that may be saved up for that.
const MOST_CREDIT: f64 = 20e6;

/// A device that costs this many times the best is not tried: what was measured may be wrong by what else the machine did
/// meanwhile, but hardly by so much.
const HOPELESS: f64 = 1.25;

/// Batches of a trial: the first ones fill the device's queue, and tell nothing.
const TRIAL: u32 = 8;

/// Batches between two trials at least, at first and after a change of mind; more each time that nothing changes.
const SOON: u32 = 128;
const LATE: u32 = 8192;

/// What another plan has to cost, of what the present one costs, to be preferred to it.
const CLEARLY: f64 = 0.95;

/// Of batches that take less than this (nanoseconds) only some are timed: asking for the time costs as much as filtering ten packets.
const SHORT: f64 = 30_000.0;

/// Of those, two in a row out of so many.
const TIMED: u32 = 256;

/// Of those, how many go the same way at a time where a trial is due for which no time is saved up yet.
const UNPAID: u32 = 31;

/// Sizes that are told apart: four to each doubling.
const BUCKETS: usize = 34 * 4;

/// What is decided for batches of about a size.
#[derive(Debug, Clone, Copy)]
struct Entry {
    plan: Plan,
    ns: f64,
    /// The next best plan, where it is worth a try, and what it costs more.
    other: Option<(Plan, f64)>,
    /// Of which state of the costs.
    version: u32,
}

/// A trial under way.
#[derive(Debug, Clone, Copy)]
struct Trial {
    plan: Plan,
    at: (usize, usize),
    left: u32,
}

/// Decides, and learns.
#[derive(Debug)]
pub struct Chooser {
    costs: Costs,
    /// Which devices may be chosen.
    ready: Vec<bool>,
    table: Vec<Option<Entry>>,
    version: u32,
    credit: f64,
    trial: Option<Trial>,
    until_trial: u32,
    interval: u32,
    count: u32,
    /// What a batch costs of which [`Chooser::again`] told last.
    again_ns: f64,
    /// Two devices that get all batches.
    always: Option<(usize, usize)>,
}

/// Where a batch goes, and whether it is to be told how long it took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// Where.
    pub plan: Plan,
    /// Whether [`Chooser::took`] wants to know.
    pub timed: bool,
}

impl Chooser {
    /// With these costs, of the devices that are `ready`.
    ///
    /// # Panics
    /// When no device is ready whose costs are known.
    pub fn new(mut costs: Costs, ready: Vec<bool>) -> Chooser {
        for (device, ready) in costs.devices.iter_mut().zip(&ready) {
            device.take_if(|_| !ready);
        }
        if costs.split.as_ref().is_some_and(|split| !(ready[split.first] && ready[split.second])) {
            costs.split = None;
        }
        assert!(costs.devices.iter().any(Option::is_some), "a device whose costs are known");
        Chooser {
            costs,
            ready,
            table: vec![None; LENGTHS.len() * BUCKETS],
            version: 0,
            credit: 0.0,
            trial: None,
            until_trial: SOON,
            interval: SOON,
            count: 0,
            again_ns: 0.0,
            always: None,
        }
    }

    /// That cuts every batch between two devices which is not too small for it, and learns nothing: for measuring that.
    pub fn always(costs: Costs, first: usize, second: usize) -> Chooser {
        let ready = (0..costs.devices.len()).map(|device| device == first || device == second).collect();
        Chooser { always: Some((first, second)), ..Chooser::new(costs, ready) }
    }

    /// The costs as they are believed to be now.
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    /// Where the next batch goes, of so many packets of a class.
    pub fn next(&mut self, class: usize, packets: usize) -> Choice {
        if let Some((first, second)) = self.always {
            let plan = self.costs.split_between(first, second, class, packets).unwrap_or(Plan::One(first));
            return Choice { plan, timed: false };
        }
        let bucket = bucket(packets);
        let entry = self.entry(class, bucket);
        self.credit = (self.credit + entry.ns * SHARE).min(MOST_CREDIT);
        self.count = self.count.wrapping_add(1);
        if let Some(trial) = &mut self.trial
            && trial.at == (class, bucket)
        {
            let plan = trial.plan;
            trial.left -= 1;
            if trial.left == 0 {
                self.trial = None;
            }
            return Choice { plan, timed: true };
        }
        self.until_trial = self.until_trial.saturating_sub(1);
        if self.until_trial == 0
            && let Some((plan, more)) = entry.other
            && self.credit >= more * f64::from(TRIAL)
        {
            self.credit -= more * f64::from(TRIAL);
            self.trial = Some(Trial { plan, at: (class, bucket), left: TRIAL - 1 });
            self.until_trial = self.interval;
            self.interval = (self.interval * 2).min(LATE);
            return Choice { plan, timed: true };
        }
        Choice { plan: entry.plan, timed: entry.ns >= SHORT || self.count % TIMED < 2 }
    }

    /// Whether a trial of such batches is under way. One of others does not matter: they may never come again.
    fn is_tried(&self, class: usize, bucket: usize) -> bool {
        self.trial.is_some_and(|trial| trial.at == (class, bucket))
    }

    /// How many batches like the one that was asked about last go the same way, and are not to be timed: they count as asked
    /// about.
    pub fn again(&mut self, class: usize, packets: usize) -> u32 {
        let Some(entry) = self.table[class * BUCKETS + bucket(packets)].filter(|entry| entry.version == self.version)
        else {
            return 0;
        };
        let is_tried = self.is_tried(class, bucket(packets)) || self.always.is_some();
        if is_tried || entry.ns >= SHORT || self.count % TIMED < 1 {
            return 0;
        }
        let until_trial = match (entry.other, self.until_trial) {
            (None, _) => TIMED,
            // It is due, and not paid for yet.
            (Some(_), 0) => UNPAID,
            (Some(_), until) => until - 1,
        };
        let again = (TIMED - 1 - self.count % TIMED).min(until_trial);
        self.count = self.count.wrapping_add(again);
        self.until_trial = self.until_trial.saturating_sub(again);
        self.again_ns = entry.ns;
        self.credit = (self.credit + entry.ns * SHARE * f64::from(again)).min(MOST_CREDIT);
        again
    }

    /// So many of those that [`Chooser::again`] told of last did not come.
    pub fn did_not_come(&mut self, batches: u32) {
        self.count = self.count.wrapping_sub(batches);
        self.until_trial += batches;
        self.credit -= self.again_ns * SHARE * f64::from(batches);
    }

    /// Another plan for such a batch, where `refused` was no good.
    pub fn instead(&self, refused: &Plan, class: usize, packets: usize) -> Option<Plan> {
        let one = self.costs.ranked(class, packets).into_iter().map(|(plan, _)| plan);
        one.filter(|plan| matches!(plan, Plan::One(_))).find(|plan| !plan.is_as(refused))
    }

    /// Takes note that a batch took between `least` and `most` nanoseconds: nobody looks at a device all the time.
    pub fn took(&mut self, plan: &Plan, class: usize, packets: usize, least: f64, most: f64) {
        let Some(believed) = self.costs.of(plan, class, packets) else { return };
        let ns = believed.clamp(least.min(most), most);
        let best = self.entry(class, bucket(packets));
        if !best.plan.is_as(plan) {
            // What a trial cost beyond what was thought is paid for, too.
            self.credit -= (ns - believed).max(0.0);
        }
        if (ns / believed - 1.0).abs() < 0.01 {
            return;
        }
        match plan {
            Plan::One(device) => {
                if let Some(curves) = &mut self.costs.devices[*device] {
                    curves[class].correct(packets, ns);
                }
            }
            Plan::Split { .. } => {
                if let Some(curve) = self.costs.split.as_mut().and_then(|split| split.curves[class].as_mut()) {
                    curve.correct(packets, ns);
                }
            }
        }
        self.version = self.version.wrapping_add(1);
    }

    /// What is decided for a bucket, looked at again where costs have changed.
    fn entry(&mut self, class: usize, bucket: usize) -> Entry {
        let at = class * BUCKETS + bucket;
        if let Some(entry) = self.table[at].filter(|entry| entry.version == self.version) {
            return entry;
        }
        let packets = middle(bucket);
        let ranked = self.costs.ranked(class, packets);
        let mut chosen = ranked[0];
        if let Some(before) = &self.table[at] {
            let now = ranked.iter().find(|(plan, _)| plan.is_as(&before.plan));
            match now {
                Some(now) if chosen.1 >= now.1 * CLEARLY => chosen = *now,
                _ if !chosen.0.is_as(&before.plan) => {
                    self.interval = SOON;
                    self.until_trial = SOON;
                }
                _ => {}
            }
        }
        let other = ranked.iter().find(|(plan, ns)| !plan.is_as(&chosen.0) && *ns < chosen.1 * HOPELESS);
        let other = other.map(|(plan, ns)| (*plan, (ns - chosen.1).max(chosen.1 * 0.02)));
        let entry = Entry { plan: chosen.0, ns: chosen.1, other, version: self.version };
        self.table[at] = Some(entry);
        entry
    }

    /// Which devices may be chosen.
    pub fn ready(&self) -> &[bool] {
        &self.ready
    }
}

/// The bucket of a size: its order of magnitude and the two bits behind its highest one.
fn bucket(packets: usize) -> usize {
    let packets = packets.clamp(4, u32::MAX as usize);
    let order = packets.ilog2() as usize;
    order * 4 + (packets >> (order - 2) & 3)
}

/// The size in a bucket's middle.
fn middle(bucket: usize) -> usize {
    let (order, quarter) = (bucket / 4, bucket % 4);
    // Eighths: 4 and a half quarters, 5 and a half …
    ((8 + 2 * quarter + 1) << order) >> 3
}

#[cfg(test)]
mod tests {
    use super::super::curve::Curve;
    use super::*;

    fn line(fixed: f64, packet: f64) -> [Curve; 3] {
        let points: Vec<_> = [64u32, 1024, 16_384, 262_144].map(|n| (n, fixed + packet * f64::from(n))).to_vec();
        std::array::from_fn(|_| Curve::new(points.clone()).unwrap())
    }

    /// Costs of devices that are lines.
    fn costs(devices: &[(f64, f64)]) -> Costs {
        Costs { devices: devices.iter().map(|&(fixed, packet)| Some(line(fixed, packet))).collect(), split: None }
    }

    fn sizes() -> impl Iterator<Item = usize> {
        (2..22).flat_map(|order| [1 << order, (1 << order) + (1 << order) / 3])
    }

    #[test]
    fn buckets_hold_their_middles_and_are_narrow() {
        for packets in (4..5000).chain(sizes()) {
            let (bucket, ratio) = (bucket(packets), packets as f64 / middle(bucket(packets)) as f64);
            assert!(bucket < BUCKETS && (0.79..1.27).contains(&ratio), "{packets}: {}", middle(bucket));
        }
        assert!(bucket(usize::MAX) < BUCKETS && bucket(0) == bucket(4));
    }

    #[test]
    fn each_size_has_the_device_that_arithmetic_says() {
        for devices in [[(300.0, 4.0), (40_000.0, 0.5)], [(300.0, 1.0), (40_000.0, 2.0)], [(9e4, 1.0), (1e4, 1.0)]] {
            let mut chooser = Chooser::new(costs(&devices), vec![true; 2]);
            for packets in sizes() {
                let by_hand = devices.map(|(fixed, packet)| fixed + packet * packets as f64);
                let best = by_hand[0].min(by_hand[1]);
                let Plan::One(chosen) = chooser.next(1, packets).plan else { panic!("nothing is split") };
                assert!(best / by_hand[chosen] > 0.9, "{devices:?}, {packets}: {by_hand:?}, chose {chosen}");
            }
        }
    }

    /// As when the traffic changes just then.
    #[test]
    fn a_trial_of_a_size_that_comes_no_more_hinders_no_other() {
        let mut chooser = Chooser::new(costs(&[(300.0, 4.0), (300.0, 5.0)]), vec![true; 2]);
        let begun = (0..1_000_000).any(|_| chooser.next(0, 64).plan == Plan::One(1));
        assert!(begun, "a trial begins");
        let (mut trials, mut foreseen) = (0, 0);
        for _ in 0..100_000 {
            let choice = chooser.next(0, 1024);
            trials += u32::from(choice.plan == Plan::One(1));
            foreseen += if choice.plan == Plan::One(0) { chooser.again(0, 1024) } else { 0 };
        }
        assert!(trials >= 2 * TRIAL && foreseen > 1_000_000, "{trials} of trials, {foreseen} foreseen");
    }

    #[test]
    fn devices_that_are_not_ready_get_nothing() {
        let mut chooser = Chooser::new(costs(&[(300.0, 4.0), (300.0, 1.0)]), vec![true, false]);
        assert!(sizes().all(|packets| chooser.next(0, packets).plan == Plan::One(0)));
        assert_eq!(chooser.instead(&Plan::One(0), 0, 100), None);
    }

    /// Runs batches on devices of these true costs, one after the other; the part of the least possible time that was taken,
    /// and how often each device was chosen.
    fn simulate(chooser: &mut Chooser, truth: &[(f64, f64)], batches: usize, packets: usize) -> (f64, Vec<u32>) {
        let (mut taken, mut least, mut chosen) = (0.0, 0.0, vec![0; truth.len()]);
        for _ in 0..batches {
            let Choice { plan, timed } = chooser.next(0, packets);
            let Plan::One(device) = plan else { panic!("nothing is split") };
            let costs: Vec<f64> = truth.iter().map(|(fixed, packet)| fixed + packet * packets as f64).collect();
            taken += costs[device];
            least += costs.iter().copied().fold(f64::INFINITY, f64::min);
            chosen[device] += 1;
            if timed {
                chooser.took(&plan, 0, packets, costs[device], costs[device]);
            }
        }
        (least / taken, chosen)
    }

    #[test]
    fn what_was_measured_wrongly_is_corrected() {
        // The first one was held to be fast, and is not.
        for packets in [64, 2000, 100_000] {
            let mut chooser = Chooser::new(costs(&[(1000.0, 1.0), (2000.0, 2.0)]), vec![true; 2]);
            let truth = [(8000.0, 8.0), (2000.0, 2.0)];
            simulate(&mut chooser, &truth, 2000, packets);
            let (part, chosen) = simulate(&mut chooser, &truth, 20_000, packets);
            assert!(part > 0.98, "{packets}: {part}, {chosen:?}");
        }
    }

    #[test]
    fn a_device_that_has_become_better_is_found() {
        // Held to be a fifth slower, as it was measured while the machine was busy; it is twice as fast.
        let mut chooser = Chooser::new(costs(&[(1000.0, 1.0), (1200.0, 1.2)]), vec![true; 2]);
        let truth = [(1000.0, 1.0), (500.0, 0.5)];
        simulate(&mut chooser, &truth, 20_000, 20_000);
        let (part, chosen) = simulate(&mut chooser, &truth, 20_000, 20_000);
        assert!(part > 0.98, "{part}, {chosen:?}");
    }

    #[test]
    fn looking_elsewhere_costs_less_than_a_hundredth() {
        for (other, packets) in [(1.2, 64), (1.2, 20_000), (1.05, 3000), (4.0, 3000)] {
            // It is worse than it is held for.
            let mut chooser = Chooser::new(costs(&[(1000.0, 1.0), (1000.0 * other, other)]), vec![true; 2]);
            let truth = [(1000.0, 1.0), (3000.0 * other, 3.0 * other)];
            let (part, chosen) = simulate(&mut chooser, &truth, 200_000, packets);
            assert!(part > 0.99, "{other}, {packets}: {part}, {chosen:?}");
            assert!(other > HOPELESS || chosen[1] > 0, "it was never tried: {other}, {packets}");
        }
    }

    #[test]
    fn small_batches_are_seldom_asked_about() {
        // Another device that is never tried, one that is, and none.
        for devices in [&[(300.0, 1.0), (9000.0, 1.0)][..], &[(300.0, 1.0), (330.0, 1.1)], &[(300.0, 1.0)]] {
            let mut chooser = Chooser::new(costs(devices), vec![true; devices.len()]);
            let (mut asked, mut batches) = (0, 0);
            while batches < 200_000 {
                let Choice { plan, timed } = chooser.next(0, 64);
                if timed {
                    let ns = chooser.costs().of(&plan, 0, 64).unwrap();
                    chooser.took(&plan, 0, 64, ns, ns);
                }
                (asked, batches) = (asked + 1, batches + 1 + chooser.again(0, 64));
            }
            assert!(asked < batches / 12, "{devices:?}: {asked} of {batches}");
        }
    }

    #[test]
    fn batches_that_do_not_come_count_for_nothing() {
        // Sizes by turns, another device that is tried now and then, and is worse than it is held for.
        let mut chooser = Chooser::new(costs(&[(300.0, 1.0), (330.0, 1.1)]), vec![true; 2]);
        let truth = [(300.0, 1.0), (900.0, 3.0)];
        let (mut timed_ones, mut taken, mut least) = (0, 0.0, 0.0);
        const BATCHES: u32 = 200_000;
        for batch in 0..BATCHES {
            let packets = [64, 300][batch as usize % 2];
            let Choice { plan, timed } = chooser.next(0, packets);
            let again = chooser.again(0, packets);
            chooser.did_not_come(again);
            let Plan::One(device) = plan else { panic!("nothing is split") };
            let cost = |(fixed, packet): (f64, f64)| fixed + packet * packets as f64;
            (taken, least) = (taken + cost(truth[device]), least + cost(truth[0]));
            if timed {
                timed_ones += 1;
                chooser.took(&plan, 0, packets, cost(truth[device]), cost(truth[device]));
            }
        }
        assert!(timed_ones < BATCHES / 50, "{timed_ones}");
        assert!(least / taken > 0.99, "{}", least / taken);
    }

    #[test]
    fn devices_that_are_alike_do_not_take_turns() {
        let mut chooser = Chooser::new(costs(&[(1000.0, 1.0), (1000.0, 1.0)]), vec![true; 2]);
        let (mut changes, mut before) = (0, None);
        for round in 0..10_000u32 {
            let Choice { plan, timed } = chooser.next(0, 5000);
            if timed {
                // Noise of a few hundredths.
                let ns = 6000.0 * (1.0 + f64::from(round * 7919 % 100) / 2000.0);
                chooser.took(&plan, 0, 5000, ns, ns);
            }
            changes += u32::from(before.is_some_and(|before: Plan| !before.is_as(&plan)));
            before = Some(plan);
        }
        assert!(changes < 100, "{changes}");
    }

    #[test]
    fn a_span_of_times_corrects_no_further_than_it_has_to() {
        let mut chooser = Chooser::new(costs(&[(1000.0, 1.0)]), vec![true]);
        let before = chooser.costs().clone();
        chooser.took(&Plan::One(0), 0, 64, 10.0, 1e9);
        assert_eq!(*chooser.costs(), before);
        chooser.took(&Plan::One(0), 0, 64, 5000.0, 1e9);
        assert!(chooser.costs().of(&Plan::One(0), 0, 64).unwrap() > 1064.0);
    }

    #[test]
    fn a_split_is_taken_where_it_was_measured_to_pay() {
        let devices = [(1000.0, 4.0), (50_000.0, 2.0)];
        let mut all = costs(&devices);
        let sizes = [65_536u32, 262_144];
        // The two slow each other at the first size: nothing is gained there.
        let measured = [(sizes[0], 180_000.0), (sizes[1], 400_000.0)];
        all.split = Some(super::super::costs::SplitCosts {
            first: 0,
            second: 1,
            curves: std::array::from_fn(|_| Some(Curve::new(measured.to_vec()).unwrap())),
        });
        let mut chooser = Chooser::new(all.clone(), vec![true; 2]);
        assert_eq!(chooser.next(0, 60_000).plan, Plan::One(1));
        assert_eq!(chooser.next(0, 66_000).plan, Plan::One(1));
        let Plan::Split { first: 0, second: 1, share } = chooser.next(0, 262_144).plan else { panic!("no split") };
        // Both are done at once: x * 4000 + 1 = 50 + (1 - x) * 2000, in units of 1000 packets.
        let packets = middle(bucket(262_144)) as f64;
        let by_hand = (49_000.0 + 2.0 * packets) / 6.0 / packets;
        assert!((f64::from(share) / by_hand - 1.0).abs() < 0.01, "{share}, not {by_hand}");
        // Once it turns out to cost more it is left.
        for _ in 0..200 {
            let Choice { plan, timed } = chooser.next(0, 262_144);
            assert!(timed);
            let truth = if matches!(plan, Plan::Split { .. }) { 900_000.0 } else { 574_288.0 };
            chooser.took(&plan, 0, 262_144, truth, truth);
        }
        assert_eq!(chooser.next(0, 262_144).plan, Plan::One(1));
        // A device that is not there takes no part.
        let mut chooser = Chooser::new(all, vec![true, false]);
        assert_eq!(chooser.next(0, 262_144).plan, Plan::One(0));
    }
}
