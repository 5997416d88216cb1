// ecpri_reorder: writes the IQ data of O-RAN fronthaul packets, which arrive in any order, to their
// positions in one buffer in the device's memory.
//
// DROP  uplink U-plane messages (O-RAN.WG4.CUS, over eCPRI 2.0 and Ethernet) of the cell's ports:
//       their PRBs (physical resource blocks) are in the map `iq`, or counted in `events` as late,
//       early, duplicate, out of range or malformed
// PASS  everything else: other eCPRI messages, downlink, other filter indices and ports; counted as
//       unsupported also concatenated and fragmented messages of the cell's ports
//
// A PRB's position is ((slot modulo `slots` * `ports` + port) * 14 + symbol) * `carrier_prbs` plus
// its number, slots being numbered through all 256 frames. Each takes `prb_bytes`, as they came,
// rounded up to whole words. Port 0 is the eAxC `eaxc`, 1 the next, and so on; the map `eaxcs` may
// list others, and with `eaxc` 65536 it alone counts.
//
// A symbol belongs to the newest slot that it has got a packet of; packets of slots before are late
// (slots up to half of 256 frames ahead are newer). The host may set `window`: `span` slots from
// `first` on are then taken, at most `slots`, which protects what it is reading; before are late
// ones, behind are early ones. Without a window, results do not depend on the order of packets only
// if those of a batch are less than `slots` slots apart.
//
// With `comp_header` each section has udCompHdr, and one for PRBs of other than `prb_bytes` is
// malformed; without, compression is static. Sections before a malformed one count.
//
// Reads, behind an Ethernet header and one VLAN tag or none, the whole eCPRI message.

override eaxc: u32 = 0u;
override ports: u32 = 4u;
override slots: u32 = 4u;
// 1, 2, 4, 8 or 16: subcarriers of 15, 30, 60, 120 or 240 kHz.
override slots_per_subframe: u32 = 2u;
override carrier_prbs: u32 = 273u;
// Block floating point of 9 bits takes 28 bytes; 16 bits without compression take 48.
override prb_bytes: u32 = 28u;
override comp_header: bool = true;

// The buffer. For more ports or slots, more entries here and in the constants below are needed.
//! map iq: array value=1 entries=1048576 fields=word,data
// By position: the claim of the slot that the PRB in the buffer is of.
//! map claims: array value=1 entries=65536 fields=position,claim
// By (slot modulo `slots` * `ports` + port) * 14 + symbol. A claim is the slot's number plus one,
// times 65536, plus how many slots have had the symbol; `filled` is the low half of the claim times
// 65536, plus how many PRBs are there.
//! map symbols: array value=2 entries=4096 fields=symbol,claim,filled
// From the host: slots to take; span 0: any.
//! map window: array value=2 entries=1 fields=index,first,span
// From the host: ports of eAxCs.
//! map eaxcs: hash key=1 value=1 entries=256 fields=eaxc,port
// Packets by port * 14 + symbol.
//! map packets: counter entries=4096 fields=symbol,packets:u64
//! map events: counter entries=8 fields=event,count:u64

const IQ_WORDS: u32 = 1048576u;
const CLAIMS: u32 = 65536u;
const SYMBOLS: u32 = 4096u;

// Words of a symbol, and of the window.
const CLAIM: u32 = 0u;
const FILLED: u32 = 1u;
const FIRST: u32 = 0u;
const SPAN: u32 = 1u;

// Events, of PRBs and then of packets.
const WRITTEN: u32 = 0u;
const DUPLICATE: u32 = 1u;
const LATE: u32 = 2u;
const EARLY: u32 = 3u;
const OUT_OF_RANGE: u32 = 4u;
const MALFORMED: u32 = 5u;
const UNSUPPORTED: u32 = 6u;

const ETH_P_ECPRI: u32 = 0xaefeu;
const SYMBOLS_PER_SLOT: u32 = 14u;
const SUBFRAMES: u32 = 10u;
const FRAMES: u32 = 256u;

// Compression methods (udCompMeth) with a parameter byte for each PRB: block floating point, block
// scaling, mu-law.
const BLOCK_FLOATING_POINT: u32 = 1u;
const MU_LAW: u32 = 3u;

// Bytes of a PRB by udCompHdr: 24 numbers of udIqWidth bits, 0 meaning 16.
fn bytes_of(header: u32) -> u32 {
    let method = header & 0xfu;
    let bits = ((header >> 4u) + 15u) % 16u + 1u;
    return 3u * bits + u32(method >= BLOCK_FLOATING_POINT && method <= MU_LAW);
}

// Slots that `slot` is ahead of another one, going round.
fn ahead(slot: u32, other: u32) -> u32 {
    let all = FRAMES * SUBFRAMES * slots_per_subframe;
    return (slot + all - other % all) % all;
}

fn is_behind(distance: u32) -> bool {
    return distance >= FRAMES * SUBFRAMES / 2u * slots_per_subframe;
}

// Makes the symbol that of the slot, whose claim is returned; 0 where it is that of a later one.
fn claim_of(symbol: u32, slot: u32) -> u32 {
    let tag = slot + 1u;
    var was = symbols_read(symbol, CLAIM);
    while (was >> 16u) != tag {
        if (was >> 16u) != 0u && is_behind(ahead(tag, was >> 16u)) {
            return 0u;
        }
        let claim = (tag << 16u) | ((was + 1u) & 0xffffu);
        let now = symbols_compare_exchange(symbol, CLAIM, was, claim);
        if now == was {
            return claim;
        }
        was = now;
    }
    return was;
}

