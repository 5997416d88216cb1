//! Netfilter queues: what becomes of packets for which a kernel asks.
#![cfg(all(target_os = "linux", feature = "nfqueue"))]

mod lane;
mod opening;
mod overload;
mod packets;
mod rewriting;
mod segments;
mod verdicts;
