//! Conformance suite for devices. Every stock filter, in every language, and every probe runs over
//! every corpus, in batches of several sizes and layouts, and is compared with the reference
//! interpreter: verdicts, lengths, packet bytes and final maps must be equal, and bytes outside the
//! packets must not change.
//!
//! The suite is a library, so that `portcullis selftest` tests a machine with a new GPU.

#[cfg(all(target_os = "linux", feature = "af-xdp"))]
pub mod af_xdp;
pub mod corpora;
pub mod filters;
pub mod layout;
mod report;
pub mod state;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use portcullis_core::device::{Device, DeviceError, DeviceKind, LoadOptions, Session};
use portcullis_core::map::Row;
use portcullis_core::packet::{Batch, ResizeRoom, Verdict};
use portcullis_core::program::Program;

use corpora::{Corpus, Packet};
use filters::Case;
use layout::GuardedArena;
pub use report::{DeviceReport, FilterResult, Mismatch, MissingDevice, Report};
use state::Entry;

/// Batch sizes and layouts: single packets, odd sizes that leave a group of lanes incomplete, a
/// work group and one packet more, and all packets at once.
const LAYOUTS: [(usize, ResizeRoom); 6] = [
    (1, ResizeRoom::Both),
    (7, ResizeRoom::None),
    (64, ResizeRoom::Both),
    (257, ResizeRoom::None),
    (usize::MAX, ResizeRoom::Both),
    (usize::MAX, ResizeRoom::None),
];

/// Batch size for the interpreter, which is slow and runs packets one by one in any case.
const REFERENCE_BATCH: usize = 64;

/// Number of packets submitted one by one, which is slow on some devices.
const ONE_BY_ONE: usize = 40;

/// Result for one packet.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Outcome {
    verdict: Verdict,
    bytes: Vec<u8>,
}

/// Compares `devices` with `reference` over these filters and packets, and calls `observe` with
/// each filter's name before running it.
pub fn run(
    devices: &[Arc<dyn Device>],
    reference: &dyn Device,
    cases: &[Case],
    corpora: &[Corpus],
    observe: &mut dyn FnMut(&str),
) -> Report {
    let mut report = Report::new(devices);
    for case in cases {
        observe(case.name);
        let prepared = Prepared::new(case, corpora, reference);
        for (device, report) in devices.iter().zip(&mut report.devices) {
            let (filter, language) = (case.name, case.language);
            let mut result = FilterResult { filter, language, compared: 0, mismatches: 0, first: None, error: None };
            match &prepared {
                Ok(prepared) => {
                    // A panic in a driver or compiler fails this filter only.
                    let checked = catch_unwind(AssertUnwindSafe(|| prepared.check(&**device, &mut result)));
                    result.error = match checked {
                        Ok(checked) => checked.err().map(|error| error.to_string()),
                        Err(panic) => Some(format!("panicked: {}", panic_text(&*panic))),
                    };
                }
                Err(error) => result.error = Some(error.clone()),
            }
            report.add(result);
        }
    }
    report
}

/// A compiled filter and its expected results.
struct Prepared<'a> {
    program: Arc<Program>,
    entries: Vec<Entry>,
    corpora: Vec<Expected<'a>>,
}

/// Expected results for a corpus.
struct Expected<'a> {
    corpus: &'a Corpus,
    outcomes: Vec<Outcome>,
    /// Maps after the packets that are submitted one by one, and after all.
    maps: [Vec<Vec<Row>>; 2],
}

