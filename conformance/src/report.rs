//! Results of the self-test, as text and as JSON.

use std::fmt::Write;
use std::sync::Arc;

use portcullis_core::device::{Device, DeviceKind};
use portcullis_core::map::Row;
use serde::Serialize;

use super::filters::Language;
use super::{Outcome, REFERENCE_BATCH};

/// Results of a self-test.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Version of this program.
    pub version: &'static str,
    /// Processor architecture and operating system.
    pub host: String,
    /// Results by device.
    pub devices: Vec<DeviceReport>,
    /// Backends without a device on this machine.
    pub missing: Vec<MissingDevice>,
}

/// A backend without a device, and the reason.
#[derive(Debug, Clone, Serialize)]
pub struct MissingDevice {
    /// The backend's name, or the device's id.
    pub device: String,
    /// Why no device was found, and what to install.
    pub reason: String,
    /// Whether the device was required.
    pub required: bool,
}

/// Results of one device.
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
    /// Why the device ran fewer packets than others.
    pub note: Option<String>,
    /// Number of filters without a difference.
    pub passed: usize,
    /// Number of filters that differed or failed.
    pub failed: usize,
    /// Results by filter.
    pub results: Vec<FilterResult>,
}

/// Results of one filter on one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FilterResult {
    /// Name of the filter.
    pub filter: &'static str,
    /// Language of the filter.
    pub language: Language,
    /// Number of packets compared with the reference.
    pub compared: u64,
    /// Number of packets with differing results.
    pub mismatches: u64,
    /// The first mismatch.
    pub first: Option<Mismatch>,
    /// Error that ended the filter's run.
    pub error: Option<String>,
}

/// A difference from the expected results.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mismatch {
    /// Corpus, batch size and layout.
    pub place: String,
    /// The packet's index in the corpus.
    pub index: usize,
    /// Packet bytes as received, in hexadecimal.
    pub packet: String,
    /// Expected result.
    pub expected: String,
    /// Result of the device.
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

    /// Whether every device passed and no required device is missing.
    pub fn passed(&self) -> bool {
        self.devices.iter().all(|d| d.failed == 0) && !self.missing.iter().any(|m| m.required)
    }

    /// Describes each failed filter with its first mismatch; empty if every device passed.
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

    /// Returns the number of filters in a language that failed, and the number that ran.
    pub fn differing(&self, language: Language) -> (usize, usize) {
        let results: Vec<_> = self.results.iter().filter(|result| result.language == language).collect();
        (results.iter().filter(|result| !result.passed()).count(), results.len())
    }

    /// Returns the number of packets compared with the reference, over all filters.
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
        // Start at the first byte that differs, if any does.
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

    /// Describes maps whose final contents differ.
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

    pub(super) fn stray_write(place: &str, at: usize) -> Mismatch {
        Mismatch {
            place: place.into(),
            index: 0,
            packet: String::new(),
            expected: "no writes outside the packets".into(),
            got: format!("write to byte {at} of the arena, outside the packets"),
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
