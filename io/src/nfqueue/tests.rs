//! Verdict messages against a model of how the kernel processes them.

use std::collections::BTreeMap;
use std::io::IoSlice;

use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::message::Verdict;
use super::verdict_datagram::VerdictDatagram;

/// A packet's fate: `NF_DROP` or `NF_ACCEPT`, and replaced bytes.
type Fate = (u32, Option<Vec<u8>>);

/// Model of the kernel's queue: waiting packets in order, and the fates of others.
#[derive(Default)]
struct Kernel {
    waiting: Vec<u32>,
    fates: BTreeMap<u32, Fate>,
    /// Order in which packets left the queue.
    order: Vec<u32>,
    messages: usize,
    datagrams: usize,
}

impl Kernel {
    /// Processes the collected messages.
    fn take_from(&mut self, verdicts: &mut VerdictDatagram, arena: &[u8]) {
        let sent = verdicts.with_datagram(arena, |parts| {
            self.take(parts);
            Ok(())
        });
        sent.unwrap();
        verdicts.clear();
    }

    /// Models `nfqnl_recv_verdict` and `nfqnl_recv_verdict_batch`, with an independent decoder.
    fn take(&mut self, parts: &[IoSlice]) {
        let datagram = parts.iter().flat_map(|piece| piece.iter().copied()).collect::<Vec<u8>>();
        let native = |at: usize, bytes: usize| match bytes {
            2 => usize::from(u16::from_ne_bytes(datagram[at..at + 2].try_into().unwrap())),
            _ => u32::from_ne_bytes(datagram[at..at + 4].try_into().unwrap()) as usize,
        };
        let network = |at: usize| u32::from_be_bytes(datagram[at..at + 4].try_into().unwrap());
        self.datagrams += 1;
        let mut at = 0;
        while at < datagram.len() {
            let (length, kind) = (native(at, 4), native(at + 4, 2));
            assert_eq!(at % 4, 0);
            assert_eq!(datagram[at + 16..at + 20], [0, 0, 0, 3], "queue 3");
            // The verdict header comes first, then the bytes.
            assert_eq!((native(at + 20, 2), native(at + 22, 2)), (12, 2));
            let (verdict, id) = (network(at + 24), network(at + 28));
            let payload = (length > 32).then(|| {
                assert_eq!(native(at + 34, 2), 10);
                let end = at + 32 + native(at + 32, 2);
                assert_eq!(end.next_multiple_of(4), at + length);
                datagram[at + 36..end].to_vec()
            });
            match kind {
                0x301 => {
                    let place = self.waiting.iter().position(|&waiting| waiting == id);
                    self.waiting.remove(place.expect("a verdict on a packet that is waiting"));
                    self.settle(id, (verdict, payload));
                }
                0x303 => {
                    assert_eq!(payload, None);
                    let after = self.waiting.iter().position(|&waiting| (waiting.wrapping_sub(id) as i32) > 0);
                    let swept: Vec<u32> = self.waiting.drain(..after.unwrap_or(self.waiting.len())).collect();
                    assert!(swept.len() > 1, "a batch verdict on a single packet");
                    for id in swept {
                        self.settle(id, (verdict, None));
                    }
                }
                other => panic!("a message of type {other:#x}"),
            }
            self.messages += 1;
            at += length;
        }
        assert_eq!(at, datagram.len());
    }

    fn settle(&mut self, id: u32, fate: Fate) {
        self.order.push(id);
        assert_eq!(self.fates.insert(id, fate), None, "two verdicts on {id}");
    }
}

#[test]
fn every_packet_gets_its_own_verdict_in_any_order_of_batches() {
    for seed in 0..300u64 {
        let mut rng = Pcg64::seed_from_u64(seed);
        let arena: Vec<u8> = (0..70_000u32).map(|i| (i * 7) as u8).collect();
        let mut kernel = Kernel::default();
        // IDs wrap around 32 bits and have gaps where the kernel lost packets.
        let mut id = 0u32.wrapping_sub(rng.random_range(0..200));
        let mut wanted = BTreeMap::new();
        let mut batches: Vec<Vec<(u32, Fate)>> = Vec::new();
        for _ in 0..rng.random_range(1..6) {
            let alike = rng.random_range(0..10u32);
            let mut last = 0;
            let mut batch = Vec::new();
            for _ in 0..rng.random_range(1..120) {
                id = id.wrapping_add(if rng.random_range(0..10) == 0 { 3 } else { 1 });
                if rng.random_range(0..10) >= alike {
                    last = rng.random_range(0..10u32);
                }
                let fate = match last {
                    0..5 => (1, None),
                    5..9 => (0, None),
                    _ => {
                        let start = rng.random_range(0..4000);
                        let long = rng.random_range(0..20) == 0;
                        let length = rng.random_range(1..if long { 65_531 } else { 100 });
                        (1, Some(arena[start..start + length].to_vec()))
                    }
                };
                kernel.waiting.push(id);
                wanted.insert(id, fate.clone());
                batch.push((id, fate));
            }
            batches.push(batch);
        }
        let mut order: Vec<usize> = (0..batches.len()).collect();
        if seed % 3 > 0 {
            order.shuffle(&mut rng);
        }
        let mut open = order.clone();
        for number in order {
            let is_oldest = open.iter().min() == Some(&number);
            let mut verdicts = VerdictDatagram::new(3, is_oldest);
            for (id, fate) in &batches[number] {
                let verdict = if fate.0 == 1 { Verdict::Accept } else { Verdict::Drop };
                match &fate.1 {
                    None => verdicts.push_unchanged(verdict, *id),
                    Some(bytes) => {
                        let start = (0..4000).find(|&start| arena[start..].starts_with(bytes)).unwrap();
                        verdicts.push_changed(*id, start..start + bytes.len());
                    }
                }
                if verdicts.is_full() {
                    kernel.take_from(&mut verdicts, &arena);
                }
            }
            kernel.take_from(&mut verdicts, &arena);
            // Packets leave the queue in order of arrival.
            let settled = &kernel.order[kernel.order.len() - batches[number].len()..];
            assert!(settled.iter().eq(batches[number].iter().map(|(id, _)| id)), "{seed}");
            open.retain(|&other| other != number);
        }
        assert_eq!(kernel.fates, wanted, "{seed}");
        assert!(kernel.waiting.is_empty());
    }
}

#[test]
fn a_batch_with_one_verdict_is_one_message_if_it_is_the_oldest() {
    for (sweeps, messages) in [(true, 1), (false, 1000)] {
        let mut kernel = Kernel { waiting: (1..=1000).collect(), ..Kernel::default() };
        let mut verdicts = VerdictDatagram::new(3, sweeps);
        (1..=1000).for_each(|id| verdicts.push_unchanged(Verdict::Accept, id));
        kernel.take_from(&mut verdicts, &[]);
        assert_eq!((kernel.messages, kernel.datagrams, kernel.fates.len()), (messages, 1, 1000));
    }
    let mut verdicts = VerdictDatagram::new(3, true);
    verdicts.with_datagram(&[], |_| panic!("an empty datagram is not sent")).unwrap();
}
