//! A batch in two parts, for two devices to have at once, and one again.

use std::ops::Range;
use std::sync::Arc;

use super::{Batch, SourceData};

/// What the parts of a batch have in common. It stays until the last of them is gone or joined: whatever the companion
/// gives back when it is dropped belongs to the packets of all parts.
pub(super) struct Whole {
    source_data: Option<SourceData>,
}

/// Which packets of a whole batch a part has.
pub(super) struct Cut {
    whole: Arc<Whole>,
    packets: Range<usize>,
}

impl Batch {
    /// Takes the packets from number `at` on away, as a batch of their own in the same memory: no packet is copied.
    /// [`Batch::join`] undoes it. Each part may go to a device of its own meanwhile, as no packet of one shares a word with
    /// any of the other. What the source wants back goes with neither part: it is there again when they are joined, and
    /// dropped with the last of them if they are not.
    ///
    /// # Panics
    /// When there are fewer packets than `at`.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Batch {
        let source_data = &mut self.source_data;
        let cut = self.cut.get_or_insert_with(|| Cut {
            whole: Arc::new(Whole { source_data: source_data.take() }),
            packets: 0..self.descriptors.len(),
        });
        let middle = cut.packets.start + at;
        let rest = Cut { whole: cut.whole.clone(), packets: middle..cut.packets.end };
        cut.packets.end = middle;
        let has_original = !self.original.is_empty();
        let has_metadata = !self.metadata.is_empty();
        Batch {
            span: self.span.clone(),
            shared: self.shared.clone(),
            descriptors: self.descriptors.split_off(at),
            original: if has_original { self.original.split_off(at) } else { Vec::new() },
            metadata: if has_metadata { self.metadata.split_off(at) } else { Vec::new() },
            room: self.room,
            is_scattered: self.is_scattered,
            source_data: None,
            cut: Some(rest),
        }
    }

    /// Puts the part behind this one back, as the devices have left both.
    ///
    /// # Panics
    /// When `next` is not what [`Batch::split_off`] took away behind this part's last packet, or either has lost packets
    /// since ([`Batch::truncate`]): their packets would not be those of one batch.
    pub fn join(&mut self, mut next: Batch) {
        let behind = next.cut.take().filter(|cut| cut.packets.len() == next.descriptors.len());
        let (Some(cut), Some(behind)) = (&mut self.cut, behind) else { panic!("not parts of one batch") };
        let is_next = Arc::ptr_eq(&cut.whole, &behind.whole)
            && cut.packets.len() == self.descriptors.len()
            && cut.packets.end == behind.packets.start;
        assert!(is_next, "not the part behind this one");
        cut.packets.end = behind.packets.end;
        self.descriptors.append(&mut next.descriptors);
        self.original.append(&mut next.original);
        self.metadata.append(&mut next.metadata);
        drop(behind);
        // Where this is all of it, it is a batch like any other.
        if let Some(Cut { whole, packets }) = self.cut.take() {
            match Arc::try_unwrap(whole) {
                Ok(whole) => self.source_data = whole.source_data,
                Err(whole) => self.cut = Some(Cut { whole, packets }),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc::{Sender, channel};

    use super::super::*;

    #[derive(Debug)]
    struct Frames(Sender<()>);

    impl Drop for Frames {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }

    fn packets(count: u8) -> Vec<Vec<u8>> {
        (0..count).map(|number| vec![number; 14 + usize::from(number)]).collect()
    }

    /// Of packets that lie next to each other, with metadata.
    fn carved(count: u32) -> Batch {
        let descriptors = (0..count).map(|i| Descriptor { offset: i * 64, length: 60 }).collect();
        let metadata = (0..count).map(|i| Metadata::new(100 + i, i, 0)).collect();
        let mut carver = BatchCutter::new(Arena::new(64 * count as usize).unwrap(), None);
        carver.cut_batch(descriptors, metadata, ResizeRoom::None).unwrap()
    }

    #[test]
    fn parts_have_their_packets_and_the_whole_has_all() {
        let all = packets(9);
        for make in [Batch::from_packets::<Vec<u8>>, Batch::in_frames::<Vec<u8>>] {
            for at in 0..=9 {
                let mut head = make(&all).unwrap();
                let (descriptors, original) = (head.descriptors().to_vec(), head.original().to_vec());
                let mut tail = head.split_off(at);
                assert_eq!((head.len(), tail.len()), (at, 9 - at));
                assert!(head.packets().eq(all[..at].iter().map(Vec::as_slice)));
                assert!(tail.packets().eq(all[at..].iter().map(Vec::as_slice)));
                assert_eq!(tail.original(), &original[at..]);
                // What a device does to one part is seen in the whole.
                let mut moved = tail.descriptors().to_vec();
                if let Some(last) = moved.last_mut() {
                    last.length -= 1;
                    tail.resize(moved).unwrap();
                    tail.packet_mut(8 - at)[0] = 77;
                }
                head.join(tail);
                assert_eq!((head.len(), head.original()), (9, &original[..]));
                assert_eq!(head.descriptors()[..8], descriptors[..8]);
                if at < 9 {
                    assert_eq!((head.packet(8).len(), head.packet(8)[0]), (all[8].len() - 1, 77));
                }
            }
        }
    }

    #[test]
    fn metadata_stays_with_its_packets() {
        let mut head = carved(5);
        let tail = head.split_off(2);
        let ports = |batch: &Batch| (0..batch.len()).map(|i| batch.metadata_of(i).port).collect::<Vec<_>>();
        assert_eq!((ports(&head), ports(&tail)), (vec![0, 1], vec![2, 3, 4]));
        head.join(tail);
        assert_eq!(ports(&head), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn devices_that_copy_a_part_as_one_get_no_packet_of_the_other() {
        let mut head = carved(4);
        let tail = head.split_off(1);
        assert_eq!(head.bytes(0..60).len(), 60);
        assert_eq!(tail.bytes(64..252).len(), 188);
        for (part, range) in [(&head, 0..64 + 4), (&tail, 60..252)] {
            assert!(catch_unwind(AssertUnwindSafe(|| part.bytes(range).len())).is_err());
        }
    }

    #[test]
    fn what_the_source_wants_back_stays_until_no_part_is_left() {
        let (home, back) = channel();
        let make = || {
            let mut batch = Batch::from_packets(&packets(6)).unwrap();
            batch.set_source_data(Box::new(Frames(home.clone())));
            batch
        };
        let mut head = make();
        let mut middle = head.split_off(2);
        let tail = middle.split_off(1);
        let head = head.into_source_data::<Frames>().unwrap_err();
        drop(head);
        drop(tail);
        assert!(back.try_recv().is_err(), "packets of the middle are still somebody's");
        drop(middle);
        assert!(back.try_recv().is_ok());

        // Three parts, joined in either order.
        for first in [true, false] {
            let mut head = make();
            let mut middle = head.split_off(2);
            let tail = middle.split_off(1);
            if first {
                head.join(middle);
                head.join(tail);
            } else {
                middle.join(tail);
                head.join(middle);
            }
            assert_eq!(head.len(), 6);
            let parts = head.into_parts::<Frames>().unwrap();
            assert_eq!(parts.descriptors.len(), 6);
            assert!(back.try_recv().is_err());
            drop(parts);
            assert!(back.try_recv().is_ok());
        }
    }

    #[test]
    fn only_parts_that_belong_together_are_joined() {
        let refused = |mut head: Batch, next: Batch| catch_unwind(AssertUnwindSafe(|| head.join(next))).is_err();
        let three = || {
            let mut head = carved(6);
            let mut middle = head.split_off(2);
            let tail = middle.split_off(2);
            (head, middle, tail)
        };
        let (head, middle, tail) = three();
        assert!(refused(head, tail), "the middle is missing");
        drop(middle);
        let (head, middle, tail) = three();
        assert!(refused(tail, head), "the wrong way round");
        drop(middle);
        let (mut head, middle, tail) = three();
        head.truncate(1);
        assert!(refused(head, middle), "packets are gone");
        drop(tail);
        assert!(refused(carved(2), carved(2)), "two batches");
        let (head, _, _) = three();
        let (_, middle, _) = three();
        assert!(refused(head, middle), "parts of two batches");
    }
}
