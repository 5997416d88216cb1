//! Limits the number of packets per kernel launch, so that no launch takes long whatever the filter
//! does.
//!
//! A driver's watchdog kills a kernel after a few seconds, and cancelling waits for queued
//! launches. The cost of a launch is known only for the worst case, in which every packet runs all
//! of its loop iterations. So the first launches are sized for the worst case. Later ones follow
//! the measured time, within bounds, because the next packets may be the worst ones.

use std::time::Duration;

use super::DeviceKind;
use crate::program::Program;

/// Launch time above which later launches shrink.
const SLOW_LAUNCH: Duration = Duration::from_millis(250);

/// Launch time below which later launches grow.
const FAST_LAUNCH: Duration = Duration::from_millis(25);

/// How often the size may double beyond the worst case's budget of a tenth of a second: the worst
/// case then takes 1.6 seconds.
const MAX_DOUBLINGS: u32 = 4;

/// The adaptive launch size of a session.
#[derive(Debug, Clone)]
pub struct LaunchBudget {
    packets: usize,
    max_packets: usize,
    unlimited: bool,
}

impl LaunchBudget {
    /// Computes the initial size. `size` is the kernel's number of expressions with all functions
    /// inlined. `work` is the synthetic work per packet in nanoseconds
    /// ([`MeasureOptions::synthetic_work`](super::MeasureOptions)), counted as one expression per
    /// nanosecond.
    pub fn new(kind: DeviceKind, program: &Program, size: u64, work: u64) -> LaunchBudget {
        let iterations = program.facts().max_iterations.unwrap_or(program.fuel()).min(program.fuel());
        // An iteration evaluates each expression at most once; iterations of inner loops are
        // counted in `iterations` themselves.
        let worst = (u64::from(iterations) + 1).saturating_mul(size.max(1)).saturating_add(work);
        // Expressions evaluated in a tenth of a second: a low estimate, for slow devices.
        let budget: u64 = match kind {
            DeviceKind::DiscreteGpu => 1 << 36,
            DeviceKind::IntegratedGpu | DeviceKind::VirtualGpu => 1 << 33,
            _ => 1 << 28,
        };
        let packets = usize::try_from(budget / worst).unwrap_or(usize::MAX).max(1);
        let max_packets = packets.saturating_mul(1 << MAX_DOUBLINGS);
        LaunchBudget { packets, max_packets, unlimited: max_packets >= 1 << 24 }
    }

    /// A budget without limit, for tests that need long launches.
    pub fn unlimited() -> LaunchBudget {
        LaunchBudget { packets: usize::MAX, max_packets: usize::MAX, unlimited: true }
    }

    /// Maximum number of packets in the next launch.
    pub fn max_launch_packets(&self) -> usize {
        if self.unlimited { usize::MAX } else { self.packets }
    }

    /// Whether launches need not be limited at all.
    pub fn is_unlimited(&self) -> bool {
        self.unlimited
    }

    /// Adapts the size to the time of a launch that was limited by the budget.
    pub fn record_launch(&mut self, packets: usize, time: Duration) {
        // The short launch at the end of a batch says little about the cost per packet.
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
    use crate::program::passes::{Lowering, inlined_size, lower};
    use crate::testing::program;

    #[test]
    fn launches_of_an_unbounded_loop_adapt_within_bounds() {
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
        // A shorter launch at the end of a batch changes nothing.
        budget.record_launch(1, Duration::from_millis(1));
        assert_eq!(budget.max_launch_packets(), first << (MAX_DOUBLINGS - 1));
    }

    #[test]
    fn the_costliest_filters_run_one_packet_per_launch() {
        let endless =
            program("fn xdp_filter(pkt: u32) -> u32 { loop { if load_u8(pkt, 0u) == 1u { break; } } return 2u; }");
        let mut budget = LaunchBudget::new(DeviceKind::Software, &endless, 60_000, 0);
        assert_eq!(budget.max_launch_packets(), 1);
        budget.record_launch(1, Duration::from_secs(1));
        assert_eq!(budget.max_launch_packets(), 1);
    }

    #[test]
    fn the_size_of_nested_helper_calls_limits_launches() {
        let mut text = String::from("fn f0(pkt: u32, a: u32) -> u32 { return a * 31u + load_u8(pkt, a & 63u); }\n");
        for i in 1..12 {
            let below = i - 1;
            text += &format!("fn f{i}(pkt: u32, a: u32) -> u32 {{ return f{below}(pkt, f{below}(pkt, a)); }}\n");
        }
        text += "fn xdp_filter(pkt: u32) -> u32 { return f11(pkt, 1u) & 1u; }";
        let program = program(&text);
        let lowered = lower(&program, Lowering { fuel: true, int64: true, ..Lowering::default() }).unwrap();
        let size = inlined_size(&lowered.module, &lowered.module.functions[lowered.filter]);
        // Each of the 2048 calls has at least the call itself and the innermost helper's product,
        // sum and mask.
        assert!(size >= 4 << 11, "{size}");
        let budget = LaunchBudget::new(DeviceKind::IntegratedGpu, &program, size, 0);
        assert!(!budget.is_unlimited());
        // The worst case stays within the budget of a tenth of a second.
        assert!(budget.max_launch_packets() as u64 * size <= 1 << 33, "{}", budget.max_launch_packets());
        // The largest possible kernel.
        assert_eq!(LaunchBudget::new(DeviceKind::DiscreteGpu, &program, u64::MAX, 0).max_launch_packets(), 1);
    }
}
