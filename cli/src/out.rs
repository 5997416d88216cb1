//! Standard output and standard error: results, messages and the formatting of numbers and tables.

use std::fmt;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::Path;

use codespan_reporting::term::termcolor::{ColorChoice, StandardStream};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use portcullis::packet_io::create_error_reason;
use portcullis::reason;

use super::failure::{self, CLOSED_PIPE, FAILED, Failure, USAGE};
use super::startup;

/// Prints a result on standard output. `text` includes its line ends.
///
/// # Errors
/// Standard output cannot be written.
pub fn print(text: impl AsRef<[u8]>) -> Result<(), Failure> {
    check_stdout()?;
    let mut out = io::stdout().lock();
    out.write_all(text.as_ref()).and_then(|()| out.flush()).map_err(|error| stdout_failed(&error))
}

/// Writes a report to a file as JSON and to standard output as text. With `-` as the file, JSON
/// goes to standard output and the text to standard error; without a file only the text is printed.
///
/// # Errors
/// The file or standard output cannot be written.
pub fn write_report(file: Option<&Path>, json: String, text: String) -> Result<(), Failure> {
    match file {
        Some(file) if file == Path::new("-") => {
            note(text.trim_end());
            print(json)
        }
        // The file first, so that it is complete even if the reader of the table is gone.
        file => {
            if let Some(file) = file {
                std::fs::write(file, json).map_err(|error| {
                    let reason = create_error_reason(file, &error);
                    Failure::Error(format!("{}: cannot be written: {reason}", file.display()))
                })?;
            }
            print(text)
        }
    }
}

/// Checks that the program was started with standard output open.
///
/// # Errors
/// [`Failure::Error`]: what would be written is lost.
pub fn check_stdout() -> Result<(), Failure> {
    if !startup::stdout_was_closed() {
        return Ok(());
    }
    // EBADF, which has the same number on every Unix.
    let error = io::Error::from_raw_os_error(9);
    Err(Failure::Error(format!("standard output is closed: {error}; redirect it to a file, a pipe or /dev/null")))
}

/// Converts a write error of standard output. A closed pipe ends the program silently.
pub fn stdout_failed(error: &io::Error) -> Failure {
    match error.kind() {
        ErrorKind::BrokenPipe => Failure::ClosedPipe,
        _ => Failure::Error(format!("standard output: {}", reason(error))),
    }
}

/// Prints a line on standard error. A write error is ignored.
pub fn line(text: &str) {
    raw(format_args!("{text}\n"));
}

/// Prints a notice: a line on standard error, or a log event if logging is on.
pub fn note(text: &str) {
    #[cfg(all(target_os = "linux", feature = "live"))]
    if live::is_logging() {
        return tracing::info!(target: "portcullis", "{text}");
    }
    line(text);
}

/// Prints an error on standard error, or as a log event if logging is on.
pub fn error(text: &str) {
    #[cfg(all(target_os = "linux", feature = "live"))]
    if live::is_logging() {
        return tracing::error!(target: "portcullis", "{}", printable(text));
    }
    line(&format!("error: {}", printable(text)));
}

/// Reports why a command failed on standard error. Returns the exit code.
pub fn report_failure(failure: Failure) -> u8 {
    match failure {
        Failure::Error(text) => {
            error(&text);
            FAILED
        }
        Failure::Filter(diagnostics) => {
            // If standard error cannot be written, the exit code still reports the failure.
            let _ = diagnostics.emit(&mut StandardStream::stderr(color(&io::stderr())));
            failure::code(&diagnostics)
        }
        Failure::Usage(text) => {
            error(&text);
            USAGE
        }
        Failure::Silent(code) => code,
        Failure::ClosedPipe => CLOSED_PIPE,
    }
}

/// Prints a warning on standard error, or as a log event if logging is on.
pub fn warn(text: &str) {
    #[cfg(all(target_os = "linux", feature = "live"))]
    if live::is_logging() {
        return tracing::warn!(target: "portcullis", "{}", printable(text));
    }
    line(&format!("warning: {}", printable(text)));
}

/// Prints whole lines on standard error, above a progress bar or table that is redrawn there.
fn raw(text: fmt::Arguments<'_>) {
    let write = || {
        let _ = io::stderr().lock().write_fmt(text);
    };
    #[cfg(all(target_os = "linux", feature = "live"))]
    if let Some(bar) = live::redrawn() {
        return bar.suspend(write);
    }
    write();
}

/// Output during live runs.
#[cfg(all(target_os = "linux", feature = "live"))]
pub mod live {
    use std::io;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;
    use std::sync::{Mutex, PoisonError};
    use std::time::Duration;

    use indicatif::ProgressBar;

    /// Set once messages go to the log.
    static LOGS: AtomicBool = AtomicBool::new(false);

    /// The table that is redrawn at the end of standard error.
    static REDRAWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

    /// Sends notices, warnings and errors to the log from now on.
    pub fn log() {
        LOGS.store(true, Ordering::Relaxed);
    }

    /// Whether messages go to the log.
    pub fn is_logging() -> bool {
        LOGS.load(Ordering::Relaxed)
    }

    /// Sets the table that messages are printed above.
    pub fn redraw(bar: Option<ProgressBar>) {
        *REDRAWN.lock().unwrap_or_else(PoisonError::into_inner) = bar;
    }

    /// Clears the table before the program exits immediately. Gives up after 100 ms, because
    /// standard error may be a pipe that its reader does not empty.
    pub fn clear_table() {
        let (done, cleared) = channel::<()>();
        std::thread::spawn(move || {
            if let Some(bar) = redrawn() {
                bar.finish_and_clear();
            }
            drop(done);
        });
        let _ = cleared.recv_timeout(Duration::from_millis(100));
    }

