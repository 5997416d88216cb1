//! `portcullis calibrate`: measures a filter's cost per batch on each device.

use std::num::NonZeroUsize;
use std::sync::Arc;

use portcullis::auto::{CalibrationMode, EXPECTED_BATCH_PACKETS, Settings};
use portcullis::device::{Dispatch, LoadOptions};
use portcullis::devices::{self, Selector};

use super::device_choice::DeviceChoice;
use super::failure::Failure;
use super::filter::FilterArgs;
use super::out;

/// Measure a filter's cost per batch on each device, for `run --device auto`
///
/// `run` calibrates a filter before its first packet, the first time that it runs on a machine with
/// a GPU, and caches the result. This command measures again and replaces the cached result: use it
/// if the machine was busy at the time or has changed since. It takes about a third of a second per
/// device and prints the result.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    filter: FilterArgs,
    /// Measure only this device, and do not cache the result
    ///
    /// May be repeated; accepts software devices too. The default is every device that `auto` may
    /// choose.
    #[arg(long, value_name = "DEVICE")]
    device: Vec<Selector>,
    /// Dispatch method, as for `run`; each is calibrated separately
    #[arg(long, value_name = "METHOD")]
    dispatch: Option<Dispatch>,
    /// Number of threads, as for `run`; each is calibrated separately
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Expected batch size in packets, for filters with maps or flows
    ///
    /// These run on one device for all batches.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    batch: Option<u32>,
}

/// Calibrates the filter on each device and prints the result.
pub fn run(args: &Args) -> Result<(), Failure> {
    portcullis_cache::costs::force_remeasurement();
    let program = Arc::new(args.filter.load()?);
    let expected = args.batch.map_or(EXPECTED_BATCH_PACKETS, |packets| packets as usize);
    let mut settings = Settings::default().with_mode(CalibrationMode::Always).with_expected_packets(expected);
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
    let choice = DeviceChoice::among(candidates, settings);
    let options = LoadOptions::default()
        .with_threads(args.threads.and_then(|n| NonZeroUsize::new(n.into())))
        .with_dispatch(args.dispatch);
    let loaded = choice.device.load(&program, &options).map(drop);
    if args.device.is_empty() || loaded.is_err() {
        choice.warn();
    }
    loaded?;
    out::print(choice.explain())
}