// Counts PRBs of a claim. What earlier slots had is forgotten.
fn add_filled(symbol: u32, claim: u32, prbs: u32) {
    let generation = claim << 16u;
    var was = symbols_read(symbol, FILLED);
    loop {
        let base = select(generation, was, (was ^ generation) < 0x10000u);
        let now = symbols_compare_exchange(symbol, FILLED, was, base + prbs);
        if now == was {
            return;
        }
        was = now;
    }
}

fn write_prb(pkt: u32, at: u32, position: u32) {
    let whole = prb_bytes / 4u;
    let rest = prb_bytes % 4u;
    let word = position * ((prb_bytes + 3u) / 4u);
    for (var i = 0u; i < whole; i++) {
        iq_write(word + i, 0u, load_le32(pkt, at + i * 4u));
    }
    if rest != 0u {
        iq_write(word + whole, 0u, load_le32(pkt, at + prb_bytes - 4u) >> ((4u - rest) % 4u * 8u));
    }
}

// Writes a section's PRBs. Of those with one position the first to claim it counts.
fn write_section(pkt: u32, data: u32, symbol: u32, claim: u32, first: u32, step: u32, count: u32) {
    var written = 0u;
    var out_of_range = 0u;
    for (var i = 0u; i < count; i++) {
        let prb = first + i * step;
        let position = symbol * carrier_prbs + prb;
        if prb >= carrier_prbs || position >= CLAIMS || (position + 1u) * ((prb_bytes + 3u) / 4u) > IQ_WORDS {
            out_of_range += 1u;
            continue;
        }
        let was = claims_read(position, 0u);
        if was != claim && claims_compare_exchange(position, 0u, was, claim) == was {
            write_prb(pkt, data + i * prb_bytes, position);
            written += 1u;
        }
    }
    if written != 0u {
        add_filled(symbol, claim, written);
        events_add(WRITTEN, written);
    }
    if written != count {
        events_add(OUT_OF_RANGE, out_of_range);
        events_add(DUPLICATE, count - written - out_of_range);
    }
}

// LATE or EARLY where the slot is outside of the window, else WRITTEN.
fn outside(slot: u32) -> u32 {
    let span = window_read(0u, SPAN);
    let distance = ahead(slot, window_read(0u, FIRST));
    return select(select(EARLY, LATE, is_behind(distance)), WRITTEN, span == 0u || distance < span);
}

fn port_of(id: u32) -> u32 {
    let listed = eaxcs_find(id);
    return select(id - eaxc, eaxcs_read(listed, 0u), listed != MAP_NONE);
}

fn xdp_filter(pkt: u32) -> u32 {
    let outer = load_be16(pkt, 12u);
    let ecpri = select(14u, 18u, outer == ETH_P_8021Q || outer == ETH_P_8021AD);
    // Version 1, message type 0.
    let header = load_be32(pkt, ecpri);
    // Uplink, payload version 1, filter index 0.
    let application = load_be32(pkt, ecpri + 8u);
    let port = port_of(load_be16(pkt, ecpri + 4u));
    if load_be16(pkt, ecpri - 2u) != ETH_P_ECPRI || (header & 0xf0ff0000u) != 0x10000000u
        || (application >> 24u) != 0x10u || port >= ports {
        return XDP_PASS;
    }
    // A concatenated message follows; or this is a part of one.
    if (header & 0x01000000u) != 0u || load_u8(pkt, ecpri + 7u) != 0x80u {
        events_add(UNSUPPORTED, 1u);
        return XDP_PASS;
    }
    let end = ecpri + 4u + (header & 0xffffu);
    let subframe = (application >> 12u) & 0xfu;
    let slot_of_subframe = (application >> 6u) & 0x3fu;
    var symbol = application & 0x3fu;
    var at = ecpri + 12u;
    if end > pkt_len(pkt) || end < at || subframe >= SUBFRAMES || slot_of_subframe >= slots_per_subframe {
        events_add(MALFORMED, 1u);
        return XDP_DROP;
    }
    let frame = (application >> 16u) & 0xffu;
    let slot = (frame * SUBFRAMES + subframe) * slots_per_subframe + slot_of_subframe;
    let fate = outside(slot);
    let section_header = select(4u, 6u, comp_header);
    // The symbol that the packet has been counted for.
    var counted = SYMBOLS_PER_SLOT;
    while at < end {
        let section = load_be32(pkt, at);
        let count = select(section & 0xffu, carrier_prbs, (section & 0xffu) == 0u);
        let data = at + section_header;
        symbol += (section >> 18u) & 1u;
        if data > end || count * prb_bytes > end - data || symbol >= SYMBOLS_PER_SLOT
            || (comp_header && bytes_of(load_u8(pkt, at + 4u)) != prb_bytes) {
            events_add(MALFORMED, 1u);
            return XDP_DROP;
        }
        at = data + count * prb_bytes;
        let entry = (slot % slots * ports + port) * SYMBOLS_PER_SLOT + symbol;
        if slots > SYMBOLS || ports > SYMBOLS || entry >= SYMBOLS {
            events_add(OUT_OF_RANGE, count);
            continue;
        }
        if fate != WRITTEN {
            events_add(fate, count);
            continue;
        }
        let claim = claim_of(entry, slot);
        if claim == 0u {
            events_add(LATE, count);
            continue;
        }
        if symbol != counted {
            packets_add(port * SYMBOLS_PER_SLOT + symbol, 1u);
            counted = symbol;
        }
        write_section(pkt, data, entry, claim, (section >> 8u) & 0x3ffu, 1u + ((section >> 19u) & 1u), count);
    }
    return XDP_DROP;
}
