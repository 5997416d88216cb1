//! Model of `flow_stats`: unidirectional flows by addresses, ports and protocol, as in NetFlow (RFC
//! 3954).

use std::collections::HashMap;
use std::net::IpAddr;

use portcullis_core::packet::Verdict;

use super::{Maps, Model};
use crate::ip::{ip, words};
use crate::models::Outcome;
use crate::traffic::Packet;

/// Model of the flow statistics.
#[derive(Debug, Default)]
pub struct FlowStats {
    flows: HashMap<(IpAddr, IpAddr, u16, u16, u8), Flow>,
}

/// Statistics of a flow.
#[derive(Debug)]
pub struct Flow {
    packets: u32,
    bytes: u64,
    /// Times of the first and last packet in seconds, modulo 2^32.
    first: u32,
    last: u32,
}

impl Model for FlowStats {
    fn filter(&mut self, packet: &Packet) -> Outcome {
        if let Some(ip) = ip(&packet.bytes) {
            let has_ports = [6, 17, 132].contains(&ip.protocol) && !ip.is_later_fragment;
            let port = |at| ip.u16_at(at).filter(|_| has_ports).unwrap_or(0);
            let now = (packet.metadata.time_ns() / 1_000_000_000) as u32;
            let flow = self.flows.entry((ip.source, ip.destination, port(0), port(2), ip.protocol));
            let flow = flow.or_insert(Flow { packets: 0, bytes: 0, first: now, last: now });
            flow.packets += 1;
            flow.bytes += u64::from(packet.metadata.wire_length) - ip.at as u64;
            flow.first = flow.first.min(now);
            flow.last = flow.last.max(now);
        }
        Outcome { verdict: Verdict::Pass, bytes: packet.bytes.clone() }
    }

    fn maps(&self) -> Maps {
        let time = |seconds: u32| seconds.max(1);
        let flows = self.flows.iter().map(|((source, destination, from, to, protocol), flow)| {
            let ends = [u32::from(*from), u32::from(*to), u32::from(*protocol)];
            let key = [&words(*source)[..], &words(*destination), &ends].concat();
            let bytes = [flow.bytes as u32, (flow.bytes >> 32) as u32];
            (key, vec![flow.packets, bytes[0], bytes[1], time(flow.first), time(flow.last)])
        });
        [("flows".into(), flows.collect()), ("missed".into(), [].into())].into()
    }
}
