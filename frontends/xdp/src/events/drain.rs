//! Reading rings, between batches.

use super::{Event, EventRing, HEAD, Print, TAIL};
use portcullis_core::device::{DeviceError, Session};
use portcullis_core::map::layout;
use portcullis_core::program::Program;

/// Words that are read at once, at most.
const AT_ONCE: u32 = 1 << 20;

/// How many events there were.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EventCounts {
    /// Those that were there to be read.
    pub events: u64,
    /// Those that there was no room for, or that were left half done.
    pub lost: u64,
}

impl std::ops::AddAssign for EventCounts {
    fn add_assign(&mut self, other: EventCounts) {
        self.events += other.events;
        self.lost += other.lost;
    }
}

/// The rings of a program as they are read: how far the host has come with each.
#[derive(Debug)]
pub struct EventReader {
    rings: Vec<(EventRing, u32)>,
    prints: Vec<Print>,
    counts: EventCounts,
}

impl EventReader {
    /// Begins with what comes from now on in a session of the program; `None` where it records nothing.
    ///
    /// # Errors
    /// The session's.
    pub fn begin(program: &Program, session: &mut dyn Session) -> Result<Option<EventReader>, DeviceError> {
        let Some(origin) = crate::ObjectInfo::of(program).filter(|origin| !origin.rings.is_empty()) else {
            return Ok(None);
        };
        let mut rings = Vec::new();
        for ring in &origin.rings {
            let head = head(ring, session)?;
            seen(ring, head, session)?;
            rings.push((ring.clone(), head));
        }
        Ok(Some(EventReader { rings, prints: origin.prints.clone(), counts: EventCounts::default() }))
    }

    #[cfg(test)]
    pub(super) fn of(rings: Vec<(EventRing, u32)>) -> EventReader {
        EventReader { rings, prints: Vec::new(), counts: EventCounts::default() }
    }

    /// How many packets find room for their records in each ring, if none of them makes several at one place
    /// ([`EventRing::packets`]).
    pub fn room(&self) -> u32 {
        self.rings.iter().map(|(ring, _)| ring.packets()).min().unwrap_or(u32::MAX)
    }

    /// What has come of all up to now.
    pub fn counts(&self) -> EventCounts {
        self.counts
    }

    /// Reads what is new, ring by ring, each in the order in which packets took their slots. Where nobody wants it
    /// (`None`), it is counted. Gives for how many packets there were records, if each had made one at each place: of the ring
    /// with the most. It waits for the batches submitted
    /// before, as [`Session::map_words_at`] does, and reads no more than there is.
    ///
    /// # Errors
    /// The session's.
    pub fn read(
        &mut self,
        session: &mut dyn Session,
        mut want: Option<&mut dyn FnMut(Event<'_>)>,
    ) -> Result<u32, DeviceError> {
        let mut most = 0;
        for (ring, tail) in &mut self.rings {
            let head = head(ring, session)?;
            let all = head.wrapping_sub(*tail);
            if all == 0 {
                continue;
            }
            most = most.max(all.div_ceil(ring.places.max(1)));
            let kept = all.min(ring.slots);
            let mut whole = kept;
            if let Some(want) = &mut want {
                whole = 0;
                for (number, count) in pieces(*tail, kept, ring) {
                    let (stride, slot) = (ring.stride() as usize, number & (ring.slots - 1));
                    let words = session.map_words_at(ring.map, at(ring, 1 + slot), count as usize * stride)?;
                    for (slot, number) in words.chunks(stride).zip(0..count).map(|(it, i)| (it, number.wrapping_add(i)))
                    {
                        if let Some(event) = ring.event(slot, number, &self.prints) {
                            whole += 1;
                            want(event);
                        }
                    }
                }
            }
            self.counts += EventCounts { events: whole.into(), lost: (all - whole).into() };
            *tail = head;
            seen(ring, head, session)?;
        }
        Ok(most)
    }
}

/// The records from a number on, in pieces that lie behind each other in the ring.
fn pieces(first: u32, count: u32, ring: &EventRing) -> Vec<(u32, u32)> {
    let most = (AT_ONCE / ring.stride()).max(1);
    let (mut number, mut left) = (first, count);
    let mut all = Vec::new();
    while left > 0 {
        let to_end = ring.slots - (number & (ring.slots - 1));
        let piece = left.min(to_end).min(most);
        all.push((number, piece));
        (number, left) = (number.wrapping_add(piece), left - piece);
    }
    all
}

/// Where an entry of a ring begins.
fn at(ring: &EventRing, entry: u32) -> usize {
    layout::HEADER_WORDS as usize + entry as usize * ring.stride() as usize
}

fn head(ring: &EventRing, session: &mut dyn Session) -> Result<u32, DeviceError> {
    let words = session.map_words_at(ring.map, at(ring, 0) + HEAD, 1)?;
    Ok(words.first().copied().unwrap_or(0))
}

fn seen(ring: &EventRing, head: u32, session: &mut dyn Session) -> Result<(), DeviceError> {
    session.set_map_words(ring.map, at(ring, 0) + TAIL, &[head])
}
