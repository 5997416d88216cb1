//! `portcullis calibrate`

use std::num::NonZeroUsize;
use std::sync::Arc;

use portcullis::auto::{CalibrationMode, EXPECTED_BATCH_PACKETS, Settings};
use portcullis::device::{Dispatch, LoadOptions};
use portcullis::devices::{self, Selector};

use super::chosen::Chosen;
use super::failure::Failure;
use super::filter::FilterArgs;
use super::out;

/// Measure what batches of a filter cost on each device, for `run --device auto`
///
/// `run` does so by itself, the first time that a filter runs on a machine with a GPU, before its first packet; and keeps it.
/// This measures anew: after a change of the machine that shows in no version, or where the machine was busy the last time. It
/// takes a third of a second a device, and prints what was found.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    filter: FilterArgs,
    /// A device to measure; may be given several times. All that `auto` may choose from if this is not given; those that are
    /// named, among which may be software devices, are only shown, and nothing is kept
    #[arg(long, value_name = "DEVICE")]
    device: Vec<Selector>,
    /// As for `run`: each method has a calibration of its own
    #[arg(long, value_name = "METHOD")]
    dispatch: Option<Dispatch>,
    /// As for `run`: each number of threads has a calibration of its own
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Packets of a batch, about, for filters with maps and flows, which have one device for all batches
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    batch: Option<u32>,
}

/// Measures.
pub fn run(args: &Args) -> Result<(), Failure> {
    portcullis_cache::costs::force_remeasurement();
    let program = Arc::new(args.filter.load()?);
    let expected = args.batch.map_or(EXPECTED_BATCH_PACKETS, |packets| packets as usize);
    let mut settings = Settings { mode: CalibrationMode::Always, expected_packets: expected, ..Settings::default() };
    let candidates = match args.device.is_empty() {
        true => devices::candidates()?,
        false => {
            settings.store = portcullis::auto::calibration::CalibrationStore::disabled();
            args.device.iter().map(Selector::open).collect::<Result<_, _>>()?
        }
    };
    if args.device.is_empty()
        && let [only] = &candidates[..]
    {
        let info = only.info();
        return out::print(format!(
            "{} ({}) is the only device that `auto` may choose here: there is nothing to measure. `portcullis devices` \
             lists all, and `--device` measures those that it names\n",
            info.id,
            out::printable(&info.name)
        ));
    }
    let chosen = Chosen::among(candidates, settings);
    let options = LoadOptions {
        threads: args.threads.and_then(|n| NonZeroUsize::new(n.into())),
        dispatch: args.dispatch,
        ..LoadOptions::default()
    };
    let loaded = chosen.device.load(&program, &options).map(drop);
    if args.device.is_empty() || loaded.is_err() {
        chosen.warn();
    }
    loaded?;
    out::print(chosen.explain())
}
