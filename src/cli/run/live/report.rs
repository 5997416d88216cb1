//! What came of a live run, for people.

use portcullis::io::live::Loss;
use portcullis::packet::Action;
use portcullis::pipeline::live::{Latency, RunSummary};

use crate::cli::out;

/// One line of JSON, its end included.
pub fn json(run: &RunSummary) -> String {
    serde_json::to_string(run).expect("numbers and texts, with texts for keys") + "\n"
}

/// A small table. `device` is the device in words, `more` what else there is to say.
pub fn table(run: &RunSummary, device: &str, more: &[(&str, String)]) -> String {
    let sum = &run.numbers.sum;
    let share = |count: u64| match sum.packets {
        0 => String::new(),
        packets => format!("{:.1} %", count as f64 / packets as f64 * 100.0),
    };
    let row = |name: &str, value: String, remark: String| vec![name.to_owned(), value, remark];
    let mut rows = vec![
        row("packets", out::grouped(sum.packets), format!("{:.2} Mpps", sum.mpps)),
        row("bytes", out::grouped(sum.bytes), String::new()),
        row("dropped by the kernel", out::grouped(sum.dropped_by_kernel), String::new()),
    ];
    for action in Action::ALL {
        let count = sum.verdicts(action);
        rows.push(row(action.name(), out::grouped(count), share(count)));
    }
    let losses = Loss::ALL.into_iter().filter(|loss| sum.lost(*loss) > 0);
    rows.extend(losses.map(|loss| row("lost", out::grouped(sum.lost(loss)), loss.text().into())));
    let rare = [
        ("not received", sum.refused, "too long, or made no sense"),
        ("checksums completed", sum.checksums_completed, ""),
        ("put together", sum.put_together, ""),
        ("judged by the CPU", sum.judged_by_cpu, "the device had all the batches that it takes"),
    ];
    for (name, count, remark) in rare {
        if count > 0 {
            rows.push(row(name, out::grouped(count), remark.into()));
        }
    }
    rows.push(row("batches", out::grouped(sum.batches), format!("{:.1} packets each", sum.batch_mean)));
    let Latency { p50, p99, p99_9, max } = sum.latency_us;
    let latency = format!("p50 {p50:.1}, p99 {p99:.1}, p99.9 {p99_9:.1}, max {max:.1} µs");
    rows.push(row("latency", String::new(), latency));
    rows.push(row("time", format!("{:.3} s", sum.elapsed_s), String::new()));
    let (filter, id) = (out::printable(&run.filter), &run.device);
    let more: String = more.iter().map(|(name, text)| format!("{name}: {text}\n")).collect();
    format!("{filter}, on {id} ({device})\n{}{more}", out::table(rows, &[1]))
}
