//! Packets that go to all devices of a map: what the map has when their batch comes back.

use std::sync::Arc;

use portcullis_core::device::{DeviceError, Done, Session};
use portcullis_core::map::{Declaration, in_order};
use portcullis_core::packet::Action;
use portcullis_core::program::Program;
use portcullis_io::Several;
use portcullis_xdp::Broadcast;

/// The targets of a filter that stand for all ports in a map.
#[derive(Debug, Clone)]
pub struct Broadcasts {
    all: Vec<Broadcast>,
    maps: Vec<Declaration>,
    last: Arc<Several>,
}

impl Broadcasts {
    /// A filter's; `None` where it has none.
    pub fn of(program: &Program) -> Option<Broadcasts> {
        let all = portcullis_xdp::Origin::of(&program)
            .map(|origin| origin.broadcasts.clone())
            .filter(|all| !all.is_empty())?;
        Some(Broadcasts { all, maps: program.maps().to_vec(), last: Arc::default() })
    }

    /// Whether it has to be known by which ports packets came in.
    pub fn need_ports(program: &Program) -> bool {
        portcullis_xdp::Origin::of(&program).is_some_and(|origin| origin.broadcasts.iter().any(|it| it.exclude_ingress))
    }

    /// What they stand for, where a batch that has come back has such targets. It is read from the maps then, which costs a
    /// wait for what is in flight.
    ///
    /// # Errors
    /// The session's.
    pub fn read(&mut self, session: &mut dyn Session, done: &Done) -> Result<Option<Arc<Several>>, DeviceError> {
        let is_one = |target: &u32| self.all.iter().any(|it| it.target == *target);
        if done.verdicts.counts()[Action::Redirect as usize] == 0 || !done.verdicts.targets().iter().any(is_one) {
            return Ok(None);
        }
        let mut several = Several::default();
        for Broadcast { target, map, exclude_ingress } in &self.all {
            let words = session.map_words(*map)?;
            let ports = in_order(&self.maps[*map], &words).map(|row| row.value[0]).filter(|port| *port != 0);
            several.push(*target, *exclude_ingress, ports.collect());
        }
        if *self.last != several {
            self.last = Arc::new(several);
        }
        Ok(Some(self.last.clone()))
    }
}
