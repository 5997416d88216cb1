//! Reading event rings between batches.

use super::{Event, EventRing, HEAD_WORD, PrintFormat, TAIL_WORD};
use portcullis_core::device::{DeviceError, Session};
use portcullis_core::map::layout;
use portcullis_core::program::Program;

/// Maximum number of words per read.
const MAX_WORDS_PER_READ: u32 = 1 << 20;

/// Counts of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EventCounts {
    /// Events that were complete and read.
    pub events: u64,
    /// Events that found no room, or were not completed.
    pub lost: u64,
}

impl std::ops::AddAssign for EventCounts {
    fn add_assign(&mut self, other: EventCounts) {
        self.events += other.events;
        self.lost += other.lost;
    }
}

/// Reader of a program's rings, with its position in each.
#[derive(Debug)]
pub struct EventReader {
    rings: Vec<(EventRing, u32)>,
    prints: Vec<PrintFormat>,
    counts: EventCounts,
}

impl EventReader {
    /// Starts at the current heads of a session's rings; `None` if the program records nothing.
    ///
    /// # Errors
    ///
    /// Errors of the session.
    pub fn begin(program: &Program, session: &mut dyn Session) -> Result<Option<EventReader>, DeviceError> {
        let Some(origin) = crate::ObjectInfo::of(program).filter(|origin| !origin.rings.is_empty()) else {
            return Ok(None);
        };
        let mut rings = Vec::new();
        for ring in &origin.rings {
            let head = read_head(ring, session)?;
            write_tail(ring, head, session)?;
            rings.push((ring.clone(), head));
        }
        Ok(Some(EventReader { rings, prints: origin.prints.clone(), counts: EventCounts::default() }))
    }

    #[cfg(test)]
    pub(super) fn of(rings: Vec<(EventRing, u32)>) -> EventReader {
        EventReader { rings, prints: Vec::new(), counts: EventCounts::default() }
    }

    /// Number of packets whose records fit every ring, if each records at most once per site; see
    /// [`EventRing::packet_capacity`].
    pub fn packet_capacity(&self) -> u32 {
        self.rings.iter().map(|(ring, _)| ring.packet_capacity()).min().unwrap_or(u32::MAX)
    }

    /// Totals so far.
    pub fn counts(&self) -> EventCounts {
        self.counts
    }

    /// Passes all new events to `want`, ring by ring in the order in which packets reserved slots;
    /// with `None` they are only counted. Returns an estimate of the packets that recorded,
    /// assuming one record per site. Like [`Session::map_words_at`], it waits for batches submitted
    /// before.
    ///
    /// # Errors
    ///
    /// Errors of the session.
    pub fn read(
        &mut self,
        session: &mut dyn Session,
        mut want: Option<&mut dyn FnMut(Event<'_>)>,
    ) -> Result<u32, DeviceError> {
        let mut most = 0;
        for (ring, tail) in &mut self.rings {
            let head = read_head(ring, session)?;
            let all = head.wrapping_sub(*tail);
            if all == 0 {
                continue;
            }
            most = most.max(all.div_ceil(ring.places.max(1)));
            let kept = all.min(ring.slots);
            let mut whole = kept;
            if let Some(want) = &mut want {
                whole = 0;
                for (number, count) in contiguous_chunks(*tail, kept, ring) {
                    let (stride, slot) = (ring.stride() as usize, number & (ring.slots - 1));
                    let words =
                        session.map_words_at(ring.map, entry_offset(ring, 1 + slot), count as usize * stride)?;
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
            write_tail(ring, head, session)?;
        }
        Ok(most)
    }
}

/// Splits `count` records from `first` on into (first, count) ranges that are contiguous in the
/// ring.
fn contiguous_chunks(first: u32, count: u32, ring: &EventRing) -> Vec<(u32, u32)> {
    let most = (MAX_WORDS_PER_READ / ring.stride()).max(1);
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

/// Word offset of an entry of a ring.
fn entry_offset(ring: &EventRing, entry: u32) -> usize {
    layout::HEADER_WORDS as usize + entry as usize * ring.stride() as usize
}

fn read_head(ring: &EventRing, session: &mut dyn Session) -> Result<u32, DeviceError> {
    let words = session.map_words_at(ring.map, entry_offset(ring, 0) + HEAD_WORD, 1)?;
    Ok(words.first().copied().unwrap_or(0))
}

fn write_tail(ring: &EventRing, head: u32, session: &mut dyn Session) -> Result<(), DeviceError> {
    session.set_map_words(ring.map, entry_offset(ring, 0) + TAIL_WORD, &[head])
}
