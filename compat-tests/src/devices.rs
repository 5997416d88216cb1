//! The devices that a suite runs on, and a record of the outcome on each.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use portcullis::device::{Device, DeviceError, Dispatch, SingleDispatch};
use portcullis_cpu::{Cpu, Processor, Style};

use crate::records::is_required;
pub use crate::records::{REQUIRE, record, record_skip};

/// Environment variable that selects the share of the cases that run on a device with a slow
/// compiler ([`share`]): a number, 0 by default, or `all`. Consecutive numbers together cover all
/// cases.
pub const SHARE: &str = "PORTCULLIS_TEST_SHARE";

/// Environment variable with the only backend to test: `cuda`. All backends are tested if it is
/// unset.
pub const ONLY: &str = "PORTCULLIS_TEST_ONLY";

/// Environment variable with the first seed, to reproduce a failure: `PORTCULLIS_RANDOM_SEED=17
/// PORTCULLIS_RANDOM_FILTERS=1`.
pub const SEED: &str = "PORTCULLIS_RANDOM_SEED";

/// Returns the number in an environment variable, or `otherwise` if it is not set.
///
/// # Panics
/// If the variable is not a number.
pub fn number(variable: &str, otherwise: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable}={text} is not a number")),
        Err(_) => otherwise,
    }
}

/// Returns the seeds to run, from [`SEED`] on: as many as the variable says, or `otherwise`.
///
/// # Panics
/// As [`number`].
pub fn seeds(variable: &str, otherwise: u64) -> Range<u64> {
    let first = number(SEED, 0);
    first..first + number(variable, otherwise)
}

/// Runs `suite` on every available device: the interpreter, the CPU and the devices that the GPU
/// backends find. Prints why a device is missing, which fails the test if [`REQUIRE`] names it.
///
/// # Panics
/// If `suite` panics or a required device is missing, after the suite has run on the other devices.
pub fn on_each(name: &str, mut suite: impl FnMut(&Arc<dyn Device>)) {
    let mut failures = Vec::new();
    let only = std::env::var(ONLY).ok().filter(|name| !name.is_empty());
    let wanted = |name: &str| only.as_ref().map_or(name != "noop", |only| only == name);
    for backend in portcullis::devices::backends().iter().filter(|backend| wanted(backend.name)) {
        match backend.probe() {
            Ok(devices) => {
                for device in devices {
                    let info = device.info();
                    let started = Instant::now();
                    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        suite(&device);
                        variants(backend.name, &device).iter().for_each(&mut suite);
                    }));
                    let remark = format!("{}, {:.1} s", info.name, started.elapsed().as_secs_f32());
                    record(name, &info.id, if outcome.is_ok() { "passed" } else { "failed" }, &remark);
                    if outcome.is_err() {
                        failures.push(format!("{} fails {name}", info.id));
                    }
                }
            }
            Err(reason) if is_required(backend.name) => {
                record(name, backend.name, "failed", &reason.to_string());
                failures.push(format!("{} is required and missing: {reason}", backend.name));
            }
            Err(reason) => record(name, backend.name, "skipped", &reason.to_string()),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("; "));
}

