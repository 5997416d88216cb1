//! `--device auto`: runs each batch on the device that is fastest for it, or splits it between two,
//! by a calibration of this machine.
//!
//! A CPU filters a small batch before a GPU has been launched; a GPU is faster with large batches
//! of costly packets. The crossover depends on machine, filter and packets, so it is measured:
//!
//! - **when**: at the first load of a filter on a machine with more than one candidate, before the
//!   first packet, for at most [`measure::BUDGET`] per device; or by `portcullis calibrate`. Never
//!   while packets wait, and never in the background, where it would compete for the CPUs that it
//!   measures.
//! - **what**: synthetic batches of a few sizes and packet lengths, with as many in flight as in a
//!   run ([`measure`]), on each candidate, and split between two if that could pay.
//! - **cached** in the user's cache for this combination of CPU, devices, drivers, version, filter
//!   and parameters ([`calibration`]). A cache entry that cannot be read is reported and measured
//!   again.
//! - **corrected** by the time that real batches take ([`chooser`]).
//!
//! A filter with maps or flows keeps its state on one device, the best one for batches of the
//! expected size. Other filters get a session on each device that is useful for batches of some
//! size; if that is only one, its session is returned directly.

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

use portcullis_core::device::{
    Device, DeviceError, DeviceInfo, DeviceKind, Dispatch, LoadOptions, Session, SingleDispatch,
};
use portcullis_core::program::Program;

use calibration::{CalibrationError, CalibrationKey, CalibrationStore};
use chooser::Chooser;
use costs::{Costs, LENGTH_CLASSES, Placement, SPLIT_COST_RATIO, SWEEP_SIZES, SplitCosts};
pub use explain::Explanation;
use measure::{Clock, MonotonicClock, SIZES, SyntheticTraffic};
use session::{AutoSession, LoadedDevice};

/// Expected number of packets in a batch if unknown: the content of one block of a capture.
pub const EXPECTED_BATCH_PACKETS: usize = 16_384;

/// When the costs of a filter are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CalibrationMode {
    /// No costs are measured: without a cached calibration, the first candidate that accepts the
    /// filter is used.
    Never,
    /// Costs of the first filter that is loaded are measured before any packets flow, unless they
    /// are cached.
    FirstLoad,
    /// Costs of every filter are measured, even if they are cached.
    Always,
}

/// Settings of [`AutoDevice`].
#[derive(Clone)]
#[non_exhaustive]
pub struct Settings {
    /// Store of calibrations.
    pub store: CalibrationStore,
    /// When to measure.
    pub mode: CalibrationMode,
    /// Expected number of packets in a batch. Filters with maps or flows use the best device for
    /// this size.
    pub expected_packets: usize,
    /// Maximum number of packets to measure with.
    pub max_packets: usize,
    /// Dispatch method of the CPU unless the load options have one; `None` leaves it to the device.
    pub cpu_dispatch: Option<Dispatch>,
    /// Clock to measure with.
    pub clock: Arc<dyn Clock>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            store: CalibrationStore::open_user_cache(),
            mode: CalibrationMode::FirstLoad,
            expected_packets: EXPECTED_BATCH_PACKETS,
            max_packets: measure::MAX_PACKETS,
            cpu_dispatch: None,
            clock: Arc::new(MonotonicClock::default()),
        }
    }
}

impl Settings {
    /// Sets [`Settings::store`].
    #[must_use]
    pub fn with_store(self, store: CalibrationStore) -> Settings {
        Settings { store, ..self }
    }

    /// Sets [`Settings::mode`].
    #[must_use]
    pub fn with_mode(self, mode: CalibrationMode) -> Settings {
        Settings { mode, ..self }
    }

    /// Sets [`Settings::expected_packets`].
    #[must_use]
    pub fn with_expected_packets(self, expected_packets: usize) -> Settings {
        Settings { expected_packets, ..self }
    }

    /// Sets [`Settings::max_packets`].
    #[must_use]
    pub fn with_max_packets(self, max_packets: usize) -> Settings {
        Settings { max_packets, ..self }
    }

    /// Sets [`Settings::cpu_dispatch`].
    #[must_use]
    pub fn with_cpu_dispatch(self, cpu_dispatch: impl Into<Option<Dispatch>>) -> Settings {
        Settings { cpu_dispatch: cpu_dispatch.into(), ..self }
    }

