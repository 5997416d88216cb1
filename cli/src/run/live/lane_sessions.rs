//! Preparing the sessions of a run's lanes.

use std::sync::Arc;

use portcullis::device::{DeviceError, DeviceInfo, Imported, Session};
use portcullis::packet::{Batch, Span};
use portcullis::program::Program;

use crate::out;

/// Gives sessions access to the memory that packets are received into. Returns whether a session
/// works on copies instead.
pub fn import<'a, S: Session + ?Sized + 'a>(
    sessions: impl Iterator<Item = (&'a Option<Arc<Span>>, &'a mut S)>,
) -> Result<bool, DeviceError> {
    let mut copied = false;
    for (memory, session) in sessions {
        if let Some(memory) = memory {
            copied |= session.import(memory)? == Imported::Copied;
        }
    }
    Ok(copied)
}

/// Prints a note if a device works on copies of packets.
pub fn show_copies(copied: bool, device: &DeviceInfo) {
    if copied {
        out::note(&format!("{}: works on copies of the packet bytes that the filter needs", device.id));
    }
}

/// Filters an artificial packet, because drivers defer work to the first batch (PoCL compiles for
/// 100 ms and more). Not with maps, which the packet would change.
pub fn warm_up(session: &mut dyn Session, program: &Program) -> Result<(), DeviceError> {
    if !program.maps().is_empty() {
        return Ok(());
    }
    let batch = Batch::from_packets(&[[0; 64]]).map_err(|error| DeviceError::Refused(error.to_string()))?;
    session.run(batch).map(drop)
}
