//! Splits a capture by verdict: `cargo run --example capture [CAPTURE]`.
//!
//! Reading, filtering and writing overlap, in bounded memory. Without an argument the packets are
//! synthetic.

use portcullis::{Device, Error, Filter, Pipeline};

pub(crate) fn main() -> Result<(), Error> {
    let source = std::env::args_os().nth(1).unwrap_or("synth:packets=100000,size=64..300".into());
    let passed = std::env::temp_dir().join(format!("passed-{}.pcap", std::process::id()));

    let mut run = Filter::stock("port_filter")?.load(&Device::auto()?)?;
    let totals = Pipeline::new(source).with_pass(&passed).run(&mut run)?;

    println!("{} packets, {} bytes, in {:.3} s", totals.packets, totals.bytes, totals.elapsed.as_secs_f64());
    println!("those that pass are in {}", passed.display());
    Ok(())
}
