//! Requests to filter packets of a slot, and the ring in which they are posted. `slot.cu` has the
//! device's side.
//!
//! A driver call per batch would cost several microseconds; here the host posts a batch by writing
//! to memory, and the kernel answers by writing to memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::driver::ErrorCode;
use crate::driver::context::Context;
use crate::memory::{Buffer, HostMemory};

/// Where the kernel finds the packets of a request. The numbers are those of `slot.cu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u32)]
pub(crate) enum PacketCopy {
    /// Where they are: in device memory.
    #[default]
    InPlace = 0,
    /// The kernel copies a range of words.
    Range = 1,
    /// The kernel copies the first words of each packet, and writes changed ones back.
    Rows = 2,
}

/// A request as the kernel reads it (`pc_request`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Request {
    /// Device address of the slot.
    pub slot: u64,
    /// Device memory for packets that do not fit in a block's shared memory.
    pub staging: u64,
    /// Device address from which packets' offsets count.
    pub source: u64,
    /// Offset in the slot, in bytes, of what the host writes.
    pub input: u32,
    /// See [`Request::kind`].
    pub kind: u32,
    /// The first packet, as an index in the slot.
    pub first: u32,
    /// Number of packets in the slot.
    pub packets: u32,
    /// Tag of the results; 0 for results without tags.
    pub tag: u32,
    /// The descriptor rule, without its format. Offsets in tables count from `first_offset`.
    pub first_offset: u32,
    pub stride: u32,
    pub length: u32,
    /// For [`PacketCopy::Range`], the first byte's offset.
    pub start: u32,
    /// Words of the range, or of each row.
    pub words: u32,
}

impl Request {
    /// The word of the descriptors' format, of where the packets are, and of their number.
    pub fn kind(format: u32, copy: PacketCopy, count: usize) -> u32 {
        assert!(format < 4 && count < 1 << 28, "they have 2 and 28 bits");
        format | (copy as u32) << 2 | (count as u32) << 4
    }

    fn words(&self) -> [u32; POSTED_WORDS] {
        let (low, high) = (|address: u64| address as u32, |address: u64| (address >> 32) as u32);
        let (slot, staging, source) = (self.slot, self.staging, self.source);
        [
            low(slot),
            high(slot),
            low(staging),
            high(staging),
            low(source),
            high(source),
            self.input,
            self.kind,
            self.first,
            self.packets,
            self.tag,
            self.first_offset,
            self.stride,
            self.length,
            self.start,
            self.words,
        ]
    }
}

/// Double words of a posted request (`pc_posted`): a word, and above it the lap.
const POSTED_WORDS: usize = size_of::<Request>() / 4;

/// Bytes from one request of the ring to the next: as much as a warp reads at once.
const REQUEST_STRIDE: usize = 8 * POSTED_WORDS;
const _: () = assert!(REQUEST_STRIDE == 128);

/// A ring of requests and of the answers to them, in pinned memory that kernels access.
///
/// Request number `n` has index `n % capacity` and lap `n / capacity + 1`. The host writes each of
/// its words together with the lap, with release ordering; whoever has filtered its packets writes
/// the lap to the answer of the same index.
#[derive(Debug)]
pub(crate) struct RequestRing {
    memory: HostMemory,
    capacity: u64,
}

impl RequestRing {
    /// Allocates a ring and `words` zeroed words after it for other uses.
    pub fn new(context: &Arc<Context>, capacity: u64, words: usize) -> Result<RequestRing, ErrorCode> {
        let bytes = capacity as usize * (REQUEST_STRIDE + 4) + words * 4;
        Ok(RequestRing { memory: HostMemory::new(context, bytes)?, capacity })
    }

    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    pub fn lap(&self, number: u64) -> u32 {
        (number / self.capacity) as u32 + 1
    }

    pub fn index(&self, number: u64) -> usize {
        (number % self.capacity) as usize
    }

    /// Device address of a request.
    pub fn request_address(&self, number: u64) -> u64 {
        self.memory.address() + (self.index(number) * REQUEST_STRIDE) as u64
    }

    /// Device address of the lap that the host writes last.
    pub fn lap_address(&self, number: u64) -> u64 {
        self.request_address(number) + REQUEST_STRIDE as u64 - 4
    }

    /// Offset of the answer to a request.
    fn answer(&self, number: u64) -> usize {
        self.capacity as usize * REQUEST_STRIDE + self.index(number) * 4
    }

    /// Device address of the answer to a request.
    pub fn answer_address(&self, number: u64) -> u64 {
        self.memory.address() + self.answer(number) as u64
    }

    /// Offset of the extra words.
    fn extra_words(&self) -> usize {
        self.capacity as usize * (REQUEST_STRIDE + 4)
    }

    /// Device address of the extra words.
    pub fn extra_words_address(&self) -> u64 {
        self.memory.address() + self.extra_words() as u64
    }

    /// A word that host and device share.
    fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at + 4 <= self.memory.size() && at.is_multiple_of(4), "within the memory");
        // SAFETY: within the memory, which lives as long as this value, and 4-byte aligned. The
        // host only uses atomic operations on it, the device those or volatile accesses.
        unsafe { AtomicU32::from_ptr(self.memory.as_ptr().add(at).cast()) }
    }

    /// An extra word after the ring.
    pub fn extra_word(&self, index: usize) -> &AtomicU32 {
        self.word(self.extra_words() + index * 4)
    }

    /// Posts a request, whose index is free: its predecessor there was answered. Publishes
    /// everything written before, the slot's memory included.
    pub fn post(&self, number: u64, request: &Request) {
        let (at, lap) = (self.index(number) * REQUEST_STRIDE, u64::from(self.lap(number)));
        for (word, index) in request.words().into_iter().zip(0..) {
            // SAFETY: within the memory, and 8-byte aligned; the rest as in `word`.
            let to = unsafe { AtomicU64::from_ptr(self.memory.as_ptr().add(at).cast::<u64>().add(index)) };
            to.store(u64::from(word) | lap << 32, Ordering::Release);
        }
    }

    /// Whether a request was answered. Its response is then visible to the host, unless it is
    /// tagged.
    pub fn is_answered(&self, number: u64) -> bool {
        let answer = self.word(self.answer(number)).load(Ordering::Acquire);
        // The answer may already be that of a later lap.
        answer.wrapping_sub(self.lap(number)).cast_signed() >= 0
    }

    /// Whether the index of a request is free.
    pub fn is_free_for(&self, number: u64) -> bool {
        number.checked_sub(self.capacity).is_none_or(|before| self.is_answered(before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_request_are_those_of_its_fields_in_order() {
        let request = Request {
            slot: 0x1_0000_0002,
            staging: 0x3_0000_0004,
            source: 0x5_0000_0006,
            input: 7,
            first: 9,
            packets: 10,
            tag: 11,
            first_offset: 12,
            stride: 13,
            length: 14,
            start: 15,
            words: 16,
            kind: Request::kind(2, PacketCopy::Rows, 5),
        };
        assert_eq!(request.words(), [2, 1, 4, 3, 6, 5, 7, 2 | 2 << 2 | 5 << 4, 9, 10, 11, 12, 13, 14, 15, 16]);
        // SAFETY: plain words without padding.
        let memory: [u32; POSTED_WORDS] = unsafe { std::mem::transmute(request) };
        assert_eq!(memory, request.words());
    }
}