    /// Sets [`Settings::clock`].
    #[must_use]
    pub fn with_clock(self, clock: Arc<dyn Clock>) -> Settings {
        Settings { clock, ..self }
    }
}

/// Where a filter's costs came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CostsOrigin {
    /// Measured and cached by an earlier run.
    Cached,
    /// Measured by this process.
    Measured,
}

/// Result of choosing devices for a filter.
#[derive(Debug, Clone)]
struct PlacementOutcome {
    costs: Option<(Costs, CostsOrigin)>,
    /// Excluded candidates, by index, and why.
    excluded: Vec<(usize, String)>,
    /// Which candidates have a session.
    loaded: Vec<bool>,
    /// If a single device is used for all batches, the reason.
    single_device_reason: Option<&'static str>,
}

/// Several devices that act as one; see the [module](self).
pub struct AutoDevice {
    info: DeviceInfo,
    candidates: Vec<Arc<dyn Device>>,
    settings: Settings,
    /// Outcomes for the filters loaded so far.
    outcomes: Mutex<HashMap<CalibrationKey, PlacementOutcome>>,
    /// Calibration key of the filter loaded last.
    last: Mutex<Option<CalibrationKey>>,
    warnings: Mutex<Vec<String>>,
    has_measured: AtomicBool,
}

