// ecpri_reorder: writes the IQ data of O-RAN fronthaul packets, which arrive in any order, to their
// positions in one buffer in the device's memory.
//
// DROP  uplink U-plane messages (O-RAN.WG4.CUS, over eCPRI 2.0 and Ethernet) of the cell's ports:
//       their PRBs (physical resource blocks) are in the map `iq`, or counted in `events` as late,
//       early, duplicate, out of range or malformed
// PASS  everything else: other eCPRI messages, downlink, other filter indices and ports; counted as
//       unsupported also concatenated and fragmented messages of the cell's ports
//
// A PRB's position is ((slot modulo SLOTS * PORTS + port) * 14 + symbol) * CARRIER_PRBS plus
// its number, slots being numbered through all 256 frames. Each takes PRB_BYTES, as they came,
// rounded up to whole words. Port 0 is the eAxC EAXC, 1 the next, and so on; the map `eaxcs` may
// list others, and with EAXC 65536 it alone counts.
//
// A symbol belongs to the newest slot that it has got a packet of; packets of slots before are late
// (slots up to half of 256 frames ahead are newer). The host may set `window`: `span` slots from
// `first` on are then taken, at most SLOTS, which protects what it is reading; before are late
// ones, behind are early ones. Without a window, results do not depend on the order of packets only
// if those of a batch are less than SLOTS slots apart.
//
// With COMP_HEADER each section has udCompHdr, and one for PRBs of other than PRB_BYTES is
// malformed; without, compression is static. Sections before a malformed one count.
//
// Reads, behind an Ethernet header and one VLAN tag or none, the whole eCPRI message.

#ifndef EAXC
#define EAXC 0u
#endif
#ifndef PORTS
#define PORTS 4u
#endif
#ifndef SLOTS
#define SLOTS 4u
#endif
// 1, 2, 4, 8 or 16: subcarriers of 15, 30, 60, 120 or 240 kHz.
#ifndef SLOTS_PER_SUBFRAME
#define SLOTS_PER_SUBFRAME 2u
#endif
#ifndef CARRIER_PRBS
#define CARRIER_PRBS 273u
#endif
// Block floating point of 9 bits takes 28 bytes; 16 bits without compression take 48.
#ifndef PRB_BYTES
#define PRB_BYTES 28u
#endif
#ifndef COMP_HEADER
#define COMP_HEADER true
#endif

// The buffer. For more ports or slots, more entries here and in the constants below are needed.
//! map iq: array value=1 entries=1048576 fields=word,data
// By position: the claim of the slot that the PRB in the buffer is of.
//! map claims: array value=1 entries=65536 fields=position,claim
// By (slot modulo SLOTS * PORTS + port) * 14 + symbol. A claim is the slot's number plus one,
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

// For other compilers.
#ifndef PORTCULLIS
PORTCULLIS_VALUES(iq)
PORTCULLIS_VALUES(claims)
PORTCULLIS_VALUES(symbols)
PORTCULLIS_VALUES(window)
PORTCULLIS_KEYS(eaxcs, uint)
PORTCULLIS_VALUES(eaxcs)
PORTCULLIS_COUNTER(packets)
PORTCULLIS_COUNTER(events)
#endif

#define IQ_WORDS 1048576
#define CLAIMS 65536
#define SYMBOLS 4096

// Words of a PRB in the buffer.
#define PRB_WORDS ((PRB_BYTES + 3) / 4)

// Words of a symbol, and of the window.
enum { CLAIM, FILLED };
enum { FIRST, SPAN };

// Events, of PRBs and then of packets.
enum { WRITTEN, DUPLICATE, LATE, EARLY, OUT_OF_RANGE, MALFORMED, UNSUPPORTED };

#define ETH_HLEN 14
#define VLAN_HLEN 4
#define ETH_P_ECPRI 0xaefe

