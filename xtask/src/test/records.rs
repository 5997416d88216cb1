//! Which device ran which suite, from the tests' records (`compat-tests`, module `record`), as a
//! table.

use std::collections::BTreeMap;
use std::path::Path;

/// Outcome and remark of each suite on each device.
#[derive(Debug, Default)]
pub struct Records {
    rows: BTreeMap<(String, String), (String, String)>,
}

impl Records {
    /// Reads the folder that the tests wrote to. Each process writes a file, each entry a line:
    /// suite, device, `passed`, `failed` or `skipped`, and a remark, separated by tabs.
    pub fn read(folder: &Path) -> Records {
        let mut records = Records::default();
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            for line in std::fs::read_to_string(entry.path()).unwrap_or_default().lines() {
                records.add(line);
            }
        }
        records
    }

    /// Adds the self-test's results for each device: `portcullis selftest --json FILE`.
    pub fn add_selftest(&mut self, file: &Path) {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let report: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let entries = |name: &str| report[name].as_array().cloned().unwrap_or_default();
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().replace(['\t', '\n'], " ");
        for device in entries("devices") {
            let mut languages: BTreeMap<String, (Vec<String>, u64)> = BTreeMap::new();
            for result in device["results"].as_array().into_iter().flatten() {
                let (differing, all) = languages.entry(text(&result["language"])).or_default();
                let identical = result["mismatches"] == 0 && result["error"].is_null();
                if !identical {
                    differing.push(text(&result["filter"]));
                }
                *all += 1;
            }
            for (language, (differing, all)) in languages {
                let (outcome, remark) = match differing.len() {
                    0 => ("passed", format!("identical, {all} filters")),
                    count => ("failed", format!("{count} of {all} filters differ ({})", differing.join(", "))),
                };
                let (id, name) = (text(&device["id"]), text(&device["name"]));
                self.add(&format!("selftest, {language}\t{id}\t{outcome}\t{remark}, {name}"));
            }
        }
        for missing in entries("missing") {
            let outcome = if missing["required"] == true { "failed" } else { "skipped" };
            self.add(&format!("selftest\t{}\t{outcome}\t{}", text(&missing["device"]), text(&missing["reason"])));
        }
    }

    fn add(&mut self, line: &str) {
        let mut fields = line.splitn(4, '\t');
        let (Some(suite), Some(device), Some(outcome)) = (fields.next(), fields.next(), fields.next()) else { return };
        let remark = fields.next().unwrap_or_default();
        let entry = self.rows.entry((suite.into(), device.into()));
        let entry = entry.or_insert_with(|| (outcome.into(), remark.into()));
        // Of several entries for one device the worst counts.
        let rank = |outcome: &str| ["passed", "skipped", "failed"].iter().position(|&o| o == outcome);
        if rank(outcome) > rank(&entry.0) {
            *entry = (outcome.into(), remark.into());
        }
    }

    /// Returns how many suites were skipped on a device.
    pub fn skipped(&self) -> u64 {
        self.rows.values().filter(|(outcome, _)| outcome == "skipped").count() as u64
    }

    /// Prints the table.
    pub fn print(&self) {
        let suite_width = self.rows.keys().map(|(s, _)| s.len()).max().unwrap_or(0).max(5);
        let device_width = self.rows.keys().map(|(_, d)| d.len()).max().unwrap_or(0).max(6);
        println!("\n{:<suite_width$}  {:<device_width$}  {:<7}  ", "suite", "device", "outcome");
        // Failures last, where they are seen.
        let (failed, others): (Vec<_>, _) = self.rows.iter().partition(|(_, (outcome, _))| outcome == "failed");
        for ((suite, device), (outcome, remark)) in others.iter().chain(&failed) {
            println!(
                "{}",
                format!("{suite:<suite_width$}  {device:<device_width$}  {outcome:<7}  {remark}").trim_end()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_entry_of_a_suite_and_device_counts() {
        let mut records = Records::default();
        for line in ["a\tcpu\tpassed\t", "a\tcpu\tfailed\tsix", "a\tcpu\tpassed\t", "b\twgpu\tskipped\tno driver", "x"]
        {
            records.add(line);
        }
        assert_eq!(records.rows[&("a".into(), "cpu".into())], ("failed".into(), "six".into()));
        assert_eq!(records.rows.len(), 2);
        assert_eq!(records.skipped(), 1);
    }

    #[test]
    fn the_self_test_is_recorded_by_device_and_language() {
        let file = std::env::temp_dir().join(format!("portcullis-selftest-{}.json", std::process::id()));
        let report = r#"{"devices": [{"id": "cpu", "name": "a CPU", "results": [
                {"filter": "a", "language": "WGSL", "mismatches": 0, "error": null},
                {"filter": "b", "language": "WGSL", "mismatches": 0, "error": "no"},
                {"filter": "c", "language": "WGSL", "mismatches": 3, "error": null},
                {"filter": "a", "language": "OpenCL C", "mismatches": 0, "error": null}]}],
            "missing": [{"device": "wgpu", "reason": "no driver", "required": false}]}"#;
        std::fs::write(&file, report).unwrap();
        let mut records = Records::default();
        records.add_selftest(&file);
        std::fs::remove_file(&file).unwrap();
        let row = |suite: &str, device: &str| records.rows[&(suite.to_owned(), device.to_owned())].clone();
        assert_eq!(row("selftest, WGSL", "cpu"), ("failed".into(), "2 of 3 filters differ (b, c), a CPU".into()));
        assert_eq!(row("selftest, OpenCL C", "cpu"), ("passed".into(), "identical, 1 filters, a CPU".into()));
        assert_eq!(row("selftest", "wgpu"), ("skipped".into(), "no driver".into()));
    }
}
