//! Modes of `portcullis l2fwd` and their order.

use std::fmt;
use std::str::FromStr;

use portcullis::device::Dispatch;

/// Maximum burst size, in packets.
pub const MAX_BURST: i64 = 8192;

/// Who processes the packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// Packets are sent back unread.
    None,
    /// The CPU, on the sending thread.
    Cpu,
    /// The device, with this dispatch method.
    Device(Dispatch),
}

/// Argument of `--workload`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkloadChoice {
    /// Every workload.
    All,
    /// A single workload.
    One(Workload),
}

/// Location of packet buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mempool {
    /// Host memory.
    Host,
    /// GPU memory.
    Gpu,
}

/// Argument of `--mempool`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MempoolChoice {
    /// Host memory, then GPU memory.
    All,
    /// A single location.
    One(Mempool),
}

/// One run of the benchmark: a row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mode {
    /// Who processes the packets.
    pub workload: Workload,
    /// Where ports receive packets.
    pub mempool: Mempool,
    /// Maximum number of packets in a burst.
    pub burst: u16,
}

impl Workload {
    /// Returns all workloads, in the order of `all`.
    pub fn all() -> impl Iterator<Item = Workload> {
        [Workload::None, Workload::Cpu].into_iter().chain(Dispatch::ALL.map(Workload::Device))
    }

    /// Returns the name that `--workload` takes.
    pub fn name(self) -> &'static str {
        match self {
            Workload::None => "none",
            Workload::Cpu => "cpu",
            Workload::Device(dispatch) => dispatch.name(),
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for WorkloadChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<WorkloadChoice, String> {
        if text == "all" {
            return Ok(WorkloadChoice::All);
        }
        let found = Workload::all().find(|workload| workload.name() == text).map(WorkloadChoice::One);
        found.ok_or_else(|| {
            let names: Vec<&str> = Workload::all().map(Workload::name).collect();
            format!("expected {} or all", names.join(", "))
        })
    }
}

impl Mempool {
    /// Returns the name that `--mempool` takes.
    pub fn name(self) -> &'static str {
        match self {
            Mempool::Host => "host",
            Mempool::Gpu => "gpu",
        }
    }
}

impl FromStr for MempoolChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<MempoolChoice, String> {
        if text == "all" {
            return Ok(MempoolChoice::All);
        }
        let found = [Mempool::Host, Mempool::Gpu].into_iter().find(|mempool| mempool.name() == text);
        found.map(MempoolChoice::One).ok_or_else(|| "expected host, gpu or all".into())
    }
}

/// Returns all modes without duplicates: for each workload each mempool, for each mempool all
/// bursts.
pub fn modes(workloads: &[WorkloadChoice], mempools: &[MempoolChoice], bursts: &[u16]) -> Vec<Mode> {
    let mut modes = Vec::new();
    let workloads = workloads.iter().flat_map(|choice| match choice {
        WorkloadChoice::All => Workload::all().collect(),
        WorkloadChoice::One(one) => vec![*one],
    });
    let mempools = mempools.iter().flat_map(|choice| match choice {
        MempoolChoice::All => vec![Mempool::Host, Mempool::Gpu],
        MempoolChoice::One(one) => vec![*one],
    });
    let mempools: Vec<Mempool> = mempools.collect();
    let combinations = workloads.flat_map(|workload| mempools.iter().map(move |mempool| (workload, *mempool)));
    for (workload, mempool) in combinations {
        for burst in bursts.iter().copied() {
            let mode = Mode { workload, mempool, burst };
            if !modes.contains(&mode) {
                modes.push(mode);
            }
        }
    }
    modes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workload_and_mempool_names_round_trip() {
        for workload in Workload::all() {
            assert_eq!(workload.name().parse(), Ok(WorkloadChoice::One(workload)));
        }
        assert_eq!("all".parse(), Ok(WorkloadChoice::All));
        for mempool in [Mempool::Host, Mempool::Gpu] {
            assert_eq!(mempool.name().parse(), Ok(MempoolChoice::One(mempool)));
        }
        assert_eq!("all".parse(), Ok(MempoolChoice::All));
        assert!("device".parse::<MempoolChoice>().unwrap_err().contains("host, gpu or all"));
        for text in ["", "CPU", "kernel", "2"] {
            let error = text.parse::<WorkloadChoice>().unwrap_err();
            assert_eq!(error, "expected none, cpu, inline, pipelined, persistent, waitvalue, graph or all");
        }
    }

    #[test]
    fn modes_are_in_order_without_duplicates() {
        let (cpu, graph) = (Workload::Cpu, Workload::Device(Dispatch::Graph));
        let host = Mempool::Host;
        let found = modes(&[graph, cpu, graph].map(WorkloadChoice::One), &[MempoolChoice::One(host)], &[64, 1, 64]);
        let want = [(graph, 64), (graph, 1), (cpu, 64), (cpu, 1)];
        assert_eq!(found, want.map(|(workload, burst)| Mode { workload, mempool: host, burst }));
        let all = modes(
            &[WorkloadChoice::One(cpu), WorkloadChoice::All],
            &[MempoolChoice::One(Mempool::Gpu), MempoolChoice::All],
            &[32, 8],
        );
        assert_eq!((all.len(), all[0].workload, all[4].workload), (28, cpu, Workload::None));
        let mempools = [Mempool::Gpu, Mempool::Gpu, host, host];
        assert_eq!(all[..4].iter().map(|mode| mode.mempool).collect::<Vec<_>>(), mempools);
    }
}
