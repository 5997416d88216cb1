//! Where packets' buffers are.

#[cfg(all(target_os = "linux", feature = "dpdk"))]
use portcullis::device::DeviceInfo;
#[cfg(all(target_os = "linux", feature = "dpdk"))]
use portcullis::gpudev::GpuChoice;
#[cfg(all(target_os = "linux", feature = "dpdk"))]
use portcullis::io::dpdk::{self, Options};
#[cfg(all(target_os = "linux", feature = "dpdk"))]
use portcullis::program::Program;

#[cfg(all(target_os = "linux", feature = "dpdk"))]
use crate::failure::Failure;

/// The arguments about DPDK's packets' memory.
#[derive(Debug, clap::Args)]
pub struct MempoolArgs {
    /// Where packets of DPDK come: into memory of the `host`, or of the `gpu`
    #[arg(long, value_name = "WHERE", value_parser = ["host", "gpu"], default_value = "host", requires = "dpdk", help_heading = "Live packets")]
    pub mempool: String,
    /// The GPU that knows of packets of DPDK by its communication list, and has them, or is shown the host's memory: `cuda:N`,
    /// `software` (there is none, but all is as with one), or the number of one that DPDK's own driver has found; that of `--device`
    /// if packets come into a GPU
    #[arg(long, value_name = "GPU", requires = "dpdk", help_heading = "Live packets")]
    pub gpu: Option<String>,
    /// Have so many first bytes of a packet in the host's memory, where the filter looks, and the others where `--mempool` says
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(14..=2048), requires = "dpdk", help_heading = "Live packets")]
    pub header_split: Option<u16>,
}

/// The GPU that `--gpu` names.
#[cfg(all(target_os = "linux", feature = "dpdk"))]
pub fn gpu(text: Option<&str>) -> Result<Option<GpuChoice>, Failure> {
    let read = |text: &str| text.parse().map_err(|error| Failure::Usage(format!("--gpu {text}: {error}")));
    text.map(read).transpose()
}

#[cfg(all(target_os = "linux", feature = "dpdk"))]
impl MempoolArgs {
    /// Has a run's packets be there. `device` filters them; `any`: another filter may take over.
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
            None if in_gpu => Some(GpuChoice::for_device(device).map_err(|error| wrong("--mempool gpu", &error))?),
            gpu => gpu,
        };
        if let Some(gpu) = gpu {
            options.mempool = gpu.mempool(in_gpu).map_err(Failure::Wrong)?;
        }
        if let Some(bytes) = self.header_split {
            if any {
                return Err(wrong(
                    "--header-split",
                    "a filter that takes over (--control) may look further; leave either out",
                ));
            }
            dpdk::check_split(bytes, program.facts()).map_err(|error| Failure::Wrong(error.to_string()))?;
            options.split = Some(bytes);
        }
        Ok(())
    }
}
