//! Description and load of the machine that runs a benchmark.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::results::{Machine, SystemLoad};

/// Describes this machine; facts that the system does not report are left out.
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

/// Returns the memory that batches may use: half of what is free, 2 GiB if that is unknown.
pub fn memory_to_take() -> u64 {
    memory("MemAvailable").map_or(2 << 30, |bytes| bytes / 2)
}

/// Returns an entry of /proc/meminfo, in bytes.
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

/// Samples the processor time that other processes use, from its creation on.
pub struct LoadSampler {
    start: Instant,
    average_at_start: Option<f64>,
    elsewhere: Option<u64>,
}

/// Clock ticks per second in /proc: `USER_HZ`, 100 on every architecture that Rust supports.
const TICKS_PER_SECOND: f64 = 100.0;

impl LoadSampler {
    /// Starts sampling.
    pub fn start() -> LoadSampler {
        let average = read("/proc/loadavg").and_then(|text| text.split(' ').next()?.parse().ok());
        LoadSampler { start: Instant::now(), average_at_start: average, elsewhere: ticks_elsewhere() }
    }

    /// Returns the load since the start; `None` if the system does not report it.
    pub fn load(&self) -> Option<SystemLoad> {
        let ticks = ticks_elsewhere()?.saturating_sub(self.elsewhere?);
        let busy_elsewhere = ticks as f64 / TICKS_PER_SECOND / self.start.elapsed().as_secs_f64().max(1e-3);
        Some(SystemLoad { average_at_start: self.average_at_start?, busy_elsewhere })
    }
}

/// Clock ticks that all processors were busy, less those of this process.
fn ticks_elsewhere() -> Option<u64> {
    let (all, own) = (busy_ticks(&read("/proc/stat")?)?, process_ticks(&read("/proc/self/stat")?)?);
    Some(all.saturating_sub(own))
}

/// Returns the busy ticks of all processors in the text of /proc/stat (proc_stat(5)): user, nice,
/// system, irq, softirq and steal.
fn busy_ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().map_while(|ticks| ticks.parse().ok()).collect();
    (ticks.len() >= 8).then(|| [0, 1, 2, 5, 6, 7].iter().map(|&at| ticks[at]).sum())
}

/// Returns the ticks of a process in user and system mode, from the text of its stat file
/// (proc_pid_stat(5)): fields 14 and 15. The name before them may contain anything but ends with
/// the last parenthesis.
fn process_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

/// Returns the current time in UTC: `2026-11-23 04:08:30 UTC`.
pub fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format_utc(since.as_secs())
}

/// Formats seconds since 1970 as date and time (days-to-civil algorithm: eras of 400 years that
/// begin in March).
fn format_utc(seconds: u64) -> String {
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
            assert_eq!(format_utc(seconds), text);
        }
    }

    #[test]
    fn processor_time_is_read_as_the_manual_says() {
        // Columns of proc_stat(5): user nice system idle iowait irq softirq steal guest guest_nice.
        let stat = "cpu  10 20 30 4000 500 1 2 3 9 9\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(busy_ticks(stat), Some(10 + 20 + 30 + 1 + 2 + 3));
        assert_eq!(busy_ticks("cpu 1 2\n"), None);
        // Fields of proc_pid_stat(5): utime is the 14th, stime the 15th.
        let process = "77 (a ) b) S 4 5 6 7 8 9 10 11 12 13 1400 15 16 17\n";
        assert_eq!(process_ticks(process), Some(1400 + 15));
        assert_eq!(process_ticks("77 (a"), None);
        #[cfg(target_os = "linux")]
        assert!(LoadSampler::start().load().is_some_and(|load| load.busy_elsewhere >= 0.0));
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
