//! The sample capture, `samples/mixed.pcap`.

use std::path::Path;

use portcullis_core::packet::ResizeRoom;

use super::{Kind, Mix, Size, Spec, SynthSource};
use crate::capture::CaptureSink;
use crate::sink::{Sink, Written};
use crate::source::{CaptureFormat, Interface, Resolution, Source, SourceOptions};

/// The specification of the sample: every kind of packet, about a quarter TCP to port 80 or 443.
pub fn sample() -> Spec {
    let mix: Vec<(Kind, u32)> = Kind::ALL
        .iter()
        .map(|&(kind, _, weight)| match kind {
            // More TCP than in the default mix, so that http_only passes some packets.
            Kind::Tcp4 => (kind, 70),
            Kind::Tcp6 => (kind, 20),
            _ => (kind, weight),
        })
        .collect();
    Spec {
        packets: 4000,
        seed: 2024,
        size: Size::Range(64, 300),
        flows: 500,
        mix: Mix::new(&mix).expect("weights above 0"),
    }
}

/// Writes the packets of `spec` to the capture file `path`, with timestamps in microseconds, which
/// every reader supports.
///
/// # Errors
/// Errors of the source and the sink.
pub fn write(spec: &Spec, path: &Path) -> Result<Written, Box<dyn std::error::Error + Send + Sync>> {
    let options = SourceOptions { room: ResizeRoom::None, metadata: true, ..SourceOptions::default() };
    let mut source = SynthSource::new(spec, &options);
    let format = CaptureFormat {
        resolution: Resolution::Micro,
        interfaces: vec![Interface::default()],
        ..source.format().clone()
    };
    let mut sink = Box::new(CaptureSink::create(path, &format)?);
    while let Some(batch) = source.next_batch()? {
        let all: Vec<u32> = (0..batch.len() as u32).collect();
        sink.write(&batch, &all)?;
    }
    Ok(sink.finish()?)
}
