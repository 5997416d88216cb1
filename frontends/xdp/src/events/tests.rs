use std::sync::Arc;

use super::*;
use portcullis_core::device::{Completion, DeviceError, Imported, Instrumented, Session, SubmitError};
use portcullis_core::map::layout::Layout;
use portcullis_core::packet::{Batch, Span};

fn line(format: &str, words: &[u32]) -> Option<String> {
    let bytes: Vec<u8> = format.bytes().chain([0]).collect();
    PrintFormat::parse(&bytes).map(|print| {
        assert_eq!(print.words() as usize, words.len(), "{format}");
        print.render(words)
    })
}

/// Expected texts of the kernel's `vsnprintf`; compat-tests compares with a running kernel as well.
#[test]
fn prints_are_rendered_like_the_kernel_does() {
    let minus_five = -5_i32 as u32;
    for (format, words, want) in [
        ("plain", &[][..], "plain"),
        ("100%% of %d\n", &[7], "100% of 7"),
        ("%d|%i|%u", &[minus_five, minus_five, minus_five], "-5|-5|4294967291"),
        ("[%5d|%-5d|%05d|%+d|% d]", &[42, 42, 42, 42, 42], "[   42|42   |00042|+42| 42]"),
        ("[%05d|%-05d|%+4d]", &[minus_five, minus_five, 3], "[-0005|-5   |  +3]"),
        ("%x %X %08x %-4x|", &[0xbeef, 0xbeef, 0xbeef, 0xb], "beef BEEF 0000beef b   |"),
        ("%ld %lld %lu %llx", &[minus_five, u32::MAX, 0, 1, 1, 1, 2, 3], "-5 4294967296 4294967297 300000002"),
        ("%c%c %3c|%-3c|", &[b'o'.into(), b'k'.into(), b'x'.into(), 0x100 + u32::from(b'y')], "ok   x|y  |"),
        ("%p %px %pK.", &[0x1234, 1, 0x1234, 1, 5, 0], "0000000100001234 0000000100001234 0000000000000005."),
        ("%pI4 %pi4", &[0x0102_000a, 0x0102_000a], "10.0.2.1 010.000.002.001"),
        ("%pI6", &[0x0000_80fe, 0, 0, 0x0100_0000], "fe80:0000:0000:0000:0000:0000:0000:0001"),
        ("%pi6c;", &[0x0000_80fe, 0, 0, 0x0100_0000], "fe800000000000000000000000000001;"),
    ] {
        assert_eq!(line(format, words).as_deref(), Some(want), "{format}");
    }
    for format in ["%f", "%", "%l", "%5", "%hd", "%.2d", "%sx", "%pI5", "%px%", "%pM", "%ps x %z", "\x07", "é", "%lllu"]
    {
        let bytes: Vec<u8> = format.bytes().chain([0]).collect();
        assert_eq!(PrintFormat::parse(&bytes), None, "{format:?}");
    }
    assert_eq!(PrintFormat::parse(b"no end"), None);
    let mut print = PrintFormat::parse(b"%s and %-4s|\0behind").unwrap();
    print.set_text(0, "one".into());
    print.set_text(1, "two".into());
    assert_eq!(print.render(&[]), "one and two |");
}

/// A session whose only map is this memory.
struct Memory(Vec<u32>);

impl Session for Memory {
    fn import(&mut self, _: &Arc<Span>) -> Result<Imported, DeviceError> {
        Ok(Imported::InPlace)
    }

    fn submit(&mut self, batch: Batch) -> Result<(), SubmitError> {
        let error = DeviceError::Refused("this is memory alone".into());
        Err(SubmitError { batch: Box::new(batch), error })
    }

    fn complete(&mut self) -> Result<Option<Completion>, DeviceError> {
        Ok(None)
    }

    fn map_words(&mut self, _: usize) -> Result<Vec<u32>, DeviceError> {
        Ok(self.0.clone())
    }

    fn set_map_words(&mut self, _: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        self.0[at..at + words.len()].copy_from_slice(words);
        Ok(())
    }

    fn in_flight(&self) -> usize {
        0
    }

    fn depth(&self) -> usize {
        1
    }
}

impl Instrumented for Memory {}

impl Memory {
    fn of(ring: &EventRing) -> Memory {
        Memory(vec![0; Layout::of(&ring.declaration()).words()])
    }

    fn entry(&mut self, ring: &EventRing, entry: u32) -> &mut [u32] {
        let stride = ring.stride() as usize;
        let at = portcullis_core::map::layout::HEADER_WORDS as usize + entry as usize * stride;
        &mut self.0[at..at + stride]
    }