    pub(super) fn redrawn() -> Option<ProgressBar> {
        REDRAWN.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Lines and columns of the terminal that standard error is; 24 and 80 if they are unknown.
    pub fn terminal_size() -> (usize, usize) {
        let size = rustix::termios::tcgetwinsize(io::stderr()).ok();
        let known = size.filter(|size| size.ws_row > 0 && size.ws_col > 0);
        known.map_or((24, 80), |size| (size.ws_row.into(), size.ws_col.into()))
    }

    /// Writer of the log: each write consists of whole lines for standard error.
    pub struct LogWriter;

    impl io::Write for LogWriter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            super::raw(format_args!("{}", String::from_utf8_lossy(bytes)));
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
}

/// Replaces control characters, which a terminal would interpret: names of files and interfaces
/// come from outside.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}

/// Whether to colour a stream: on a terminal, unless `NO_COLOR` is set (<https://no-color.org>).
pub fn color(stream: &impl IsTerminal) -> ColorChoice {
    let wanted = stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    if wanted { ColorChoice::Auto } else { ColorChoice::Never }
}

/// Formats a table without borders. The columns in `right` are right-aligned.
pub fn table(rows: Vec<Vec<String>>, right: &[usize]) -> String {
    arrange_table(Table::new(), rows, right)
}

/// A table whose cells are wrapped between words, as wide as the terminal or else 80 columns.
pub fn wrapped_table(rows: Vec<Vec<String>>, right: &[usize]) -> String {
    let mut table = Table::new();
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(terminal_width());
    arrange_table(table, rows, right)
}

/// Width of standard output in columns: the terminal's up to 100, else 80.
fn terminal_width() -> u16 {
    terminal_size::terminal_size_of(io::stdout()).map_or(80, |(width, _)| width.0.clamp(40, 100))
}

/// Lays out rows as text without borders; the columns in `right` are right-aligned.
fn arrange_table(mut table: Table, rows: Vec<Vec<String>>, right: &[usize]) -> String {
    table.load_style(presets::NOTHING);
    table.add_rows(rows);
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if right.contains(&i) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.to_string().lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// Formats a count with its digits in groups of three.
pub fn grouped(n: u64) -> String {
    portcullis_bench::number::separated(n, ' ')
}

/// Formats a rate per second with three digits and an SI prefix: `417 pps`, `7.28 kpps`, `1.25
/// Gb/s`.
pub fn rate(a_second: f64, unit: &str) -> String {
    let (number, prefix) = scaled(a_second);
    format!("{number} {prefix}{unit}")
}

/// Formats a rate as a table cell of fixed width, so that units line up.
#[cfg(all(target_os = "linux", feature = "live"))]
pub fn rate_cell(a_second: f64, unit: &str) -> String {
    let (number, prefix) = scaled(a_second);
    let width = unit.len() + 1;
    format!("{number:>4} {:>width$}", format!("{prefix}{unit}"))
}

/// Scales a number to three digits. Returns it with the SI prefix.
fn scaled(mut number: f64) -> (String, &'static str) {
    let mut prefixes = ["", "k", "M", "G", "T"].into_iter().peekable();
    let mut prefix = prefixes.next().unwrap_or_default();
    // From 999.5 on, rounding would give four digits.
    while number >= 999.5 && prefixes.peek().is_some() {
        number /= 1e3;
        prefix = prefixes.next().unwrap_or_default();
    }
    let text = match number {
        0.0 => "0".to_owned(),
        ..9.995 => format!("{number:.2}"),
        ..99.95 => format!("{number:.1}"),
        _ => format!("{number:.0}"),
    };
    (text, prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_three_digits_and_a_unit_that_fits() {
        for (a_second, text) in [
            (0.0, "0 pps"),
            (0.25, "0.25 pps"),
            (9.994, "9.99 pps"),
            (9.996, "10.0 pps"),
            (99.96, "100 pps"),
            (417.0, "417 pps"),
            (999.4, "999 pps"),
            (999.6, "1.00 kpps"),
            (7_280.0, "7.28 kpps"),
            (72_840.0, "72.8 kpps"),
            (999_600.0, "1.00 Mpps"),
            (14_880_952.0, "14.9 Mpps"),
            (1e9, "1.00 Gpps"),
            (2.5e15, "2500 Tpps"),
        ] {
            assert_eq!(rate(a_second, "pps"), text);
        }
    }

    #[cfg(all(target_os = "linux", feature = "live"))]
    #[test]
    fn rates_are_equally_wide_in_a_column() {
        assert_eq!(rate_cell(0.0, "pps"), "   0  pps");
        assert_eq!(rate_cell(7_280.0, "pps"), "7.28 kpps");
        for number in [0.0, 0.25, 5.0, 50.0, 500.0, 5e3, 5e4, 999_499.0, 5e5, 5e6, 5e10, 5e14] {
            assert_eq!(rate_cell(number, "b/s").len(), "9.99 Mb/s".len(), "{number}");
        }
    }

    #[test]
    fn digits_come_in_groups_of_three() {
        for (n, text) in [(0, "0"), (999, "999"), (1000, "1 000"), (1234567, "1 234 567")] {
            assert_eq!(grouped(n), text);
        }
        assert_eq!(grouped(u64::MAX), "18 446 744 073 709 551 615");
    }

    #[test]
    fn tables_have_no_blanks_at_the_end_of_lines() {
        let text = table(vec![vec!["a".into(), "1".into()], vec!["long".into(), "1000".into()]], &[1]);
        assert_eq!(text, "a        1\nlong  1000\n");
    }
}
