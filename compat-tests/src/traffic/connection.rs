//! Generates a TCP connection, from its first SYN to its end.

use std::collections::VecDeque;
use std::net::SocketAddr;

use portcullis::packet_io::synth::Random;

use super::frame::{ACK, FIN, Frame, PSH, RST, SYN};

/// A segment to be sent.
#[derive(Debug, Clone, Copy)]
struct Step {
    from_client: bool,
    flags: u8,
    data: usize,
}

/// A connection and its remaining segments.
#[derive(Debug)]
pub struct Connection {
    client: SocketAddr,
    server: SocketAddr,
    tag: Option<(u16, u16)>,
    class: u8,
    /// Next sequence numbers of the client and of the server.
    sequence: [u32; 2],
    script: VecDeque<Step>,
}

impl Connection {
    pub fn new(client: SocketAddr, server: SocketAddr, random: &mut Random) -> Connection {
        let tag = random.one_in(8).then(|| (random.pick(&[0x8100, 0x88a8]), random.below(4096) as u16));
        let class = random.pick(&[0, 0, 0x10, 0x28, 0x30, 0x38, 0x98, 0xb8]);
        let sequence = [random.u32(), random.u32()];
        Connection { client, server, tag, class, sequence, script: script(random) }
    }

    /// Returns the addresses of the client and of the server.
    pub fn ends(&self) -> (SocketAddr, SocketAddr) {
        (self.client, self.server)
    }

    /// Returns the next segment and its ingress port, or `None` at the end of the connection.
    pub fn next_frame(&mut self, random: &mut Random) -> Option<(Frame, u32)> {
        // Some segments are lost on the way, and some are duplicated.
        if random.one_in(40) {
            self.script.pop_front();
        }
        let step = if random.one_in(40) { *self.script.front()? } else { self.script.pop_front()? };
        let (from, to) = if step.from_client { (self.client, self.server) } else { (self.server, self.client) };
        let [own, other] = if step.from_client { [0, 1] } else { [1, 0] };
        let mut data = vec![0; step.data];
        random.fill(&mut data);
        let acknowledged = if step.flags & ACK == 0 { 0 } else { self.sequence[other] };
        let mut frame = Frame::tcp(from, to, step.flags, [self.sequence[own], acknowledged], &data);
        let control = u32::from(step.flags & (SYN | FIN) != 0);
        self.sequence[own] = self.sequence[own].wrapping_add(step.data as u32 + control);
        frame.tags.extend(self.tag);
        frame.class = self.class;
        frame.identification = random.u32() as u16;
        Some((frame, own as u32))
    }
}

fn script(random: &mut Random) -> VecDeque<Step> {
    let mut script = Vec::new();
    let mut say = |from_client, flags, data| script.push(Step { from_client, flags, data });
    for _ in 0..random.pick(&[1, 1, 1, 1, 1, 1, 2, 3]) {
        say(true, SYN, 0);
    }
    // The server does not answer, or the port is closed.
    match random.below(16) {
        0 => return script.into(),
        1 => {
            say(false, RST | ACK, 0);
            return script.into();
        }
        // Simultaneous open (RFC 9293, section 3.5).
        2 => say(false, SYN, 0),
        // An invalid first segment.
        3 => say(false, SYN | FIN, 0),
        _ => {}
    }
    say(false, SYN | ACK, 0);
    say(true, ACK, 0);
    for _ in 0..random.below(12) {
        let from_client = random.one_in(2);
        say(from_client, PSH | ACK, random.between(1, 300) as usize);
        if !random.one_in(4) {
            say(!from_client, ACK, 0);
        }
    }
    let first = random.one_in(2);
    match random.below(8) {
        0 => say(first, RST, 0),
        1 => {
            // Half-close: the other direction continues.
            say(first, FIN | ACK, 0);
            say(!first, PSH | ACK, 100);
            say(first, RST | ACK, 0);
        }
        // The connection goes silent.
        2 => {}
        _ => {
            say(first, FIN | ACK, 0);
            say(!first, ACK, 0);
            say(!first, FIN | ACK, 0);
            say(first, ACK, 0);
        }
    }
    // Segments that arrive after the end.
    if random.one_in(3) {
        say(random.one_in(2), PSH | ACK, 20);
    }
    script.into()
}
