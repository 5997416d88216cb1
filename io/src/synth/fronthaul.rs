//! Uplink U-plane messages of an O-RAN fronthaul (O-RAN.WG4.CUS) over eCPRI (eCPRI specification
//! V2.0) and Ethernet: a cell of four antenna ports, 273 PRBs and slots of half a millisecond,
//! whose IQ data are compressed to block floating point of 9 bits. Messages are slightly out of
//! order, and some are lost or arrive twice.

use super::headers::Headers;
use super::random::Random;

/// EtherType of eCPRI.
pub(super) const ECPRI: u16 = 0xaefe;

const PORTS: u16 = 4;
const SYMBOLS: u16 = 14;
const SLOTS_PER_FRAME: u32 = 20;
/// Frames have numbers of 8 bits.
const SLOTS: u32 = 256 * SLOTS_PER_FRAME;
const CARRIER_PRBS: u16 = 273;
/// Maximum of a section's 8-bit number of PRBs, where 0 stands for all of the carrier.
const SECTION_PRBS: u16 = 255;
/// A parameter and 24 numbers of 9 bits.
const PRB_BYTES: usize = 28;
/// Application header, section header and compression header.
const O_RAN_HEADERS: usize = 4 + 4 + 2;
/// Ethernet header with a VLAN tag, eCPRI header, and those.
const HEADERS: usize = 18 + 8 + O_RAN_HEADERS;

/// Number of messages that are shuffled together.
const SHUFFLED: usize = 16;
/// One message in so many is lost, and one arrives twice.
const LOST: u32 = 100;
const DUPLICATED: u32 = 100;

/// A message with one section.
#[derive(Debug, Clone, Copy)]
pub(super) struct Message {
    slot: u32,
    symbol: u16,
    port: u16,
    /// Sequence number among the port's messages.
    sequence: u8,
    first_prb: u16,
    prbs: u16,
    /// Start of the payload, which a duplicate shares.
    pub payload: usize,
}

impl Message {
    /// Length of the payload in bytes.
    pub fn payload_len(&self) -> usize {
        usize::from(self.prbs) * PRB_BYTES
    }

    /// Appends the headers.
    pub fn write(&self, headers: &mut Headers) {
        // Radio unit and distributed unit; VLAN 2 with the highest priority.
        headers.ethernet([0x0a65_0001, 0x0a65_0100], 0x8100);
        headers.vlan(0xe002, ECPRI);
        // Version 1, nothing concatenated; IQ data.
        headers.put(&[0x10, 0]);
        headers.u16((4 + O_RAN_HEADERS + self.payload_len()) as u16);
        headers.u16(self.port);
        // The whole message.
        headers.put(&[self.sequence, 0x80]);
        // Uplink, payload version 1, filter index 0.
        headers.put(&[0x10, (self.slot / SLOTS_PER_FRAME) as u8]);
        let (subframe, slot) = (self.slot % SLOTS_PER_FRAME / 2, self.slot % 2);
        headers.u16((subframe << 12 | slot << 6) as u16 | self.symbol);
        // Section 0, each PRB, the symbol of the header.
        let prbs = if self.prbs > SECTION_PRBS { 0 } else { self.prbs };
        headers.u32(u32::from(self.first_prb) << 8 | u32::from(prbs));
        // 9 bits, block floating point.
        headers.put(&[0x91, 0]);
    }
}

/// The messages of a cell in order of arrival.
#[derive(Debug, Default)]
pub(super) struct Fronthaul {
    /// First PRB, port, symbol and slot of the next message to be sent.
    prb: u16,
    port: u16,
    symbol: u16,
    slot: u32,
    sequences: [u8; PORTS as usize],
    /// Messages on their way.
    sent: Vec<Message>,
}

impl Fronthaul {
    /// Returns the next message to arrive. `size` draws the length of a packet and `payload` the
    /// start of a payload, as messages are sent.
    pub fn next_message(
        &mut self,
        random: &mut Random,
        size: impl Fn(&mut Random) -> usize,
        payload: impl Fn(&mut Random) -> usize,
    ) -> Message {
        while self.sent.is_empty() {
            for _ in 0..SHUFFLED {
                let prbs = size(random).saturating_sub(HEADERS) / PRB_BYTES;
                let message = Message { payload: payload(random), ..self.send(prbs) };
                let copies = match () {
                    () if random.one_in(LOST) => 0,
                    () if random.one_in(DUPLICATED) => 2,
                    () => 1,
                };
                self.sent.extend(std::iter::repeat_n(message, copies));
            }
        }
        let arrives = random.below(self.sent.len() as u32) as usize;
        self.sent.swap_remove(arrives)
    }

    /// Sends the next message, of at most so many PRBs: each port sends its carrier's PRBs, then
    /// the next port does, then the next symbol follows.
    fn send(&mut self, most: usize) -> Message {
        let remaining = CARRIER_PRBS - self.prb;
        let prbs = match most as u16 {
            CARRIER_PRBS.. if self.prb == 0 => CARRIER_PRBS,
            most => remaining.min(most.clamp(1, SECTION_PRBS)),
        };
        let sequence = &mut self.sequences[usize::from(self.port)];
        let message = Message {
            slot: self.slot,
            symbol: self.symbol,
            port: self.port,
            sequence: *sequence,
            first_prb: self.prb,
            prbs,
            payload: 0,
        };
        *sequence = sequence.wrapping_add(1);
        self.prb = (self.prb + prbs) % CARRIER_PRBS;
        if self.prb == 0 {
            self.port = (self.port + 1) % PORTS;
            self.symbol = (self.symbol + u16::from(self.port == 0)) % SYMBOLS;
            self.slot = (self.slot + u32::from(self.port == 0 && self.symbol == 0)) % SLOTS;
        }
        message
    }
}