#define ECPRI_VERSION 1
#define ECPRI_CONCATENATION 1
#define ECPRI_IQ_DATA 0
// In the second byte of ecpriSeqid: the last part, and its number is 0.
#define ECPRI_WHOLE 0x80
#define ECPRI_COMMON_HLEN 4

// Uplink, payload version 1, filter index 0.
#define UPLINK_U_PLANE 0x10

#define SYMBOLS_PER_SLOT 14
#define SUBFRAMES 10
#define ALL_SLOTS (256u * SUBFRAMES * SLOTS_PER_SUBFRAME)

// Compression methods (udCompMeth) with a parameter byte for each PRB: block floating point, block
// scaling, mu-law.
#define BLOCK_FLOATING_POINT 1
#define MU_LAW 3

typedef __global uchar *bytes;

struct ecprihdr {
    uchar version_concatenation, type;
    ushort size, eaxc;
    uchar sequence, part;
};

struct oranhdr {
    uchar direction_version_filter, frame;
    ushort subframe_slot_symbol;
};

// Where the eCPRI header is: behind the Ethernet header and one VLAN tag or none.
bytes ecpri_header(bytes pkt)
{
    uint outer = load_be16(pkt, 12);
    return pkt + ETH_HLEN + (outer == ETH_P_8021Q || outer == ETH_P_8021AD ? VLAN_HLEN : 0);
}

// Bytes of a PRB by udCompHdr: 24 numbers of udIqWidth bits, 0 meaning 16.
uint bytes_of(uint header)
{
    uint method = header & 0xf, bits = header >> 4 ? header >> 4 : 16;
    return 3 * bits + (method >= BLOCK_FLOATING_POINT && method <= MU_LAW);
}

// Slots that `slot` is ahead of another one, going round.
uint ahead(uint slot, uint other)
{
    return (slot + ALL_SLOTS - other % ALL_SLOTS) % ALL_SLOTS;
}

bool is_behind(uint distance)
{
    return distance >= ALL_SLOTS / 2;
}

// Makes the symbol that of the slot, whose claim is returned; 0 where it is that of a later one.
uint claim_of(uint symbol, uint slot)
{
    uint tag = slot + 1, was = symbols_read(symbol, CLAIM), now;
    for (; was >> 16 != tag; was = now) {
        if (was >> 16 && is_behind(ahead(tag, was >> 16)))
            return 0;
        uint claim = tag << 16 | ((was + 1) & 0xffff);
        now = symbols_compare_exchange(symbol, CLAIM, was, claim);
        if (now == was)
            return claim;
    }
    return was;
}

// Counts PRBs of a claim. What earlier slots had is forgotten.
void add_filled(uint symbol, uint claim, uint prbs)
{
    uint generation = claim << 16, was = symbols_read(symbol, FILLED), now;
    for (;; was = now) {
        uint base = (was ^ generation) >> 16 ? generation : was;
        now = symbols_compare_exchange(symbol, FILLED, was, base + prbs);
        if (now == was)
            return;
    }
}

void write_prb(bytes at, uint position)
{
    uint word = position * PRB_WORDS;
    for (uint i = 0; i < PRB_BYTES / 4; i++)
        iq_write(word + i, 0, load_le32(at, i * 4));
    if (PRB_BYTES % 4)
        iq_write(word + PRB_BYTES / 4, 0, load_le32(at, PRB_BYTES - 4) >> (4 - PRB_BYTES % 4) % 4 * 8);
}

// Writes a section's PRBs. Of those with one position the first to claim it counts.
void write_section(bytes data, uint symbol, uint claim, uint first, uint step, uint count)
{
    uint written = 0, out_of_range = 0;
    for (uint i = 0; i < count; i++) {
        uint prb = first + i * step, position = symbol * CARRIER_PRBS + prb;
        if (prb >= CARRIER_PRBS || position >= CLAIMS || (position + 1) * PRB_WORDS > IQ_WORDS) {
            out_of_range++;
            continue;
        }
        uint was = claims_read(position, 0);
        if (was != claim && claims_compare_exchange(position, 0, was, claim) == was) {
            write_prb(data + i * PRB_BYTES, position);
            written++;
        }
    }
    if (written != 0) {
        add_filled(symbol, claim, written);
        events_add(WRITTEN, written);
    }
    if (written != count) {
        events_add(OUT_OF_RANGE, out_of_range);
        events_add(DUPLICATE, count - written - out_of_range);
    }
}

