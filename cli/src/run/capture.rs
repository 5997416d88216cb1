//! `run --read`: runs over a capture.

use std::io::{IsTerminal, stdin, stdout};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use portcullis::auto::{EXPECTED_BATCH_PACKETS, Settings};
use portcullis::device::{Device, DeviceError, DeviceKind, LoadOptions, MeasureOptions, Session};
use portcullis::packet_io::wrap::Limit;
use portcullis::packet_io::{self, RedirectSink, Sink, SinkError, Source, SourceOptions};
use portcullis::pipeline::{self, Broadcasts, Event, Observer, Outputs, PipelineError, Totals};
use portcullis::program::Program;

use super::interrupt::Interrupt;
use super::map_args::MapNotice;
use super::maps::Maps;
use super::progress::Progress;
use super::{Args, BatchSize, output_conflicts, report};
use crate::device_choice::DeviceChoice;
use crate::failure::{FAILED, Failure, INTERRUPTED};
use crate::{explain, out};

/// Runs the filter over the capture `read`.
pub fn run(args: &Args, read: &Path) -> Result<(), Failure> {
    check_arguments(args, read)?;
    let program = Arc::new(args.filter.load()?);
    let interrupt = Interrupt::default();
    let settings = Settings::default().with_expected_packets(args.expected(EXPECTED_BATCH_PACKETS));
    let choice = DeviceChoice::open(&args.device, settings)?;
    let device = choice.device.clone();
    Maps::check(&args.maps, &program, device.info())?;
    let options = LoadOptions::default()
        // Unless the user requested this GPU, it gets only the batches that the CPU does not filter
        // faster.
        .with_elephant_flow_device(choice.elephant_flow_device())
        .with_threads(args.threads.and_then(|n| NonZeroUsize::new(n.into())))
        .with_idle_spin(args.idle_spin())
        .with_dispatch(args.dispatch)
        .with_transfer(args.transfer)
        .with_measure(MeasureOptions::default().with_record_stages(args.explain))
        .with_cancel(interrupt.give_up.clone());
    let loaded = device.load(&program, &options);
    choice.warn();
    let mut session = loaded?;
    if args.explain {
        out::note(choice.explain().trim_end());
    }
    let mut maps = Maps::load(&args.maps, &program, &mut *session)?;
    let begun = Instant::now();
    let source = open_source(args, read, &program, choice.kind())?;
    // Opening the source reads its first block.
    let opened = begun.elapsed();
    output_conflicts::check(args)?;
    maps.open_outputs(&interrupt.stop)?;
    // From here on an interrupt has output files to finish. While the source waited for its first
    // packet there were none.
    interrupt.listen();
    let outputs = open_outputs(args, &program, &*source)?;
    // Opening an output waits too, if it is a pipe without a reader.
    interrupt.begin();

    let mut progress = Progress::new(args.progress);
    let mut observer = RunObserver { progress: &mut progress, maps: &mut maps };
    let mut finished = pipeline::run(source, &mut *session, outputs, &interrupt.stop, &mut observer);
    progress.clear();
    finished.totals.times.read += opened;
    finished.totals.elapsed = begun.elapsed();

    // Events that cannot be written stop the run as well, but that is no interrupt.
    let stopped = finished.stopped && !maps.events_failed();
    let (saved, events_written) = match &finished.error {
        None | Some(PipelineError::Source(_)) => {
            let events_written = maps.last_events(Some(&mut *session));
            (maps.write(&mut *session), events_written)
        }
        // Batches may be in flight, and the state of the maps after an abandoned batch is unknown.
        Some(_) => (Ok(()), maps.last_events(None)),
    };
    let end = RunEnd { stopped, packets: finished.totals.packets, writes_maps: maps.writes() };
    match finished.error {
        Some(PipelineError::Device(DeviceError::Cancelled)) if stopped => end.report_abandoned(),
        Some(error) => return Err(end.report_error(&error, saved, events_written)),
        None => saved.map_err(|failure| end.report_unsaved_maps(failure))?,
    }
    print_results(args, &*device, &mut *session, &mut maps, &finished.totals, stopped)?;
    events_written?;
    if stopped {
        out::note("interrupted: the rest of the input was not read");
        return Err(Failure::Silent(INTERRUPTED));
    }
    Ok(())
}

/// Refuses arguments that contradict each other or standard input and output.
fn check_arguments(args: &Args, read: &Path) -> Result<(), Failure> {
    let wrong = |what: &str| Err(Failure::Usage(what.into()));
    if args.filter.is_stdin() && read == Path::new("-") {
        return wrong("the filter and --read cannot both be standard input");
    }
    if read == Path::new("-") && stdin().is_terminal() {
        return wrong("--read -: standard input is a terminal; pipe a capture into it");
    }
    if args.batch == Some(BatchSize::Auto) {
        let what = "adapts to live traffic only; give a number, or leave the option out";
        return wrong(&format!("--batch auto: {what}"));
    }
    if args.captures_to_stdout() && stdout().is_terminal() {
        return wrong("standard output is a terminal, and a capture is binary; redirect it to a file");
    }
    Ok(())
}

/// How a run ended.
struct RunEnd {
    /// Set if the run was interrupted.
    stopped: bool,
    /// Packets with a verdict.
    packets: u64,
    /// Whether the run has maps to write.
    writes_maps: bool,
}

impl RunEnd {
    /// The failure after all errors have been reported.
    fn silent(&self) -> Failure {
        Failure::Silent(if self.stopped { INTERRUPTED } else { FAILED })
    }

