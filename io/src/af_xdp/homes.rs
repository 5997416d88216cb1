//! Who has which frames of a run's memory.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portcullis_core::packet::{Descriptor, Metadata, RESIZE_ROOM};

use super::umem::Frame;

/// Frames side by side that hold one packet which came in several, as a filter sees a packet in one piece. Nobody gives
/// them to a ring.
#[derive(Debug)]
pub(crate) struct Slot {
    frames: Vec<Frame>,
    start: usize,
    length: usize,
}

impl Slot {
    /// Out of frames that lie side by side, in this order.
    fn new(frames: Vec<Frame>, frame_size: usize) -> Slot {
        let first = frames[0].address() / frame_size;
        assert!(frames.iter().enumerate().all(|(n, frame)| frame.address() / frame_size == first + n), "side by side");
        let (start, length) = (first * frame_size, frames.len() * frame_size);
        Slot { frames, start, length }
    }

    /// Where its memory begins, in bytes from the UMEM's first, and how many bytes it has.
    pub fn memory(&self) -> (usize, usize) {
        (self.start, self.length)
    }

    /// Where a packet begins that has room on both sides, in bytes from the UMEM's first.
    pub fn address(&self) -> usize {
        self.start + RESIZE_ROOM as usize
    }

    /// Bytes that a packet may have which has room on both sides.
    pub fn capacity(&self) -> usize {
        self.length - 2 * RESIZE_ROOM as usize
    }
}

/// The memory of a packet.
#[derive(Debug)]
pub(crate) enum Place {
    /// The frame in which it came.
    Frame(Frame),
    /// Where it was put together.
    Slot(Slot),
}

/// Where memory goes that nobody needs: to the lane that it belongs to, which gives frames to its fill rings again.
#[derive(Debug)]
pub(crate) struct Homes {
    frame_size: usize,
    per_lane: usize,
    lanes: Vec<Mutex<Home>>,
}

#[derive(Debug, Default)]
struct Home {
    frames: Vec<Frame>,
    slots: Vec<Slot>,
    lists: Vec<Lists>,
}

/// What batches are made of. Those of batches that are through are empty, and as long as a batch was: for the next ones.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    pub descriptors: Vec<Descriptor>,
    pub metadata: Vec<Metadata>,
    pub places: Vec<Place>,
    /// By which of the lane's queues each came; empty where the lane has one.
    pub queues: Vec<u16>,
}

impl Homes {
    /// For this many lanes, which have the same number of frames each, the first of them the first. Of these, `slots` times
    /// `slot_frames` are side by side for packets that come in several.
    pub fn new(frames: Vec<Frame>, lanes: usize, slots: usize, slot_frames: usize, frame_size: usize) -> Homes {
        let per_lane = frames.len() / lanes;
        assert!(slots * slot_frames < per_lane, "a lane has frames that are in no slot");
        let mut frames = frames.into_iter();
        let lanes = (0..lanes).map(|_| {
            let mut slot = || Slot::new(frames.by_ref().take(slot_frames).collect(), frame_size);
            let slots: Vec<_> = (0..slots).map(|_| slot()).collect();
            let frames = frames.by_ref().take(per_lane - slots.len() * slot_frames).collect();
            Mutex::new(Home { frames, slots, lists: Vec::new() })
        });
        // What is left over by the division is nobody's.
        Homes { frame_size, per_lane, lanes: lanes.collect() }
    }

