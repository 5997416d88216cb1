//! A capture filtered from file to files: the second level of the library's interface.
//!
//! ```
//! use portcullis::packet::Action;
//! use portcullis::{Device, Filter, Pipeline};
//!
//! # let folder = tempfile::tempdir().unwrap();
//! # let passed = folder.path().join("passed.pcap");
//! let filter = Filter::stock("port_filter")?;
//! let mut run = filter.load(&Device::open("interp")?)?;
//! // A thousand synthetic packets; `Pipeline::new("in.pcap")` reads a capture.
//! let totals = Pipeline::new("synth:packets=1000").with_pass(&passed).run(&mut run)?;
//! assert_eq!(totals.packets, 1000);
//! # Ok::<(), portcullis::Error>(())
//! ```

use std::path::PathBuf;

use portcullis_core::device::CancelToken;
use portcullis_io::wrap::Limit;
use portcullis_io::{RedirectSink, Sink, Source, create, open};

use super::{Broadcasts, Event, Observer, Outputs, Totals, source_options};
use crate::{Error, Run};

/// A capture to be filtered: where packets come from, and which captures the verdicts select.
///
/// [`run`](Pipeline::run) reads, filters and writes at the same time, in bounded memory. An output
/// file replaces an older one of its name only when it is complete.
#[derive(Debug, Clone)]
pub struct Pipeline {
    source: PathBuf,
    limit: Option<u64>,
    pass: Option<PathBuf>,
    tx: Option<PathBuf>,
    redirect: Option<PathBuf>,
    stop: CancelToken,
}

impl Pipeline {
    /// Reads packets from a pcap or pcapng file, from standard input (`-`), or from the generator
    /// (`synth:packets=1000,…`, see [`synth`](portcullis_io::synth)).
    pub fn new(source: impl Into<PathBuf>) -> Pipeline {
        let stop = CancelToken::new();
        Pipeline { source: source.into(), limit: None, pass: None, tx: None, redirect: None, stop }
    }

    /// Ends the run after this many packets.
    pub fn with_limit(self, packets: u64) -> Pipeline {
        Pipeline { limit: Some(packets), ..self }
    }

    /// Writes packets with the verdict PASS to a capture; `-` is standard output. The name's ending
    /// selects pcap or pcapng.
    pub fn with_pass(self, path: impl Into<PathBuf>) -> Pipeline {
        Pipeline { pass: Some(path.into()), ..self }
    }

    /// Writes packets with the verdict TX to a capture.
    pub fn with_tx(self, path: impl Into<PathBuf>) -> Pipeline {
        Pipeline { tx: Some(path.into()), ..self }
    }

    /// Writes redirected packets to one capture for each target, `TARGET.pcap` in a folder.
    pub fn with_redirect(self, folder: impl Into<PathBuf>) -> Pipeline {
        Pipeline { redirect: Some(folder.into()), ..self }
    }

    /// Ends the run when `stop` is cancelled: batches in flight are completed and the outputs
    /// finished.
    pub fn with_stop(self, stop: CancelToken) -> Pipeline {
        Pipeline { stop, ..self }
    }

