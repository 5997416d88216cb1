use super::*;

/// Builds an attribute with its padding.
fn attribute(number: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = (value.len() as u16 + 4).to_ne_bytes().to_vec();
    bytes.extend(number.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Builds a message for queue 513.
fn message(kind: u16, flags: u16, sequence: u32, attributes: &[Vec<u8>]) -> Vec<u8> {
    let attributes = attributes.concat();
    let mut bytes = (20 + attributes.len() as u32).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend([0, 0, 2, 1]);
    bytes.extend(attributes);
    bytes
}

/// NFNL_SUBSYS_QUEUE << 8 | NFQNL_MSG_PACKET.
const PACKET: u16 = 0x300;

fn header(id: u32) -> Vec<u8> {
    let [a, b, c, d] = id.to_be_bytes();
    attribute(1, &[a, b, c, d, 0x86, 0xdd, 3])
}

#[test]
fn a_packet_with_all_attributes_is_decoded() {
    let bytes = message(
        PACKET,
        0,
        0,
        &[
            header(0x0102_0304),
            attribute(5, &[0, 0, 0, 7]),
            attribute(9, &[0, 6, 0, 0, 2, 0, 0, 0, 0, 0xfe, 0, 0]),
            attribute(4, &[0, 0, 0, 0, 0x65, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0x30, 0x39]),
            attribute(13, &[0, 0, 5, 0xdc]),
            attribute(14, &[0, 0, 0, 3]),
            // An unknown attribute with the flag for nested attributes.
            attribute(0x8013, &[1; 8]),
            attribute(10, &[9; 61]),
        ],
    );
    let Ok(Message::Packet(packet)) = decode(&bytes) else { panic!() };
    assert_eq!((packet.id, packet.protocol, packet.hook, packet.length), (0x0102_0304, 0x86dd, 3, 1500));
    assert_eq!(packet.sender, Some([2, 0, 0, 0, 0, 0xfe]));
    assert_eq!(packet.time_ns, Some(0x6500_0001 * 1_000_000_000 + 12_345_000));
    assert_eq!((packet.has_partial_checksum, packet.is_gso), (true, true));
    assert_eq!(bytes[packet.payload], [9; 61]);
}

#[test]
fn a_packet_with_the_required_attributes_is_decoded() {
    let bytes =
        message(PACKET, 0, 0, &[header(7), attribute(9, &[0, 8, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]), attribute(10, &[5])]);
    let Ok(Message::Packet(packet)) = decode(&bytes) else { panic!() };
    assert_eq!((packet.id, packet.length, packet.sender, packet.time_ns), (7, 1, None, None));
    assert_eq!((packet.has_partial_checksum, packet.is_gso), (false, false));
    assert!(packet.payload.start >= Packet::BEFORE_PAYLOAD);
}

#[test]
fn a_malformed_packet_keeps_its_id() {
    let good = message(PACKET, 0, 0, &[header(7), attribute(4, &[0; 16]), attribute(10, &[5; 100])]);
    assert!(matches!(decode(&good), Ok(Message::Packet(_))));
    for length in 0..good.len() {
        let error = decode(&good[..length]).unwrap_err();
        // The ID is known once its attribute of 4 + 7 bytes is complete; the padding does not
        // count.
        assert_eq!(error.id, (length >= 20 + 11).then_some(7), "{length}: {error}");
    }
    for (attributes, what) in [
        (vec![header(7)], "a packet without bytes"),
        (vec![attribute(10, &[5; 100])], "a packet without NFQA_PACKET_HDR"),
        (vec![attribute(1, &[0; 5]), attribute(10, &[5])], "a short NFQA_PACKET_HDR"),
        (vec![header(7), attribute(4, &[0; 15]), attribute(10, &[5])], "a short NFQA_TIMESTAMP"),
        (vec![header(7), attribute(9, &[0; 9]), attribute(10, &[5])], "a short NFQA_HWADDR"),
        (vec![header(7), vec![3, 0, 10, 0], attribute(10, &[5])], "an attribute shorter than its header"),
        (vec![header(7), vec![200, 0, 10, 0]], "an attribute that exceeds the message"),
    ] {
        let error = decode(&message(PACKET, 0, 0, &attributes)).unwrap_err();
        assert_eq!(error.what, what);
        assert_eq!(error.id, (what.contains("HDR")).then_some(0).map_or(Some(7), |_| None), "{what}");
    }
}

#[test]
fn an_acknowledgement_names_the_message_it_answers() {
    // `struct nlmsgerr`: the error, then the header of the message.
    let mut bytes = 36u32.to_ne_bytes().to_vec();
    bytes.extend(2u16.to_ne_bytes());
    bytes.extend([0; 2]);
    bytes.extend(99u32.to_ne_bytes());
    bytes.extend([0; 4]);
    for (error, number) in [(-1i32, 1), (0, 0), (-2, 2), (i32::MIN, i32::MAX)] {
        let mut bytes = bytes.clone();
        bytes.extend(error.to_ne_bytes());
        bytes.extend(&message(0x301, 1, 4711, &[])[..16]);
        assert_eq!(decode(&bytes), Ok(Message::Ack(KernelAck { error: number, sequence: 4711 })));
        assert_eq!(decode(&bytes[..20]), Ok(Message::Ack(KernelAck { error: number, sequence: 99 })));
        assert!(decode(&bytes[..19]).is_err());
    }
}

#[test]
fn encoded_messages_match_the_kernel_headers() {
    let mut bytes = Vec::new();
    config(&mut bytes, 513, 5, &Config { copy_range: 65_531, max_length: 1000, fail_open: true, gso: true });
    let wanted = message(
        0x302,
        // NLM_F_REQUEST.
        1,
        5,
        &[
            attribute(1, &[1, 0, 0, 0]),
            attribute(2, &[0, 0, 0xff, 0xfb, 2]),
            attribute(3, &[0, 0, 3, 0xe8]),
            attribute(4, &[0, 0, 0, 7]),
            attribute(5, &[0, 0, 0, 5]),
        ],
    );
    assert_eq!(bytes, wanted);

    let mut bytes = Vec::new();
    verdict(&mut bytes, 513, 1, Verdict::Accept, 0x0a0b_0c0d);
    verdict_batch(&mut bytes, 513, 2, Verdict::Drop, 7);
    release(&mut bytes, 513, 3);
    let payload = [0x45; 21];
    let padding = verdict_with_payload(&mut bytes, 513, 4, Verdict::Accept, 8, payload.len());
    bytes.extend(payload);
    bytes.resize(bytes.len() + padding, 0);
    let wanted = [
        message(0x301, 1, 1, &[attribute(2, &[0, 0, 0, 1, 0xa, 0xb, 0xc, 0xd])]),
        message(0x303, 1, 2, &[attribute(2, &[0, 0, 0, 0, 0, 0, 0, 7])]),
        message(0x302, 1, 3, &[attribute(1, &[2, 0, 0, 0])]),
        message(0x301, 1, 4, &[attribute(2, &[0, 0, 0, 1, 0, 0, 0, 8]), attribute(10, &payload)]),
    ];
    assert_eq!(bytes, wanted.concat());
}