    /// Reports that a batch in flight was abandoned.
    fn report_abandoned(&self) {
        out::warn(
            "the batches in flight took too long and were abandoned; the packets before them are counted and written",
        );
        if self.writes_maps {
            out::warn("no map is written: the abandoned batches may have changed only part of them");
        }
    }

    /// Reports an error that ended the run, and what became of its maps and of the last events.
    fn report_error(
        &self,
        error: &PipelineError,
        saved: Result<(), Failure>,
        events_written: Result<(), Failure>,
    ) -> Failure {
        if error.is_broken_pipe() {
            // Silent, except about what the user wanted to keep.
            if self.writes_maps {
                out::note("no map is written");
            }
            return Failure::ClosedPipe;
        }
        out::error(&error.to_string());
        if self.packets > 0 {
            let what = match (error, self.packets) {
                (PipelineError::Sink(_), 1) => "packet was filtered, but may not be written",
                (PipelineError::Sink(_), _) => "packets were filtered, but not all are written",
                (_, 1) => "packet was filtered before the error",
                _ => "packets were filtered before the error",
            };
            out::note(&format!("{} {what}", out::grouped(self.packets)));
        }
        if let Err(failure) = events_written {
            out::report_failure(failure);
        }
        match saved {
            Err(failure) => _ = out::report_failure(failure),
            Ok(()) if !self.writes_maps || matches!(error, PipelineError::Source(_)) => {}
            Ok(()) => out::note("no map is written"),
        }
        self.silent()
    }

    /// Reports that maps could not be written.
    fn report_unsaved_maps(&self, failure: Failure) -> Failure {
        if let Failure::Error(text) = &failure {
            out::error(text);
            let (packets, verb) = if self.packets == 1 { ("packet", "was") } else { ("packets", "were") };
            let count = out::grouped(self.packets);
            out::note(&format!("{count} {packets} {verb} filtered, but not all maps are written"));
            return self.silent();
        }
        if self.stopped {
            out::report_failure(failure);
            return self.silent();
        }
        failure
    }
}

/// Prints the results, to standard error if standard output is in use.
fn print_results(
    args: &Args,
    device: &dyn Device,
    session: &mut dyn Session,
    maps: &mut Maps,
    totals: &Totals,
    interrupted: bool,
) -> Result<(), Failure> {
    let events = maps.events();
    let aborted = totals.verdicts.aborted;
    let traps = if aborted > 0 { maps.traps.read(session)? } else { Vec::new() };
    let out_of_fuel = maps.traps.out_of_fuel(aborted, &traps);
    let (filter, device) = (args.filter.name(), device.info());
    let run = report::Run { filter, device, totals, events, traps, out_of_fuel, interrupted };
    let text = if args.json { run.json() } else { run.table() };
    if args.takes_stdout() {
        out::note(text.trim_end());
    } else {
        out::print(text)?;
    }
    if args.explain {
        explain::note(&[explain::transfer_of_run(session)]);
    }
    Ok(())
}

/// Shows progress, and updates maps that follow files.
struct RunObserver<'a> {
    progress: &'a mut Progress,
    maps: &'a mut Maps,
}

impl Observer for RunObserver<'_> {
    fn on_event(&mut self, event: Event<'_>) {
        match event {
            Event::Warning(warning) => self.progress.above(|| out::warn(&warning.to_string())),
            Event::SessionWarning(warning) => self.progress.above(|| out::warn(&warning)),
            Event::Batch { totals, progress } => self.progress.show(totals, progress),
        }
    }

    fn on_batch_boundary(&mut self, session: &mut dyn Session, packets: usize) -> Result<(), DeviceError> {
        for notice in self.maps.follow(session, packets)? {
            self.progress.above(|| match &notice {
                MapNotice::Warning(warning) => out::warn(warning),
                MapNotice::Note(note) => out::note(note),
            });
        }
        Ok(())
    }
}

fn open_source(args: &Args, read: &Path, program: &Program, kind: DeviceKind) -> Result<Box<dyn Source>, Failure> {
    let writes = args.write.is_some() || args.write_tx.is_some() || args.write_redirect.is_some();
    let mut options = pipeline::source_options(program, kind, writes);
    if let Some(BatchSize::Packets(batch)) = args.batch {
        options.max_packets = options.max_packets.min(batch as usize);
        // Sized for packets of 512 bytes. With longer packets a batch has fewer, which bounds
        // memory.
        options.block_size =
            (batch as usize).saturating_mul(512).clamp(SourceOptions::BLOCK_SIZE, 8 * SourceOptions::BLOCK_SIZE);
    }
    let source = packet_io::open(read, &options).map_err(|error| match error {
        packet_io::SourceError::Spec(_) => Failure::Usage(error.to_string()),
        _ => Failure::Error(error.to_string()),
    })?;
    Ok(match args.limit {
        Some(packets) => Box::new(Limit::new(source, packets)),
        None => source,
    })
}

fn open_outputs(args: &Args, program: &Program, source: &dyn Source) -> Result<Outputs, SinkError> {
    let create = |path: &Option<PathBuf>| -> Result<Option<Box<dyn Sink>>, SinkError> {
        path.as_deref().map(|path| packet_io::create(path, source.format())).transpose()
    };
    let pass = create(&args.write)?;
    let tx = create(&args.write_tx)?;
    let redirect = args.write_redirect.as_deref().map(|dir| RedirectSink::create(dir, source.format())).transpose()?;
    let mut outputs = Outputs::new(pass, tx, redirect);
    outputs.broadcasts = Broadcasts::from_program(program);
    Ok(outputs)
}