impl AutoDevice {
    /// Creates a device from candidates in order of preference. The CPU, which can take a part of a
    /// batch beside another device, is the candidate of that kind, or else the last one.
    ///
    /// # Panics
    /// If there are no candidates.
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
            outcomes: Mutex::default(),
            last: Mutex::default(),
            warnings: Mutex::default(),
            has_measured: AtomicBool::new(false),
        }
    }

    /// Takes the warnings collected since the last call: calibrations that could not be read or
    /// stored, and devices that failed or cannot run a filter.
    pub fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut *self.warnings.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn warn(&self, text: String) {
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        if !warnings.contains(&text) {
            warnings.push(text);
        }
    }

    /// Explains the choice for the filter loaded last; `None` before the first one.
    pub fn explain(&self) -> Option<Explanation> {
        let key = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        let outcome = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        let infos = self.candidates.iter().map(|device| device.info().clone()).collect();
        Some(Explanation::new(infos, outcome.get(&key)?.clone(), self.settings.expected_packets))
    }

    /// Predicts the choice for a filter from its cached calibration, without loading or measuring
    /// anything.
    ///
    /// # Errors
    /// Why the cached calibration is unusable.
    pub fn predict(&self, program: &Arc<Program>, options: &LoadOptions) -> Result<Explanation, CalibrationError> {
        let infos: Vec<_> = self.candidates.iter().map(|device| device.info()).collect();
        let costs = self.settings.store.get(&CalibrationKey::new(program, &infos, options), &self.ids())?;
        let mut outcome = PlacementOutcome {
            excluded: Vec::new(),
            loaded: vec![false; self.candidates.len()],
            single_device_reason: None,
            costs: costs.map(|costs| (costs, CostsOrigin::Cached)),
        };
        self.select_devices(program, &mut outcome);
        Ok(Explanation::new(infos.into_iter().cloned().collect(), outcome, self.settings.expected_packets))
    }

    /// Kind of device to build batches for: that of the GPU if the filter loaded last uses one.
    pub fn kind(&self) -> DeviceKind {
        let key = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let outcome = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(outcome) = key.and_then(|key| outcome.get(&key)) else { return self.info.kind };
        let kinds = self.candidates.iter().zip(&outcome.loaded).filter(|(_, ready)| **ready);
        let mut kinds = kinds.map(|(device, _)| device.info().kind);
        let cpu_alone = kinds.all(|kind| kind == DeviceKind::Cpu);
        if cpu_alone { DeviceKind::Cpu } else { self.info.kind }
    }

    /// Returns the costs of the filter loaded last, and where they came from.
    pub fn costs(&self) -> Option<(Costs, CostsOrigin)> {
        let key = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner).get(&key)?.costs.clone()
    }

    fn ids(&self) -> Vec<String> {
        self.candidates.iter().map(|device| device.info().id.clone()).collect()
    }

    /// Id of the device of a candidate, which may be restricted to a dispatch method.
    fn base_id(&self, device: usize) -> &str {
        SingleDispatch::base_id(&self.candidates[device].info().id)
    }

    /// Index of the CPU among the candidates.
    fn cpu_index(&self) -> usize {
        let cpu = self.candidates.iter().position(|device| device.info().kind == DeviceKind::Cpu);
        cpu.unwrap_or(self.candidates.len() - 1)
    }

    /// Load options for a candidate.
    fn options(&self, device: usize, options: &LoadOptions) -> LoadOptions {
        let kind = self.candidates[device].info().kind;
        options
            .clone()
            .with_dispatch(options.dispatch.or(self.settings.cpu_dispatch.filter(|_| kind == DeviceKind::Cpu)))
            .with_elephant_flow_device(options.elephant_flow_device.clone().filter(|_| kind != DeviceKind::Cpu))
    }

    /// Loads the filter on a candidate. If that does not support it, records why and returns
    /// `None`.
    fn load_on(
        &self,
        device: usize,
        program: &Arc<Program>,
        options: &LoadOptions,
        excluded: &mut Vec<(usize, String)>,
    ) -> Result<Option<Box<dyn Session>>, DeviceError> {
        if excluded.iter().any(|(out, _)| *out == device) {
            return Ok(None);
        }
        if options.dispatch.is_some() && (0..device).any(|other| self.base_id(other) == self.base_id(device)) {
            excluded.push((device, "the dispatch method was named".into()));
            return Ok(None);
        }
        match self.candidates[device].load(program, &self.options(device, options)) {
            Ok(session) => Ok(Some(session)),
            Err(DeviceError::Cancelled) => Err(DeviceError::Cancelled),
            // The device lacks the dispatch method, cannot run the filter, or is gone. Others may
            // do.
            Err(error) => {
                if !matches!(error, DeviceError::NoDispatch { .. }) {
                    self.warn(format!("{error}; excluded"));
                }
                excluded.push((device, error.to_string()));
                Ok(None)
            }
        }
    }

    /// Finds the costs of a filter: cached, measured now, or none.
    fn find_costs(
        &self,
        key: &CalibrationKey,
        program: &Arc<Program>,
        options: &LoadOptions,
    ) -> Result<PlacementOutcome, DeviceError> {
        let ids = self.ids();
        let mut excluded = Vec::new();
        let mut costs = None;
        if self.settings.mode != CalibrationMode::Always {
            match self.settings.store.get(key, &ids) {
                Ok(kept) => costs = kept.map(|costs| (costs, CostsOrigin::Cached)),
                Err(why) => self.warn(format!("ignoring the cached calibration: {why}")),
            }
        }
        let may_measure = match self.settings.mode {
            CalibrationMode::Never => false,
            CalibrationMode::FirstLoad => !self.has_measured.swap(true, Ordering::Relaxed),
            CalibrationMode::Always => true,
        };
        if costs.is_none() && may_measure {
            let measured = self.measure(program, options, &mut excluded)?;
            // Do not cache the result if a device failed; it may work next time.
            let is_whole = measured.devices.iter().all(Option::is_some);
            let unsupported = excluded.len() == measured.devices.iter().filter(|costs| costs.is_none()).count();
            if measured.devices.iter().any(Option::is_some) {
                if (is_whole || unsupported)
                    && let Err(why) = self.settings.store.put(key, &ids, &measured)
                {
                    self.warn(format!("cannot cache the calibration: {why}"));
                }
                costs = Some((measured, CostsOrigin::Measured));
            }
        }
        Ok(PlacementOutcome { costs, excluded, loaded: vec![false; self.candidates.len()], single_device_reason: None })
    }

    /// Measures all candidates, and split batches if those could pay.
    fn measure(
        &self,
        program: &Arc<Program>,
        options: &LoadOptions,
        excluded: &mut Vec<(usize, String)>,
    ) -> Result<Costs, DeviceError> {
        // Reading device clocks costs time that later runs do not spend.
        let mut options = options.clone();
        options.measure.record_stages = false;
        let options = &options;
        let clock = &self.settings.clock;
        let mut traffic: [SyntheticTraffic; LENGTH_CLASSES.len()] =
            std::array::from_fn(|class| SyntheticTraffic::new(program, class, self.settings.max_packets));
        let mut costs = Costs { devices: vec![None; self.candidates.len()], split: None };
        for device in 0..self.candidates.len() {
            let Some(mut session) = self.load_on(device, program, options, excluded)? else { continue };
            match measure::measure(&mut traffic, &mut *session, clock) {
                Ok(curves) => costs.devices[device] = curves,
                Err(DeviceError::Cancelled) => return Err(DeviceError::Cancelled),
                Err(error) => {
                    self.warn(format!("{error}; excluded from the calibration"));
                    excluded.push((device, error.to_string()));
                }
            }
        }
        if is_stateless(program) {
            costs.split = self.measure_split(program, options, &costs, &mut traffic)?;
        }
        Ok(costs)
    }

    /// Measures batches split between the CPU and another device, from the size at which that could
    /// pay.
    fn measure_split(
        &self,
        program: &Arc<Program>,
        options: &LoadOptions,
        costs: &Costs,
        traffic: &mut [SyntheticTraffic; LENGTH_CLASSES.len()],
    ) -> Result<Option<SplitCosts>, DeviceError> {
        let first = self.cpu_index();
        // The smallest size at which a split pays if neither device slows the other.
        let from = |second: usize, class: usize| {
            SIZES.into_iter().find(|&packets| {
                let packets = packets as usize;
                let placement = costs.balance_split(first, second, class, packets);
                let split = placement.and_then(|placement| costs.predict_split(&placement, class, packets));
                let best = costs.cheapest(class, packets);
                split.zip(best).is_some_and(|(split, (_, best))| split < best * SPLIT_COST_RATIO)
            })
        };
        // Choose the device with which the largest batches are fastest.
        let gain = |second: usize| {
            let packets = SWEEP_SIZES[SWEEP_SIZES.len() - 1];
            let gains = (0..LENGTH_CLASSES.len()).filter_map(|class| {
                let placement = costs.balance_split(first, second, class, packets)?;
                costs.predict_split(&placement, class, packets)
            });
            gains.sum::<f64>()
        };
        // A GPU's dispatch methods share the device.
        let others = (0..self.candidates.len()).filter(|&second| self.base_id(second) != self.base_id(first));
        let useful = others.filter(|&second| (0..LENGTH_CLASSES.len()).any(|class| from(second, class).is_some()));
        let Some(second) = useful.min_by(|&a, &b| gain(a).total_cmp(&gain(b))) else { return Ok(None) };

        let load = |device: usize| {
            let session = self.candidates[device].load(program, &self.options(device, options))?;
            Ok::<_, DeviceError>(LoadedDevice { id: self.candidates[device].info().id.clone(), session })
        };
        let mut devices: Vec<Option<LoadedDevice>> = self.candidates.iter().map(|_| None).collect();
        devices[first] = Some(load(first)?);
        devices[second] = Some(load(second)?);
        let always = Chooser::split_all(costs.clone(), first, second);
        let clock = &self.settings.clock;
        let mut session = AutoSession::new(program, devices, always, clock.clone(), options.depth);
        let mut curves: [_; LENGTH_CLASSES.len()] = std::array::from_fn(|_| None);
        for class in 0..LENGTH_CLASSES.len() {
            let Some(from) = from(second, class) else { continue };
            let time = measure::BUDGET / LENGTH_CLASSES.len() as u32;
            match traffic[class].measure(&mut session, &**clock, from, time) {
                Ok(curve) => curves[class] = curve,
                Err(DeviceError::Cancelled) => return Err(DeviceError::Cancelled),
                Err(error) => {
                    self.warn(format!("{error}; batches are not split"));
                    return Ok(None);
                }
            }
        }
        Ok(curves.iter().any(Option::is_some).then_some(SplitCosts { first, second, curves }))
    }

    /// Loads the filter on the first candidate in `order` that accepts it.
    fn load_first(
        &self,
        program: &Arc<Program>,
        options: &LoadOptions,
        order: impl Iterator<Item = usize>,
        outcome: &mut PlacementOutcome,
    ) -> Result<Box<dyn Session>, DeviceError> {
        for device in order {
            if let Some(session) = self.load_on(device, program, options, &mut outcome.excluded)? {
                outcome.loaded[device] = true;
                return Ok(session);
            }
        }
        let reasons: Vec<_> = outcome.excluded.iter().map(|(_, why)| why.as_str()).collect();
        Err(DeviceError::Unsupported { device: self.info.id.clone(), reason: reasons.join("; ") })
    }

    /// Selects the devices to load from the costs, and says why if it is only one.
    fn select_devices(&self, program: &Program, outcome: &mut PlacementOutcome) {
        outcome.loaded.fill(false);
        let alone = match &outcome.costs {
            None => Some((0, "without a calibration, the first device that accepts the filter is used")),
            Some((costs, _)) if !is_stateless(program) => {
                let best = costs.best_single_device(self.settings.expected_packets).unwrap_or(0);
                Some((best, "the filter keeps state, so all batches go to one device"))
            }
            Some((costs, _)) => {
                outcome.loaded = costs.useful_devices();
                let mut worth = (0..outcome.loaded.len()).filter(|&device| outcome.loaded[device]);
                let one = worth.next().filter(|_| worth.next().is_none());
                one.map(|device| (device, "no other device is useful at any batch size"))
            }
        };
        outcome.single_device_reason = alone.map(|(device, why)| {
            outcome.loaded[device] = true;
            why
        });
    }

    fn load_selected(
        &self,
        program: &Arc<Program>,
        options: &LoadOptions,
        outcome: &mut PlacementOutcome,
    ) -> Result<Box<dyn Session>, DeviceError> {
        self.select_devices(program, outcome);
        let all = self.candidates.len();
        let wanted = std::mem::replace(&mut outcome.loaded, vec![false; all]);
        let wanted: Vec<usize> = (0..all).filter(|&device| wanted[device]).collect();
        let Some((costs, _)) = outcome.costs.clone().filter(|_| is_stateless(program)) else {
            let others = (0..all).filter(|device| !wanted.contains(device));
            return self.load_first(program, options, wanted.iter().copied().chain(others), outcome);
        };
        let mut devices: Vec<Option<LoadedDevice>> = self.candidates.iter().map(|_| None).collect();
        for device in wanted {
            if let Some(session) = self.load_on(device, program, options, &mut outcome.excluded)? {
                devices[device] = Some(LoadedDevice { id: self.candidates[device].info().id.clone(), session });
                outcome.loaded[device] = true;
            }
        }
        match outcome.loaded.iter().filter(|ready| **ready).count() {
            0 => {
                outcome.single_device_reason =
                    Some("no useful device accepts the filter, so the first one that does is used");
                self.load_first(program, options, 0..all, outcome)
            }
            1 => {
                outcome.single_device_reason.get_or_insert("no other useful device accepts the filter");
                let alone = devices.into_iter().flatten().next();
                alone
                    .map(|ready| ready.session)
                    .ok_or_else(|| DeviceError::Missing("no device accepted the filter".into()))
            }
            _ => {
                // Inline dispatch has one batch at a time.
                let depth = if options.dispatch == Some(Dispatch::Inline) { 1 } else { options.depth };
                let chooser = Chooser::new(costs, outcome.loaded.clone());
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

    /// Loads the filter, after measuring its costs if the settings say so.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] with all reasons if no candidate accepts the filter.
    fn load(&self, program: &Arc<Program>, options: &LoadOptions) -> Result<Box<dyn Session>, DeviceError> {
        let infos: Vec<_> = self.candidates.iter().map(|device| device.info()).collect();
        let key = CalibrationKey::new(program, &infos, options);
        let known = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        let mut outcome = match known {
            Some(outcome) => outcome,
            None => self.find_costs(&key, program, options)?,
        };
        let session = self.load_selected(program, options, &mut outcome)?;
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(key.clone());
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner).insert(key, outcome);
        Ok(session)
    }
}

/// Formats the devices of a placement by their ids.
fn format_placement(placement: &Placement, ids: &[String]) -> String {
    match *placement {
        Placement::Single(device) => ids[device].clone(),
        Placement::Split { first, second, share } => {
            format!("{} {:.0} % + {} {:.0} %", ids[first], share * 100.0, ids[second], (1.0 - share) * 100.0)
        }
    }
}
