//! The modes that are measured, in order.

use std::fmt;
use std::str::FromStr;

use portcullis::device::Dispatch;

/// The longest burst.
pub const LONGEST: i64 = 8192;

/// Who does the work on packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// Nobody: packets go out as they came in.
    None,
    /// The processor, on the thread that sends.
    Cpu,
    /// The device, which gets bursts by this method.
    Device(Dispatch),
}

/// What `--workload` takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Every one.
    All,
    /// This one.
    One(Workload),
}

/// Where packets' buffers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mempool {
    /// In the host's memory.
    Host,
    /// In a GPU's.
    Gpu,
}

/// What `--mempool` takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mempools {
    /// Both.
    All,
    /// This one.
    One(Mempool),
}

/// One run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mode {
    /// Who does the work.
    pub workload: Workload,
    /// Where packets are.
    pub mempool: Mempool,
    /// Packets in a burst, at most.
    pub burst: u16,
}

impl Workload {
    /// All of them, in order.
    pub fn all() -> impl Iterator<Item = Workload> {
        [Workload::None, Workload::Cpu].into_iter().chain(Dispatch::ALL.map(Workload::Device))
    }

    /// What `--workload` takes.
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

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Choice, String> {
        if text == "all" {
            return Ok(Choice::All);
        }
        let found = Workload::all().find(|workload| workload.name() == text).map(Choice::One);
        found.ok_or_else(|| {
            let names: Vec<&str> = Workload::all().map(Workload::name).collect();
            format!("there are {} and all", names.join(", "))
        })
    }
}

impl Mempool {
    /// What `--mempool` takes.
    pub fn name(self) -> &'static str {
        match self {
            Mempool::Host => "host",
            Mempool::Gpu => "gpu",
        }
    }
}

impl FromStr for Mempools {
    type Err = String;

    fn from_str(text: &str) -> Result<Mempools, String> {
        if text == "all" {
            return Ok(Mempools::All);
        }
        let found = [Mempool::Host, Mempool::Gpu].into_iter().find(|mempool| mempool.name() == text);
        found.map(Mempools::One).ok_or_else(|| "there are host, gpu and all".into())
    }
}

/// All modes, each once: a workload with all bursts, by the one kind of memory and the other, then
/// the next one.
pub fn modes(workloads: &[Choice], mempools: &[Mempools], bursts: &[u16]) -> Vec<Mode> {
    let mut modes = Vec::new();
    let workloads = workloads.iter().flat_map(|choice| match choice {
        Choice::All => Workload::all().collect(),
        Choice::One(one) => vec![*one],
    });
    let mempools = mempools.iter().flat_map(|choice| match choice {
        Mempools::All => vec![Mempool::Host, Mempool::Gpu],
        Mempools::One(one) => vec![*one],
    });
    let mempools: Vec<Mempool> = mempools.collect();
    let places = workloads.flat_map(|workload| mempools.iter().map(move |mempool| (workload, *mempool)));
    for (workload, mempool) in places {
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
    fn workloads_read_as_they_are_written() {
        for workload in Workload::all() {
            assert_eq!(workload.name().parse(), Ok(Choice::One(workload)));
        }
        assert_eq!("all".parse(), Ok(Choice::All));
        for mempool in [Mempool::Host, Mempool::Gpu] {
            assert_eq!(mempool.name().parse(), Ok(Mempools::One(mempool)));
        }
        assert_eq!("all".parse(), Ok(Mempools::All));
        assert!("device".parse::<Mempools>().unwrap_err().contains("host, gpu and all"));
        for text in ["", "CPU", "kernel", "2"] {
            let error = text.parse::<Choice>().unwrap_err();
            assert_eq!(error, "there are none, cpu, inline, pipelined, persistent, waitvalue, graph and all");
        }
    }

    #[test]
    fn each_mode_is_there_once_and_in_order() {
        let (cpu, graph) = (Workload::Cpu, Workload::Device(Dispatch::Graph));
        let host = Mempool::Host;
        let found = modes(&[graph, cpu, graph].map(Choice::One), &[Mempools::One(host)], &[64, 1, 64]);
        let want = [(graph, 64), (graph, 1), (cpu, 64), (cpu, 1)];
        assert_eq!(found, want.map(|(workload, burst)| Mode { workload, mempool: host, burst }));
        let all = modes(&[Choice::One(cpu), Choice::All], &[Mempools::One(Mempool::Gpu), Mempools::All], &[32, 8]);
        assert_eq!((all.len(), all[0].workload, all[4].workload), (28, cpu, Workload::None));
        let mempools = [Mempool::Gpu, Mempool::Gpu, host, host];
        assert_eq!(all[..4].iter().map(|mode| mode.mempool).collect::<Vec<_>>(), mempools);
    }
}
