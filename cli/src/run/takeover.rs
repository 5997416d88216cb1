//! Transfer of a run's maps to the filter that replaces it on a reload.

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
use super::map_args::MapArgs;
use super::maps::{Maps, start_watching};
use super::watch::MapFollower;
use crate::failure::Failure;

/// A filter about to replace the running one, with its map files already read, so that packets do
/// not wait for that.
pub struct PreparedReload {
    program: Arc<Program>,
    watched: Vec<(MapFollower, ParsedRows)>,
    /// Pairs of equal maps: their numbers in the old and in the new filter.
    carried: Vec<(usize, usize)>,
    report: ReloadReport,
}

impl PreparedReload {
    /// Applies the checks of [`Maps::check`] to the new filter. `--map` and `--from-pin` apply
    /// to the start of a run only.
    pub fn new(
        args: &MapArgs,
        old: &Program,
        (program, name): (Arc<Program>, String),
        device: &DeviceInfo,
    ) -> Result<PreparedReload, Failure> {
        // A filter that looks up no routes may replace one that does.
        let kernel_routes = args.kernel_routes.clone().filter(|_| RouteMaps::from_program(&program).is_some());
        let checked = MapArgs { kernel_routes, events: None, ..args.without_initial_entries() };
        Maps::check(&checked, &program, device)?;
        if [old, &*program].into_iter().any(|program| Broadcasts::from_program(program).is_some()) {
            let what = "a filter that redirects to all devices of a map (BPF_F_BROADCAST) can neither replace another nor be replaced";
            return Err(Failure::Error(format!("{name}: {what}")));
        }
        let watched = start_watching(args, &program)?;
        let mut report = ReloadReport { filter: name, ..ReloadReport::default() };
        let mut carried = Vec::new();
        for (to, map) in program.maps().iter().enumerate().filter(|(_, map)| map.is_persistent()) {
            let from = old.maps().iter().position(|before| is_same(before, map));
            if from.is_some() { &mut report.carried } else { &mut report.empty }.push(map.name.clone());
            carried.extend(from.map(|from| (from, to)));
        }
        let lasting = (0..old.maps().len()).filter(|&number| old.maps()[number].is_persistent());
        let gone = lasting.filter(|number| carried.iter().all(|(from, _)| from != number));
        report.gone.extend(gone.map(|number| old.maps()[number].name.clone()));
        Ok(PreparedReload { program, watched, carried, report })
    }
}

/// Whether a map can take over another one's entries.
fn is_same(a: &Declaration, b: &Declaration) -> bool {
    (&a.name, a.kind, a.key, a.value, a.entries) == (&b.name, b.kind, b.key, b.value, b.entries)
}

impl Maps {
    /// Transfers the old session's maps to the new filter's session, and continues to follow files
    /// there. Must be called between two batches, with none in flight. Returns a report, or the
    /// reason why nothing was transferred.
    ///
    /// # Errors
    /// Errors of the old session.
    pub fn take_over(
        &mut self,
        next: PreparedReload,
        old: &mut dyn Session,
        new: &mut dyn Session,
    ) -> Result<Result<ReloadReport, Failure>, DeviceError> {
        let PreparedReload { program, watched, carried, report } = next;
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
            if report.carried.iter().any(|name| follower.follows(name)) {
                follower.inherit(&self.followers);
            }
            if let Err(failure) = follower.begin(rows, new) {
                return Ok(Err(failure));
            }
            followers.push(follower);
        }
        // The routing maps were carried over with the others; write the current routes to them.
        let routes = match KernelRoutes::begin(&self.args, &program, new) {
            Ok(routes) => routes,
            Err(failure) => return Ok(Err(failure)),
        };
        self.followers = followers;
        self.routes = routes;
        self.program = program;
        Ok(Ok(report))
    }
}

/// Copies a map's entries to the new filter's map, as memory if both have the same representation,
/// else entry by entry.
fn carry(
    (old, map): (&Declaration, &Declaration),
    words: Vec<u32>,
    to: usize,
    session: &mut dyn Session,
) -> Result<(), Failure> {
    let is_the_same = match map.kind {
        // If the filter only reads the values, prefixes with equal values share one.
        MapKind::Lpm => old.read_only == map.read_only,
        // An XDP program's removed entry keeps its value in memory, but filters in other languages
        // expect zeros when they insert one.
        MapKind::Hash | MapKind::LruHash => old.typed.is_none() || map.typed.is_some(),
        MapKind::Array | MapKind::Counter => true,
    };
    if is_the_same {
        return Ok(session.set_map_words(to, 0, &words)?);
    }
    let entries = Entries::in_memory(old, &words);
    let mut table = Table::new(map, Vec::new());
    restore_entries(&mut table, &entries)
        .map_err(|entry| Failure::Error(state::no_room_error(map, &entries, entry).to_string()))?;
    let (at, words) = table.changes();
    Ok(session.set_map_words(to, at, words)?)
}
