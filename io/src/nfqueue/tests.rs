//! Verdicts as they are sent, against a model of what the kernel does with them.

use std::collections::BTreeMap;
use std::io::IoSlice;

use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::answers::Answers;
use super::message::Verdict;

/// What became of a packet: `NF_DROP` or `NF_ACCEPT`, and the bytes it was given.
type Fate = (u32, Option<Vec<u8>>);

/// Packets that wait, in order, and what became of those that do not.
#[derive(Default)]
struct Kernel {
    waiting: Vec<u32>,
    fates: BTreeMap<u32, Fate>,
    /// The order in which packets went on.
    order: Vec<u32>,
    messages: usize,
    datagrams: usize,
}

impl Kernel {
    /// Takes what has been gathered.
    fn take_from(&mut self, answers: &mut Answers, arena: &[u8]) {
        let sent = answers.with_datagram(arena, |pieces| {
            self.take(pieces);
            Ok(())
        });
        sent.unwrap();
        answers.clear();
    }

    /// `nfqnl_recv_verdict` and `nfqnl_recv_verdict_batch`, read from bytes by a reader of its own.
    fn take(&mut self, pieces: &[IoSlice]) {
        let datagram = pieces.iter().flat_map(|piece| piece.iter().copied()).collect::<Vec<u8>>();
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
            // The verdict comes first, then the bytes.
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
                    self.waiting.remove(place.expect("a verdict on a packet that waits"));
                    self.settle(id, (verdict, payload));
                }
                0x303 => {
                    assert_eq!(payload, None);
                    let after = self.waiting.iter().position(|&waiting| (waiting.wrapping_sub(id) as i32) > 0);
                    let swept: Vec<u32> = self.waiting.drain(..after.unwrap_or(self.waiting.len())).collect();
                    assert!(swept.len() > 1, "a message that one of a kind would do for");
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
fn every_packet_gets_its_own_verdict_in_every_order_of_batches() {
    for seed in 0..300u64 {
        let mut rng = Pcg64::seed_from_u64(seed);
        let arena: Vec<u8> = (0..70_000u32).map(|i| (i * 7) as u8).collect();
        let mut kernel = Kernel::default();
        // Numbers ascend over the end of 32 bits, with holes where the kernel lost packets.
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
            let mut answers = Answers::new(3, is_oldest);
            for (id, fate) in &batches[number] {
                let verdict = if fate.0 == 1 { Verdict::Accept } else { Verdict::Drop };
                match &fate.1 {
                    None => answers.unchanged(verdict, *id),
                    Some(bytes) => {
                        let start = (0..4000).find(|&start| arena[start..].starts_with(bytes)).unwrap();
                        answers.changed(*id, start..start + bytes.len());
                    }
                }
                if answers.is_full() {
                    kernel.take_from(&mut answers, &arena);
                }
            }
            kernel.take_from(&mut answers, &arena);
            // What went on first came first.
            let settled = &kernel.order[kernel.order.len() - batches[number].len()..];
            assert!(settled.iter().eq(batches[number].iter().map(|(id, _)| id)), "{seed}");
            open.retain(|&other| other != number);
        }
        assert_eq!(kernel.fates, wanted, "{seed}");
        assert!(kernel.waiting.is_empty());
    }
}

#[test]
fn a_batch_with_one_verdict_is_one_message() {
    for (sweeps, messages) in [(true, 1), (false, 1000)] {
        let mut kernel = Kernel { waiting: (1..=1000).collect(), ..Kernel::default() };
        let mut answers = Answers::new(3, sweeps);
        (1..=1000).for_each(|id| answers.unchanged(Verdict::Accept, id));
        kernel.take_from(&mut answers, &[]);
        assert_eq!((kernel.messages, kernel.datagrams, kernel.fates.len()), (messages, 1, 1000));
    }
    let mut answers = Answers::new(3, true);
    answers.with_datagram(&[], |_| panic!("there is nothing to say")).unwrap();
}
