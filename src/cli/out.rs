//! What goes to standard output and standard error, and the tables' looks.

use std::fmt;
use std::io::{self, ErrorKind, IsTerminal, Write};

use codespan_reporting::term::termcolor::ColorChoice;
use comfy_table::{CellAlignment, Table, presets};
use portcullis::reason;

use super::failure::Failure;

/// Writes to standard output, the end of the line included in `text` where it is wanted.
pub fn print(text: impl AsRef<[u8]>) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_ref()).and_then(|()| out.flush()).map_err(|error| stdout_failed(&error))
}

/// What an error of standard output means: a closed pipe is an end like another.
pub fn stdout_failed(error: &io::Error) -> Failure {
    match error.kind() {
        ErrorKind::BrokenPipe => Failure::ClosedPipe,
        _ => Failure::Wrong(format!("standard output: {}", reason(error))),
    }
}

/// A line on standard error. Where nobody reads it, it is lost.
pub fn line(text: &str) {
    raw(format_args!("{text}\n"));
}

/// What is worth knowing: a line on standard error, or in the log where one is wanted.
pub fn note(text: &str) {
    #[cfg(all(target_os = "linux", feature = "live"))]
    if live::logs() {
        return tracing::info!(target: "portcullis", "{text}");
    }
    line(text);
}

/// An error's line on standard error, or in the log where one is wanted.
pub fn error(text: &str) {
    #[cfg(all(target_os = "linux", feature = "live"))]
    if live::logs() {
        return tracing::error!(target: "portcullis", "{}", printable(text));
    }
    line(&format!("error: {}", printable(text)));
}

/// A warning's line on standard error, or in the log where one is wanted.
pub fn warn(text: &str) {
    #[cfg(all(target_os = "linux", feature = "live"))]
    if live::logs() {
        return tracing::warn!(target: "portcullis", "{}", printable(text));
    }
    line(&format!("warning: {}", printable(text)));
}

/// Whole lines on standard error, above what is redrawn there.
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

/// What is there during live runs.
#[cfg(all(target_os = "linux", feature = "live"))]
pub mod live {
    use std::io;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;
    use std::sync::{Mutex, PoisonError};
    use std::time::Duration;

    use indicatif::ProgressBar;

    /// Whether notes go to the log.
    static LOGS: AtomicBool = AtomicBool::new(false);

    /// What is redrawn at the end of standard error.
    static REDRAWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

    /// From now on notes, warnings and errors are events of the log.
    pub fn log() {
        LOGS.store(true, Ordering::Relaxed);
    }

    /// Whether they are.
    pub fn logs() -> bool {
        LOGS.load(Ordering::Relaxed)
    }

    /// Has all lines go above this from now on.
    pub fn redraw(bar: Option<ProgressBar>) {
        *REDRAWN.lock().unwrap_or_else(PoisonError::into_inner) = bar;
    }

    /// Takes it away before the program ends at once, unless that takes long, as where nobody reads standard error.
    pub fn leave() {
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

    /// Lines of standard error's terminal; 24, as on the first ones, where it is none.
    pub fn height() -> usize {
        rustix::termios::tcgetwinsize(io::stderr()).map_or(24, |size| size.ws_row.max(1).into())
    }

    /// Standard error, for the log: what is written at once are whole lines.
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

/// The text without what a terminal would obey: names of files and interfaces come from elsewhere.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}

/// Whether to colour a stream: on a terminal, unless `NO_COLOR` is set (<https://no-color.org>).
pub fn color(stream: &impl IsTerminal) -> ColorChoice {
    let wanted = stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    if wanted { ColorChoice::Auto } else { ColorChoice::Never }
}

/// A table without lines; columns in `right` are numbers.
pub fn table(rows: Vec<Vec<String>>, right: &[usize]) -> String {
    let mut table = Table::new();
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

/// A count with its digits in groups of three.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

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
