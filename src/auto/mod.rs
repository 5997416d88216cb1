//! `--device auto`: the device, or two of them, that batches cost least on, by a calibration of this machine.
//!
//! A processor filters a small batch before a GPU has been told of it, and a GPU a large one of costly packets before a
//! processor has read it. Where between them lies depends on the machine, the filter and the packets, so it is measured:
//!
//! - **when**: at the first load of a filter on a machine with more than one candidate, before the first packet, for
//!   [`measure::BUDGET`] a device at most; or whenever `portcullis calibrate` is told to. Never while packets wait, and never
//!   in the background, where it would share the processors with what it is compared with;
//! - **what**: batches of made-up packets of a few sizes and lengths, as many in flight as later ([`measure`]), on each
//!   candidate, and on two at once where that could pay;
//! - **kept** in the user's cache for the machine as it is: processor, devices, drivers, version, filter and its parameters
//!   ([`calibration`]). What cannot be read is measured anew, and said to be;
//! - **corrected** by what real batches take ([`chooser`]).
//!
//! A filter with maps or flows has its state on one device, the cheapest for batches of the expected size. All others have a
//! session on each device that is of use for batches of some size; where that is one, its session is given out as it is.

pub mod calibration;
pub mod chooser;
pub mod costs;
pub mod curve;
mod explain;
pub mod measure;
mod session;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use portcullis_core::device::{Device, DeviceError, DeviceInfo, DeviceKind, Dispatch, LoadOptions, Session};
use portcullis_core::program::Program;

use calibration::{CalibrationStore, Key};
use chooser::Chooser;
use costs::{Costs, LENGTHS, Plan, SWEEP, SplitCosts, WORTH_SPLITTING};
pub use explain::Explanation;
use measure::{Clock, Monotonic, SIZES, Traffic};
use session::{AutoSession, Ready};

/// Packets of a batch, where nobody knows how many there will be: what a block of a capture holds.
pub const EXPECTED_BATCH_PACKETS: usize = 16_384;

/// When a filter's costs are measured that are not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CalibrationMode {
    /// Not at all: without a calibration it is the first candidate that takes the filter.
    Never,
    /// Of the first filter that is loaded, as nothing is under way yet.
    FirstLoad,
    /// Anew, whatever is kept.
    Always,
}

/// How a device is chosen.
#[derive(Clone)]
pub struct Settings {
    /// Where calibrations are kept.
    pub store: CalibrationStore,
    /// When to measure.
    pub mode: CalibrationMode,
    /// Packets of a batch, about: filters with maps and flows are on one device, for batches of this size.
    pub expected_packets: usize,
    /// Packets to measure with, at most.
    pub max_packets: usize,
    /// How batches are handed to the CPU where no other method was asked for; its own choice when `None`.
    pub cpu_dispatch: Option<Dispatch>,
    /// What tells the time.
    pub clock: Arc<dyn Clock>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            store: CalibrationStore::open_user_cache(),
            mode: CalibrationMode::FirstLoad,
            expected_packets: EXPECTED_BATCH_PACKETS,
            max_packets: measure::PACKETS,
            cpu_dispatch: None,
            clock: Arc::new(Monotonic::default()),
        }
    }
}

/// Where a calibration came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// It was kept by an earlier run.
    Kept,
    /// It was made for this one.
    Measured,
}

/// What became of a filter.
#[derive(Debug, Clone)]
struct Decided {
    costs: Option<(Costs, Origin)>,
    /// Candidates, each with a device's id, and why they are out of the question.
    left_out: Vec<(usize, String)>,
    /// Which have a session.
    ready: Vec<bool>,
    /// Whether it was one device's from the beginning on, and for what reason.
    alone: Option<&'static str>,
}

/// Several devices as one. See the module.
pub struct AutoDevice {
    info: DeviceInfo,
    candidates: Vec<Arc<dyn Device>>,
    settings: Settings,
    /// Of filters that were loaded before.
    decided: Mutex<HashMap<Key, Decided>>,
    /// The last one of them.
    last: Mutex<Option<Key>>,
    notes: Mutex<Vec<String>>,
    has_measured: AtomicBool,
}

