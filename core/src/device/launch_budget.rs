//! How many packets a launch may have, so that no launch takes long whatever the filter does.
//!
//! A driver's watchdog kills a kernel after a few seconds, and cancelling waits for the launches
//! that are queued. What a launch costs is known only in the worst case: every packet burns all of
//! its loop iterations. So the first launches are small enough for that, and later ones follow what
//! was measured, within bounds, because the next packets may be the worst ones.

use std::time::Duration;

use super::DeviceKind;
use crate::program::Program;

/// A launch that takes longer than this makes the next ones smaller.
const SLOW_LAUNCH: Duration = Duration::from_millis(250);

/// A launch that takes less makes the next ones larger.
const FAST_LAUNCH: Duration = Duration::from_millis(25);

/// How often the size may double beyond what the worst case allows in a tenth of a second: the
/// worst case then takes a second and a half.
const MAX_DOUBLINGS: u32 = 4;

/// The sizes of a session's launches.
#[derive(Debug, Clone)]
pub struct LaunchBudget {
    packets: usize,
    max_packets: usize,
    unlimited: bool,
}

impl LaunchBudget {
    /// `size` is the number of expressions that the kernel has with all functions inlined, `work` the nanoseconds that a
    /// packet keeps its lane for beside them ([`LoadOptions::synthetic_work`](super::LoadOptions)), in which a lane would evaluate about
    /// as many expressions.
    pub fn new(kind: DeviceKind, program: &Program, size: u64, work: u64) -> LaunchBudget {
        let iterations = program.facts().max_iterations.unwrap_or(program.fuel()).min(program.fuel());
        // An iteration evaluates each expression once at most, but for inner loops, whose own
        // iterations are counted too.
        let worst = (u64::from(iterations) + 1).saturating_mul(size.max(1)).saturating_add(work);
        // Expressions evaluated in a tenth of a second; low, for the sake of slow devices.
        let budget: u64 = match kind {
            DeviceKind::DiscreteGpu => 1 << 36,
            DeviceKind::IntegratedGpu | DeviceKind::VirtualGpu => 1 << 33,
            _ => 1 << 28,
        };
        let packets = usize::try_from(budget / worst).unwrap_or(usize::MAX).max(1);
        let max_packets = packets.saturating_mul(1 << MAX_DOUBLINGS);
        LaunchBudget { packets, max_packets, unlimited: max_packets >= 1 << 24 }
    }

    /// Cuts nothing, whatever the filter does: for tests of devices that are busy for long.
    pub fn unlimited() -> LaunchBudget {
        LaunchBudget { packets: usize::MAX, max_packets: usize::MAX, unlimited: true }
    }

    /// The most packets for the next launch.
    pub fn max_launch_packets(&self) -> usize {
        if self.unlimited { usize::MAX } else { self.packets }
    }

    /// Whether launches need not be cut at all.
    pub fn is_unlimited(&self) -> bool {
        self.unlimited
    }

    /// Tells how long a launch took that was cut for the sake of the pace.
    pub fn record_launch(&mut self, packets: usize, time: Duration) {
        // A shorter one, at a batch's end, says little.
        if packets < self.packets {
            return;
        }
        if time > SLOW_LAUNCH {
            self.packets = (self.packets / 2).max(1);
        } else if time < FAST_LAUNCH {
            self.packets = self.packets.saturating_mul(2).min(self.max_packets);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnostics::Source;
    use crate::program::ProgramOptions;
    use crate::program::passes::{Lowering, inlined_size, lower};
    use crate::testing as wgsl;

    fn program(text: &str) -> Program {
        wgsl::compile(&Source::new("f.wgsl", text), &ProgramOptions::default()).map_err(|e| e.render()).unwrap()
    }

    #[test]
    fn a_loop_without_a_bound_is_paced() {
        let endless = program(
            "fn xdp_filter(pkt: u32) -> u32 { loop { if load_u8(pkt, 0u) == 1u { break; } } return XDP_PASS; }",
        );
        let mut budget = LaunchBudget::new(DeviceKind::Software, &endless, 100, 0);
        let first = budget.max_launch_packets();
        assert!((64..1000).contains(&first), "{first}");
        for _ in 0..10 {
            budget.record_launch(budget.max_launch_packets(), Duration::from_millis(1));
        }
        assert_eq!(budget.max_launch_packets(), first << MAX_DOUBLINGS);
        budget.record_launch(budget.max_launch_packets(), Duration::from_secs(1));
        assert_eq!(budget.max_launch_packets(), first << (MAX_DOUBLINGS - 1));
        // The rest of a batch changes nothing.
        budget.record_launch(1, Duration::from_millis(1));
        assert_eq!(budget.max_launch_packets(), first << (MAX_DOUBLINGS - 1));
    }

    #[test]
    fn the_costliest_filters_run_packet_by_packet() {
        let endless =
            program("fn xdp_filter(pkt: u32) -> u32 { loop { if load_u8(pkt, 0u) == 1u { break; } } return 2u; }");
        let mut budget = LaunchBudget::new(DeviceKind::Software, &endless, 60_000, 0);
        assert_eq!(budget.max_launch_packets(), 1);
        budget.record_launch(1, Duration::from_secs(1));
        assert_eq!(budget.max_launch_packets(), 1);
    }

    #[test]
    fn helpers_that_double_are_paced() {
        let mut text = String::from("fn f0(pkt: u32, a: u32) -> u32 { return a * 31u + load_u8(pkt, a & 63u); }\n");
        for i in 1..12 {
            let below = i - 1;
            text += &format!("fn f{i}(pkt: u32, a: u32) -> u32 {{ return f{below}(pkt, f{below}(pkt, a)); }}\n");
        }
        text += "fn xdp_filter(pkt: u32) -> u32 { return f11(pkt, 1u) & 1u; }";
        let program = program(&text);
        let lowered = lower(&program, Lowering { fuel: true, int64: true, ..Lowering::default() }).unwrap();
        let size = inlined_size(&lowered.module, &lowered.module.functions[lowered.filter]);
        // Of the innermost helper's own expressions at least the product, the sum and the mask, and
        // the call, are there for each of 2048 calls.
        assert!(size >= 4 << 11, "{size}");
        let budget = LaunchBudget::new(DeviceKind::IntegratedGpu, &program, size, 0);
        assert!(!budget.is_unlimited());
        // A tenth of a second's budget, and no more.
        assert!(budget.max_launch_packets() as u64 * size <= 1 << 33, "{}", budget.max_launch_packets());
        // The worst there can be.
        assert_eq!(LaunchBudget::new(DeviceKind::DiscreteGpu, &program, u64::MAX, 0).max_launch_packets(), 1);
    }
}
