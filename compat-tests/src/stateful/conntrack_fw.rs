//! Model of `conntrack_fw`: a firewall that tracks TCP connections.

use std::collections::HashMap;
use std::net::IpAddr;

use portcullis_core::packet::Verdict;

use super::{Maps, Model};
use crate::ip::{ip, words};
use crate::models::Outcome;
use crate::traffic::Packet;
use crate::traffic::frame::{ACK, FIN, RST, SYN};

/// An address as words, and a port.
type Endpoint = ([u32; 4], u16);

/// State of a connection.
#[derive(Debug, Clone)]
enum State {
    /// One endpoint, given here, has sent a SYN.
    Opening(Endpoint),
    /// The endpoint that opened the connection, and the endpoints that have sent a FIN.
    Established(Endpoint, Vec<Endpoint>),
}

/// Model of the firewall.
#[derive(Debug)]
pub struct ConntrackFw {
    /// Timeout of established connections in milliseconds.
    established: u64,
    transitory: u64,
    /// Connections by their endpoints, the lower one first, with the time of the last packet.
    connections: HashMap<[Endpoint; 2], (State, u64)>,
}

impl ConntrackFw {
    /// Creates a model with timeouts in seconds.
    pub fn new(established: u64, transitory: u64) -> ConntrackFw {
        ConntrackFw { established: established * 1000, transitory: transitory * 1000, connections: HashMap::new() }
    }

    fn verdict(&mut self, packet: &Packet) -> Verdict {
        let Some((source, destination, flags)) = segment(&packet.bytes) else { return Verdict::Drop };
        let mut ends = [source, destination];
        ends.sort_unstable();
        let now = packet.metadata.time_ns() / 1_000_000;
        let is_first = flags & (SYN | ACK | FIN | RST) == SYN;
        let live = self.connections.get(&ends).filter(|(state, last)| {
            let most = if is_transitory(state) { self.transitory } else { self.established };
            now.saturating_sub(*last) <= most
        });
        let next = match live {
            None if is_first => State::Opening(source),
            None => return Verdict::Drop,
            Some((State::Established(_, finished), _)) if is_first && finished.len() == 2 => State::Opening(source),
            Some(_) if flags & RST != 0 => {
                self.connections.remove(&ends);
                return Verdict::Pass;
            }
            Some((State::Opening(opener), _)) if is_first && *opener == source => State::Opening(source),
            Some((State::Opening(opener), _)) if *opener != source && flags & SYN != 0 && flags & FIN == 0 => {
                State::Established(*opener, Vec::new())
            }
            Some((State::Opening(_), _)) => return Verdict::Drop,
            Some((State::Established(opener, finished), _)) => {
                let mut finished = finished.clone();
                if flags & FIN != 0 && !finished.contains(&source) {
                    finished.push(source);
                }
                State::Established(*opener, finished)
            }
        };
        self.connections.insert(ends, (next, now));
        Verdict::Pass
    }
}

fn is_transitory(state: &State) -> bool {
    match state {
        State::Opening(_) => true,
        State::Established(_, finished) => finished.len() == 2,
    }
}

/// Returns the source, destination and flags of a complete segment.
fn segment(frame: &[u8]) -> Option<(Endpoint, Endpoint, u8)> {
    let ip = ip(frame).filter(|ip| ip.protocol == 6 && !ip.is_fragment)?;
    let flags = *ip.payload.get(13)?;
    let endpoint = |address: IpAddr, at| Some((words(address), ip.u16_at(at)?));
    Some((endpoint(ip.source, 0)?, endpoint(ip.destination, 2)?, flags))
}

impl Model for ConntrackFw {
    fn filter(&mut self, packet: &Packet) -> Outcome {
        Outcome { verdict: self.verdict(packet), bytes: packet.bytes.clone() }
    }

    fn maps(&self) -> Maps {
        let connections = self.connections.iter().map(|([lower, upper], (state, last))| {
            let key = [lower, upper].map(|(address, port)| [&address[..], &[u32::from(*port)]].concat()).concat();
            let bit = |is: bool, bit: u32| if is { bit } else { 0 };
            let state = match state {
                State::Opening(opener) => bit(opener != lower, 1),
                State::Established(opener, finished) => {
                    let finished = bit(finished.contains(lower), 4) | bit(finished.contains(upper), 8);
                    bit(opener != lower, 1) | 2 | finished
                }
            };
            (key, vec![state, *last as u32])
        });
        [("connections".into(), connections.collect())].into()
    }
}
