//! Reads symbols of an O-RAN fronthaul, as the next stage of a baseband does, when the filter
//! `ecpri_reorder` has put all of their PRBs in order: `cargo run --example fronthaul`.

use portcullis::device::LoadOptions;
use portcullis::map::layout::HEADER_WORDS;
use portcullis::packet_io::{self, Source};
use portcullis::{Device, Filter, pipeline};

/// The filter's default cell: PRBs of a symbol, words of a PRB, symbols in the buffer.
const CARRIER_PRBS: usize = 273;
const PRB_WORDS: usize = 7;
const SYMBOLS: usize = 4 * 4 * 14;

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let program = Filter::stock("ecpri_reorder")?.compile()?;
    let number = |name| program.maps().iter().position(|map| map.name == name).expect("the filter has the map");
    let (iq, symbols) = (number("iq"), number("symbols"));
    let device = Device::auto()?;
    let mut session = device.as_dyn().load(&program, &LoadOptions::default())?;

    // A batch must span less than the four slots of the buffer, as there is no window.
    let batches = pipeline::source_options(&program, device.info().kind, false).with_max_packets(500);
    let mut source = packet_io::open("synth:packets=20000,size=1500,mix=ecpri", &batches)?;

    let mut read = [0; SYMBOLS];
    let (mut complete, mut exponents) = (0_u64, [0_u64; 16]);
    while let Some(batch) = source.next_batch()? {
        session.run(batch)?;
        let header = HEADER_WORDS as usize;
        let states = session.map_words_at(symbols, header, 2 * SYMBOLS)?;
        for (symbol, state) in states.chunks(2).enumerate() {
            let (claim, filled) = (state[0], state[1]);
            if filled != claim << 16 | CARRIER_PRBS as u32 || read[symbol] == claim {
                continue;
            }
            read[symbol] = claim;
            complete += 1;
            let words = CARRIER_PRBS * PRB_WORDS;
            // A PRB's first byte has the exponent of its block floating point.
            for prb in session.map_words_at(iq, header + symbol * words, words)?.chunks(PRB_WORDS) {
                exponents[prb[0] as usize & 15] += 1;
            }
        }
    }
    println!("{complete} symbols were complete; PRBs by exponent: {exponents:?}");
    Ok(())
}
