//! Splits a capture by verdict: `cargo run --example capture [CAPTURE]`.
//!
//! Reading, filtering and writing overlap, in bounded memory. Without an argument the packets are
//! synthetic.

use std::ffi::OsString;

use portcullis::{Device, Error, Filter, Pipeline};

/// Synthetic packets, read where no capture is named.
pub(crate) const SYNTHETIC: &str = "synth:packets=100000,size=64..300";

fn main() -> Result<(), Error> {
    split(std::env::args_os().nth(1).unwrap_or(SYNTHETIC.into()))
}

/// Writes the packets that pass to a capture in the folder for temporary files.
pub(crate) fn split(source: OsString) -> Result<(), Error> {
    let passed = std::env::temp_dir().join(format!("passed-{}.pcap", std::process::id()));

    let mut run = Filter::stock("port_filter")?.load(&Device::auto()?)?;
    let totals = Pipeline::new(source).with_pass(&passed).run(&mut run)?;

    println!("{} packets, {} bytes, in {:.3} s", totals.packets, totals.bytes, totals.elapsed.as_secs_f64());
    println!("those that pass are in {}", passed.display());
    Ok(())
}
