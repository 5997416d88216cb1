//! The stock filters with maps, each with a model of its verdicts, packets and final map contents.
//! The models are written in plain Rust from the filters' descriptions and the specifications that
//! those name.
//!
//! A run consists of phases: the host writes map entries, then packets are filtered. On every
//! device and with every division into batches, verdicts, packets and maps must equal the model's.

pub mod blacklist;
pub mod conntrack_fw;
pub mod ecpri_reorder;
pub mod flow_stats;
pub mod gtpu_decap;
pub mod lpm;
pub mod maglev_lb;
pub mod policer;
pub mod router;
pub mod syn_flood;
pub mod token_bucket;

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroUsize;
use std::sync::Arc;

use portcullis_conformance::layout::GuardedArena;
use portcullis_core::device::{Device, DeviceError, DeviceKind, Dispatch, LoadOptions, Session};
use portcullis_core::map::layout::Layout;
use portcullis_core::map::{MapKind, Row, Table, rows};
use portcullis_core::packet::ResizeRoom;
use portcullis_core::program::{Program, ProgramOptions};

use crate::models::{self, Outcome, outcomes};
use crate::traffic::Packet;
use crate::{stock, texts};

/// Contents of a filter's maps, by map name.
pub type Maps = BTreeMap<String, BTreeMap<Vec<u32>, Vec<u32>>>;

/// Reference model of a stock filter.
pub trait Model {
    /// Filters a packet.
    fn filter(&mut self, packet: &Packet) -> Outcome;

    /// Sets a map entry, as the host does.
    fn set(&mut self, map: &str, _key: &[u32], _value: &[u32]) {
        panic!("the host sets nothing, and not {map}");
    }

    /// Returns the maps' contents, without indexed entries whose words are all zero.
    fn maps(&self) -> Maps;
}

/// Entries that the host writes: a map's name, a key and a value.
pub type Writes = Vec<(&'static str, Vec<u32>, Vec<u32>)>;

/// One phase of a run: the host's map writes, and the packets that follow.
#[derive(Debug, Clone)]
pub struct Phase {
    /// Map writes before the packets.
    pub writes: Writes,
    /// Packets to filter.
    pub packets: Vec<Packet>,
}

/// Results of a run.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcomes {
    /// Each packet's outcome.
    pub packets: Vec<Outcome>,
    /// Final contents of the maps.
    pub maps: Maps,
}

/// Runs a model through the phases and returns its results.
pub fn expected(model: &mut dyn Model, phases: &[Phase]) -> Outcomes {
    let mut packets = Vec::new();
    for phase in phases {
        phase.writes.iter().for_each(|(map, key, value)| model.set(map, key, value));
        packets.extend(phase.packets.iter().map(|packet| model.filter(packet)));
    }
    Outcomes { packets, maps: model.maps() }
}

/// Compiles a stock filter in both languages. Parameters have their WGSL names, which are written
/// in capitals in OpenCL C.
pub fn programs(name: &str, parameters: &[(&str, &str)]) -> Vec<Arc<Program>> {
    let find = |texts: &'static [(&'static str, &'static str)]| {
        texts.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("no filter {name}")).1
    };
    let options = |capital: bool| {
        let named = |name: &str| if capital { name.to_uppercase() } else { name.to_owned() };
        let parameters = parameters.iter().map(|(name, value)| (named(name), (*value).to_owned())).collect();
        ProgramOptions::default().with_parameters(parameters)
    };
    let in_wgsl = with_small_tables(find(stock::STATEFUL_WGSL));
    let in_c = with_small_tables(find(stock::STATEFUL_OPENCL_C));
    vec![
        texts::in_wgsl_with(&format!("{name}.wgsl"), &in_wgsl, &options(false)),
        texts::in_opencl_c_with(&format!("{name}.cl"), &in_c, &options(true)),
    ]
}

