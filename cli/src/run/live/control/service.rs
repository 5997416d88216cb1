//! Requests of the control socket, carried out on the live run.

use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};

use portcullis::control::{self, Refusal, Reload, ReloadReport, Service};
use portcullis::device::{DeviceError, FallbackSession, LoadOptions, Session, WithFallback};
use portcullis::map::Declaration;
use portcullis::packet::Span;
use portcullis::pipeline::live::{LaneCommand, LaneCommands, RunStats};
use portcullis::program::Program;
use portcullis::reason;
use serde_json::value::RawValue;

use super::super::lane_sessions::{import, show_copies, warm_up};
use super::super::report::{self, ExtraReport};
use crate::failure::{self, Failure};
use crate::filter::FilterArgs;
use crate::out;
use crate::run::map_args::MapArgs;
use crate::run::maps::{Maps, lock};
use crate::run::takeover::PreparedReload;

/// A live run, as the control socket sees it.
pub struct Live {
    /// Map arguments of the run.
    pub args: MapArgs,
    /// The current filter.
    pub program: Arc<Program>,
    /// Device that runs the filter.
    pub device: WithFallback,
    /// Options for loading filters.
    pub options: LoadOptions,
    /// Statistics of the run.
    pub stats: Arc<RunStats>,
    /// Maps of the run, owned by the first lane.
    pub maps: Arc<Mutex<Maps>>,
    /// Lanes of the run.
    pub lanes: Vec<LaneStatus>,
}

/// State of one lane.
pub struct LaneStatus {
    /// Commands to the lane.
    pub commands: Arc<LaneCommands>,
    /// Packet memory of the lane, if it is known.
    pub memory: Option<Arc<Span>>,
}

/// The result of a swap, and the session that is no longer needed.
type SwappedSession<T> = (Result<T, Refusal>, FallbackSession);

impl Service for Live {
    fn stats(&mut self) -> Result<Box<RawValue>, Refusal> {
        let summary = self.stats.summary(&self.stats.read());
        let (events, has_traps) = {
            let maps = lock(&self.maps);
            (maps.events(), maps.traps.any())
        };
        let traps = match has_traps {
            true => {
                let maps = self.maps.clone();
                // If the run is ending, answer with everything else.
                self.run_on_session(move |session| lock(&maps).traps.read(session)).unwrap_or_default()
            }
            false => Vec::new(),
        };
        let extra = ExtraReport::of(&summary, events, (&lock(&self.maps).traps, traps));
        let line = report::json(&summary, None, &extra);
        RawValue::from_string(line.trim_end().to_owned()).map_err(|error| Refusal::failed(error.to_string()))
    }

    fn reload(&mut self, filter: &Reload) -> Result<ReloadReport, Refusal> {
        let name = out::printable(&filter.name());
        let span = tracing::error_span!(target: "portcullis", "reload", filter = %name);
        let _reload = span.enter();
        let reloaded = self.take_over(filter);
        if let Err(refused) = &reloaded {
            // The client gets the complete message.
            let error = out::printable(refused.error.lines().next().unwrap_or_default());
            tracing::info!(target: "portcullis", %error, "{name} is refused");
        }
        reloaded
    }

    fn maps(&mut self) -> Vec<Declaration> {
        self.program.maps().to_vec()
    }

    fn map_words(&mut self, map: usize) -> Result<Vec<u32>, Refusal> {
        self.run_on_session(move |session| session.map_words(map))
    }

    fn get_entry(&mut self, map: usize, key: Vec<u32>) -> Result<Option<Vec<u32>>, Refusal> {
        let program = self.program.clone();
        self.run_on_session(move |session| {
            portcullis::map::EntryAccess::new(session, map, &program.maps()[map], &key).get()
        })
    }

    fn set_entry(&mut self, map: usize, key: Vec<u32>, value: Vec<u32>) -> Result<bool, Refusal> {
        let program = self.program.clone();
        self.run_on_session(move |session| control::set_map_entry(session, map, &program.maps()[map], (&key, &value)))
    }

    fn remove_entry(&mut self, map: usize, key: Vec<u32>) -> Result<bool, Refusal> {
        let program = self.program.clone();
        self.run_on_session(move |session| control::remove_map_entry(session, map, &program.maps()[map], &key))
    }
}

