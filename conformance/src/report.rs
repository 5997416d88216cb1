//! How the self-test ended: for people, and as a file to send.

use std::fmt::Write;
use std::sync::Arc;

use portcullis_core::device::{Device, DeviceKind};
use portcullis_core::map::Row;
use serde::Serialize;

use super::filters::Language;
use super::{Outcome, REFERENCE_BATCH};

/// Everything that a self-test found out.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The version that was tested.
    pub version: &'static str,
    /// The processor architecture and system that it was tested on.
    pub host: String,
    /// Each device.
    pub devices: Vec<DeviceReport>,
    /// Backends without a device here.
    pub missing: Vec<MissingDevice>,
}

/// A backend that has no device, and why.
#[derive(Debug, Clone, Serialize)]
pub struct MissingDevice {
    /// The backend's name, or the device's id.
    pub device: String,
    /// Why it is not there, and what to install.
    pub reason: String,
    /// Whether the device was required.
    pub required: bool,
}

/// What a device did.
#[derive(Debug, Clone, Serialize)]
pub struct DeviceReport {
    /// Device id.
    pub id: String,
    /// Name that the device reports.
    pub name: String,
    /// Kind of device.
    pub kind: &'static str,
    /// Driver name and version.
    pub driver: String,
    /// Why it was sent less than others.
    pub note: Option<String>,
    /// Filters that it ran as they mean to be.
    pub passed: usize,
    /// Filters that it did not.
    pub failed: usize,
    /// Each filter.
    pub results: Vec<FilterResult>,
}

/// What a device made of a filter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FilterResult {
    /// The filter.
    pub filter: &'static str,
    /// Language of the filter.
    pub language: Language,
    /// Packets compared with the reference.
    pub compared: u64,
    /// Number of packets with differing results.
    pub mismatches: u64,
    /// The first of them.
    pub first: Option<Mismatch>,
    /// Why the filter could not be run to its end.
    pub error: Option<String>,
}

/// A packet that ended otherwise than it must.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mismatch {
    /// The corpus, the batches and their layout.
    pub place: String,
    /// The packet's index in the corpus.
    pub index: usize,
    /// Packet bytes as received, in hexadecimal.
    pub packet: String,
    /// What the reference says.
    pub expected: String,
    /// What the device says.
    pub got: String,
}

impl Report {
    pub(super) fn new(devices: &[Arc<dyn Device>]) -> Report {
        let devices = devices.iter().map(|device| {
            let info = device.info();
            DeviceReport {
                id: info.id.clone(),
                name: info.name.clone(),
                kind: info.kind.name(),
                driver: info.driver.clone(),
                note: (info.kind == DeviceKind::Reference).then(|| {
                    format!(
                        "fewer packets, only in batches of {REFERENCE_BATCH}: the reference takes them one by one, and \
                         slowly, whatever the batch"
                    )
                }),
                passed: 0,
                failed: 0,
                results: Vec::new(),
            }
        });
        Report {
            version: env!("CARGO_PKG_VERSION"),
            host: format!("{} {}", std::env::consts::ARCH, std::env::consts::OS),
            devices: devices.collect(),
            missing: Vec::new(),
        }
    }

    /// Whether every device passed and none that is required is missing.
    pub fn passed(&self) -> bool {
        self.devices.iter().all(|d| d.failed == 0) && !self.missing.iter().any(|m| m.required)
    }

    /// The filters that failed, each with its first mismatch in full; nothing when all is well.
    pub fn failures(&self) -> String {
        let mut text = String::new();
        for device in &self.devices {
            for result in device.results.iter().filter(|r| !r.passed()) {
                // Writing to a string cannot fail.
                let _ = result.describe(&device.id, &mut text);
            }
        }
        text
    }
}

impl DeviceReport {
    pub(super) fn add(&mut self, result: FilterResult) {
        if result.passed() {
            self.passed += 1;
        } else {
            self.failed += 1;
        }
        self.results.push(result);
    }