    /// Brings memory home.
    pub fn put(&self, places: impl IntoIterator<Item = Place>) {
        let mut open: Option<(usize, MutexGuard<'_, Home>)> = None;
        for place in places {
            let address = match &place {
                Place::Frame(frame) => frame.address(),
                Place::Slot(slot) => slot.start,
            };
            let lane = address / self.frame_size / self.per_lane;
            if open.as_ref().is_none_or(|(at, _)| *at != lane) {
                // The lock of the one before goes first: whoever holds two would need an order.
                drop(open.take());
                open = Some((lane, self.lock(lane)));
            }
            let Some((_, home)) = &mut open else { unreachable!("set above") };
            match place {
                Place::Frame(frame) => home.frames.push(frame),
                Place::Slot(slot) => home.slots.push(slot),
            }
        }
    }

    /// Takes up to `most` frames that are at home.
    pub fn take(&self, lane: usize, most: usize, into: &mut Vec<Frame>) {
        let frames = &mut self.lock(lane).frames;
        let from = frames.len() - most.min(frames.len());
        into.extend(frames.drain(from..));
    }

    /// Takes a slot, if one is at home.
    pub fn take_slot(&self, lane: usize) -> Option<Slot> {
        self.lock(lane).slots.pop()
    }

    /// Takes lists, with nothing in them.
    pub fn take_lists(&self, lane: usize) -> Lists {
        self.lock(lane).lists.pop().unwrap_or_default()
    }

    /// Brings lists home. What is in them is forgotten, but for memory, which goes home, too.
    pub fn put_lists(&self, lane: usize, mut lists: Lists) {
        self.put(lists.places.drain(..));
        lists.descriptors.clear();
        lists.metadata.clear();
        lists.queues.clear();
        self.lock(lane).lists.push(lists);
    }

    /// Frames that a lane has, wherever they are.
    pub fn per_lane(&self) -> usize {
        self.per_lane
    }

    /// Frames that lanes have in all, wherever they are.
    pub fn all(&self) -> usize {
        self.per_lane * self.lanes.len()
    }

    /// Frames that are at home, those of slots included.
    pub fn count(&self) -> usize {
        let of = |home: &Home| home.frames.len() + home.slots.iter().map(|slot| slot.frames.len()).sum::<usize>();
        (0..self.lanes.len()).map(|lane| of(&self.lock(lane))).sum()
    }

    fn lock(&self, lane: usize) -> MutexGuard<'_, Home> {
        // A list is a list whoever died while it was locked.
        self.lanes[lane].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The memory of a batch's packets: the batch's companion.
#[derive(Debug)]
pub(crate) struct Held {
    /// One a packet.
    places: Vec<Place>,
    /// By which of the lane's queues each came; empty where the lane has one.
    queues: Vec<u16>,
    homes: Arc<Homes>,
}

impl Held {
    pub fn new(places: Vec<Place>, queues: Vec<u16>, homes: Arc<Homes>) -> Held {
        Held { places, queues, homes }
    }

    /// What it holds, which no longer goes home by itself.
    pub fn take(mut self) -> (Vec<Place>, Vec<u16>) {
        (std::mem::take(&mut self.places), std::mem::take(&mut self.queues))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.homes.put(self.places.drain(..));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::af_xdp::umem::tests::umem;

    #[test]
    fn memory_goes_home_to_its_lane() {
        let (umem, frames) = umem(13);
        assert_eq!(umem.span().len(), 13 * 2048);
        let homes = Arc::new(Homes::new(frames, 2, 1, 2, umem.frame_size()));
        assert_eq!((homes.all(), homes.count()), (12, 12));
        let (mut first, mut second) = (Vec::new(), Vec::new());
        homes.take(0, 10, &mut first);
        homes.take(1, 3, &mut second);
        assert_eq!((first.len(), second.len(), homes.count()), (4, 3, 5));
        let numbers = |frames: &[Frame]| frames.iter().map(|frame| umem.number(frame)).collect::<Vec<_>>();
        assert_eq!(numbers(&first), [2, 3, 4, 5]);
        assert_eq!(numbers(&second), [9, 10, 11]);
        let slot = homes.take_slot(1).unwrap();
        assert_eq!((slot.address(), slot.capacity()), (6 * 2048 + 128, 4096 - 256));
        assert!(homes.take_slot(1).is_none());
        // Mixed, and in a batch that is dropped.
        let mixed = [first.pop().unwrap(), second.pop().unwrap(), first.pop().unwrap()].map(Place::Frame);
        let mixed = mixed.into_iter().chain([Place::Slot(slot)]).collect();
        drop(Held::new(mixed, vec![], homes.clone()));
        assert_eq!(homes.count(), 8);
        let mut again = Vec::new();
        homes.take(0, 10, &mut again);
        assert_eq!(numbers(&again), [5, 4]);
        assert!(homes.take_slot(1).is_some());
        let held = Held::new(first.into_iter().map(Place::Frame).collect(), vec![7], homes.clone());
        let (places, queues) = held.take();
        assert_eq!((places.len(), queues.as_slice(), homes.count()), (2, &[7][..], 4));
    }

    #[test]
    fn lists_come_back_empty_and_what_was_in_them_goes_home() {
        let (umem, frames) = umem(4);
        let homes = Homes::new(frames, 1, 0, 1, umem.frame_size());
        let mut lists = homes.take_lists(0);
        let mut frames = Vec::new();
        homes.take(0, 3, &mut frames);
        lists.places.extend(frames.into_iter().map(Place::Frame));
        lists.descriptors.resize(3, Descriptor::default());
        lists.metadata.resize(3, Metadata::default());
        lists.queues.resize(3, 1);
        assert_eq!(homes.count(), 1);
        homes.put_lists(0, lists);
        assert_eq!(homes.count(), 4);
        let Lists { descriptors, metadata, places, queues } = homes.take_lists(0);
        assert_eq!((descriptors.len(), metadata.len(), places.len(), queues.len()), (0, 0, 0, 0));
        let room = [descriptors.capacity(), metadata.capacity(), places.capacity(), queues.capacity()];
        assert!(room.iter().all(|room| *room >= 3), "{room:?}");
    }
}
