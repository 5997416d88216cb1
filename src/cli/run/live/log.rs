//! The log of a live run, on standard error.
//!
//! What the program itself has to say is said in plain lines, and the library's events are shown beside them from warnings on. With
//! `--log` all of it is one log, a line each, for those who read logs.

use std::fmt;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

use super::LiveArgs;
use crate::cli::failure::Failure;
use crate::cli::out::live::{self, LogWriter};

/// What is shown, where `--log-level` does not say.
const VARIABLE: &str = "PORTCULLIS_LOG";

/// Shows events from now on.
pub fn start(args: &LiveArgs) -> Result<(), Failure> {
    let from_variable =
        || std::env::var(VARIABLE).ok().filter(|level| !level.is_empty()).map(|level| (VARIABLE, level));
    let level = args.log_level.clone().map(|level| ("--log-level", level)).or_else(from_variable);
    // Whoever says how much is shown wants a log.
    let format = args.log.as_deref().or(level.as_ref().map(|_| "text"));
    let targets = match level {
        Some((from, level)) => level.parse().map_err(|_| {
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

/// As this program's other warnings are.
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