    /// Records like a packet does (`FUNCTIONS`). Returns whether there was room.
    fn record(&mut self, ring: &EventRing, data: &[u32], whole: bool) -> bool {
        let first = self.entry(ring, 0);
        let (number, tail) = (first[HEAD_WORD], first[TAIL_WORD]);
        first[HEAD_WORD] = number.wrapping_add(1);
        if number.wrapping_sub(tail) >= ring.slots {
            return false;
        }
        let slot = self.entry(ring, 1 + (number & (ring.slots - 1)));
        (slot[LENGTH_WORD], slot[REQUESTED_WORD]) = (4 * data.len() as u32, 0);
        (slot[TIME_WORD], slot[TIME_WORD + 1]) = (number, 1);
        slot[HEADER_WORDS as usize..HEADER_WORDS as usize + data.len()].copy_from_slice(data);
        if whole {
            slot[SEQUENCE_WORD] = number.wrapping_add(1);
        }
        true
    }
}

fn small(slots: u32) -> EventRing {
    EventRing { name: "r".into(), map: 0, records: RecordKind::RingBuffer, bytes: 8, packet: 0, places: 1, slots }
}

#[test]
fn records_are_read_in_order_when_numbers_wrap() {
    let ring = small(8);
    for before in [0, 5, 0xffff_fff0, 0xffff_fffb, 0xffff_ffff] {
        let mut memory = Memory::of(&ring);
        memory.entry(&ring, 0)[..2].copy_from_slice(&[before, before]);
        let mut drain = EventReader::of(vec![(ring.clone(), before)]);
        let (mut written, mut read, mut lost) = (Vec::new(), Vec::new(), 0_u64);
        // Numbers of records per round, of which eight fit.
        for (round, count) in [3_u32, 8, 0, 1, 11, 8, 7, 30].into_iter().enumerate() {
            for number in 0..count {
                let data = [round as u32, number];
                match memory.record(&ring, &data, true) {
                    true => written.push(data),
                    false => lost += 1,
                }
            }
            let mut take = |event: Event<'_>| {
                let EventPayload::Data(data) = event.payload else { panic!("bytes") };
                assert_eq!(event.time >> 32, 1);
                read.push(data);
            };
            drain.read(&mut memory, Some(&mut take)).unwrap();
        }
        let bytes: Vec<Vec<u8>> =
            written.iter().map(|data| data.iter().flat_map(|word| word.to_le_bytes()).collect()).collect();
        assert_eq!(read, bytes, "from {before:#x}");
        assert_eq!(drain.counts(), EventCounts { events: bytes.len() as u64, lost });
        assert_eq!((bytes.len(), lost), (43, 25));
    }
}

#[test]
fn unwanted_events_are_counted_and_free_their_slots() {
    let ring = small(4);
    let mut memory = Memory::of(&ring);
    let mut drain = EventReader::of(vec![(ring.clone(), 0)]);
    for _ in 0..3 {
        assert_eq!((0..6).filter(|_| memory.record(&ring, &[1, 2], true)).count(), 4);
        assert_eq!(drain.read(&mut memory, None).unwrap(), 6);
    }
    assert_eq!(drain.counts(), EventCounts { events: 12, lost: 6 });
}

#[test]
fn incomplete_records_are_lost() {
    let ring = small(4);
    let mut memory = Memory::of(&ring);
    let mut drain = EventReader::of(vec![(ring.clone(), 0)]);
    let mut read = 0;
    for round in 0..3 {
        for number in 0..4 {
            memory.record(&ring, &[round, number], number != 2);
        }
        drain.read(&mut memory, Some(&mut |_| read += 1)).unwrap();
    }
    assert_eq!((read, drain.counts()), (9, EventCounts { events: 9, lost: 3 }));
}

#[test]
fn rings_have_slots_for_a_batch_and_are_bounded() {
    let ring = |bytes, packet, wanted| {
        EventRing::new("r", 0, RecordKind::Perf, RecordSizes { bytes, packet, places: 3 }, wanted)
    };
    for (bytes, packet, wanted) in [(0, 0, 0), (4, 0, 4096), (40, 0, 256 << 10), (512, 1514, 0), (2048, 1514, u32::MAX)]
    {
        let ring = ring(bytes, packet, wanted);
        assert!(ring.slots.is_power_of_two() && ring.slots >= 1 << 13, "{ring:?}");
        assert!(Layout::of(&ring.declaration()).words() <= (17 << 20), "{ring:?}");
        assert_eq!(ring.stride(), HEADER_WORDS + bytes.div_ceil(4) + packet.div_ceil(4));
    }
    assert!(ring(40, 0, 32 << 20).slots > ring(40, 0, 1 << 20).slots);
}
