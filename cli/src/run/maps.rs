//! Maps of a run: their initial entries, the files they follow, and where they are written.

use std::sync::Arc;
#[cfg(all(target_os = "linux", feature = "live"))]
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use portcullis::device::{CancelToken, DeviceError, DeviceInfo, Session};
use portcullis::frontend::xdp::events::EventCounts;
use portcullis::map::Declaration;
use portcullis::map_file::find_map;
use portcullis::map_file::text::ParsedRows;
use portcullis::packet_io::SinkError;
use portcullis::program::Program;

use super::dump::Dumps;
use super::events::{EventLog, Events};
use super::kernel_routes::KernelRoutes;
use super::map_args::{MapArgs, MapFile, MapNotice};
#[cfg(target_os = "linux")]
use super::pin;
use super::rows;
use super::state::State;
use super::traps::Traps;
use super::watch::MapFollower;
use crate::failure::Failure;

/// The maps of a run.
pub struct Maps {
    pub(super) args: MapArgs,
    pub(super) program: Arc<Program>,
    state: Option<State>,
    pub(super) followers: Vec<MapFollower>,
    pub(super) routes: Option<KernelRoutes>,
    dumps: Option<Dumps>,
    pub(super) events: Events,
    /// Counters of aborted packets, by instruction.
    pub traps: Traps,
}

/// Number and declaration of a map.
type IndexedMap<'a> = (usize, &'a Declaration);

/// Returns the map that a file is for.
fn map_of_file<'a>(file: &MapFile, program: &'a Program) -> Option<IndexedMap<'a>> {
    file.number(program).map(|number| (number, &program.maps()[number]))
}