/// Returns variants of a device that differ in what it would otherwise choose by measurement or by
/// the machine's other hardware, as each must be correct by itself.
fn variants(backend: &str, device: &Arc<dyn Device>) -> Vec<Arc<dyn Device>> {
    let info = device.info();
    let id = &info.id;
    match backend {
        "cpu" => {
            let devices = [
                Cpu::with_style(Style::BranchFree),
                Cpu::with_style(Style::Branching),
                Cpu::with_style(Style::SpeculativeVector),
                Cpu::with_style(Style::Vector),
                Cpu::with_prefetch(),
                Cpu::with_style(Style::Vector).with_processor(Processor::X86_64V2),
                Cpu::with_style(Style::BranchFree).with_processor(Processor::X86_64),
            ];
            let here = cfg!(target_arch = "x86_64");
            let devices = devices.into_iter().filter(|device| here || !device.info().id.contains("x86-64"));
            devices.map(|device| Arc::new(device) as _).collect()
        }
        // Use the transfers of GPUs with dedicated memory on devices that share the host's memory.
        "opencl" => {
            vec![Arc::new(
                named(id, portcullis::backend::opencl::probe()).unwrap_or_else(|| panic!("{id} is gone")).as_discrete(),
            )]
        }
        // Each dispatch method has kernels of its own. `inline` is left out: it takes one batch at
        // a time, and suites submit several.
        "cuda" => {
            let by = |&method| SingleDispatch::new(device, method).unwrap_or_else(|e| panic!("{id} has named it: {e}"));
            info.dispatch
                .iter()
                .skip(1)
                .filter(|&&method| method != Dispatch::Inline)
                .map(by)
                .map(|only| Arc::new(only) as _)
                .collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the device with this id among those that a backend finds.
///
/// # Panics
/// If the backend fails, as it found the device before.
fn named<D: Device>(id: &str, found: Result<Vec<D>, DeviceError>) -> Option<D> {
    let found = found.unwrap_or_else(|e| panic!("{id} was there before: {e}"));
    found.into_iter().find(|device| device.info().id == id)
}

/// Returns the device with work groups of `packets` packets, or `None` if its group size cannot be
/// set.
pub fn with_group_size(device: &Arc<dyn Device>, packets: u32) -> Option<Arc<dyn Device>> {
    let id = device.info().id.as_str();
    Some(match id.split(':').next()? {
        "wgpu" => Arc::new(named(id, portcullis::backend::wgpu::probe())?.with_group_size(packets)),
        "opencl" => Arc::new(named(id, portcullis::backend::opencl::probe())?.with_group_size(packets)),
        "cuda" => Arc::new(named(id, portcullis::backend::cuda::probe())?.with_group_size(packets)),
        _ => return None,
    })
}

/// Selects the cases that run on a device: all, or about `most` spread evenly if its compiler takes
/// about a second for each case, as with PoCL and with CUDA for all dispatch methods.
///
/// # Panics
/// If [`SHARE`] is neither a number nor `all`.
pub fn share<'a, T>(device: &Arc<dyn Device>, cases: &'a [T], most: usize) -> impl Iterator<Item = &'a T> + Clone {
    let (first, step) = part_of(device).map_or((0, 1), |number| spread(cases.len(), most, number));
    cases.iter().skip(first).step_by(step)
}

/// Selects cases as [`share`] does, but covers every feature that any case uses, even if that takes
/// more than `most` cases.
///
/// # Panics
/// As [`share`].
pub fn share_of_all<'a, T>(
    device: &Arc<dyn Device>,
    cases: &'a [T],
    most: usize,
    uses: impl Fn(&T) -> BTreeSet<String>,
) -> Vec<&'a T> {
    let Some(number) = part_of(device) else { return cases.iter().collect() };
    let uses: Vec<BTreeSet<String>> = cases.iter().map(uses).collect();
    let mut chosen = cover(&uses);
    let (first, step) = spread(cases.len(), most, number);
    let others = (first..cases.len()).step_by(step).filter(|case| !chosen.contains(case)).collect::<Vec<_>>();
    let room = most.saturating_sub(chosen.len());
    // Fill the remaining room with other cases, spread evenly.
    chosen.extend(others.iter().step_by(others.len().div_ceil(room.max(1)).max(1)).take(room));
    chosen.into_iter().map(|case| &cases[case]).collect()
}

/// Returns the number of the device's share, or `None` if the device runs all cases.
fn part_of(device: &Arc<dyn Device>) -> Option<usize> {
    let said = std::env::var(SHARE).unwrap_or_else(|_| "0".into());
    let slow = ["opencl:", "cuda:"].iter().any(|backend| device.info().id.starts_with(backend));
    let number = || said.parse().unwrap_or_else(|_| panic!("{SHARE}={said} is neither a number nor `all`"));
    (slow && said != "all").then(number)
}

/// Returns a set of cases that together use every feature (greedy set cover): each step takes the
/// first case that adds the most missing features.
fn cover(uses: &[BTreeSet<String>]) -> BTreeSet<usize> {
    let mut missing: BTreeSet<&String> = uses.iter().flatten().collect();
    let mut chosen = BTreeSet::new();
    while !missing.is_empty() {
        let more = |case: &usize| uses[*case].iter().filter(|it| missing.contains(it)).count();
        let Some(best) = (0..uses.len()).rev().max_by_key(more) else { break };
        uses[best].iter().for_each(|it| _ = missing.remove(it));
        chosen.insert(best);
    }
    chosen
}

/// Returns the first case and the step of share `number`. The step is odd, so that a share of cases
/// that alternate between two kinds has both kinds.
fn spread(count: usize, most: usize, number: usize) -> (usize, usize) {
    let step = count.div_ceil(most) | 1;
    (number % step, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn covers_use_every_feature() {
        let uses =
            ["a", "a b", "c", "c b a", "", "d", "d a"].map(|it| it.split_whitespace().map(str::to_owned).collect());
        assert_eq!(cover(&uses), BTreeSet::from([3, 5]));
        assert_eq!(cover(&[]), BTreeSet::new());
    }

    #[test]
    fn shares_together_have_every_case_and_none_is_too_large() {
        for (count, most) in [(150, 30), (30, 8), (7, 8), (31, 30), (1, 1), (0, 5)] {
            let (_, step) = spread(count, most, 0);
            let mut seen = vec![0; count];
            for number in 10..10 + step {
                let (first, step) = spread(count, most, number);
                let share: Vec<usize> = (0..count).skip(first).step_by(step).collect();
                let kinds = share.iter().map(|case| case % 2).collect::<std::collections::BTreeSet<_>>();
                assert!(share.len() < 2 || kinds.len() == 2, "{count} {most}: {share:?}");
                assert!(share.len() <= most && share.len() + 1 >= count / step, "{count} {most}: {share:?}");
                share.into_iter().for_each(|case| seen[case] += 1);
            }
            assert!(seen.iter().all(|&times| times == 1), "{count} {most}: {seen:?}");
        }
    }
}
