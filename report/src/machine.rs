//! What a benchmark is run on.

use std::time::{SystemTime, UNIX_EPOCH};

use super::results::Machine;

/// This machine, as its system tells of it. What it does not tell is not there.
pub fn machine() -> Machine {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut facts = Vec::new();
    let mut fact = |name: &str, value: Option<String>| facts.extend(value.map(|value| (name.to_owned(), value)));
    if let Some(bytes) = memory("MemTotal") {
        fact("memory", Some(format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64)));
    }
    for index in 0..4 {
        let of = |what| read(&format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{what}"));
        if let (Some(level), Some(kind), Some(size)) = (of("level"), of("type"), of("size")) {
            fact(&format!("L{level} cache, {}", kind.to_lowercase()), Some(size));
        }
    }
    fact("frequency governor", read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"));
    let system = read("/etc/os-release").and_then(|text| value(&text, "PRETTY_NAME", '='));
    fact("system", Some(system.unwrap_or_else(|| std::env::consts::OS.into())));
    fact("kernel", read("/proc/sys/kernel/osrelease"));
    fact("architecture", Some(std::env::consts::ARCH.into()));
    fact("build", Some(if cfg!(debug_assertions) { "debug: what the host does is slow" } else { "release" }.into()));
    let processor = read("/proc/cpuinfo").and_then(|text| value(&text, "model name", ':'));
    Machine { processor: processor.unwrap_or_else(|| std::env::consts::ARCH.into()), threads, facts }
}

/// Bytes that may be taken: half of what is free, and where that is not known 2 GiB.
pub fn memory_to_take() -> u64 {
    memory("MemAvailable").map_or(2 << 30, |bytes| bytes / 2)
}

/// Bytes of memory, as Linux has them.
fn memory(name: &str) -> Option<u64> {
    let text = value(&read("/proc/meminfo")?, name, ':')?;
    Some(text.trim_end_matches("kB").trim().parse::<u64>().ok()? * 1024)
}

fn read(path: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

fn value(text: &str, name: &str, between: char) -> Option<String> {
    let pairs = text.lines().filter_map(|line| line.split_once(between));
    let found = pairs.into_iter().find(|(key, _)| key.trim() == name)?.1;
    Some(found.trim().trim_matches('"').to_owned())
}

/// Now, in UTC: `2026-11-23 04:08:30 UTC`.
pub fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    at(since.as_secs())
}

/// Seconds since 1970 as date and time, by the calendar of 400 years that begins in March.
fn at(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        // As `date -u -d @N` has them.
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (951_868_800, "2000-03-01 00:00:00 UTC"),
            (1_234_567_890, "2009-02-13 23:31:30 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(at(seconds), text);
        }
    }

    #[test]
    fn values_are_found_by_their_names() {
        let text = "a : 1\nmodel name\t: A  processor\nNAME=\"x y\"\n";
        assert_eq!(value(text, "model name", ':').as_deref(), Some("A  processor"));
        assert_eq!(value(text, "NAME", '=').as_deref(), Some("x y"));
        assert_eq!(value(text, "name", ':'), None);
        assert!(machine().threads > 0 && !machine().processor.is_empty());
    }
}
