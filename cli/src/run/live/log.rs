//! Log of a live run, on standard error.
//!
//! By default messages are plain lines, and the library's warnings and errors appear among them.
//! With `--log` all of it becomes one log, one event per line.

use std::fmt;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

use super::LiveArgs;
use crate::failure::Failure;
use crate::out::live::{self, LogWriter};

/// Environment variable with the log levels, used if `--log-level` is absent.
const VARIABLE: &str = "PORTCULLIS_LOG";

/// Installs the subscriber for tracing events.
pub fn start(args: &LiveArgs) -> Result<(), Failure> {
    let from_variable =
        || std::env::var(VARIABLE).ok().filter(|level| !level.is_empty()).map(|level| (VARIABLE, level));
    let level = args.log_level.clone().map(|level| ("--log-level", level)).or_else(from_variable);
    // A log level without a format implies a log.
    let format = args.log.as_deref().or(level.as_ref().map(|_| "text"));
    let targets = match level {
        Some((from, level)) => targets(&level).ok_or_else(|| {
            let want =
                "a level (error, warn, info, debug, trace, off) or levels of parts, as portcullis::pipeline=debug,warn";
            Failure::Usage(format!("{from} {level}: expected {want}"))
        })?,
        None if format.is_some() => Targets::new().with_default(Level::INFO),
        None => Targets::new().with_default(Level::WARN),
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(|| LogWriter).with_ansi(false);
    let lines: Box<dyn Layer<Registry> + Send + Sync> = match format {
        Some("json") => lines.json().flatten_event(true).with_current_span(false).boxed(),
        Some(_) => lines.boxed(),
        None => lines.event_format(Plain).boxed(),
    };
    if tracing_subscriber::registry().with(lines.with_filter(targets)).try_init().is_ok() && format.is_some() {
        live::log();
    }
    Ok(())
}

/// Parses a log filter. A single word is a level, never a module that is shown in full.
fn targets(text: &str) -> Option<Targets> {
    // `LevelFilter` accepts the empty string.
    let level = |text: &str| text.parse::<LevelFilter>().ok().filter(|_| !text.is_empty());
    let mut targets = Targets::new();
    for part in text.split(',') {
        targets = match part.trim().split_once('=') {
            Some((target, text)) => targets.with_target(target, level(text)?),
            None => targets.with_default(level(part.trim())?),
        };
    }
    Some(targets)
}

/// Formats events like the program's other warnings.
struct Plain;

impl<S, N> FormatEvent<S, N> for Plain
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut to: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let level = if *event.metadata().level() == Level::ERROR { "error" } else { "warning" };
        write!(to, "{level}: ")?;
        context.format_fields(to.by_ref(), event)?;
        writeln!(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_of_all_or_of_parts() {
        let pipeline = "portcullis::pipeline::live";
        for (text, target, level, shown) in [
            ("info", pipeline, Level::INFO, true),
            ("info", pipeline, Level::DEBUG, false),
            ("off", pipeline, Level::ERROR, false),
            ("portcullis::pipeline=debug,warn", pipeline, Level::DEBUG, true),
            ("portcullis::pipeline=debug, warn", "portcullis_io", Level::INFO, false),
            ("portcullis::pipeline=debug, warn", "portcullis_io", Level::WARN, true),
        ] {
            assert_eq!(targets(text).unwrap().would_enable(target, &level), shown, "{text}: {target}, {level}");
        }
        for text in ["", "loud", "info,", "portcullis=loud", "portcullis=", "=;="] {
            assert!(targets(text).is_none(), "{text}");
        }
    }
}
