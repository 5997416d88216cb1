//! A relaxed memory model: words as several packets see them, without order between different
//! words.
//!
//! Each word has a modification order. A load returns any value that is not older in this order
//! than what the same packet has read or written before. An atomic read-modify-write changes the
//! last value, and nothing comes between its read and its write. A plain store may be placed before
//! other packets' stores. This is C11's memory with relaxed atomics, except that no load sees a
//! store that is executed later.

use portcullis_core::interp::map_requests::{AtomicOp, MapReply};

/// Memory model of an exploration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Sequential consistency: all packets see all operations in one order.
    Sequential,
    /// Relaxed atomics, as the module describes.
    Relaxed,
}

/// A value in a word's modification order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Written {
    value: u32,
    /// Whether the write is an atomic update of the previous one, so that nothing comes between
    /// them.
    follows: bool,
}

/// A word that some packet has accessed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Word {
    /// Values in modification order.
    written: Vec<Written>,
    /// For each packet, the index of the oldest value that it may still see.
    views: Vec<u8>,
}

impl Word {
    /// Creates a word with an initial value, seen by `packets` packets.
    pub fn new(value: u32, packets: usize) -> Word {
        Word { written: vec![Written { value, follows: false }], views: vec![0; packets] }
    }

    fn last(&self) -> usize {
        self.written.len() - 1
    }

    fn see(&mut self, packet: usize, at: usize, order: Order) {
        match order {
            Order::Relaxed => self.views[packet] = at as u8,
            Order::Sequential => self.views.fill(at as u8),
        }
    }

    /// Inserts a store at position `at` of the modification order.
    fn write(&mut self, packet: usize, at: usize, written: Written, order: Order) {
        self.written.insert(at, written);
        self.views.iter_mut().filter(|view| usize::from(**view) >= at).for_each(|view| *view += 1);
        self.see(packet, at, order);
    }
}

/// The accessed words, by number.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Memory(Vec<Option<Word>>);

impl Memory {
    fn word(&mut self, number: usize, start: impl Fn() -> Word) -> &mut Word {
        if self.0.len() <= number {
            self.0.resize(number + 1, None);
        }
        self.0[number].get_or_insert_with(start)
    }

    /// Returns the final value of a word.
    pub fn last(&self, word: usize) -> Option<u32> {
        self.0.get(word)?.as_ref().map(|word| word.written[word.last()].value)
    }

    /// Returns every possible result of a load.
    pub fn loads(&self, order: Order, number: usize, packet: usize, start: impl Fn() -> Word) -> Vec<(Memory, u32)> {
        let mut memory = self.clone();
        let word = memory.word(number, start).clone();
        let first = usize::from(word.views[packet]);
        (first..=word.last())
            .map(|at| {
                let mut memory = memory.clone();
                let word = memory.word(number, || unreachable!());
                word.see(packet, at, order);
                let value = word.written[at].value;
                (memory, value)
            })
            .collect()
    }

    /// Returns every possible result of a store.
    pub fn stores(
        &self,
        order: Order,
        number: usize,
        packet: usize,
        value: u32,
        start: impl Fn() -> Word,
    ) -> Vec<Memory> {
        let mut memory = self.clone();
        let word = memory.word(number, start).clone();
        let first = usize::from(word.views[packet]) + 1;
        (first..=word.written.len())
            .filter(|&at| word.written.get(at).is_none_or(|next| !next.follows))
            .map(|at| {
                let mut memory = memory.clone();
                memory.word(number, || unreachable!()).write(packet, at, Written { value, follows: false }, order);
                memory
            })
            .collect()
    }