impl<'a> Prepared<'a> {
    fn new(case: &Case, corpora: &'a [Corpus], reference: &dyn Device) -> Result<Prepared<'a>, String> {
        let compile = |case: &Case| case.compile().map_err(|error| error.to_string());
        let (program, meaning) = (compile(case)?, compile(&case.reference_case())?);
        let mut session = reference.load(&meaning, &LoadOptions::default()).map_err(|error| error.to_string())?;
        let mut with_outcomes = Vec::new();
        for corpus in corpora {
            let failed = |error: DeviceError| format!("the reference fails: {error}");
            state::reset(&mut *session, &meaning, &case.entries).map_err(failed)?;
            let (first, rest) = corpus.packets.split_at(ONE_BY_ONE.min(corpus.packets.len()));
            let mut maps = [Vec::new(), Vec::new()];
            let mut outcomes = Vec::new();
            for (packets, maps) in [first, rest].into_iter().zip(&mut maps) {
                outcomes.extend(run_all(&mut *session, packets, usize::MAX, ResizeRoom::Both).map_err(failed)?.0);
                *maps = state::read(&mut *session, &meaning).map_err(failed)?;
            }
            if case.always_passes {
                // A probe that checks itself takes precedence over the reference.
                outcomes.iter_mut().for_each(|outcome| outcome.verdict = Verdict::Pass);
            }
            with_outcomes.push(Expected { corpus, outcomes, maps });
        }
        Ok(Prepared { program, entries: case.entries.clone(), corpora: with_outcomes })
    }

    fn check(&self, device: &dyn Device, result: &mut FilterResult) -> Result<(), DeviceError> {
        let mut session = device.load(&self.program, &LoadOptions::default())?;
        let names: Vec<&str> = self.program.maps().iter().map(|map| map.name.as_str()).collect();
        for Expected { corpus, outcomes, maps } in &self.corpora {
            for (size, room) in LAYOUTS {
                if room == ResizeRoom::None && self.program.facts().changes_length {
                    continue;
                }
                if device.info().kind == DeviceKind::Reference && size != REFERENCE_BATCH {
                    continue;
                }
                let count = if size == 1 { ONE_BY_ONE.min(corpus.packets.len()) } else { corpus.packets.len() };
                let packets = &corpus.packets[..count];
                state::reset(&mut *session, &self.program, &self.entries)?;
                let (got, stray_write) = run_all(&mut *session, packets, size, room)?;
                let place = format!("{}, {}, {room:?} room", corpus.name, batches_of(size));
                for (index, ((packet, got), want)) in packets.iter().zip(&got).zip(outcomes).enumerate() {
                    result.compared += 1;
                    if got != want {
                        result.mismatch(|| Mismatch::outcome(&place, index, &packet.bytes, want, got));
                    }
                }
                let (want, left) = (&maps[usize::from(size != 1)], state::read(&mut *session, &self.program)?);
                if left != *want {
                    result.mismatch(|| Mismatch::maps(&place, &names, want, &left));
                }
                if let Some(at) = stray_write {
                    result.mismatch(|| Mismatch::stray_write(&place, at));
                }
            }
        }
        Ok(())
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

fn batches_of(size: usize) -> String {
    if size == usize::MAX { "one batch".into() } else { format!("batches of {size}") }
}

/// Runs the packets in batches, as many in flight as the session accepts. Returns their outcomes,
/// and the offset of the first byte written outside the packets, if any.
fn run_all(
    session: &mut dyn Session,
    packets: &[Packet],
    size: usize,
    room: ResizeRoom,
) -> Result<(Vec<Outcome>, Option<usize>), DeviceError> {
    let laid_out = GuardedArena::lay_out(packets, size.min(packets.len().max(1)), room);
    let (batches, guarded) = laid_out.map_err(|error| DeviceError::Refused(error.to_string()))?;
    let mut outcomes = Vec::with_capacity(packets.len());
    let mut batches = batches.into_iter();
    loop {
        while session.in_flight() < session.depth() {
            match batches.next() {
                Some(batch) => session.submit(batch).map_err(|refused| refused.error)?,
                None => break,
            }
        }
        let Some(done) = session.complete()? else { break };
        let verdicts = done.verdicts.iter();
        if verdicts.len() != done.batch.len() {
            return Err(DeviceError::Refused(format!("{} verdicts for {} packets", verdicts.len(), done.batch.len())));
        }
        outcomes.extend(
            verdicts
                .zip(Batch::packets(&done.batch))
                .map(|(verdict, bytes)| Outcome { verdict, bytes: bytes.to_vec() }),
        );
    }
    Ok((outcomes, guarded.stray_write()))
}

#[cfg(test)]
mod tests {
    use super::corpora::Depth;
    use super::filters::Language;
    use super::*;
    use portcullis_core::device::noop::NoopDevice;

    /// Probes that check their own results test the reference itself.
    #[test]
    fn the_interpreter_agrees_with_itself_and_with_the_probes() {
        let interp = portcullis::devices::open("interp").unwrap();
        let report = run(
            std::slice::from_ref(&interp),
            &*interp,
            &[filters::cases(), filters::stateful()].concat(),
            &corpora::corpora(Depth::Quick),
            &mut |_| {},
        );
        assert!(report.passed(), "{}", report.failures());
        assert!(report.devices[0].results.iter().all(|r| r.compared > 100));
    }

    /// The suite can fail: a device that does nothing passes only the filters that pass every
    /// packet unchanged.
    #[test]
    fn an_incorrect_device_is_detected() {
        let noop: Arc<dyn Device> = Arc::new(NoopDevice::new());
        let interp = portcullis::devices::open("interp").unwrap();
        let (right, wrong) = (["minimal", "loads"], ["port_filter", "stores", "verdicts", "metadata", "redirects"]);
        let mut cases = filters::cases();
        cases.retain(|case| case.language == Language::Wgsl);
        cases.retain(|case| right.contains(&case.name) || wrong.contains(&case.name));
        let report = run(&[noop], &*interp, &cases, &corpora::corpora(Depth::Quick), &mut |_| {});
        for result in &report.devices[0].results {
            assert_eq!(result.passed(), right.contains(&result.filter), "{}", result.filter);
            assert_eq!(result.first.is_none(), result.passed());
        }
        assert_eq!((report.devices[0].passed, report.devices[0].failed), (right.len(), wrong.len()));
        assert!(!report.passed());
    }

    /// Stateful filters read or change their maps over the corpora.
    #[test]
    fn stateful_filters_use_their_maps() {
        let interp = portcullis::devices::open("interp").unwrap();
        let corpora = corpora::corpora(Depth::Quick);
        for case in filters::stateful().iter().filter(|case| case.language == Language::Wgsl) {
            let prepared = Prepared::new(case, &corpora, &*interp).unwrap();
            let mut session = interp.load(&prepared.program, &LoadOptions::default()).unwrap();
            state::reset(&mut *session, &prepared.program, &case.entries).unwrap();
            let before = state::read(&mut *session, &prepared.program).unwrap();
            let all = || prepared.corpora.iter();
            let outcomes = || all().flat_map(|expected| &expected.outcomes);
            let first = outcomes().next().map(|outcome| outcome.verdict);
            let verdicts_vary = outcomes().any(|outcome| Some(outcome.verdict) != first);
            let maps_change = all().any(|expected| expected.maps[1] != before);
            assert!(verdicts_vary || maps_change, "{}", case.name);
            let has_flows = prepared.program.has_flows();
            println!("{}: verdicts vary: {verdicts_vary}, maps change: {maps_change}, flows: {has_flows}", case.name);
        }
    }

    /// A device with correct verdicts and incorrect maps is detected.
    #[test]
    fn incorrect_maps_are_detected() {
        let interp = portcullis::devices::open("interp").unwrap();
        let corpora = corpora::corpora(Depth::Quick);
        let cases = filters::stateful();
        let case = cases.iter().find(|case| case.name == "flow_stats").unwrap();
        let mut prepared = Prepared::new(case, &corpora, &*interp).unwrap();
        let entry = prepared.corpora[1].maps[1].iter_mut().flatten().next().unwrap();
        entry.value[0] += 1;
        let (filter, language) = (case.name, case.language);
        let mut result = FilterResult { filter, language, compared: 0, mismatches: 0, first: None, error: None };
        prepared.check(&*interp, &mut result).unwrap();
        assert_eq!(result.mismatches, 1);
        let first = result.first.unwrap();
        assert!(first.expected.starts_with("`flows` has ") && first.expected != first.got, "{first:?}");
    }

    /// A filter that differs from its WGSL version is detected, even on the reference.
    #[test]
    fn an_incorrect_translation_is_detected() {
        let text = "uint xdp_filter(__global uchar *pkt, uint len) { return len < 70 ? XDP_DROP : XDP_PASS; }";
        let mut cases = filters::cases();
        cases.retain(|case| case.name == "minimal");
        cases.iter_mut().filter(|case| case.language == Language::OpenClC).for_each(|case| case.text = text.into());
        let interp = portcullis::devices::open("interp").unwrap();
        let report = run(std::slice::from_ref(&interp), &*interp, &cases, &corpora::corpora(Depth::Quick), &mut |_| {});
        let device = &report.devices[0];
        assert_eq!(Language::ALL.map(|language| device.differing(language)), [(0, 1), (1, 1)]);
        assert!(report.failures().contains("minimal, OpenCL C, on interp:"), "{}", report.failures());
    }
}
