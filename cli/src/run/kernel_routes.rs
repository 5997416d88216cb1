//! `--kernel-routes`: maps that follow the kernel's routes.

use portcullis::device::{DeviceError, DeviceInfo, Session};
#[cfg(target_os = "linux")]
use portcullis::packet_io::routes::RouteWatch;
use portcullis::program::Program;
use portcullis::routes::RoutingTables;
use portcullis::routes::{RouteMaps, RouteMapsError};

use super::map_args::{MapArgs, MapNotice};
use crate::failure::Failure;

/// The routing maps of a filter and the watch on the kernel's routes.
pub struct KernelRoutes {
    routed: RouteMaps,
    watch: RouteWatch,
    /// Interface that the packets of a capture count as received on.
    arrival: Option<String>,
    /// Set after warning that the maps stay as they are; suppresses repeated warnings.
    failing: bool,
}

impl KernelRoutes {
    /// Refuses filters that look up no routes, and other options that fill the same maps.
    pub fn check<'a>(
        program: &Program,
        device: &DeviceInfo,
        mut others: impl Iterator<Item = &'a str>,
    ) -> Result<(), Failure> {
        let usage = |what: String| Err(Failure::Usage(format!("--kernel-routes: {what}")));
        if cfg!(not(target_os = "linux")) {
            return usage("supported on Linux only".into());
        }
        let Some(routed) = RouteMaps::from_program(program) else {
            return usage("the filter looks up no routes: it calls neither bpf_fib_lookup nor bpf_check_mtu".into());
        };
        if device.id == "noop" {
            return usage("noop runs no filter and looks up no routes; choose another device".into());
        }
        match others.find(|name| routed.maps().any(|map| map.name == *name)) {
            Some(name) => {
                usage(format!("the map `{name}` follows the kernel's routes, and cannot follow a file as well"))
            }
            None => Ok(()),
        }
    }

    /// Fills the maps, if `--kernel-routes` is given, and starts to watch the routes.
    pub fn begin(
        args: &MapArgs,
        program: &Program,
        session: &mut dyn Session,
    ) -> Result<Option<KernelRoutes>, Failure> {
        let (Some(arrival), Some(routed)) = (&args.kernel_routes, RouteMaps::from_program(program)) else {
            return Ok(None);
        };
        let (tables, watch) = RouteWatch::start().map_err(|error| kernel_routes_error(&error))?;
        let arrival = Some(arrival.clone()).filter(|name| !name.is_empty());
        let mut routes = KernelRoutes { routed, watch, arrival, failing: false };
        routes.set(tables, session)?.map_err(|what| Failure::Error(format!("--kernel-routes: {what}")))?;
        Ok(Some(routes))
    }

    /// Updates the maps if routes have changed. Must be called between two batches. If the update
    /// fails, the maps stay as they are, and the returned notice says so.
    pub fn on_batch_boundary(&mut self, session: &mut dyn Session) -> Result<Option<MapNotice>, DeviceError> {
        let last = match self.watch.take() {
            None => return Ok(None),
            Some(Ok(tables)) => self.set(tables, session)?,
            Some(Err(error)) => Err(error.to_string()),
        };
        let had_failed = std::mem::replace(&mut self.failing, last.is_err());
        Ok(match last {
            Err(what) => Some(MapNotice::Warning(format!(
                "{what}\nthe maps stay as they are, and do not follow the kernel's routes"
            ))),
            Ok(()) if had_failed => Some(MapNotice::Note("the maps follow the kernel's routes again".into())),
            Ok(()) => None,
        })
    }

    fn set(&mut self, mut tables: RoutingTables, session: &mut dyn Session) -> Result<Result<(), String>, DeviceError> {
        if let Some(name) = &self.arrival {
            // Packets of a capture arrive on port 0, which is no interface's number.
            let Some(interface) = tables.interfaces.iter().find(|interface| interface.name == *name) else {
                return Ok(Err(format!("there is no interface `{}`", name.escape_debug())));
            };
            let mut interface = interface.clone();
            interface.number = 0;
            tables.interfaces.push(interface);
        }
        match self.routed.apply_tables(&tables, session) {
            Ok(()) => Ok(Ok(())),
            Err(RouteMapsError::Device(error)) => Err(error),
            Err(error) => Ok(Err(error.to_string())),
        }
    }
}

fn kernel_routes_error(error: &dyn std::fmt::Display) -> Failure {
    Failure::Error(format!("--kernel-routes: {error}"))
}

/// Placeholder on other systems, where [`KernelRoutes::check`] refuses the option.
#[cfg(not(target_os = "linux"))]
struct RouteWatch;

#[cfg(not(target_os = "linux"))]
impl RouteWatch {
    fn start() -> Result<(RoutingTables, RouteWatch), String> {
        Err("supported on Linux only".into())
    }

    fn take(&mut self) -> Option<Result<RoutingTables, String>> {
        None
    }
}
