//! Reads the records that programs send to the host in the kernel: ring buffers, and the perf
//! buffers of all CPUs.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::sys::{self, Mapping};

/// Page size in bytes.
const PAGE: usize = 4096;

/// Pages of a perf buffer, a power of two.
const PAGES: usize = 64;

/// Size of a ring buffer record's header (`BPF_RINGBUF_HDR_SZ`): its length with two flag bits, and
/// its page offset.
const HEADER: u64 = 8;
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;

/// Offset in the first page of a perf buffer (`struct perf_event_mmap_page`, linux/perf_event.h).
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;

/// Record type of `enum perf_event_type`.
const SAMPLE: u32 = 9;

/// A mapped map of type `ringbuf`.
#[derive(Debug)]
pub struct RingBuffer {
    consumer: Mapping,
    /// The producer's page, followed by the data, which is mapped twice.
    producer: Mapping,
    size: u64,
}

impl RingBuffer {
    /// Maps a ring buffer of `size` bytes.
    pub fn open(map: &OwnedFd, size: u32) -> io::Result<RingBuffer> {
        let consumer = Mapping::new(map.as_raw_fd(), PAGE, 0, true)?;
        let producer = Mapping::new(map.as_raw_fd(), PAGE + 2 * size as usize, PAGE, false)?;
        Ok(RingBuffer { consumer, producer, size: size.into() })
    }

    /// Returns the new records, in order.
    pub fn read(&self) -> Vec<Vec<u8>> {
        let (consumed, produced) = (self.consumer.u64_at(0), self.producer.u64_at(0));
        let (mut at, end) = (consumed.load(Ordering::Acquire), produced.load(Ordering::Acquire));
        let mut records = Vec::new();
        while at < end {
            let place = PAGE + (at & (self.size - 1)) as usize;
            let length = self.producer.u32_at(place).load(Ordering::Acquire);
            if length & BUSY != 0 {
                break;
            }
            let bytes = length & !DISCARDED;
            if length & DISCARDED == 0 {
                records.push(self.producer.bytes(place + HEADER as usize, bytes as usize));
            }
            at += (u64::from(bytes) + HEADER).next_multiple_of(HEADER);
        }
        consumed.store(at, Ordering::Release);
        records
    }
}

/// The buffers of a map of type `perf_event_array`, one for each online CPU.
#[derive(Debug)]
pub struct PerfBuffer {
    processors: Vec<(OwnedFd, Mapping)>,
}

impl PerfBuffer {
    /// Opens the buffers and enters them into the map.
    pub fn open(map: &OwnedFd) -> io::Result<PerfBuffer> {
        let mut processors = Vec::new();
        for processor in 0..sys::processors() as u32 {
            let event = match sys::perf_event_of_bpf(processor) {
                Ok(event) => event,
                // The CPU is possible but not online.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => continue,
                Err(error) => return Err(error),
            };
            let mapping = Mapping::new(event.as_raw_fd(), (1 + PAGES) * PAGE, 0, true)?;
            let number = event.as_raw_fd() as u32;
            sys::update(map.as_raw_fd(), &processor.to_le_bytes(), &number.to_le_bytes())?;
            processors.push((event, mapping));
        }
        Ok(PerfBuffer { processors })
    }

    /// Returns the new records, each cut to the length that the kernel wrote.
    pub fn read(&self) -> Vec<Vec<u8>> {
        let mut records = Vec::new();
        for (_, mapping) in &self.processors {
            let (head, tail) = (mapping.u64_at(DATA_HEAD), mapping.u64_at(DATA_TAIL));
            let (end, mut at) = (head.load(Ordering::Acquire), tail.load(Ordering::Acquire));
            // A record may wrap around to the beginning of the buffer.
            let bytes = |at: u64, count: usize| -> Vec<u8> {
                let size = PAGES * PAGE;
                (0..count).map(|i| mapping.bytes(PAGE + (at as usize + i) % size, 1)[0]).collect()
            };
            let number = |at: u64, count: usize| bytes(at, count).iter().rev().fold(0, |n, &b| n << 8 | u32::from(b));
            while at < end {
                let (kind, length) = (number(at, 4), number(at + 6, 2));
                if kind == SAMPLE {
                    let raw = number(at + 8, 4);
                    records.push(bytes(at + 12, raw as usize));
                }
                at += u64::from(length.max(8));
            }
            tail.store(at, Ordering::Release);
        }
        records
    }
}

impl Mapping {
    fn u64_at(&self, at: usize) -> &AtomicU64 {
        assert!(at + 8 <= self.length());
        // SAFETY: the word lies in the mapping, is 8-byte aligned and is only accessed atomically.
        unsafe { &*self.address().add(at).cast() }
    }

    fn u32_at(&self, at: usize) -> &AtomicU32 {
        assert!(at + 4 <= self.length());
        // SAFETY: as above, with 4-byte alignment.
        unsafe { &*self.address().add(at).cast() }
    }

    fn bytes(&self, at: usize, count: usize) -> Vec<u8> {
        assert!(at + count <= self.length());
        // SAFETY: the range lies in the mapping, and the kernel wrote it before it advanced the
        // head.
        unsafe { std::slice::from_raw_parts(self.address().add(at), count) }.to_vec()
    }
}
