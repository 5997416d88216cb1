//! `portcullis run`

mod dump;
mod events;
pub mod interrupt;
mod kernel_routes;
pub mod live;
pub mod maps;
#[cfg(target_os = "linux")]
mod pin;
mod places;
mod progress;
pub mod replace;
mod report;
mod rows;
mod state;
#[cfg(all(target_os = "linux", feature = "live"))]
mod takeover;
pub mod traps;
mod watch;

use std::io::{IsTerminal, stdin, stdout};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Instant;

use clap::ArgGroup;
use clap::builder::{NonEmptyStringValueParser, TypedValueParser};
use portcullis::auto::{EXPECTED, Settings};
use portcullis::device::{DeviceError, DeviceKind, Dispatch, LoadOptions, Session, Transfer};
use portcullis::devices::Selector;
use portcullis::io::wrap::Limit;
use portcullis::io::{self, RedirectSink, Sink, SinkError, Source, SourceOptions};
use portcullis::pipeline::{self, Broadcasts, Event, Observer, Outputs, PipelineError};
use portcullis::program::Program;

use super::chosen::Chosen;
use super::failure::{Failure, INTERRUPTED, WRONG};
use super::filter::FilterArgs;
use super::{explain, out};
use interrupt::Interrupt;
use live::LiveArgs;
pub use live::duration;
#[cfg(not(all(target_os = "linux", feature = "af-xdp")))]
pub use live::missing;
use maps::{MapArgs, Maps, Told};
use progress::Progress;

/// Run a filter over a capture, or on live packets
///
/// Packets are read from a capture (pcap or pcapng, Ethernet), judged by the filter, and written by
/// their verdicts where an output is given: with the filter's changes, in their order, with their
/// times. A table of what came through is printed at the end; to standard error where standard
/// output takes a capture.
///
/// Live packets are those that an interface receives (`--af-xdp`, `--dpdk`), or for which the firewall asks (`--nfqueue`). Their
/// verdicts are carried out: packets go on to the kernel, back where they came from, out of another interface, or nowhere,
/// until Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(group(ArgGroup::new("source").required(true).multiple(true).args(["read", "af_xdp", "nfqueue", "dpdk"])))]
pub struct Args {
    #[command(flatten)]
    filter: FilterArgs,
    /// The capture to read; `-` is standard input, and `synth:packets=100000,seed=1,size=64..1500`
    /// makes up traffic
    #[arg(long, value_name = "FILE|synth:…", value_parser = NonEmptyStringValueParser::new(),
          conflicts_with_all = live::SOURCES)]
    read: Option<String>,
    #[command(flatten)]
    live: LiveArgs,
    /// Write the packets that pass to this capture: classic pcap in the input's time resolution, or
    /// pcapng where the name ends so; `-` is standard output
    #[arg(long, value_name = "FILE", value_parser = output(), conflicts_with_all = live::SOURCES)]
    write: Option<String>,
    /// Write the packets with verdict TX to this capture
    #[arg(long, value_name = "FILE", value_parser = output(), conflicts_with_all = live::SOURCES)]
    write_tx: Option<String>,
    /// Write redirected packets to captures in this folder, one for each target (`3.pcap`); after
    /// 1024 targets the rest goes to `other.pcap`
    #[arg(long, value_name = "DIR", value_parser = NonEmptyStringValueParser::new(), conflicts_with_all = live::SOURCES)]
    write_redirect: Option<String>,
    #[command(flatten)]
    maps: MapArgs,
    /// Where to run: auto (a real GPU and the CPU, each batch where it costs least), cpu, cuda, cuda:N, wgpu, wgpu:N,
    /// opencl, opencl:N, interp or noop
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: Selector,
    /// How batches are handed to the device: inline, pipelined, persistent, waitvalue or graph; `devices`
    /// lists which a device has, the first of them taken if this is not given
    #[arg(long, value_name = "METHOD")]
    dispatch: Option<Dispatch>,
    /// How packets get to a device that is not the processor: whole, their window (what the filter may read), imported (it
    /// reads them where they lie), or auto, by whichever way costs least
    #[arg(long, value_name = "TRANSFER", default_value = "auto", conflicts_with_all = live::SOURCES)]
    transfer: Transfer,
    /// Also tell, on standard error, by what the device was chosen, how packets got to it and why, and what that took; of live
    /// packets before the first one comes
    #[arg(long)]
    explain: bool,
    /// Packets in a batch, at most; one of a capture is also bounded in bytes. Live packets have batches that find their size
    /// if this is not given (`auto`): as many packets as the device needs to keep up with what comes, and no more
    #[arg(long, value_name = "N|auto", value_parser = batch)]
    batch: Option<BatchSize>,
    /// Threads that run the filter, on devices that run on the processor; all cores if not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Stop after this many packets
    #[arg(long, value_name = "N", conflicts_with_all = live::SOURCES)]
    limit: Option<u64>,
    /// Print the totals as one line of JSON in place of the table
    #[arg(long)]
    json: bool,
    /// Show how far it is at once, and without a terminal too; long runs on a terminal show it anyway
    #[arg(long, conflicts_with_all = live::SOURCES)]
    progress: bool,
}