    /// Returns every possible result of an atomic operation, including spurious failure if that is
    /// allowed.
    pub fn does(
        &self,
        order: Order,
        number: usize,
        packet: usize,
        what: AtomicOp,
        spurious_failures: bool,
        start: impl Fn() -> Word,
    ) -> Vec<(Memory, MapReply, bool)> {
        let failed = |before| MapReply { before, exchanged: false };
        let loaded = || self.loads(order, number, packet, &start).into_iter();
        // The operation changes the last value, or nothing if a comparison fails.
        let changed = || {
            let mut memory = self.clone();
            let word = memory.word(number, &start);
            let last = word.last();
            let before = word.written[last].value;
            let value = what.after(before)?;
            word.write(packet, last + 1, Written { value, follows: true }, order);
            Some((memory, MapReply { before, exchanged: true }, false))
        };
        match what {
            AtomicOp::Load => loaded().map(|(memory, before)| (memory, failed(before), false)).collect(),
            AtomicOp::Store(value) => {
                let stored = self.stores(order, number, packet, value, &start).into_iter();
                stored.map(|memory| (memory, failed(0), false)).collect()
            }
            AtomicOp::Add(_) | AtomicOp::Min(_) | AtomicOp::Max(_) | AtomicOp::Or(_) | AtomicOp::Exchange(_) => {
                changed().into_iter().collect()
            }
            AtomicOp::CompareExchange { expected, .. } => {
                let failures = loaded().filter(|(_, before)| spurious_failures || *before != expected);
                let failures = failures.map(|(memory, before)| (memory, failed(before), before == expected));
                failures.chain(changed()).collect()
            }
        }
    }

    /// Drops the values of words that no packet can see any more.
    pub fn forget(&mut self, ended: impl Fn(usize) -> bool) {
        for word in self.0.iter_mut().flatten() {
            let last = word.last() as u8;
            (0..word.views.len()).filter(|&packet| ended(packet)).for_each(|packet| word.views[packet] = last);
            let oldest = word.views.iter().min().copied().unwrap_or(last);
            word.written.drain(..usize::from(oldest));
            word.written[0].follows = false;
            word.views.iter_mut().for_each(|view| *view -= oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHAT: AtomicOp = AtomicOp::CompareExchange { expected: 0, value: 7 };

    #[test]
    fn updates_read_the_last_value_and_loads_any_recent_one() {
        let start = || Word::new(0, 2);
        let memory = Memory::default();
        let done = |memory: &Memory, packet, what| memory.does(Order::Relaxed, 0, packet, what, false, start);
        let [(memory, answer, _)] = &done(&memory, 0, WHAT)[..] else { panic!("it cannot fail") };
        assert!(answer.exchanged && answer.before == 0);
        // The other packet may not have seen the store yet, and its exchange must then fail.
        let seen = |memory: &Memory, packet| {
            done(memory, packet, AtomicOp::Load).iter().map(|(_, answer, _)| answer.before).collect::<Vec<_>>()
        };
        assert_eq!((seen(memory, 0), seen(memory, 1)), (vec![7], vec![0, 7]));
        let again = done(memory, 1, WHAT);
        assert_eq!(again.len(), 1);
        assert_eq!(again[0].1, MapReply { before: 7, exchanged: false });
        assert_eq!(seen(&again[0].0, 1), [7]);
        // A packet that has not seen the store may also fail spuriously.
        assert_eq!(memory.does(Order::Relaxed, 0, 1, WHAT, true, start).len(), 2);
    }

    #[test]
    fn stores_may_precede_others_but_not_split_an_update() {
        let start = || Word::new(0, 3);
        let add = |memory: &Memory, packet| {
            memory.does(Order::Relaxed, 0, packet, AtomicOp::Add(1), false, start).remove(0).0
        };
        let memory = add(&add(&Memory::default(), 0), 1);
        let stored = memory.stores(Order::Relaxed, 0, 2, 9, start);
        assert_eq!(stored.len(), 1, "an update cannot be separated from the value that it read");
        assert_eq!(stored[0].last(0), Some(9));
        let stored = memory.stores(Order::Relaxed, 0, 2, 9, start).remove(0).stores(Order::Relaxed, 0, 0, 8, start);
        assert_eq!(stored.iter().map(|memory| memory.last(0)).collect::<Vec<_>>(), [Some(9), Some(8)]);
    }
}
