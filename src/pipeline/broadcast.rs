//! Packets that go to all devices of a map: what the map has when their batch comes back.

use std::sync::Arc;

use portcullis_core::device::{Completion, DeviceError, Session};
use portcullis_core::map::{Declaration, sorted_rows};
use portcullis_core::packet::Action;
use portcullis_core::program::Program;
use portcullis_io::RedirectGroups;
use portcullis_xdp::Broadcast;

/// The targets of a filter that stand for all ports in a map.
#[derive(Debug, Clone)]
pub struct Broadcasts {
    targets: Vec<Broadcast>,
    maps: Vec<Declaration>,
    resolved: Arc<RedirectGroups>,
}

impl Broadcasts {
    /// A filter's; `None` where it has none.
    pub fn from_program(program: &Program) -> Option<Broadcasts> {
        let targets = portcullis_xdp::ObjectInfo::of(&program)
            .map(|origin| origin.broadcasts.clone())
            .filter(|targets| !targets.is_empty())?;
        Some(Broadcasts { targets, maps: program.maps().to_vec(), resolved: Arc::default() })
    }

    /// Whether it has to be known by which ports packets came in.
    pub fn needs_ingress_port(program: &Program) -> bool {
        portcullis_xdp::ObjectInfo::of(&program)
            .is_some_and(|origin| origin.broadcasts.iter().any(|it| it.exclude_ingress))
    }

    /// What they stand for, where a batch that has come back has such targets. It is read from the maps then, which costs a
    /// wait for what is in flight.
    ///
    /// # Errors
    /// The session's.
    pub fn resolve(
        &mut self,
        session: &mut dyn Session,
        done: &Completion,
    ) -> Result<Option<Arc<RedirectGroups>>, DeviceError> {
        let is_one = |target: &u32| self.targets.iter().any(|it| it.target == *target);
        if done.verdicts.counts()[Action::Redirect as usize] == 0 || !done.verdicts.targets().iter().any(is_one) {
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