/// What `--batch` takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BatchSize {
    /// As large as the device needs it, for live packets.
    Auto,
    /// So many packets, at most.
    Packets(u32),
}

fn batch(text: &str) -> Result<BatchSize, String> {
    match text.parse() {
        Ok(packets @ 1..) => Ok(BatchSize::Packets(packets)),
        _ if text == "auto" => Ok(BatchSize::Auto),
        _ => Err(format!("expected a number of packets from 1 to {}, or `auto`", u32::MAX)),
    }
}

/// Standard output by whatever name: opened as a file it would be emptied, and have the table in it.
fn output() -> impl TypedValueParser<Value = String> {
    NonEmptyStringValueParser::new().map(|text| stdout_by_any_name(&text))
}

fn stdout_by_any_name(path: &str) -> String {
    match path {
        "/dev/stdout" | "/dev/fd/1" | "/proc/self/fd/1" => "-".into(),
        _ => path.into(),
    }
}

/// Runs.
pub fn run(args: &Args) -> Result<(), Failure> {
    match &args.read {
        Some(read) => run_capture(args, read),
        None => live::run(args),
    }
}

/// Runs over a capture.
fn run_capture(args: &Args, read: &str) -> Result<(), Failure> {
    if args.filter.is_stdin() && read == "-" {
        return Err(Failure::Usage("the filter and --read cannot both be standard input".into()));
    }
    if read == "-" && stdin().is_terminal() {
        return Err(Failure::Usage("--read -: standard input is a terminal; pipe a capture into it".into()));
    }
    if args.batch == Some(BatchSize::Auto) {
        let what = "a capture does not come at a rate that a size could be found for; give a number, or nothing";
        return Err(Failure::Usage(format!("--batch auto: {what}")));
    }
    if args.captures_to_stdout() && stdout().is_terminal() {
        return Err(Failure::Usage("a capture is binary, and standard output a terminal; send it to a file".into()));
    }
    let program = Arc::new(args.filter.load()?);
    let interrupt = Interrupt::default();
    let settings = Settings { expected: args.expected(EXPECTED), ..Settings::default() };
    let chosen = Chosen::open(&args.device, settings)?;
    let device = chosen.device.clone();
    args.maps.check(&program, device.info())?;
    let options = LoadOptions {
        // Nobody asked for this very GPU, so that it need not have batches which the CPU is better at.
        one_sided: chosen.one_sided(),
        threads: args.threads.and_then(|n| NonZeroUsize::new(n.into())),
        dispatch: args.dispatch,
        transfer: args.transfer,
        clocks: args.explain,
        cancel: interrupt.give_up.clone(),
        ..LoadOptions::default()
    };
    let loaded = device.load(&program, &options);
    chosen.warn();
    let mut session = loaded?;
    if args.explain {
        out::note(chosen.explain().trim_end());
    }
    let mut maps = Maps::load(&args.maps, &program, &mut *session)?;
    let begun = Instant::now();
    let source = open_source(args, read, &program, chosen.kind())?;
    // It has read its first block by now.
    let opened = begun.elapsed();
    places::check(args)?;
    maps.open_outputs(&interrupt.stop)?;
    // The first output that is there is to be finished; the wait for a first packet was none of that.
    interrupt.listen();
    let outputs = open_outputs(args, &program, &*source)?;
    // Opening one may have waited too, for whoever reads a pipe.
    interrupt.begin();

    let mut progress = Progress::new(args.progress);
    let mut onlooker = Onlooker { progress: &mut progress, maps: &mut maps };
    let mut finished = pipeline::run(source, &mut *session, outputs, &interrupt.stop, &mut onlooker);
    progress.clear();
    finished.totals.times.read += opened;
    finished.totals.elapsed = begun.elapsed();

    // What cannot be written any more ends a run, too, and that is no interrupt.
    let stopped = finished.stopped && !maps.events_failed();
    let (saved, told) = match &finished.error {
        None | Some(PipelineError::Source(_)) => {
            let told = maps.last_events(Some(&mut *session));
            (maps.write(&mut *session), told)
        }
        // Batches may be in flight, and of what was given up nobody knows how far it has come.
        Some(_) => (Ok(()), maps.last_events(None)),
    };
    if let (true, Some(PipelineError::Device(DeviceError::Cancelled))) = (stopped, &finished.error) {
        out::warn("what was under way took too long and was given up; the packets before it are counted and written");
        if maps.writes() {
            out::warn("no map is written: nobody knows how far what was given up has changed it");
        }
    } else if let Some(error) = finished.error {
        if error.is_broken_pipe() {
            // A quiet end, but for what was to be kept.
            if maps.writes() {
                out::note("no map is written");
            }
            return Err(Failure::ClosedPipe);
        }
        out::error(&error.to_string());
        if finished.totals.packets > 0 {
            let what = match (&error, finished.totals.packets) {
                (PipelineError::Sink(_), 1) => "packet was judged, and may not be written",
                (PipelineError::Sink(_), _) => "packets were judged, and not all are written",
                (_, 1) => "packet came through before",
                _ => "packets came through before",
            };
            out::note(&format!("{} {what}", out::grouped(finished.totals.packets)));
        }
        if let Err(failure) = told {
            failure.report();
        }
        match saved {
            Err(failure) => drop(failure.report()),
            Ok(()) if !maps.writes() || matches!(error, PipelineError::Source(_)) => {}
            Ok(()) => out::note("no map is written"),
        }
        return Err(Failure::Silent(if stopped { INTERRUPTED } else { WRONG }));
    }
    if let Err(failure) = saved {
        if let Failure::Wrong(text) = &failure {
            out::error(text);
            let (packets, verb) = match finished.totals.packets {
                1 => ("packet", "was"),
                _ => ("packets", "were"),
            };
            let count = out::grouped(finished.totals.packets);
            out::note(&format!("{count} {packets} {verb} judged, and not all maps are written"));
            return Err(Failure::Silent(if stopped { INTERRUPTED } else { WRONG }));
        }
        if stopped {
            failure.report();
            return Err(Failure::Silent(INTERRUPTED));
        }
        return Err(failure);
    }
    let events = maps.events();
    let traps = if finished.totals.verdicts[portcullis::packet::Action::Aborted as usize] > 0 {
        maps.traps.read(&mut *session)?
    } else {
        Vec::new()
    };
    let run =
        report::Run { filter: args.filter.name(), device: device.info(), totals: &finished.totals, events, traps };
    let text = if args.json { run.json() } else { run.table() };
    if args.takes_stdout() {
        out::note(text.trim_end());
    } else {
        out::print(text)?;
    }
    if args.explain {
        explain::note(&[explain::transfer_of_run(&*session)]);
    }
    told?;
    if stopped {
        out::note("interrupted: the rest of the input was not read");
        return Err(Failure::Silent(INTERRUPTED));
    }
    Ok(())
}

