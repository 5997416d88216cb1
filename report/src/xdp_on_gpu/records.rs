//! Records of 40 bytes that XDP-on-GPU's host parses and sends to a device in place of packets.
//!
//! The layout is that of its `NetworkEvent` (little-endian; padding between the fields, as a C
//! compiler puts it there): packet pointer 0–7, length 8–11, time 16–23, source address 24–27,
//! destination address 28–31, source port 32–33, destination port 34–35, protocol 36, action 37.

/// Bytes of a record.
pub const SIZE: usize = 40;

/// Offset of the verdict in a record.
pub const ACTION: usize = 37;

/// One record.
pub type Record = [u8; SIZE];

/// Fields of a record that describe its packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fields {
    /// Packet length, in bytes.
    pub length: u32,
    /// IPv4 source address as a number: 192.168.0.1 is 0xc0a80001.
    pub source: u32,
    /// IPv4 destination address, likewise.
    pub destination: u32,
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// IP protocol number.
    pub protocol: u8,
}

impl Fields {
    /// Reads the fields of a record.
    #[inline(always)]
    pub fn from_record(record: &Record) -> Fields {
        let word = |at: usize| u32::from_le_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]]);
        let half = |at: usize| u16::from_le_bytes([record[at], record[at + 1]]);
        Fields {
            length: word(8),
            source: word(24),
            destination: word(28),
            source_port: half(32),
            destination_port: half(34),
            protocol: record[36],
        }
    }

    /// Parses a packet, as the host must before XDP-on-GPU's device can filter it: Ethernet, IPv4
    /// with options, and the ports of first fragments of TCP and UDP. Fields that the packet lacks
    /// are 0.
    #[inline]
    pub fn parse(packet: &[u8]) -> Fields {
        let half = |at: usize| packet.get(at..at + 2).map_or(0, |bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
        let word = |at: usize| u32::from(half(at)) << 16 | u32::from(half(at + 2));
        let length = packet.len() as u32;
        if packet.len() < 34 || half(12) != 0x0800 || packet[14] >> 4 != 4 {
            return Fields { length, source: 0, destination: 0, source_port: 0, destination_port: 0, protocol: 0 };
        }
        let (protocol, is_first) = (packet[23], half(20) & 0x1fff == 0);
        let ports =
            if is_first && matches!(protocol, 6 | 17) { word(14 + usize::from(packet[14] & 15) * 4) } else { 0 };
        Fields {
            length,
            source: word(26),
            destination: word(30),
            source_port: (ports >> 16) as u16,
            destination_port: ports as u16,
            protocol,
        }
    }

    /// Returns the record with these fields, without a verdict.
    pub fn to_record(self, time: u64) -> Record {
        let mut record = [0; SIZE];
        record[8..12].copy_from_slice(&self.length.to_le_bytes());
        record[16..24].copy_from_slice(&time.to_le_bytes());
        record[24..28].copy_from_slice(&self.source.to_le_bytes());
        record[28..32].copy_from_slice(&self.destination.to_le_bytes());
        record[32..34].copy_from_slice(&self.source_port.to_le_bytes());
        record[34..36].copy_from_slice(&self.destination_port.to_le_bytes());
        record[36] = self.protocol;
        record
    }

    /// Writes a packet with these fields: Ethernet, IPv4 without options, ports, and zeros to the
    /// end.
    pub fn write_packet(self, packet: &mut [u8]) {
        packet.fill(0);
        packet[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00]);
        packet[14] = 0x45;
        let length = (packet.len() - 14) as u16;
        packet[16..18].copy_from_slice(&length.to_be_bytes());
        packet[22] = 64;
        packet[23] = self.protocol;
        packet[26..30].copy_from_slice(&self.source.to_be_bytes());
        packet[30..34].copy_from_slice(&self.destination.to_be_bytes());
        packet[34..36].copy_from_slice(&self.source_port.to_be_bytes());
        packet[36..38].copy_from_slice(&self.destination_port.to_be_bytes());
    }
}

/// Traffic of XDP-on-GPU's benchmarks; unlike there, the same in every run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// Traffic of the filters: 64 to 1,463 bytes from 192.168.0.0/24 to 8.8.8.8, ports 80 and 443,
    /// TCP and UDP, at random.
    Filters,
    /// Traffic of the load balancers: addresses and source ports that count up, ports 80, 443 and
    /// 8080 in turn.
    Balancers,
}

