//! What becomes of a run's maps when another filter takes over.

use std::sync::Arc;

use portcullis::control::ReloadReport;
use portcullis::device::{DeviceError, DeviceInfo, Session};
use portcullis::map::{Declaration, MapKind, Table};
use portcullis::map_file::text::ParsedRows;
use portcullis::map_file::{Entries, restore_entries, state};
use portcullis::pipeline::Broadcasts;
use portcullis::program::Program;
use portcullis::routes::RouteMaps;

use super::kernel_routes::KernelRoutes;
use super::maps::{MapArgs, Maps, watched};
use super::watch::Follower;
use crate::failure::Failure;

/// A filter that is to take over, and what of its maps' files can be read before packets have to
/// wait for it.
pub struct PreparedReload {
    program: Arc<Program>,
    watched: Vec<(Follower, ParsedRows)>,
    /// Maps of the old filter and of the new one that are the same.
    carried: Vec<(usize, usize)>,
    told: ReloadReport,
}

impl PreparedReload {
    /// Refuses what a run with these arguments would have refused at its start; but for `--map` and
    /// `--from-pin`, which are about the start only.
    pub fn new(
        args: &MapArgs,
        old: &Program,
        (program, name): (Arc<Program>, String),
        device: &DeviceInfo,
    ) -> Result<PreparedReload, Failure> {
        // A filter that looks for no routes may take over from one that does.
        let kernel_routes = args.kernel_routes.clone().filter(|_| RouteMaps::from_program(&program).is_some());
        MapArgs { kernel_routes, events: None, ..args.behind_the_beginning() }.check(&program, device)?;
        if [old, &*program].into_iter().any(|program| Broadcasts::from_program(program).is_some()) {
            let what = "a filter whose packets go to all devices of a map (BPF_F_BROADCAST) neither takes over nor is taken over from";
            return Err(Failure::Wrong(format!("{name}: {what}")));
        }
        let watched = watched(args, &program)?;
        let mut told = ReloadReport { filter: name, ..ReloadReport::default() };
        let mut carried = Vec::new();
        for (to, map) in program.maps().iter().enumerate().filter(|(_, map)| map.is_persistent()) {
            let from = old.maps().iter().position(|before| is_same(before, map));
            if from.is_some() { &mut told.carried } else { &mut told.empty }.push(map.name.clone());
            carried.extend(from.map(|from| (from, to)));
        }
        let lasting = (0..old.maps().len()).filter(|&number| old.maps()[number].is_persistent());
        let gone = lasting.filter(|number| carried.iter().all(|(from, _)| from != number));
        told.gone.extend(gone.map(|number| old.maps()[number].name.clone()));
        Ok(PreparedReload { program, watched, carried, told })
    }
}

/// Whether a map may have what another has.
fn is_same(a: &Declaration, b: &Declaration) -> bool {
    (&a.name, a.kind, a.key, a.value, a.entries) == (&b.name, b.kind, b.key, b.value, b.entries)
}

impl Maps {
    /// Between two batches, none of which is in flight: brings to the new filter's session what the
    /// old one's has, and follows files there from now on. What was done is told, or why nothing
    /// is.
    ///
    /// # Errors
    /// The old session's.
    pub fn take_over(
        &mut self,
        next: PreparedReload,
        old: &mut dyn Session,
        new: &mut dyn Session,
    ) -> Result<Result<ReloadReport, Failure>, DeviceError> {
        let PreparedReload { program, watched, carried, told } = next;
        for (from, to) in carried {
            let words = old.map_words(from)?;
            let maps = (&self.program.maps()[from], &program.maps()[to]);
            if let Err(failure) = carry(maps, words, to, new) {
                return Ok(Err(failure));
            }
        }
        self.events.take_over(&program, old, new)?;
        self.traps.take_over(&program, old, new)?;
        let mut followers = Vec::new();
        for (mut follower, rows) in watched {
            if told.carried.iter().any(|name| follower.follows(name)) {
                follower.inherit(&self.followers);
            }
            if let Err(failure) = follower.begin(rows, new) {
                return Ok(Err(failure));
            }
            followers.push(follower);
        }
        // What the old filter has of routes was carried over, and is put there anew.
        let routes = match KernelRoutes::begin(&self.args, &program, new) {
            Ok(routes) => routes,
            Err(failure) => return Ok(Err(failure)),
        };
        self.followers = followers;
        self.routes = routes;
        self.program = program;
        Ok(Ok(told))
    }
}

fn carry(
    (old, map): (&Declaration, &Declaration),
    words: Vec<u32>,
    to: usize,
    session: &mut dyn Session,
) -> Result<(), Failure> {
    let is_the_same = match map.kind {
        // Of a filter that only reads its values, prefixes share those that are equal.
        MapKind::Lpm => old.read_only == map.read_only,
        // What an object has removed keeps its value in memory, and filters in text find zeros
        // where they make an entry.
        MapKind::Hash | MapKind::LruHash => old.typed.is_none() || map.typed.is_some(),
        MapKind::Array | MapKind::Counter => true,
    };
    if is_the_same {
        return Ok(session.set_map_words(to, 0, &words)?);
    }
    let entries = Entries::in_memory(old, &words);
    let mut table = Table::new(map, Vec::new());
    restore_entries(&mut table, &entries)
        .map_err(|entry| Failure::Wrong(state::no_room_error(map, &entries, entry).to_string()))?;
    let (at, words) = table.changes();
    Ok(session.set_map_words(to, at, words)?)
}
