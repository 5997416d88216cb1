//! Netfilter queues: receiving, verdicts, rewriting and overload, in real kernels' networks.
#![cfg(all(target_os = "linux", feature = "nfqueue"))]

mod lane;
mod opening;
mod overload;
mod packets;
mod rewriting;
mod segments;
mod verdicts;
