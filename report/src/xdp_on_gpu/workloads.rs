//! XDP-on-GPU's six workloads: over records, on a processor and on devices, and as filters.

use portcullis::stock;

use super::records::{ACTION, Fields, Record, Traffic};

/// A workload of XDP-on-GPU.
#[derive(Debug)]
pub struct Workload {
    /// Name in XDP-on-GPU's tables.
    pub name: &'static str,
    /// Traffic that XDP-on-GPU generates for it.
    pub traffic: Traffic,
    /// The rule: returns the action for a record.
    pub rule: fn(Fields) -> u8,
    /// Loop over records that sets their actions: the CPU baseline of XDP-on-GPU's tables.
    pub record_loop: fn(&mut [Record]),
    /// Name of its kernel in [`KERNELS`].
    pub kernel: &'static str,
    /// Records per work item of that kernel.
    pub records_per_item: usize,
    /// Name of the equivalent filter: a stock filter, or `batch_hash_lb`.
    pub filter: &'static str,
}

impl Workload {
    /// Returns the filter's WGSL text.
    ///
    /// # Panics
    /// If the workload names no filter, which a test excludes.
    pub fn text(&self) -> &'static str {
        if self.filter == "batch_hash_lb" { BATCH_HASH_LB } else { stock::wgsl(self.filter).expect("a stock filter") }
    }

    /// Returns the filter's return value for an action. Of filters, 1 is PASS and 0 is DROP; of
    /// balancers, the lowest three bits are the port that the packet is redirected to.
    pub fn returns(&self, action: u8) -> u32 {
        match self.traffic {
            Traffic::Filters => u32::from(action) + 1,
            Traffic::Balancers => u32::from(action & 7) << 8 | 4,
        }
    }
}

/// The filter of the one workload that is no stock filter.
const BATCH_HASH_LB: &str = include_str!("batch_hash_lb.wgsl");

/// The kernels over records, in the common subset of OpenCL C and CUDA C++; macros defined before
/// the text cover the differences.
pub const KERNELS: &str = include_str!("kernels.c");

/// Builds a workload from its rule, which also names the kernel. Each workload has its own loop, so
/// that the rule is inlined.
macro_rules! workload {
    ($name:literal, $traffic:ident, $rule:ident, $records_per_item:literal, $filter:literal) => {
        Workload {
            name: $name,
            traffic: Traffic::$traffic,
            rule: $rule,
            record_loop: |records| {
                for record in records {
                    record[ACTION] = $rule(Fields::from_record(record));
                }
            },
            kernel: stringify!($rule),
            records_per_item: $records_per_item,
            filter: $filter,
        }
    };
}

/// All workloads, in the order of XDP-on-GPU's tables.
pub const WORKLOADS: [Workload; 6] = [
    workload!("simple filter", Filters, simple, 1, "simple_filter"),
    workload!("port filter", Filters, port, 1, "port_filter"),
    workload!("minimal filter", Filters, minimal, 1, "minimal"),
    workload!("complex filter", Filters, complex, 1, "complex_filter"),
    workload!("hash load balancer", Balancers, balance, 1, "hash_lb"),
    workload!("batch hash load balancer", Balancers, balance_in_batches, 16, "batch_hash_lb"),
];

/// Drops 192.168.0.1; passes TCP and UDP of all others.
#[inline(always)]
fn simple(fields: Fields) -> u8 {
    u8::from(fields.source != 0xc0a8_0001 && matches!(fields.protocol, 6 | 17))
}

/// Passes to ports 80, 443, and 1024 and above.
#[inline(always)]
fn port(fields: Fields) -> u8 {
    match fields.destination_port {
        22 | 23 => 0,
        80 | 443 => 1,
        port => u8::from(port >= 1024),
    }
}

#[inline(always)]
fn minimal(_: Fields) -> u8 {
    1
}

/// Drops lengths below 64 and above 1500, ICMP, and what comes from three private networks to a
/// port below 1024 other than 80 and 443.
#[inline(always)]
fn complex(fields: Fields) -> u8 {
    let private = matches!(fields.source >> 16, 0x0a00 | 0xac10 | 0xc0a8);
    let port = fields.destination_port;
    let refused = private && port < 1024 && port != 80 && port != 443;
    u8::from(!(refused || fields.length > 1500 || fields.length < 64 || fields.protocol == 1))
}

/// 32-bit FNV-1a over addresses and ports, lowest byte first.
#[inline(always)]
fn hash(fields: Fields) -> u32 {
    let mut hash = 2_166_136_261_u32;
    let mut take = |value: u32, bytes: u32| {
        for byte in 0..bytes {
            hash = (hash ^ (value >> (8 * byte) & 0xff)).wrapping_mul(16_777_619);
        }
    };
    take(fields.source, 4);
    take(fields.destination, 4);
    take(fields.source_port.into(), 2);
    take(fields.destination_port.into(), 2);
    hash
}

/// Returns the action for a worker: its number from 0 to 7, and the highest bit for the mark.
#[inline(always)]
fn marked(worker: u32, mark: bool) -> u8 {
    worker as u8 | if mark { 0x80 } else { 0 }
}

#[inline(always)]
fn balance(fields: Fields) -> u8 {
    let worker = hash(fields) % 8;
    marked(worker, worker.is_multiple_of(2))
}

/// Takes the worker from the hash's upper half and marks every record.
#[inline(always)]
fn balance_in_batches(fields: Fields) -> u8 {
    marked((hash(fields) >> 16) % 8, true)
}

#[cfg(test)]
mod tests;