/// Shrinks the prefix tables in a filter's source: each run clears and reads all of them.
fn with_small_tables(text: &str) -> String {
    let line = |line: &str| match line.split_once("entries=") {
        Some((map, _)) if map.starts_with("//! map ") && map.contains(": lpm ") => format!("{map}entries=3000\n"),
        _ => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

/// Batch size that puts all packets into one batch.
const ALL: usize = usize::MAX;

/// Returns the thread counts to test on a kind of device, each with batch sizes in packets. The
/// sizes are odd, so that groups of packets end anywhere.
fn configurations(kind: DeviceKind) -> &'static [(usize, &'static [usize])] {
    match kind {
        DeviceKind::Cpu => &[(1, &[61, ALL]), (2, &[1009]), (5, &[61, ALL])],
        // The reference device is sequential anyway.
        DeviceKind::Reference => &[(1, &[1009])],
        _ => &[(1, &[61, 1009, ALL])],
    }
}

/// Runs the filter on `device` in every configuration, none of which may affect the results.
///
/// # Panics
/// At the first difference, with its details.
pub fn check(device: &Arc<dyn Device>, program: &Arc<Program>, phases: &[Phase], want: &Outcomes) {
    let info = device.info();
    for (threads, sizes) in configurations(info.kind) {
        let options = LoadOptions::default().with_threads(NonZeroUsize::new(*threads));
        let name = format!("{} on {}, {threads} threads", program.source().name, info.id);
        let mut session = match device.load(program, &options) {
            // Dispatch methods that filter packets in parallel may reject a filter, with a reason.
            Err(DeviceError::Unsupported { reason, .. })
                if program.has_flows() && reason.contains("take `pipelined`") =>
            {
                assert_ne!(info.dispatch.first(), Some(&Dispatch::Pipelined), "{name}");
                return;
            }
            loaded => loaded.unwrap_or_else(|error| panic!("{name}: {error}")),
        };
        for size in *sizes {
            let what = format!("{name}, batches of {size}");
            clear(&mut *session, program);
            let got = run(&mut *session, program, phases, *size);
            compare(&what, phases, &got, want);
        }
    }
}

/// Resets all maps to their initial contents.
fn clear(session: &mut dyn Session, program: &Program) {
    for (number, map) in program.maps().iter().enumerate() {
        session.set_map_words(number, 0, &vec![0; Layout::of(map).words()]).unwrap();
    }
}

fn run(session: &mut dyn Session, program: &Program, phases: &[Phase], size: usize) -> Outcomes {
    let mut packets = Vec::new();
    for phase in phases {
        for (number, map) in program.maps().iter().enumerate() {
            let mut writes = phase.writes.iter().filter(|(name, ..)| *name == map.name).peekable();
            if writes.peek().is_none() {
                continue;
            }
            let mut table = Table::new(map, session.map_words(number).unwrap());
            writes.for_each(|(_, key, value)| table.set(key, value).unwrap());
            let (at, words) = table.changes();
            session.set_map_words(number, at, words).unwrap();
        }
        let (batches, guarded) =
            GuardedArena::lay_out(&phase.packets, size.min(phase.packets.len()), ResizeRoom::Both).unwrap();
        let mut batches = VecDeque::from(batches);
        loop {
            while session.in_flight() < session.depth() {
                let Some(batch) = batches.pop_front() else { break };
                session.submit(batch).unwrap_or_else(|refused| panic!("{refused}"));
            }
            let Some(done) = session.complete().unwrap_or_else(|error| panic!("{error}")) else { break };
            packets.extend(outcomes(&done));
        }
        assert_eq!(guarded.stray_write(), None, "a byte that belongs to no packet was written to");
    }
    let maps = program.maps().iter().enumerate().map(|(number, map)| {
        let rows = rows(map, &session.map_words(number).unwrap()).into_iter();
        let by_number = matches!(map.kind, MapKind::Array | MapKind::Counter);
        let is_present = |row: &Row| !by_number || row.value.iter().any(|word| *word != 0);
        (map.name.clone(), rows.filter(is_present).map(|row| (row.key, row.value)).collect())
    });
    Outcomes { packets, maps: maps.collect() }
}

fn compare(what: &str, phases: &[Phase], got: &Outcomes, want: &Outcomes) {
    let packets: Vec<&Packet> = phases.iter().flat_map(|phase| &phase.packets).collect();
    models::compare(what, &packets, &got.packets, &want.packets);
    for (name, want) in &want.maps {
        let got = &got.maps[name];
        for (key, value) in want {
            assert_eq!(got.get(key), Some(value), "{what}: {name} {key:08x?}");
        }
        let more = got.iter().find(|(key, _)| !want.contains_key(*key));
        assert_eq!(more, None, "{what}: {name} has other entries");
    }
}
