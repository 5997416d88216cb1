//! `portcullis run` on live packets.

#[cfg(all(target_os = "linux", feature = "af-xdp"))]
mod af_xdp;
mod args;
#[cfg(all(target_os = "linux", feature = "live"))]
mod control;
#[cfg(all(target_os = "linux", feature = "live"))]
mod drive;
#[cfg(all(target_os = "linux", feature = "live"))]
mod log;
#[cfg(all(target_os = "linux", feature = "nfqueue"))]
mod nfqueue;
#[cfg(all(target_os = "linux", feature = "live"))]
mod privileges;
#[cfg(all(target_os = "linux", feature = "live"))]
pub mod report;
#[cfg(all(target_os = "linux", feature = "live"))]
mod stats;

pub use args::{LiveArgs, duration};

use super::Args;
use crate::cli::failure::Failure;

/// Runs on what the arguments name.
pub fn run(args: &Args) -> Result<(), Failure> {
    if args.live.nfqueue.is_empty() { by_af_xdp(args) } else { by_nfqueue(args) }
}

#[cfg(all(target_os = "linux", feature = "af-xdp"))]
fn by_af_xdp(args: &Args) -> Result<(), Failure> {
    af_xdp::run(args)
}

#[cfg(not(all(target_os = "linux", feature = "af-xdp")))]
fn by_af_xdp(_: &Args) -> Result<(), Failure> {
    Err(missing("--af-xdp", "af-xdp"))
}

#[cfg(all(target_os = "linux", feature = "nfqueue"))]
fn by_nfqueue(args: &Args) -> Result<(), Failure> {
    nfqueue::run(args)
}

#[cfg(not(all(target_os = "linux", feature = "nfqueue")))]
fn by_nfqueue(_: &Args) -> Result<(), Failure> {
    Err(missing("--nfqueue", "nfqueue"))
}

/// What to do where this program cannot do what an option asks for.
#[cfg(not(all(target_os = "linux", feature = "af-xdp", feature = "nfqueue")))]
pub fn missing(option: &str, feature: &str) -> Failure {
    Failure::Usage(if cfg!(target_os = "linux") {
        format!("{option}: this program was built without it; build it with `--features {feature}`")
    } else {
        format!("{option}: only Linux has this")
    })
}
