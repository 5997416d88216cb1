//! DIR-24-8 longest prefix match (Gupta, Lin and McKeown, 1998), as in DPDK's `rte_lpm` and
//! `rte_lpm6`, in safe Rust: a table of all first 24 bits of an address, and tables of 256 entries
//! for each further byte.

use crate::support::routes::Route;

/// Flag: the entry is valid.
const VALID: u32 = 1 << 31;
/// Flag: the entry refers to a table for the next byte.
const MORE: u32 = 1 << 30;
/// Mask of the next hop or table index.
const NUMBER: u32 = MORE - 1;

/// The first-level table, followed by the second-level ones.
pub struct Dir24 {
    first: Vec<u32>,
    rest: Vec<[u32; 256]>,
}

impl Dir24 {
    /// Builds the tables from routes.
    pub fn new(routes: &[Route]) -> Dir24 {
        let mut tables = Dir24 { first: vec![0; 1 << 24], rest: Vec::new() };
        // Insert shorter routes first, so that more specific ones overwrite them.
        let mut routes = routes.to_vec();
        routes.sort_by_key(|route| route.length);
        routes.iter().for_each(|route| tables.add(route));
        tables
    }

    fn add(&mut self, route: &Route) {
        let word = VALID | route.next_hop;
        let at = (route.address >> 104) as usize;
        if route.length <= 24 {
            self.first[at..at + (1 << (24 - route.length))].fill(word);
            return;
        }
        let mut table = deeper(&mut self.first[at], &mut self.rest);
        let mut depth = 24;
        loop {
            let byte = (route.address << depth >> 120) as usize;
            depth += 8;
            if route.length <= depth {
                self.rest[table][byte..byte + (1 << (depth - route.length))].fill(word);
                return;
            }
            let mut slot = self.rest[table][byte];
            let next = deeper(&mut slot, &mut self.rest);
            self.rest[table][byte] = slot;
            table = next;
        }
    }

    /// Looks up the next hop of an IPv4 address.
    #[inline(always)]
    pub fn ipv4(&self, address: u32) -> Option<u32> {
        let mut word = self.first[(address >> 8) as usize];
        if word & MORE != 0 {
            word = self.rest[(word & NUMBER) as usize][(address & 0xff) as usize];
        }
        (word & VALID != 0).then_some(word & NUMBER)
    }

    /// Looks up the next hop of an IPv6 address.
    #[inline(always)]
    pub fn ipv6(&self, address: &[u8; 16]) -> Option<u32> {
        let first = u32::from_be_bytes([0, address[0], address[1], address[2]]);
        let mut word = self.first[first as usize];
        for byte in &address[3..] {
            if word & MORE == 0 {
                break;
            }
            word = self.rest[(word & NUMBER) as usize][usize::from(*byte)];
        }
        (word & VALID != 0).then_some(word & NUMBER)
    }
}

/// Returns the table behind an entry, creating it if necessary.
fn deeper(slot: &mut u32, rest: &mut Vec<[u32; 256]>) -> usize {
    if *slot & MORE == 0 {
        rest.push([*slot; 256]);
        *slot = VALID | MORE | (rest.len() - 1) as u32;
    }
    (*slot & NUMBER) as usize
}
