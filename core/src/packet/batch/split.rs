//! Splitting a batch into parts for several devices, and joining them again.

use std::ops::Range;
use std::sync::Arc;

use super::{Batch, SourceData};

/// State shared by the parts of a split batch. The source data stays here until all parts are
/// joined or dropped: what it releases on drop belongs to the packets of every part.
pub(super) struct SplitParent {
    source_data: Option<SourceData>,
}

/// Position of a part in the batch that it was split from.
pub(super) struct BatchRange {
    parent: Arc<SplitParent>,
    packets: Range<usize>,
}

impl Batch {
    /// Splits off the packets from index `at` on as a batch in the same memory; no packet is
    /// copied. Different devices may use the parts at once, since their packets share no word.
    /// [`Batch::join`] reverses it. Neither part has source data: the joined batch gets it back,
    /// and if the parts are never joined it is dropped with the last of them.
    ///
    /// # Panics
    /// If the batch has fewer than `at` packets.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Batch {
        let source_data = &mut self.source_data;
        let range_in_parent = self.range_in_parent.get_or_insert_with(|| BatchRange {
            parent: Arc::new(SplitParent { source_data: source_data.take() }),
            packets: 0..self.descriptors.len(),
        });
        let middle = range_in_parent.packets.start + at;
        let rest = BatchRange { parent: range_in_parent.parent.clone(), packets: middle..range_in_parent.packets.end };
        range_in_parent.packets.end = middle;
        let summary = self.summary_of_part(self.len() - at);
        self.summary = self.summary_of_part(at);
        let has_original = !self.original.is_empty();
        let has_metadata = !self.metadata.is_empty();
        Batch {
            span: self.span.clone(),
            shared: self.shared.clone(),
            descriptors: self.descriptors.split_off(at),
            summary,
            original: if has_original { self.original.split_off(at) } else { Vec::new() },
            metadata: if has_metadata { self.metadata.split_off(at) } else { Vec::new() },
            // No part varies in more fields than the whole.
            metadata_summary: self.metadata_summary.clone(),
            room: self.room,
            is_scattered: self.is_scattered,
            source_data: None,
            range_in_parent: Some(rest),
        }
    }

    /// Appends the part that follows this one, with the changes that devices made to either.
    ///
    /// # Panics
    /// If `next` is not the part that [`Batch::split_off`] made behind this one, or if either was
    /// truncated since ([`Batch::truncate`]).
    pub fn join(&mut self, mut next: Batch) {
        let following = next.range_in_parent.take().filter(|range| range.packets.len() == next.descriptors.len());
        let (Some(range_in_parent), Some(following)) = (&mut self.range_in_parent, following) else {
            panic!("the batches are not complete parts of one batch")
        };
        let is_next = Arc::ptr_eq(&range_in_parent.parent, &following.parent)
            && range_in_parent.packets.len() == self.descriptors.len()
            && range_in_parent.packets.end == following.packets.start;
        assert!(is_next, "the batch is not the part behind this one");
        range_in_parent.packets.end = following.packets.end;
        (self.summary, self.metadata_summary) = Default::default();
        self.descriptors.append(&mut next.descriptors);
        self.original.append(&mut next.original);
        self.metadata.append(&mut next.metadata);
        drop(following);
        // The last join makes the batch whole again: no other part holds the shared state.
        if let Some(BatchRange { parent, packets }) = self.range_in_parent.take() {
            match Arc::try_unwrap(parent) {
                Ok(parent) => self.source_data = parent.source_data,
                Err(parent) => self.range_in_parent = Some(BatchRange { parent, packets }),
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
    struct DropReporter(Sender<()>);

    impl Drop for DropReporter {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }

    fn packets(count: u8) -> Vec<Vec<u8>> {
        (0..count).map(|number| vec![number; 14 + usize::from(number)]).collect()
    }

    /// Adjacent packets with metadata.
    fn adjacent_batch(count: u32) -> Batch {
        let descriptors = (0..count).map(|i| Descriptor { offset: i * 64, length: 60 }).collect();
        let metadata = (0..count).map(|i| Metadata::new(100 + i, i, 0)).collect();
        let mut cutter = BatchCutter::new(Arena::new(64 * count as usize).unwrap(), None);
        cutter.cut_batch(descriptors, metadata, ResizeRoom::None).unwrap()
    }

    #[test]
    fn parts_share_packet_memory_with_the_joined_batch() {
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
                // Changes that a device makes to a part are visible in the whole.
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
        let mut head = adjacent_batch(5);
        let tail = head.split_off(2);
        let ports = |batch: &Batch| (0..batch.len()).map(|i| batch.metadata_of(i).port).collect::<Vec<_>>();
        assert_eq!((ports(&head), ports(&tail)), (vec![0, 1], vec![2, 3, 4]));
        head.join(tail);
        assert_eq!(ports(&head), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn the_byte_range_of_a_part_excludes_the_other_part() {
        let mut head = adjacent_batch(4);
        let tail = head.split_off(1);
        assert_eq!(head.bytes(0..60).len(), 60);
        assert_eq!(tail.bytes(64..252).len(), 188);
        for (part, range) in [(&head, 0..64 + 4), (&tail, 60..252)] {
            assert!(catch_unwind(AssertUnwindSafe(|| part.bytes(range).len())).is_err());
        }
    }

    #[test]
    fn source_data_lives_until_the_last_part_is_dropped_or_joined() {
        let (dropped, drops) = channel();
        let make = || {
            let mut batch = Batch::from_packets(&packets(6)).unwrap();
            batch.set_source_data(Box::new(DropReporter(dropped.clone())));
            batch
        };
        let mut head = make();
        let mut middle = head.split_off(2);
        let tail = middle.split_off(1);
        let head = head.into_source_data::<DropReporter>().unwrap_err();
        drop(head);
        drop(tail);
        assert!(drops.try_recv().is_err(), "the middle part still uses its packets");
        drop(middle);
        assert!(drops.try_recv().is_ok());

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
            let parts = head.into_parts::<DropReporter>().unwrap();
            assert_eq!(parts.descriptors.len(), 6);
            assert!(drops.try_recv().is_err());
            drop(parts);
            assert!(drops.try_recv().is_ok());
        }
    }

    #[test]
    fn joining_parts_that_do_not_follow_each_other_panics() {
        let refused = |mut head: Batch, next: Batch| catch_unwind(AssertUnwindSafe(|| head.join(next))).is_err();
        let three = || {
            let mut head = adjacent_batch(6);
            let mut middle = head.split_off(2);
            let tail = middle.split_off(2);
            (head, middle, tail)
        };
        let (head, middle, tail) = three();
        assert!(refused(head, tail), "the middle is missing");
        drop(middle);
        let (head, middle, tail) = three();
        assert!(refused(tail, head), "the parts are in reverse order");
        drop(middle);
        let (mut head, middle, tail) = three();
        head.truncate(1);
        assert!(refused(head, middle), "the first part was truncated");
        drop(tail);
        assert!(refused(adjacent_batch(2), adjacent_batch(2)), "neither batch was split");
        let (head, _, _) = three();
        let (_, middle, _) = three();
        assert!(refused(head, middle), "parts of two batches");
    }
}