    /// How many filters in a language it did not run as they mean to be, and how many there were.
    pub fn differing(&self, language: Language) -> (usize, usize) {
        let results: Vec<_> = self.results.iter().filter(|result| result.language == language).collect();
        (results.iter().filter(|result| !result.passed()).count(), results.len())
    }

    /// Packets compared with the reference, all filters together.
    pub fn compared(&self) -> u64 {
        self.results.iter().map(|r| r.compared).sum()
    }
}

impl FilterResult {
    /// Whether the device ran every case without a difference.
    pub fn passed(&self) -> bool {
        self.mismatches == 0 && self.error.is_none()
    }

    pub(super) fn mismatch(&mut self, describe: impl FnOnce() -> Mismatch) {
        self.mismatches += 1;
        self.first.get_or_insert_with(describe);
    }

    fn describe(&self, device: &str, text: &mut String) -> std::fmt::Result {
        writeln!(text, "{}, {}, on {device}:", self.filter, self.language.name())?;
        if let Some(error) = &self.error {
            writeln!(text, "  {error}")?;
        }
        if let Some(first) = &self.first {
            writeln!(text, "  {} of {} packets differ; the first:", self.mismatches, self.compared)?;
            writeln!(text, "  {}, packet {}", first.place, first.index)?;
            writeln!(text, "  packet    {}", first.packet)?;
            writeln!(text, "  expected  {}", first.expected)?;
            writeln!(text, "  got       {}", first.got)?;
        }
        Ok(())
    }
}

impl Mismatch {
    pub(super) fn outcome(place: &str, index: usize, packet: &[u8], want: &Outcome, got: &Outcome) -> Mismatch {
        // From the first byte that differs, where the verdict is not all that does.
        let differs = want.bytes.iter().zip(&got.bytes).position(|(a, b)| a != b);
        let from = differs.unwrap_or(want.bytes.len().min(got.bytes.len()));
        let show = |outcome: &Outcome| {
            let mut text = format!("{}, {} bytes", outcome.verdict, outcome.bytes.len());
            if want.bytes != got.bytes {
                text += &format!(", from byte {from}: {}", hex(outcome.bytes.get(from..).unwrap_or_default(), 32));
            }
            text
        };
        Mismatch { place: place.into(), index, packet: hex(packet, usize::MAX), expected: show(want), got: show(got) }
    }

    /// Maps that hold something else in the end.
    pub(super) fn maps(place: &str, names: &[&str], want: &[Vec<Row>], got: &[Vec<Row>]) -> Mismatch {
        let differs = |number: &usize| want[*number] != got[*number];
        let map = (0..names.len()).find(differs).unwrap_or_default();
        let (want, got) = (&want[map], &got[map]);
        let at = (0..).find(|&i| want.get(i) != got.get(i)).unwrap_or_default();
        let show = |rows: &[Row]| {
            let row = rows.get(at).map_or("no such entry".into(), |Row { key, value }| format!("{key:x?}: {value:x?}"));
            format!("`{}` has {} entries, entry {at} {row}", names[map], rows.len())
        };
        Mismatch { place: place.into(), index: 0, packet: String::new(), expected: show(want), got: show(got) }
    }

    pub(super) fn trespass(place: &str, at: usize) -> Mismatch {
        Mismatch {
            place: place.into(),
            index: 0,
            packet: String::new(),
            expected: "no byte beside the packets changes".into(),
            got: format!("byte {at} of the arena, which belongs to no packet, was written to"),
        }
    }
}

fn hex(bytes: &[u8], most: usize) -> String {
    let shown = &bytes[..bytes.len().min(most)];
    let mut text: String = shown.iter().map(|byte| format!("{byte:02x}")).collect();
    if bytes.is_empty() {
        text.push('-');
    } else if shown.len() < bytes.len() {
        text.push('…');
    }
    text
}