impl Live {
    /// Replaces the filter.
    fn take_over(&mut self, filter: &Reload) -> Result<ReloadReport, Refusal> {
        let args = FilterArgs::from_reload(filter)?;
        // Opening a pipe could block forever.
        let is_file = args.file().map(|file| file.metadata().map(|it| it.is_file()));
        match is_file {
            Some(Ok(true)) | None => {}
            Some(Ok(false)) => return Err(Refusal::failed(format!("{}: not a regular file", filter.name()))),
            Some(Err(error)) => return Err(Refusal::failed(format!("{}: {}", filter.name(), reason(&error)))),
        }
        let program = Arc::new(args.load().map_err(refusal_from_failure)?);
        if self.lanes.len() > 1 && !program.maps().is_empty() {
            let what = "the filter has maps, which all packets share, and this run has several lanes; start it with --lanes one";
            return Err(Refusal::failed(format!("{}: {what}", filter.name())));
        }
        let name = args.name();
        let next = (program.clone(), name.clone());
        let takeover =
            PreparedReload::new(&self.args, &self.program, next, self.device.info()).map_err(refusal_from_failure)?;
        let (sessions, copied) = self.load(&program).map_err(device_failed)?;
        let mut sessions = sessions.into_iter();

        // Only the first lane has maps, and only they can make the swap fail.
        let maps = self.maps.clone();
        let transfer = move |old: &mut dyn Session, new: &mut dyn Session| {
            Ok(lock(&maps).take_over(takeover, old, new)?.map_err(refusal_from_failure))
        };
        let mut reload_report = None;
        if let (Some(lane), Some(session)) = (self.lanes.first(), sessions.next()) {
            reload_report = Some(result(&swap(lane, session, transfer))?);
        }
        let others = self.lanes.iter().skip(1).zip(sessions);
        let others: Vec<_> = others.map(|(lane, session)| swap(lane, session, |_, _| Ok(Ok(())))).collect();
        others.iter().try_for_each(result)?;
        self.program = program;
        out::note(&out::printable(&format!("{name} has replaced the filter")));
        self.stats.set_filter(name);
        show_copies(copied, self.device.info());
        reload_report.ok_or_else(ending)
    }

    /// Loads a session for each lane and warms it up. Also returns whether a session works on
    /// copies of packets.
    fn load(&self, program: &Arc<Program>) -> Result<(Vec<FallbackSession>, bool), DeviceError> {
        let sessions = self.lanes.iter().map(|_| self.device.load(program, &self.options));
        let mut sessions = sessions.collect::<Result<Vec<_>, _>>()?;
        let copied = import(self.lanes.iter().map(|lane| &lane.memory).zip(&mut sessions))?;
        sessions.iter_mut().try_for_each(|session| warm_up(session, program))?;
        Ok((sessions, copied))
    }

    /// Runs `work` on the session between two batches and waits for the result. Filters with maps
    /// have a single lane.
    fn run_on_session<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut dyn Session) -> Result<T, DeviceError> + Send + 'static,
    ) -> Result<T, Refusal> {
        let (to, from) = sync_channel(1);
        let command = LaneCommand::access_maps(move |session| {
            let done = work(session);
            let fatal = done.as_ref().err().filter(|error| is_end(error)).cloned();
            // The client may have gone.
            let _ = to.send(done);
            fatal.map_or(Ok(()), Err)
        });
        self.lanes.first().ok_or_else(ending)?.commands.push(command);
        from.recv().map_err(|_| ending())?.map_err(device_failed)
    }
}

/// Replaces a lane's session after transferring what the new one needs. Returns the old one, so
/// that packets do not wait until it is dropped.
fn swap<T: Send + 'static>(
    lane: &LaneStatus,
    mut session: FallbackSession,
    transfer: impl FnOnce(&mut dyn Session, &mut dyn Session) -> Result<Result<T, Refusal>, DeviceError> + Send + 'static,
) -> Receiver<SwappedSession<T>> {
    let (to, from) = sync_channel(1);
    lane.commands.push(LaneCommand::replace_session(move |now| {
        let transferred = transfer(now, &mut session)?;
        if transferred.is_ok() {
            std::mem::swap(now, &mut session);
        }
        let _ = to.send((transferred, session));
        Ok(())
    }));
    from
}

fn result<T>(swapped: &Receiver<SwappedSession<T>>) -> Result<T, Refusal> {
    swapped.recv().map_err(|_| ending())?.0
}

/// Whether the error ends the session.
fn is_end(error: &DeviceError) -> bool {
    matches!(error, DeviceError::Failed { .. } | DeviceError::InvalidResult { .. } | DeviceError::Cancelled)
}

fn ending() -> Refusal {
    Refusal::failed("the run is ending")
}

fn device_failed(error: DeviceError) -> Refusal {
    Refusal::failed(error.to_string())
}

/// Converts a failure to what a command line would have printed.
fn refusal_from_failure(failure: Failure) -> Refusal {
    match failure {
        Failure::Error(text) => Refusal::failed(text),
        Failure::Usage(text) => Refusal::usage(text),
        Failure::Filter(diagnostics) => Refusal {
            error: diagnostics.render(),
            is_rendered: true,
            is_usage: failure::code(&diagnostics) == failure::USAGE,
        },
        Failure::Silent(_) | Failure::ClosedPipe => ending(),
    }
}
