//! Encoding messages to the kernel.

use super::{ATTRIBUTE_HEADER, FAMILY_HEADER, MAX_PAYLOAD, MESSAGE_HEADER, attribute, configuration, kind, netlink};

/// Verdicts, numbered as in `linux/netfilter.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Verdict {
    /// `NF_DROP`.
    Drop = 0,
    /// `NF_ACCEPT`.
    Accept = 1,
}

/// Configuration of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Config {
    /// Maximum number of bytes of a packet that are copied; 0 for as many as possible.
    pub copy_range: u32,
    /// Maximum number of waiting packets.
    pub max_length: u32,
    /// Whether packets that find the queue full are accepted.
    pub fail_open: bool,
    /// Whether packets longer than the MTU are delivered whole.
    pub gso: bool,
}

/// Appends the message that binds a queue to this socket. The kernel answers only on failure, and
/// before the send returns; packets may follow.
pub(crate) fn config(into: &mut Vec<u8>, queue: u16, sequence: u32, config: &Config) {
    use configuration::{
        CMD, CMD_BIND, COPY_PACKET, F_CONNTRACK, F_FAIL_OPEN, F_GSO, FLAGS, MASK, PARAMS, QUEUE_MAXLEN,
    };
    let start = begin(into, kind::CONFIG, queue, sequence);
    // `struct nfqnl_msg_config_cmd`: command (1), padding (1), an obsolete address family (2).
    put_attribute(into, CMD, &[CMD_BIND, 0, 0, 0]);
    // `struct nfqnl_msg_config_params`: range (4), mode (1).
    let [a, b, c, d] = config.copy_range.to_be_bytes();
    put_attribute(into, PARAMS, &[a, b, c, d, COPY_PACKET]);
    put_attribute(into, QUEUE_MAXLEN, &config.max_length.to_be_bytes());
    let mut flags = 0;
    for (flag, is_set) in [(F_FAIL_OPEN, config.fail_open), (F_CONNTRACK, false), (F_GSO, config.gso)] {
        flags |= if is_set { flag } else { 0 };
    }
    put_attribute(into, MASK, &(F_FAIL_OPEN | F_CONNTRACK | F_GSO).to_be_bytes());
    put_attribute(into, FLAGS, &flags.to_be_bytes());
    end(into, start, 0);
}

/// Appends the message that unbinds a queue, upon which the kernel drops waiting packets. The
/// kernel answers only on failure.
pub fn release(into: &mut Vec<u8>, queue: u16, sequence: u32) {
    let start = begin(into, kind::CONFIG, queue, sequence);
    put_attribute(into, configuration::CMD, &[configuration::CMD_UNBIND, 0, 0, 0]);
    end(into, start, 0);
}

/// Appends a verdict on one packet. The kernel answers only on failure.
pub fn verdict(into: &mut Vec<u8>, queue: u16, sequence: u32, verdict: Verdict, id: u32) {
    let start = begin(into, kind::VERDICT, queue, sequence);
    put_verdict(into, verdict, id);
    end(into, start, 0);
}

/// Appends a verdict on all waiting packets up to ID `last`. The kernel answers only on failure.
pub fn verdict_batch(into: &mut Vec<u8>, queue: u16, sequence: u32, verdict: Verdict, last: u32) {
    let start = begin(into, kind::VERDICT_BATCH, queue, sequence);
    put_verdict(into, verdict, last);
    end(into, start, 0);
}

/// Appends a verdict that replaces a packet's bytes. The `payload` bytes have to follow directly,
/// and then as many zero bytes as this returns.
///
/// # Panics
/// If `payload` exceeds [`MAX_PAYLOAD`].
pub fn verdict_with_payload(
    into: &mut Vec<u8>,
    queue: u16,
    sequence: u32,
    verdict: Verdict,
    id: u32,
    payload: usize,
) -> usize {
    assert!(payload <= MAX_PAYLOAD, "{payload} bytes do not fit into an attribute");
    let start = begin(into, kind::VERDICT, queue, sequence);
    put_verdict(into, verdict, id);
    put_header(into, attribute::PAYLOAD, payload);
    let padding = payload.next_multiple_of(4) - payload;
    end(into, start, payload + padding);
    padding
}

fn begin(into: &mut Vec<u8>, kind: u16, queue: u16, sequence: u32) -> usize {
    let start = into.len();
    let [queue_high, queue_low] = queue.to_be_bytes();
    let mut header = [0; MESSAGE_HEADER + FAMILY_HEADER];
    header[4..6].copy_from_slice(&kind.to_ne_bytes());
    header[6..8].copy_from_slice(&netlink::NLM_F_REQUEST.to_ne_bytes());
    header[8..12].copy_from_slice(&sequence.to_ne_bytes());
    // AF_UNSPEC, NFNETLINK_V0.
    header[16..20].copy_from_slice(&[0, 0, queue_high, queue_low]);
    into.extend_from_slice(&header);
    start
}

/// Fills in the length of the message that starts at `start`, which `more` bytes will follow.
fn end(into: &mut [u8], start: usize, more: usize) {
    let length = (into.len() - start + more) as u32;
    into[start..start + 4].copy_from_slice(&length.to_ne_bytes());
}

/// Appends `struct nfqnl_msg_verdict_hdr`: verdict (4), packet ID (4).
fn put_verdict(into: &mut Vec<u8>, verdict: Verdict, id: u32) {
    let mut value = [0; 8];
    value[..4].copy_from_slice(&(verdict as u32).to_be_bytes());
    value[4..].copy_from_slice(&id.to_be_bytes());
    put_attribute(into, attribute::VERDICT_HDR, &value);
}

/// Appends an attribute, padded to a multiple of 4 bytes.
///
/// # Panics
/// If the value is longer than [`MAX_PAYLOAD`].
pub fn put_attribute(into: &mut Vec<u8>, attribute: u16, value: &[u8]) {
    assert!(value.len() <= MAX_PAYLOAD, "{} bytes do not fit into an attribute", value.len());
    put_header(into, attribute, value.len());
    into.extend_from_slice(value);
    into.resize(into.len() + value.len().next_multiple_of(4) - value.len(), 0);
}

fn put_header(into: &mut Vec<u8>, attribute: u16, length: usize) {
    into.extend_from_slice(&((length + ATTRIBUTE_HEADER) as u16).to_ne_bytes());
    into.extend_from_slice(&attribute.to_ne_bytes());
}