/// Shows how far a run is, and has maps follow their files.
struct Onlooker<'a> {
    progress: &'a mut Progress,
    maps: &'a mut Maps,
}

impl Observer for Onlooker<'_> {
    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Warning(warning) => self.progress.above(|| out::warn(&warning.to_string())),
            Event::Batch { totals, progress } => self.progress.show(totals, progress),
        }
    }

    fn boundary(&mut self, session: &mut dyn Session, coming: usize) -> Result<(), DeviceError> {
        for told in self.maps.follow(session, coming)? {
            self.progress.above(|| match &told {
                Told::Warning(warning) => out::warn(warning),
                Told::Note(note) => out::note(note),
            });
        }
        Ok(())
    }
}

impl Args {
    /// Packets of a batch, about; `most` where nobody says how many.
    fn expected(&self, most: usize) -> usize {
        match self.batch {
            Some(BatchSize::Packets(packets)) => (packets as usize).min(most),
            Some(BatchSize::Auto) | None => most,
        }
    }

    /// Whether standard output is taken, so that the totals cannot go there.
    fn takes_stdout(&self) -> bool {
        self.captures_to_stdout() || self.maps.takes_stdout()
    }

    fn captures_to_stdout(&self) -> bool {
        [&self.write, &self.write_tx].iter().any(|path| path.as_deref() == Some("-"))
    }
}

fn open_source(args: &Args, read: &str, program: &Program, kind: DeviceKind) -> Result<Box<dyn Source>, Failure> {
    let writes = args.write.is_some() || args.write_tx.is_some() || args.write_redirect.is_some();
    let mut options = pipeline::source_options(program, kind, writes);
    if let Some(BatchSize::Packets(batch)) = args.batch {
        options.max_packets = options.max_packets.min(batch as usize);
        // Room for packets of 512 bytes; of longer ones a batch has fewer, so that memory is bounded.
        options.block_size =
            (batch as usize).saturating_mul(512).clamp(SourceOptions::BLOCK_SIZE, 8 * SourceOptions::BLOCK_SIZE);
    }
    let source = io::open(read, &options).map_err(|error| match error {
        io::SourceError::Spec(_) => Failure::Usage(error.to_string()),
        _ => Failure::Wrong(error.to_string()),
    })?;
    Ok(match args.limit {
        Some(packets) => Box::new(Limit::new(source, packets)),
        None => source,
    })
}

fn open_outputs(args: &Args, program: &Program, source: &dyn Source) -> Result<Outputs, SinkError> {
    let create = |path: &Option<String>| -> Result<Option<Box<dyn Sink>>, SinkError> {
        path.as_deref().map(|path| io::create(path, source.format())).transpose()
    };
    let pass = create(&args.write)?;
    let tx = create(&args.write_tx)?;
    let redirect =
        args.write_redirect.as_deref().map(|dir| RedirectSink::create(dir.as_ref(), source.format())).transpose()?;
    let mut outputs = Outputs::new(pass, tx, redirect);
    outputs.broadcasts = Broadcasts::of(program);
    Ok(outputs)
}