// LATE or EARLY where the slot is outside of the window, else WRITTEN.
uint outside(uint slot)
{
    uint span = window_read(0, SPAN), distance = ahead(slot, window_read(0, FIRST));
    if (span == 0 || distance < span)
        return WRITTEN;
    return is_behind(distance) ? LATE : EARLY;
}

uint port_of(uint id)
{
    uint listed = eaxcs_find(id);
    return listed == MAP_NONE ? id - EAXC : eaxcs_read(listed, 0);
}

uint xdp_filter(bytes pkt, uint len)
{
    bytes start = ecpri_header(pkt);
    __global struct ecprihdr *ecpri = (__global struct ecprihdr *)start;
    __global struct oranhdr *oran = (__global struct oranhdr *)(ecpri + 1);
    uint port = port_of(ntohs(ecpri->eaxc));

    if ((bytes)(oran + 1) > pkt + len || load_be16(start, -2) != ETH_P_ECPRI
        || ecpri->version_concatenation >> 4 != ECPRI_VERSION || ecpri->type != ECPRI_IQ_DATA
        || oran->direction_version_filter != UPLINK_U_PLANE || port >= PORTS)
        return XDP_PASS;
    // A concatenated message follows; or this is a part of one.
    if (ecpri->version_concatenation & ECPRI_CONCATENATION || ecpri->part != ECPRI_WHOLE) {
        events_add(UNSUPPORTED, 1);
        return XDP_PASS;
    }
    uint time = ntohs(oran->subframe_slot_symbol);
    uint subframe = time >> 12, slot_of_subframe = time >> 6 & 0x3f, symbol = time & 0x3f;
    bytes at = (bytes)(oran + 1), end = start + ECPRI_COMMON_HLEN + ntohs(ecpri->size);
    if (end > pkt + len || end < at || subframe >= SUBFRAMES || slot_of_subframe >= SLOTS_PER_SUBFRAME) {
        events_add(MALFORMED, 1);
        return XDP_DROP;
    }
    uint slot = (oran->frame * SUBFRAMES + subframe) * SLOTS_PER_SUBFRAME + slot_of_subframe;
    uint fate = outside(slot);
    // The symbol that the packet has been counted for.
    uint counted = SYMBOLS_PER_SLOT;
    while (at < end) {
        uint section = load_be32(at, 0), count = section & 0xff ? section & 0xff : CARRIER_PRBS;
        bytes data = at + (COMP_HEADER ? 6 : 4);
        symbol += section >> 18 & 1;
        if (data > end || count * PRB_BYTES > (uint)(end - data) || symbol >= SYMBOLS_PER_SLOT
            || (COMP_HEADER && bytes_of(at[4]) != PRB_BYTES)) {
            events_add(MALFORMED, 1);
            return XDP_DROP;
        }
        at = data + count * PRB_BYTES;
        uint entry = (slot % SLOTS * PORTS + port) * SYMBOLS_PER_SLOT + symbol;
        if (SLOTS > SYMBOLS || PORTS > SYMBOLS || entry >= SYMBOLS) {
            events_add(OUT_OF_RANGE, count);
            continue;
        }
        if (fate != WRITTEN) {
            events_add(fate, count);
            continue;
        }
        uint claim = claim_of(entry, slot);
        if (claim == 0) {
            events_add(LATE, count);
            continue;
        }
        if (symbol != counted) {
            packets_add(port * SYMBOLS_PER_SLOT + symbol, 1);
            counted = symbol;
        }
        write_section(data, entry, claim, section >> 8 & 0x3ff, 1 + (section >> 19 & 1), count);
    }
    return XDP_DROP;
}