/// Generates the first `count` records of a kind of traffic.
pub fn traffic(traffic: Traffic, count: usize) -> impl Iterator<Item = Fields> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        // Xorshift (Marsaglia, 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as u32
    };
    (0..count as u32).map(move |i| {
        let drawn = Fields {
            length: 64 + random() % 1400,
            source: 0xc0a8_0000 | (random() % 256),
            destination: 0x0808_0808,
            source_port: 1024 + (random() % 60_000) as u16,
            destination_port: if random().is_multiple_of(2) { 80 } else { 443 },
            protocol: if random().is_multiple_of(2) { 6 } else { 17 },
        };
        match traffic {
            Traffic::Filters => drawn,
            Traffic::Balancers => Fields {
                source: 0xc0a8_0000 | ((i / 256 % 256) << 8) | (i % 256),
                source_port: 1024 + (u64::from(i) * 17 % 60_000) as u16,
                destination_port: [80, 443, 8080][i as usize % 3],
                ..drawn
            },
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_the_layout_of_network_event() {
        let fields = Fields {
            length: 0x0102_0304,
            source: 0xc0a8_0001,
            destination: 0x0808_0404,
            source_port: 0x1234,
            destination_port: 0x5678,
            protocol: 17,
        };
        let record = fields.to_record(0x1122_3344_5566_7788);
        assert_eq!(Fields::from_record(&record), fields);
        // The bytes as a C compiler lays them out.
        assert_eq!(record[8..12], [4, 3, 2, 1]);
        assert_eq!(record[16..24], [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
        assert_eq!(record[24..38], [1, 0, 0xa8, 0xc0, 4, 4, 8, 8, 0x34, 0x12, 0x78, 0x56, 17, 0]);
        assert_eq!(record[12..16], [0; 4]);
    }

    #[test]
    fn parsing_is_the_inverse_of_writing() {
        let mut packet = [0; 64];
        for fields in traffic(Traffic::Filters, 300).chain(traffic(Traffic::Balancers, 300)) {
            fields.write_packet(&mut packet);
            assert_eq!(Fields::parse(&packet), Fields { length: 64, ..fields });
        }
        let fields = Fields {
            length: 64,
            source: 0x0102_0304,
            destination: 0x0506_0708,
            source_port: 0x1122,
            destination_port: 0x3344,
            protocol: 6,
        };
        fields.write_packet(&mut packet);
        assert_eq!(Fields::parse(&packet), fields);
        // One word of options moves the ports.
        packet.copy_within(34..38, 38);
        packet[14] = 0x46;
        assert_eq!(Fields::parse(&packet), fields);
        // Later fragments have no ports.
        packet[21] = 1;
        assert_eq!(Fields::parse(&packet), Fields { source_port: 0, destination_port: 0, ..fields });
        for (at, byte) in [(14, 0x65), (12, 0x86)] {
            let mut other = packet;
            other[at] = byte;
            assert_eq!(Fields::parse(&other).protocol, 0, "not IPv4");
        }
        for length in 0..packet.len() {
            assert_eq!(Fields::parse(&packet[..length]).length as usize, length);
        }
    }

    #[test]
    fn traffic_has_the_documented_ranges() {
        for fields in traffic(Traffic::Filters, 5000) {
            assert!((64..1464).contains(&fields.length) && fields.source >> 8 == 0x00c0_a800);
            assert!(matches!(fields.protocol, 6 | 17) && matches!(fields.destination_port, 80 | 443));
            assert!((1024..61_024).contains(&fields.source_port));
        }
        let balanced: Vec<_> = traffic(Traffic::Balancers, 70_000).collect();
        assert_eq!(balanced[300].source, 0xc0a8_012c);
        assert_eq!(balanced[65_537].source, 0xc0a8_0001);
        assert_eq!((balanced[4].source_port, balanced[4].destination_port), (1092, 443));
        // Both protocols and both ports occur, about as often.
        let tcp = traffic(Traffic::Filters, 5000).filter(|fields| fields.protocol == 6).count();
        assert!((2000..3000).contains(&tcp), "{tcp}");
    }
}
