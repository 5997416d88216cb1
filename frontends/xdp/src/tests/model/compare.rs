//! Comparison of a compiled program, run by the reference interpreter for filters, with the model,
//! packet by packet.

use std::sync::Arc;

use super::reference::{Ending, Machine};
use super::xdp;
use super::{Code, MapSpec};
use portcullis_core::device::{Device, LoadOptions};
use portcullis_core::interp::InterpDevice;
use portcullis_core::map::Table;
use portcullis_core::packet::{Batch, Verdict};
use portcullis_core::program::{Program, ProgramOptions};

/// Upper bound on instructions per packet in the model; low enough that a filter never runs out of
/// fuel within it.
pub const STEPS: u32 = 30_000;

/// Outcome of a comparison without a difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Comparison {
    /// The front end rejects the program for this reason.
    Refused(String),
    /// Both agree on so many packets; if there is a reason, the model cannot tell what the next one
    /// does.
    Same(usize, Option<&'static str>),
}

/// A difference between the front end and the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Description.
    pub what: String,
    /// First byte of the packet that differs.
    pub at: Option<usize>,
}

impl From<String> for Difference {
    fn from(what: String) -> Difference {
        Difference { what, at: None }
    }
}

/// Compiles a program.
///
/// # Errors
///
/// The rendered rejection.
pub fn compile(code: &Code) -> Result<Arc<Program>, String> {
    let program = xdp::compile_object(&code.object(), None, &ProgramOptions::default());
    program.map(Arc::new).map_err(|errors| errors.render())
}

/// Entries of a map in the model's form, by index in the object; `None` if the program does not use
/// the map.
pub fn entries(
    program: &Program,
    number: usize,
    of: MapSpec,
    words: impl FnOnce(usize) -> Vec<u32>,
) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
    let origin = xdp::ObjectInfo::of(program).expect("it is of an object");
    let name = format!("map{number}");
    let ours = origin.maps.iter().position(|map| map.as_ref().is_some_and(|map| map.name == name))?;
    let map = &program.maps()[ours];
    let table = Table::new(map, words(ours));
    let bytes = |words: &[u32], length: u32| {
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate(length as usize);
        bytes
    };
    let rows = table.rows().into_iter().map(|row| (bytes(&row.key, of.key), bytes(&row.value, of.value)));
    let mut rows: Vec<_> = rows.collect();
    rows.sort();
    Some(rows)
}

/// Compares a program with the model over a sequence of packets.
///
/// # Errors
///
/// The first difference.
pub fn compare(code: &Code, packets: &[Vec<u8>]) -> Result<Comparison, Difference> {
    let program = match compile(code) {
        Ok(program) => program,
        Err(why) if why.contains("itself failed") => return Err(why.into()),
        Err(why) => return Ok(Comparison::Refused(why)),
    };
    let differs = |what: String| Err(what.into());
    let mut session = InterpDevice::new().load(&program, &LoadOptions::default()).map_err(|error| error.to_string())?;
    let mut machine = Machine::new(code);
    for (number, packet) in packets.iter().enumerate() {
        let (ending, after) = machine.run(packet, 0, STEPS);
        let want = match ending {
            Ending::Exit(value) => verdict(value, machine.target),
            Ending::Outside => Some(0),
            Ending::Undefined(what) => return Ok(Comparison::Same(number, Some(what))),
            Ending::Endless => return Ok(Comparison::Same(number, Some("more steps than there is fuel for"))),
            Ending::Unknown => return differs(format!("what there is not is taken, packet {packet:02x?}")),
        };
        let batch = Batch::from_packets(&[packet.as_slice()]).map_err(|error| error.to_string())?;
        let done = session.run(batch).map_err(|error| error.to_string())?;
        let got = (done.verdicts.get(0), done.batch.packet(0));
        let Some(want) = want else { return Ok(Comparison::Same(number, Some("a redirect to nowhere"))) };
        // The content of an aborted packet does not matter.
        if ending == Ending::Outside {
            if got.0 != Verdict::Aborted {
                return differs(format!("packet {number}, {packet:02x?}: {:?}, and it should be aborted", got.0));
            }
            return Ok(Comparison::Same(number + 1, Some("a packet is aborted")));
        }
        if (got.0.to_return() & 0xff, got.1) != (want, after.as_slice()) {
            let at = got.1.iter().zip(&after).position(|(got, want)| got != want);
            let from = |bytes: &[u8]| bytes[at.unwrap_or(0)..].iter().take(64).copied().collect::<Vec<u8>>();
            let what = format!(
                "packet {number}, {:02x?}:\n  {:?}, {} bytes, from {at:?} {:02x?}\n  and it should be {want}, {} bytes, {:02x?}",
                &packet[..packet.len().min(64)],
                got.0,
                got.1.len(),
                from(got.1),
                after.len(),
                from(&after)
            );
            return Err(Difference { what, at });
        }
    }
    for (number, &map) in code.maps.iter().enumerate() {
        let words = |ours| session.map_words(ours).unwrap_or_default();
        let Some(got) = entries(&program, number, map, words) else { continue };
        let want = machine.entries(number);
        if got != want {
            return differs(format!("map {number}:\n  {got:02x?}\n  and it should have\n  {want:02x?}"));
        }
    }
    Ok(Comparison::Same(packets.len(), None))
}

/// The verdict for a program's return value; `None` for a redirect without a valid target.
pub fn verdict(returned: u64, target: Option<u64>) -> Option<u32> {
    match returned as u32 {
        4 => target.filter(|target| *target < 1 << 24).map(|_| 4),
        it @ 0..4 => Some(it),
        _ => Some(0),
    }
}
