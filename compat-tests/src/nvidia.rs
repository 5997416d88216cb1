//! NVIDIA's compilers on a machine without a GPU: NVRTC, which the CUDA backend uses, compiles the
//! backend's source to PTX, and ptxas (in the environment variable [`PTXAS`]) reports the resources
//! that it needs.

use std::path::Path;
use std::process::{Command, Stdio};

/// Compute capabilities 7.5, 9.0 and 10.0: Turing, Hopper, Blackwell.
pub const ARCHITECTURES: [u32; 3] = [75, 90, 100];

/// Environment variable with the path of ptxas.
pub const PTXAS: &str = "PORTCULLIS_PTXAS";

/// A kernel's resource usage, as ptxas reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Registers per thread.
    pub registers: u32,
    /// Stack bytes per thread.
    pub stack: u32,
    /// Bytes spilled to memory for lack of registers.
    pub spills: u32,
}

/// Assembles PTX for an architecture (90 is compute capability 9.0).
///
/// # Errors
/// ptxas's output.
pub fn assemble(ptxas: &Path, ptx: &[u8], arch: u32) -> Result<Usage, String> {
    let text = |error: std::io::Error| error.to_string();
    let folder = tempfile::tempdir().map_err(text)?;
    // NVRTC's output ends with a NUL byte.
    std::fs::write(folder.path().join("kernel.ptx"), ptx.strip_suffix(b"\0").unwrap_or(ptx)).map_err(text)?;
    let mut command = Command::new(ptxas);
    command.args(["--verbose", "--warn-on-spills", &format!("--gpu-name=sm_{arch}"), "--output-file=kernel.cubin"]);
    let output = command.arg("kernel.ptx").current_dir(folder.path()).stdin(Stdio::null()).output().map_err(text)?;
    let said = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
    match output.status.success() {
        true => usage(&said).ok_or_else(|| format!("ptxas does not report registers:\n{said}")),
        false => Err(format!("ptxas ends with {}:\n{said}", output.status)),
    }
}

/// Parses the output of `ptxas --verbose` and returns the maximum over all functions.
fn usage(said: &str) -> Option<Usage> {
    let mut usage = None::<Usage>;
    for line in said.lines() {
        let number = |after: &str, before: &str| -> Option<u32> {
            let (head, _) = line.split_once(before)?;
            head.rsplit_once(after)?.1.trim().parse().ok()
        };
        let usage = usage.get_or_insert_default();
        let worst = |of: &mut u32, found: Option<u32>| *of = (*of).max(found.unwrap_or(0));
        worst(&mut usage.registers, number("Used ", " registers"));
        worst(&mut usage.stack, number(" ", " bytes stack frame"));
        worst(&mut usage.spills, number(", ", " bytes spill stores"));
        worst(&mut usage.spills, number(", ", " bytes spill loads"));
    }
    usage.filter(|usage| usage.registers > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_ptxas_is_parsed() {
        // Output of ptxas 12.9.
        let said = "ptxas info    : 40 bytes gmem, 80 bytes cmem[4]
ptxas info    : Compiling entry function 'xdp_kernel' for 'sm_75'
ptxas info    : Function properties for xdp_kernel
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 20 registers, used 0 barriers, 384 bytes cmem[0], 24 bytes cmem[2]
ptxas info    : Compile time = 33.100 ms";
        assert_eq!(usage(said), Some(Usage { registers: 20, stack: 16, spills: 12 }));
        assert_eq!(usage("ptxas info    : 40 bytes gmem"), None);
    }
}
