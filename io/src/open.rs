//! Opening sources and creating sinks from the user's text.

use std::ffi::OsStr;
use std::io;
use std::path::Path;

use crate::capture::{self, CaptureKind, CaptureSink};
use crate::sink::{Sink, SinkError};
use crate::source::{CaptureFormat, Source, SourceError, SourceOptions};
use crate::synth::{Spec, SynthSource};

/// Opens the source named by `text`: `-` is a capture on standard input, `synth:` followed by a
/// [`Spec`] is synthetic traffic, anything else is the path of a capture file.
///
/// # Errors
/// See [`SourceError`]. A fault after the first block of a capture is reported by
/// [`Source::next_batch`].
pub fn open(input: impl AsRef<OsStr>, options: &SourceOptions) -> Result<Box<dyn Source>, SourceError> {
    let input = input.as_ref();
    match input.to_str() {
        Some("-") => capture::read("stdin", None, Box::new(io::stdin()), options),
        Some(text) if text.starts_with("synth:") => {
            let spec: Spec = text["synth:".len()..].parse()?;
            Ok(Box::new(SynthSource::new(&spec, options)))
        }
        _ => capture::open(input, options),
    }
}

/// Creates the capture file `path`, replacing an existing one: pcapng if the name ends in
/// `.pcapng`, classic pcap with the resolution of `format` otherwise. `-` is classic pcap on
/// standard output.
///
/// The file exists from now on, even if no packet is written. Check
/// [`same_file`](crate::same_file) first.
///
/// # Errors
/// See [`SinkError`].
pub fn create(path: impl AsRef<Path>, format: &CaptureFormat) -> Result<Box<dyn Sink>, SinkError> {
    let path = path.as_ref();
    if path == Path::new("-") {
        return Ok(Box::new(standard_output(format)?.live()));
    }
    Ok(Box::new(CaptureSink::create(path, format)?))
}

/// A capture on standard output, without the line buffering of [`io::stdout`].
fn standard_output(format: &CaptureFormat) -> Result<CaptureSink, SinkError> {
    let name = "stdout";
    #[cfg(unix)]
    {
        use std::os::fd::AsFd;
        let descriptor = io::stdout().as_fd().try_clone_to_owned();
        let descriptor = descriptor.map_err(|error| SinkError::Create { name: name.into(), error })?;
        CaptureSink::with_file(name, descriptor.into(), CaptureKind::Pcap, format)
    }
    #[cfg(not(unix))]
    CaptureSink::new(name, Box::new(io::stdout()), CaptureKind::Pcap, format)
}
