//! Results of the reference interpreter for a benchmark's packets, and comparison of a device's
//! results with them.

use portcullis_core::device::{Completion, Device, DeviceError, LoadOptions, Session};
use portcullis_core::map::Row;
use portcullis_core::packet::{Batch, Verdict};
use portcullis_core::program::Program;
use std::sync::Arc;

use super::traffic::Pool;
use portcullis_conformance::state;

/// Packets per batch of the interpreter.
const BATCH: usize = 1024;

/// Expected verdict, length and bytes of each packet of a pool.
#[derive(Debug)]
pub struct Expected {
    actions: Vec<u8>,
    targets: Vec<u32>,
    /// Packets after filtering; `None` if the filter writes none.
    packets: Option<Vec<Vec<u8>>>,
    /// Map entries after all packets; `None` if they depend on the order of packets.
    maps: Option<Vec<Vec<Row>>>,
}

impl Expected {
    /// Runs the filter from its initial maps over the pool. A device may take a batch's packets in
    /// any order, so map entries are expected only if the interpreter computes the same from the
    /// packets in reverse order.
    ///
    /// # Errors
    /// Errors of the interpreter.
    pub fn of(program: &Arc<Program>, pool: &Pool, reference: &dyn Device) -> Result<Expected, DeviceError> {
        let (mut expected, maps) = Expected::with_maps(program, pool, reference)?;
        if !program.maps().is_empty() {
            let (_, reversed) = Expected::with_maps(program, &pool.reversed(), reference)?;
            expected.maps = (maps == reversed).then_some(maps);
        }
        Ok(expected)
    }

    fn with_maps(
        program: &Arc<Program>,
        pool: &Pool,
        reference: &dyn Device,
    ) -> Result<(Expected, Vec<Vec<Row>>), DeviceError> {
        let facts = program.facts();
        let mut session = reference.load(program, &LoadOptions::default())?;
        let mut expected = Expected {
            actions: Vec::with_capacity(pool.len()),
            targets: Vec::with_capacity(pool.len()),
            packets: (facts.changes_length || facts.writes.max_bytes() > 0).then(Vec::new),
            maps: None,
        };
        let ring = super::traffic::Ring::lay_out(pool, program, BATCH.min(pool.len()), super::traffic::RING, 1 << 32);
        let ring = ring.map_err(|error| DeviceError::Refused(error.to_string()))?;
        for (first, mut batch) in ring.batches {
            if first >= pool.len() {
                break;
            }
            batch.truncate(pool.len() - first);
            let done = session.run(batch)?;
            for (verdict, packet) in done.verdicts.iter().zip(Batch::packets(&done.batch)) {
                expected.actions.push(verdict.action() as u8);
                expected.targets.push(target(verdict));
                if let Some(packets) = &mut expected.packets {
                    packets.push(packet.to_vec());
                }
            }
        }
        let maps = state::read(&mut *session, program)?;
        Ok((expected, maps))
    }

    /// Describes the first difference in the maps of a session that has filtered all packets once;
    /// `None` if there is none, or if the entries depend on the packets' order.
    ///
    /// # Errors
    /// If the session fails.
    pub fn maps_differ(&self, session: &mut dyn Session, program: &Program) -> Result<Option<String>, DeviceError> {
        let Some(maps) = &self.maps else { return Ok(None) };
        let found = state::read(session, program)?;
        let mut both = program.maps().iter().zip(maps.iter().zip(&found));
        Ok(both.find(|(_, (want, got))| want != got).map(|(map, (want, got))| {
            let at = (0..).find(|&at| want.get(at) != got.get(at)).unwrap_or_default();
            let show = |rows: &[Row]| match rows.get(at) {
                Some(Row { key, value }) => format!("{key:x?}: {value:x?}"),
                None => "none".into(),
            };
            let (name, entries, wanted) = (&map.name, got.len(), want.len());
            format!(
                "map `{name}`, {entries} entries instead of {wanted}, entry {at}: {} instead of {}",
                show(got),
                show(want)
            )
        }))
    }

    /// Describes the first difference in a batch whose first packet has the number `first`; `None`
    /// if there is none.
    pub fn differs(&self, first: usize, done: &Completion) -> Option<String> {
        let packets = done.batch.len();
        let found = done.verdicts.len();
        if found != packets {
            return Some(format!("{found} verdicts for {packets} packets"));
        }
        let place = |index: usize| format!("packet {index} of a batch of {packets}");
        let pool = self.actions.len();
        // Compare runs of packets that are contiguous in both.
        let mut index = 0;
        while index < packets {
            let from = (first + index) % pool;
            let count = (pool - from).min(packets - index);
            let (want, got) = (&self.actions[from..from + count], &done.verdicts.actions()[index..index + count]);
            if want != got {
                let at = index + want.iter().zip(got).take_while(|(want, got)| want == got).count();
                let (want, got) = (self.verdict((first + at) % pool), done.verdicts.get(at));
                return Some(format!("{}: {got} instead of {want}", place(at)));
            }
            index += count;
        }
        let redirects = !done.verdicts.targets().is_empty() || self.targets.iter().any(|&target| target != 0);
        let wrong_target =
            |at: &usize| redirects && target(done.verdicts.get(*at)) != self.targets[(first + at) % pool];
        if let Some(at) = (0..packets).find(wrong_target) {
            let (want, got) = (self.verdict((first + at) % pool), done.verdicts.get(at));
            return Some(format!("{}: {got} instead of {want}", place(at)));
        }
        let rewritten = self.packets.as_ref()?;
        let at = (0..packets).find(|&at| done.batch.packet(at) != rewritten[(first + at) % pool])?;
        let (want, got) = (&rewritten[(first + at) % pool], done.batch.packet(at));
        Some(if want.len() == got.len() {
            let byte = want.iter().zip(got).take_while(|(want, got)| want == got).count();
            format!("{}, byte {byte}: {:#04x} instead of {:#04x}", place(at), got[byte], want[byte])
        } else {
            format!("{}: {} bytes instead of {}", place(at), got.len(), want.len())
        })
    }

    fn verdict(&self, index: usize) -> Verdict {
        Verdict::from_return(u32::from(self.actions[index]) | self.targets[index] << 8)
    }
}

fn target(verdict: Verdict) -> u32 {
    verdict.to_return() >> 8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::Packets;
    use portcullis_core::diagnostics::Source;
    use portcullis_core::program::ProgramOptions;
    use portcullis_wgsl as wgsl;

    #[test]
    fn maps_are_compared_if_they_do_not_depend_on_packet_order() {
        let interp = portcullis::devices::open("interp").unwrap();
        for (statement, counts) in
            [("seen_add(0u, 0u, load_be32(pkt, 26u));", true), ("seen_write(0u, 0u, load_be32(pkt, 26u));", false)]
        {
            let text = format!(
                "//! map seen: array value=1 entries=1\nfn xdp_filter(pkt: u32) -> u32 {{ {statement} return XDP_PASS; }}"
            );
            let program = wgsl::compile(&Source::new("seen.wgsl", text), &ProgramOptions::default());
            let program = Arc::new(program.unwrap_or_else(|error| panic!("{}", error.render())));
            let pool = Pool::new(Packets::Bytes(64), 100);
            let expected = Expected::of(&program, &pool, &*interp).unwrap();
            assert_eq!(expected.maps.is_some(), counts, "{statement}");

            // A session that has filtered nothing.
            let mut session = interp.load(&program, &LoadOptions::default()).unwrap();
            let differs = expected.maps_differ(&mut *session, &program).unwrap();
            assert_eq!(differs.is_some(), counts, "{statement}: {differs:?}");
        }
    }
}