/// Locks the maps, also after a thread panicked while it held the lock.
#[cfg(all(target_os = "linux", feature = "live"))]
pub fn lock(maps: &Mutex<Maps>) -> MutexGuard<'_, Maps> {
    maps.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Maps {
    /// Refuses maps that the filter does not have, and devices without maps.
    pub fn check(args: &MapArgs, program: &Program, device: &DeviceInfo) -> Result<(), Failure> {
        let state = args.state.iter().map(|file| (format!("--state {}", file.display()), None));
        let (map, watched, dumped) = (&args.map[..], &args.watch_map[..], &args.dump_map[..]);
        let files = [("--from-pin", args.pinned()), ("--map", map), ("--watch-map", watched), ("--dump-map", dumped)]
            .into_iter();
        let files = files.flat_map(|(option, files)| files.iter().map(move |file| (option, file)));
        let files = files.map(|(option, it)| (format!("{option} {it}"), Some(it)));
        for (given, file) in state.chain(files) {
            let wrong = |what: String| Err(Failure::Usage(format!("{given}: {what}")));
            if let Some(Err(what)) = file.map(|file| find_map(program.maps(), &file.map)) {
                return wrong(what.to_string());
            }
            match file {
                None if !program.maps().iter().any(Declaration::is_persistent) => {
                    return wrong("the filter has no maps whose entries could be saved".into());
                }
                _ if device.id == "noop" => {
                    let what = "runs no filter and leaves maps unchanged; choose another device";
                    return wrong(format!("{} {what}", device.id));
                }
                _ => {}
            }
        }
        if args.kernel_routes.is_some() {
            let others = args.map.iter().chain(&args.watch_map).map(|file| file.map.as_str());
            KernelRoutes::check(program, device, others)?;
        }
        if let Some(file) = &args.events {
            let wrong = |what: &str| Err(Failure::Usage(format!("--events {}: {what}", file.display())));
            if portcullis::frontend::xdp::ObjectInfo::of(program).is_none_or(|object| object.rings.is_empty()) {
                return wrong(
                    "the filter sends no events; XDP programs do, with ring buffers, perf buffers and bpf_printk",
                );
            }
            if device.id == "noop" {
                return wrong("noop runs no filter and sends no events; choose another device");
            }
        }
        for (index, file) in args.watch_map.iter().enumerate() {
            if let Some(before) = args.watch_map[..index].iter().find(|before| before.map == file.map) {
                let what = format!("the map already follows {}; a map can follow only one file", before.file.display());
                return Err(Failure::Usage(format!("--watch-map {file}: {what}")));
            }
        }
        Ok(())
    }

    /// Loads the initial entries into the session's maps.
    pub fn load(args: &MapArgs, program: &Arc<Program>, session: &mut dyn Session) -> Result<Maps, Failure> {
        let every = args.state_every.map(|seconds| Duration::from_secs(seconds.into()));
        let mut state = args.state.as_deref().map(|name| State::open(name, every)).transpose()?;
        // Check all files before any map is changed.
        let given = args.map.iter().filter_map(|file| Some((file, map_of_file(file, program)?)));
        let given = given.map(|(file, map)| Ok((file, map, rows::read(file, map.1)?)));
        let given: Vec<_> = given.collect::<Result<_, Failure>>()?;
        #[cfg(target_os = "linux")]
        let pinned: Vec<_> = {
            let pinned = args.pinned().iter().filter_map(|file| Some((file, map_of_file(file, program)?)));
            pinned.map(|(file, map)| Ok((file, map, pin::read(file, map.1)?))).collect::<Result<_, Failure>>()?
        };
        let watched = start_watching(args, program)?;
        if let Some(state) = &mut state {
            state.load(program, session)?;
        }
        let routes = KernelRoutes::begin(args, program, session)?;
        #[cfg(target_os = "linux")]
        for (file, map, entries) in pinned {
            pin::set(&entries, file, map, session)?;
        }
        for (file, map, rows) in given {
            rows::set(&rows, file, map, session)?;
        }
        let mut followers = Vec::new();
        for (mut follower, rows) in watched {
            follower.begin(rows, session)?;
            followers.push(follower);
        }
        let events = Events::begin(program, session)?;
        let traps = Traps::begin(program, session)?;
        Ok(Maps { args: args.clone(), program: program.clone(), state, followers, routes, dumps: None, events, traps })
    }

    /// Checks that the files written after the run can be written, and creates the event file,
    /// whose write errors cancel `stop`.
    pub fn open_outputs(&mut self, stop: &CancelToken) -> Result<(), SinkError> {
        self.dumps = Some(Dumps::open(&self.args.dump_map)?);
        if let Some(file) = &self.args.events {
            self.events.log_to(EventLog::create(file, stop)?);
        }
        Ok(())
    }

    /// Does the work between two batches: saves state if it is due, updates maps that follow files
    /// or routes, and reads events so that the next batch, of `coming` packets, has room for its
    /// own. Returns messages for the user.
    pub fn follow(&mut self, session: &mut dyn Session, coming: usize) -> Result<Vec<MapNotice>, DeviceError> {
        let mut notices = Vec::new();
        self.events.on_batch_boundary(session, coming)?;
        if let Some(Err(error)) = self.state.as_mut().map(|state| state.save_if_due(&self.program, session)) {
            notices
                .push(MapNotice::Warning(format!("{error}; the file is unchanged, and will be written again later")));
        }
        for follower in &mut self.followers {
            notices.extend(follower.on_batch_boundary(session)?);
        }
        if let Some(routes) = &mut self.routes {
            notices.extend(routes.on_batch_boundary(session)?);
        }
        Ok(notices)
    }

    /// Whether maps are written after the run.
    pub fn writes(&self) -> bool {
        self.args.state.is_some() || !self.args.dump_map.is_empty()
    }

    /// Reads the last events. Without a session, only those read before are written.
    pub fn last_events(&mut self, session: Option<&mut dyn Session>) -> Result<(), Failure> {
        self.events.finish(session)
    }

    /// Whether a write error of the event file has stopped the run.
    pub fn events_failed(&self) -> bool {
        self.events.failed()
    }

    /// Counts of events, if the filter has any.
    pub fn events(&self) -> Option<EventCounts> {
        self.events.counts()
    }

    /// Writes all files, even if one fails. Returns the first error.
    pub fn write(&mut self, session: &mut dyn Session) -> Result<(), Failure> {
        let saved =
            self.state.as_mut().map_or(Ok(()), |state| state.save(&self.program, session).map_err(Failure::from));
        saved.and(self.dumps.as_ref().map_or(Ok(()), |dumps| dumps.write(&self.program, session)))
    }
}

/// Reads the files that maps follow, and starts to watch them.
pub(super) fn start_watching(args: &MapArgs, program: &Program) -> Result<Vec<(MapFollower, ParsedRows)>, Failure> {
    let watched = args.watch_map.iter().filter_map(|file| Some((file, map_of_file(file, program)?)));
    watched.map(|(file, map)| MapFollower::new(file, map)).collect()
}