impl AutoDevice {
    /// Of these devices, the one first that is to be taken where nothing is known. The processor, which can take a part of a
    /// batch beside another device, is the one whose kind says so, or the last one.
    ///
    /// # Panics
    /// Without any device.
    pub fn new(candidates: Vec<Arc<dyn Device>>, settings: Settings) -> AutoDevice {
        let first = candidates.first().expect("a device to choose from").info();
        let list = |of: fn(&DeviceInfo) -> &str| {
            let all: Vec<_> = candidates.iter().map(|device| of(device.info())).collect();
            all.join(", ")
        };
        let info = DeviceInfo {
            id: "auto".into(),
            name: format!("the best of {}", list(|info| &info.id)),
            kind: first.kind,
            driver: list(|info| &info.driver),
            dispatch: first.dispatch,
            limits: first.limits.clone(),
        };
        AutoDevice {
            info,
            candidates,
            settings,
            decided: Mutex::default(),
            last: Mutex::default(),
            notes: Mutex::default(),
            has_measured: AtomicBool::new(false),
        }
    }

    /// What there is to be said since this was last asked: calibrations that could not be read or kept, devices that failed
    /// while they were measured, or cannot run a filter.
    pub fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut *self.notes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn note(&self, text: String) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        if !notes.contains(&text) {
            notes.push(text);
        }
    }

    /// What was decided for the filter that was loaded last, for people to read; `None` before the first one.
    pub fn explain(&self) -> Option<Explanation> {
        let key = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        let decided = self.decided.lock().unwrap_or_else(PoisonError::into_inner);
        let infos = self.candidates.iter().map(|device| device.info().clone()).collect();
        Some(Explanation::new(infos, decided.get(&key)?.clone(), self.settings.expected_packets))
    }

    /// What would be decided for a filter by what is kept of it, without loading it anywhere or measuring anything.
    ///
    /// # Errors
    /// Why what is kept is of no use, in words.
    pub fn predict(&self, program: &Arc<Program>, options: &LoadOptions) -> Result<Explanation, String> {
        let infos: Vec<_> = self.candidates.iter().map(|device| device.info()).collect();
        let costs = self.settings.store.get(&Key::new(program, &infos, options), &self.ids())?;
        let mut decided = Decided {
            left_out: Vec::new(),
            ready: vec![false; self.candidates.len()],
            alone: None,
            costs: costs.map(|costs| (costs, Origin::Kept)),
        };
        self.settle_on(program, &mut decided);
        Ok(Explanation::new(infos.into_iter().cloned().collect(), decided, self.settings.expected_packets))
    }

    /// What the devices in use for the filter that was loaded last are, for the making of batches: a GPU where one is among
    /// them.
    pub fn kind(&self) -> DeviceKind {
        let key = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let decided = self.decided.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(decided) = key.and_then(|key| decided.get(&key)) else { return self.info.kind };
        let kinds = self.candidates.iter().zip(&decided.ready).filter(|(_, ready)| **ready);
        let mut kinds = kinds.map(|(device, _)| device.info().kind);
        let cpu_alone = kinds.all(|kind| kind == DeviceKind::Cpu);
        if cpu_alone { DeviceKind::Cpu } else { self.info.kind }
    }

    /// The costs of the filter that was loaded last, and where they came from.
    pub fn costs(&self) -> Option<(Costs, Origin)> {
        let key = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        self.decided.lock().unwrap_or_else(PoisonError::into_inner).get(&key)?.costs.clone()
    }

    fn ids(&self) -> Vec<String> {
        self.candidates.iter().map(|device| device.info().id.clone()).collect()
    }

    /// The processor's number.
    fn processor(&self) -> usize {
        let cpu = self.candidates.iter().position(|device| device.info().kind == DeviceKind::Cpu);
        cpu.unwrap_or(self.candidates.len() - 1)
    }

    /// How a candidate is loaded.
    fn options(&self, device: usize, options: &LoadOptions) -> LoadOptions {
        let kind = self.candidates[device].info().kind;
        LoadOptions {
            dispatch: options.dispatch.or(self.settings.cpu_dispatch.filter(|_| kind == DeviceKind::Cpu)),
            elephant_flow_device: options.elephant_flow_device.clone().filter(|_| kind != DeviceKind::Cpu),
            ..options.clone()
        }
    }

    /// Loads on a candidate; `None`, with a reason noted, where that is none for this filter.
    fn load_on(
        &self,
        device: usize,
        program: &Arc<Program>,
        options: &LoadOptions,
        left_out: &mut Vec<(usize, String)>,
    ) -> Result<Option<Box<dyn Session>>, DeviceError> {
        if left_out.iter().any(|(out, _)| *out == device) {
            return Ok(None);
        }
        match self.candidates[device].load(program, &self.options(device, options)) {
            Ok(session) => Ok(Some(session)),
            Err(DeviceError::Cancelled) => Err(DeviceError::Cancelled),
            // It has no such method, or cannot run the filter, or is not there any more: there are others.
            Err(error) => {
                if !matches!(error, DeviceError::NoDispatch { .. }) {
                    self.note(format!("{error}; left out"));
                }
                left_out.push((device, error.to_string()));
                Ok(None)
            }
        }
    }

    /// What is known of a filter's costs.
    fn decide(&self, key: &Key, program: &Arc<Program>, options: &LoadOptions) -> Result<Decided, DeviceError> {
        let ids = self.ids();
        let mut left_out = Vec::new();
        let mut costs = None;
        if self.settings.mode != CalibrationMode::Always {
            match self.settings.store.get(key, &ids) {
                Ok(kept) => costs = kept.map(|costs| (costs, Origin::Kept)),
                Err(why) => self.note(format!("a calibration is not used: {why}")),
            }
        }
        let may_measure = match self.settings.mode {
            CalibrationMode::Never => false,
            CalibrationMode::FirstLoad => !self.has_measured.swap(true, Ordering::Relaxed),
            CalibrationMode::Always => true,
        };
        if costs.is_none() && may_measure {
            let measured = self.measure(program, options, &mut left_out)?;
            // What failed may be back the next time.
            let is_whole = measured.devices.iter().all(Option::is_some);
            let unsupported = left_out.len() == measured.devices.iter().filter(|costs| costs.is_none()).count();
            if measured.devices.iter().any(Option::is_some) {
                if (is_whole || unsupported)
                    && let Err(why) = self.settings.store.put(key, &ids, &measured)
                {
                    self.note(format!("the calibration is not kept: {why}"));
                }
                costs = Some((measured, Origin::Measured));
            }
        }
        Ok(Decided { costs, left_out, ready: vec![false; self.candidates.len()], alone: None })
    }

    /// Measures all candidates, and two at once where that could pay.
    fn measure(
        &self,
        program: &Arc<Program>,
        options: &LoadOptions,
        left_out: &mut Vec<(usize, String)>,
    ) -> Result<Costs, DeviceError> {
        // Reading devices' clocks costs time that other runs do not take.
        let options = &LoadOptions { record_stages: false, ..options.clone() };
        let clock = &self.settings.clock;
        let mut traffic: [Traffic; LENGTHS.len()] =
            std::array::from_fn(|class| Traffic::new(program, class, self.settings.max_packets));
        let mut costs = Costs { devices: vec![None; self.candidates.len()], split: None };
        for device in 0..self.candidates.len() {
            let Some(mut session) = self.load_on(device, program, options, left_out)? else { continue };
            match measure::measure(&mut traffic, &mut *session, clock) {
                Ok(curves) => costs.devices[device] = curves,
                Err(DeviceError::Cancelled) => return Err(DeviceError::Cancelled),
                Err(error) => {
                    self.note(format!("{error}; left out of the calibration"));
                    left_out.push((device, error.to_string()));
                }
            }
        }
        if is_stateless(program) {
            costs.split = self.measure_split(program, options, &costs, &mut traffic)?;
        }
        Ok(costs)
    }

    /// The costs of batches cut between the processor and another device, from the size on from which that could pay.
    fn measure_split(
        &self,
        program: &Arc<Program>,
        options: &LoadOptions,
        costs: &Costs,
        traffic: &mut [Traffic; LENGTHS.len()],
    ) -> Result<Option<SplitCosts>, DeviceError> {
        let first = self.processor();
        // From which size on it pays, were neither to slow the other.
        let from = |second: usize, class: usize| {
            SIZES.into_iter().find(|&packets| {
                let packets = packets as usize;
                let plan = costs.split_between(first, second, class, packets);
                let split = plan.and_then(|plan| costs.predicted_split(&plan, class, packets));
                let best = costs.best(class, packets);
                split.zip(best).is_some_and(|(split, (_, best))| split < best * WORTH_SPLITTING)
            })
        };
        // The one that takes the most off the processor, with the largest batches.
        let gain = |second: usize| {
            let packets = SWEEP[SWEEP.len() - 1];
            let gains = (0..LENGTHS.len()).filter_map(|class| {
                let plan = costs.split_between(first, second, class, packets)?;
                costs.predicted_split(&plan, class, packets)
            });
            gains.sum::<f64>()
        };
        let others = (0..self.candidates.len()).filter(|&second| second != first);
        let useful = others.filter(|&second| (0..LENGTHS.len()).any(|class| from(second, class).is_some()));
        let Some(second) = useful.min_by(|&a, &b| gain(a).total_cmp(&gain(b))) else { return Ok(None) };

        let load = |device: usize| {
            let session = self.candidates[device].load(program, &self.options(device, options))?;
            Ok::<_, DeviceError>(Ready { id: self.candidates[device].info().id.clone(), session })
        };
        let mut devices: Vec<Option<Ready>> = self.candidates.iter().map(|_| None).collect();
        devices[first] = Some(load(first)?);
        devices[second] = Some(load(second)?);
        let always = Chooser::always(costs.clone(), first, second);
        let clock = &self.settings.clock;
        let mut session = AutoSession::new(program, devices, always, clock.clone(), options.depth);
        let mut curves: [_; LENGTHS.len()] = std::array::from_fn(|_| None);
        for class in 0..LENGTHS.len() {
            let Some(from) = from(second, class) else { continue };
            let time = measure::BUDGET / LENGTHS.len() as u32;
            match traffic[class].measure(&mut session, &**clock, from, time) {
                Ok(curve) => curves[class] = curve,
                Err(DeviceError::Cancelled) => return Err(DeviceError::Cancelled),
                Err(error) => {
                    self.note(format!("{error}; batches are not cut in two"));
                    return Ok(None);
                }
            }
        }
        Ok(curves.iter().any(Option::is_some).then_some(SplitCosts { first, second, curves }))
    }

    /// The first candidate that takes the filter.
    fn load_first(
        &self,
        program: &Arc<Program>,
        options: &LoadOptions,
        order: impl Iterator<Item = usize>,
        decided: &mut Decided,
    ) -> Result<Box<dyn Session>, DeviceError> {
        for device in order {
            if let Some(session) = self.load_on(device, program, options, &mut decided.left_out)? {
                decided.ready[device] = true;
                return Ok(session);
            }
        }
        let reasons: Vec<_> = decided.left_out.iter().map(|(_, why)| why.as_str()).collect();
        Err(DeviceError::Unsupported { device: self.info.id.clone(), reason: reasons.join("; ") })
    }

    /// Which devices are to be loaded, by what is known of a filter's costs, and why it is one alone.
    fn settle_on(&self, program: &Program, decided: &mut Decided) {
        decided.ready.fill(false);
        let alone = match &decided.costs {
            None => Some((0, "there is no calibration, so it is the first one that takes the filter")),
            Some((costs, _)) if !is_stateless(program) => {
                let best = costs.one_for_all(self.settings.expected_packets).unwrap_or(0);
                Some((best, "the filter's state is in one place, so all batches go to one device"))
            }
            Some((costs, _)) => {
                decided.ready = costs.worth_keeping();
                let mut worth = (0..decided.ready.len()).filter(|&device| decided.ready[device]);
                let one = worth.next().filter(|_| worth.next().is_none());
                one.map(|device| (device, "no other is of use for batches of any size"))
            }
        };
        decided.alone = alone.map(|(device, why)| {
            decided.ready[device] = true;
            why
        });
    }

    fn load_decided(
        &self,
        program: &Arc<Program>,
        options: &LoadOptions,
        decided: &mut Decided,
    ) -> Result<Box<dyn Session>, DeviceError> {
        self.settle_on(program, decided);
        let all = self.candidates.len();
        let wanted = std::mem::replace(&mut decided.ready, vec![false; all]);
        let wanted: Vec<usize> = (0..all).filter(|&device| wanted[device]).collect();
        let Some((costs, _)) = decided.costs.clone().filter(|_| is_stateless(program)) else {
            let others = (0..all).filter(|device| !wanted.contains(device));
            return self.load_first(program, options, wanted.iter().copied().chain(others), decided);
        };
        let mut devices: Vec<Option<Ready>> = self.candidates.iter().map(|_| None).collect();
        for device in wanted {
            if let Some(session) = self.load_on(device, program, options, &mut decided.left_out)? {
                devices[device] = Some(Ready { id: self.candidates[device].info().id.clone(), session });
                decided.ready[device] = true;
            }
        }
        match decided.ready.iter().filter(|ready| **ready).count() {
            0 => {
                decided.alone = Some("none that is of use takes the filter, so it is the first one that does");
                self.load_first(program, options, 0..all, decided)
            }
            1 => {
                decided.alone.get_or_insert("no other takes the filter that is of use for batches of some size");
                let alone = devices.into_iter().flatten().next();
                alone.map(|ready| ready.session).ok_or_else(|| DeviceError::Missing("no device is left".into()))
            }
            _ => {
                // One batch at a time where that was asked for.
                let depth = if options.dispatch == Some(Dispatch::Inline) { 1 } else { options.depth };
                let chooser = Chooser::new(costs, decided.ready.clone());
                let clock = self.settings.clock.clone();
                Ok(Box::new(AutoSession::new(program, devices, chooser, clock, depth)))
            }
        }
    }
}

/// Whether batches may go to different devices.
fn is_stateless(program: &Program) -> bool {
    program.maps().is_empty() && !program.has_flows()
}

impl Device for AutoDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Measures first, where that is to be done and was not.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where no candidate takes the filter, with the reasons of all.
    fn load(&self, program: &Arc<Program>, options: &LoadOptions) -> Result<Box<dyn Session>, DeviceError> {
        let infos: Vec<_> = self.candidates.iter().map(|device| device.info()).collect();
        let key = Key::new(program, &infos, options);
        let known = self.decided.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        let mut decided = match known {
            Some(decided) => decided,
            None => self.decide(&key, program, options)?,
        };
        let session = self.load_decided(program, options, &mut decided)?;
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(key.clone());
        self.decided.lock().unwrap_or_else(PoisonError::into_inner).insert(key, decided);
        Ok(session)
    }
}

/// The devices of a plan, as ids.
fn plan_in_words(plan: &Plan, ids: &[String]) -> String {
    match *plan {
        Plan::One(device) => ids[device].clone(),
        Plan::Split { first, second, share } => {
            format!("{} {:.0} % + {} {:.0} %", ids[first], share * 100.0, ids[second], (1.0 - share) * 100.0)
        }
    }
}