    /// Runs the filter over all packets and returns their totals.
    ///
    /// # Errors
    /// [`Error::Pipeline`]: a file cannot be read or written, or the device failed. Packets before
    /// an error of the source are in the outputs.
    pub fn run(&self, run: &mut Run) -> Result<Totals, Error> {
        self.run_observed(run, &mut |_: Event<'_>| {})
    }

    /// Variant of [`run`](Pipeline::run) that reports warnings and progress, and gives access to
    /// the maps between batches.
    ///
    /// # Errors
    /// As [`run`](Pipeline::run).
    pub fn run_observed(&self, run: &mut Run, observer: &mut dyn Observer) -> Result<Totals, Error> {
        let writes = self.pass.is_some() || self.tx.is_some() || self.redirect.is_some();
        let options = source_options(run.program(), run.device_kind(), writes);
        let mut source = open(&self.source, &options)?;
        if let Some(packets) = self.limit {
            source = Box::new(Limit::new(source, packets));
        }
        let outputs = self.open_outputs(run, &*source)?;
        let outcome = super::run(source, run.session(), outputs, &self.stop, observer);
        match outcome.error {
            Some(error) => Err(error.into()),
            None => Ok(outcome.totals),
        }
    }

    fn open_outputs(&self, run: &Run, source: &dyn Source) -> Result<Outputs, Error> {
        let format = source.format();
        let sink = |path: &Option<PathBuf>| -> Result<Option<Box<dyn Sink>>, Error> {
            Ok(path.as_ref().map(|path| create(path, format)).transpose()?)
        };
        let (pass, tx) = (sink(&self.pass)?, sink(&self.tx)?);
        let redirect = self.redirect.as_ref().map(|folder| RedirectSink::create(folder, format)).transpose()?;
        let mut outputs = Outputs::new(pass, tx, redirect);
        outputs.broadcasts = Broadcasts::from_program(run.program());
        Ok(outputs)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{Device, Filter};

    /// Sends short packets back, redirects long ones to their length modulo 2, passes the others.
    const FILTER: &str = "fn xdp_filter(pkt: u32) -> u32 {
        if pkt_len(pkt) < 200u { return XDP_TX; }
        if pkt_len(pkt) > 1000u { return redirect(pkt_len(pkt) % 2u); }
        return XDP_PASS;
    }";

    fn load(text: &str) -> Run {
        Filter::wgsl(text).load(&Device::open("interp").unwrap()).unwrap()
    }

    /// Lengths of the packets in a capture.
    fn lengths(path: &Path) -> Vec<usize> {
        let mut source = open(path.to_str().unwrap(), &Default::default()).unwrap();
        let mut lengths = Vec::new();
        while let Some(batch) = source.next_batch().unwrap() {
            lengths.extend(batch.packets().map(<[u8]>::len));
        }
        lengths
    }

    #[test]
    fn packets_go_to_the_captures_of_their_verdicts() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        // The capture that a filter passes unchanged is the input of the second run.
        let all = load("fn xdp_filter(pkt: u32) -> u32 { return XDP_PASS; }");
        let copied =
            Pipeline::new("synth:packets=500,size=64..1400,seed=3").with_pass(path("in.pcap")).run(&mut { all });
        assert_eq!(copied.unwrap().packets, 500);
        let input = lengths(&path("in.pcap"));
        let run = |pipeline: Pipeline| pipeline.run(&mut load(FILTER)).unwrap();
        let pipeline = Pipeline::new(path("in.pcap")).with_pass(path("pass.pcapng")).with_tx(path("tx.pcap"));
        let totals = run(pipeline.clone().with_redirect(path("out")));
        assert_eq!(totals.packets, 500);
        let expected = |keep: fn(usize) -> bool| input.iter().copied().filter(|&it| keep(it)).collect::<Vec<_>>();
        assert_eq!(lengths(&path("pass.pcapng")), expected(|it| (200..=1000).contains(&it)));
        assert_eq!(lengths(&path("tx.pcap")), expected(|it| it < 200));
        assert_eq!(lengths(&path("out/0.pcap")), expected(|it| it > 1000 && it % 2 == 0));
        assert_eq!(lengths(&path("out/1.pcap")), expected(|it| it > 1000 && it % 2 == 1));
        assert_eq!(run(pipeline.with_limit(7)).packets, 7);
        assert!(lengths(&path("tx.pcap")).len() <= 7);
    }

    #[test]
    fn errors_name_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing.pcap");
        let error = Pipeline::new(&missing).run(&mut load(FILTER)).unwrap_err().to_string();
        assert!(error.contains("missing.pcap"), "{error}");
        let nowhere = folder.path().join("no/such/folder.pcap");
        let error = Pipeline::new("synth:packets=10").with_tx(nowhere).run(&mut load(FILTER)).unwrap_err().to_string();
        assert!(error.contains("folder.pcap"), "{error}");
    }

    #[test]
    fn a_cancelled_run_ends_before_its_source() {
        let stop = CancelToken::new();
        stop.cancel();
        let pipeline = Pipeline::new("synth:packets=100000000").with_stop(stop);
        assert!(pipeline.run(&mut load(FILTER)).unwrap().packets < 100_000_000);
    }
}
