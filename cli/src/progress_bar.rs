//! Progress bars and other text that is redrawn on standard error.

use std::io::{self, IsTerminal};

use console::Term;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};

/// How often a bar is drawn at most, per second.
const MAX_DRAWS: u8 = 20;

/// Creates a bar for `total` steps, in the form of an indicatif template. If standard error is no
/// terminal, the bar is never drawn.
pub fn new(total: Option<u64>, template: &str) -> ProgressBar {
    let target = match io::stderr().is_terminal() {
        true => ProgressDrawTarget::term_like_with_hz(Box::new(StandardError(Term::buffered_stderr())), MAX_DRAWS),
        false => ProgressDrawTarget::hidden(),
    };
    let bar = ProgressBar::with_draw_target(total, target);
    // If the template did not parse, the bar would keep its default style.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// Standard error, where each drawing leaves the cursor at the start of its last line.
///
/// indicatif pads each line to the width of the terminal and leaves the cursor after it. There the
/// terminal's echo of Ctrl-C wraps, and the bar would be cleared one line too low. A drawing and
/// the cursor's return are one write, so that no echo comes between them.
#[derive(Debug)]
struct StandardError(Term);

impl TermLike for StandardError {
    fn width(&self) -> u16 {
        self.0.width()
    }

    fn height(&self) -> u16 {
        self.0.height()
    }

    fn move_cursor_up(&self, lines: usize) -> io::Result<()> {
        self.0.move_cursor_up(lines)
    }

    fn move_cursor_down(&self, lines: usize) -> io::Result<()> {
        self.0.move_cursor_down(lines)
    }

    fn move_cursor_right(&self, columns: usize) -> io::Result<()> {
        self.0.move_cursor_right(columns)
    }

    fn move_cursor_left(&self, columns: usize) -> io::Result<()> {
        self.0.move_cursor_left(columns)
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.0.write_line(text)
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.0.write_str(text)
    }

    fn clear_line(&self) -> io::Result<()> {
        self.0.clear_line()
    }

    fn flush(&self) -> io::Result<()> {
        self.0.write_str("\r")?;
        self.0.flush()
    }
}
