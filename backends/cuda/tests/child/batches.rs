//! Filters and batches that together use every kind of buffer.

use portcullis_core::device::{Dispatch, LoadOptions};
use portcullis_core::packet::{Arena, Batch, BatchCutter, Descriptor, ResizeRoom};

/// Filters that together use every kind of buffer.
pub const FILTERS: [&str; 5] = [
    "return XDP_PASS;",
    "return select(XDP_PASS, XDP_DROP, load_be32(pkt, 2u) % 3u == 1u);",
    "if pkt_len(pkt) > 40u { return redirect(load_be16(pkt, 30u) & 0xffu); } return pkt_wire_len(pkt) % 5u;",
    "store_be32(pkt, 4u, load_be32(pkt, 8u) + 1u); store_u8(pkt, 19u, pkt_port(pkt)); return XDP_TX;",
    "let d = i32(load_u8(pkt, 0u) % 40u) - 20; if adjust_head(pkt, d) { store_u8(pkt, 0u, 7u); return XDP_TX; }
     if adjust_tail(pkt, -d) { return redirect(pkt_len(pkt)); } return XDP_DROP;",
];

/// A batch of packets of varying lengths, `stride` bytes apart or, for 0, as close as possible,
/// with head- and tailroom where there is space for it.
pub fn batch(packets: u32, stride: u32, seed: u32) -> Batch {
    let mut at = 128;
    let mut descriptors = Vec::new();
    for i in 0..packets {
        let length = 14 + (i.wrapping_mul(2_654_435_761) ^ seed) % 70;
        descriptors.push(Descriptor { offset: at, length });
        at += if stride > 0 { stride } else { (length + 256 + 3) & !3 };
    }
    let mut arena = Arena::new(at as usize + 256).unwrap();
    let mut state = seed | 1;
    for byte in arena.iter_mut() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *byte = (state >> 24) as u8;
    }
    let room = if stride == 0 || stride >= 340 { ResizeRoom::Both } else { ResizeRoom::None };
    BatchCutter::new(arena, None).cut_batch(descriptors, vec![], room).unwrap()
}

pub fn bytes(batch: &Batch) -> Vec<Vec<u8>> {
    batch.packets().map(<[u8]>::to_vec).collect()
}

pub fn options(dispatch: Dispatch) -> LoadOptions {
    LoadOptions::default().with_dispatch(dispatch)
}
