//! Redirect targets that stand for every device of a map (`BPF_F_BROADCAST`), resolved to ports for
//! each completed batch.

use std::sync::Arc;

use portcullis_core::device::{Completion, DeviceError, Session};
use portcullis_core::map::{Declaration, sorted_rows};
use portcullis_core::program::Program;
use portcullis_io::RedirectGroups;

/// The broadcast targets of a filter: redirect targets that stand for all ports in a map.
#[derive(Debug, Clone)]
pub struct Broadcasts {
    targets: Vec<Broadcast>,
    maps: Vec<Declaration>,
    resolved: Arc<RedirectGroups>,
}

/// A redirect target that stands for all ports in a map.
#[derive(Debug, Clone)]
struct Broadcast {
    target: u32,
    /// Index of the map.
    map: usize,
    /// Whether a packet does not go back to the port that it came from.
    exclude_ingress: bool,
}

/// Returns the broadcast targets of a program, which only XDP objects have.
fn targets_of(program: &Program) -> Vec<Broadcast> {
    #[cfg(feature = "xdp")]
    if let Some(object) = portcullis_xdp::ObjectInfo::of(program) {
        let own = |it: &portcullis_xdp::Broadcast| Broadcast {
            target: it.target,
            map: it.map,
            exclude_ingress: it.exclude_ingress,
        };
        return object.broadcasts.iter().map(own).collect();
    }
    let _ = program;
    Vec::new()
}

impl Broadcasts {
    /// Returns the broadcast targets of `program`, or `None` if it has none.
    pub fn from_program(program: &Program) -> Option<Broadcasts> {
        let targets = targets_of(program);
        (!targets.is_empty()).then(|| Broadcasts { targets, maps: program.maps().to_vec(), resolved: Arc::default() })
    }

    /// Whether a broadcast of `program` excludes the ingress port, so that packets need their port
    /// as metadata.
    pub fn needs_ingress_port(program: &Program) -> bool {
        targets_of(program).iter().any(|it| it.exclude_ingress)
    }

    /// Looks up the ports behind the broadcast targets if a packet of the completed batch has one.
    ///
    /// Reading the maps waits for the batches in flight. Returns `None` if no packet of the batch
    /// is broadcast.
    ///
    /// # Errors
    /// If the session cannot read a map.
    pub fn resolve(
        &mut self,
        session: &mut dyn Session,
        done: &Completion,
    ) -> Result<Option<Arc<RedirectGroups>>, DeviceError> {
        let is_one = |target: &u32| self.targets.iter().any(|it| it.target == *target);
        if done.verdicts.counts().redirect == 0 || !done.verdicts.targets().iter().any(is_one) {
            return Ok(None);
        }
        let mut redirect_groups = RedirectGroups::default();
        for Broadcast { target, map, exclude_ingress } in &self.targets {
            let words = session.map_words(*map)?;
            let ports = sorted_rows(&self.maps[*map], &words).map(|row| row.value[0]).filter(|port| *port != 0);
            redirect_groups.push(*target, *exclude_ingress, ports.collect());
        }
        if *self.resolved != redirect_groups {
            self.resolved = Arc::new(redirect_groups);
        }
        Ok(Some(self.resolved.clone()))
    }
}
