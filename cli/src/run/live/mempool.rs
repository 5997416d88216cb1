//! `--mempool`, `--gpu` and `--header-split`: the memory that DPDK receives packets into.

#[cfg(all(target_os = "linux", feature = "dpdk"))]
use portcullis::device::DeviceInfo;
#[cfg(all(target_os = "linux", feature = "dpdk"))]
use portcullis::gpudev::GpuChoice;
#[cfg(all(target_os = "linux", feature = "dpdk"))]
use portcullis::packet_io::dpdk::{self, Options};
#[cfg(all(target_os = "linux", feature = "dpdk"))]
use portcullis::program::Program;

#[cfg(all(target_os = "linux", feature = "dpdk"))]
use crate::failure::Failure;

/// Arguments of `run` for the memory of DPDK packets.
#[derive(Debug, clap::Args)]
pub struct MempoolArgs {
    /// Memory that DPDK receives packets into: of the `host` or of the `gpu`
    #[arg(long, value_name = "WHERE", value_parser = ["host", "gpu"], default_value = "host", requires = "dpdk", help_heading = "Live traffic", hide_short_help = true)]
    pub mempool: String,
    /// GPU that receives DPDK packets or reads them from host memory
    ///
    /// `cuda:N`, `software` (an emulated GPU), or the number of a GPU that DPDK's own driver
    /// found. Defaults to that of `--device` if packets are received into GPU memory.
    #[arg(long, value_name = "GPU", requires = "dpdk", help_heading = "Live traffic", hide_short_help = true)]
    pub gpu: Option<String>,
    /// Bytes of each packet kept in host memory, where the filter reads
    ///
    /// The rest is received into the memory that `--mempool` names.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(14..=2048), requires = "dpdk", help_heading = "Live traffic", hide_short_help = true)]
    pub header_split: Option<u16>,
}

/// Parses the argument of `--gpu`.
#[cfg(all(target_os = "linux", feature = "dpdk"))]
pub fn gpu(text: Option<&str>) -> Result<Option<GpuChoice>, Failure> {
    let read = |text: &str| text.parse().map_err(|error| Failure::Usage(format!("--gpu {text}: {error}")));
    text.map(read).transpose()
}

#[cfg(all(target_os = "linux", feature = "dpdk"))]
impl MempoolArgs {
    /// Sets the run's packet memory. `device` filters the packets; with `any`, a reload may load
    /// another filter.
    pub fn apply(
        &self,
        options: &mut Options,
        program: &Program,
        device: &DeviceInfo,
        any: bool,
    ) -> Result<(), Failure> {
        let wrong = |option: &str, what: &str| Failure::Usage(format!("{option}: {what}"));
        let in_gpu = self.mempool == "gpu";
        let gpu = match gpu(self.gpu.as_deref())? {
            None if in_gpu => {
                Some(GpuChoice::for_device(device).map_err(|error| wrong("--mempool gpu", &error.to_string()))?)
            }
            gpu => gpu,
        };
        if let Some(gpu) = gpu {
            options.mempool = gpu.mempool(in_gpu).map_err(|error| Failure::Error(error.to_string()))?;
        }
        if let Some(bytes) = self.header_split {
            if any {
                return Err(wrong(
                    "--header-split",
                    "a filter loaded by a reload (--control) may read more; leave out one of the two",
                ));
            }
            dpdk::check_split(bytes, program.facts()).map_err(|error| Failure::Error(error.to_string()))?;
            options.split = Some(bytes);
        }
        Ok(())
    }
}
