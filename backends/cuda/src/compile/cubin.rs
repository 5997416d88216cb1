//! Filters compiled ahead of time, for machines with a GPU driver but without NVRTC.

use portcullis_core::device::{DeviceError, Dispatch};
use portcullis_core::program::Program;

use super::nvrtc::{ImageKind, Nvrtc};
use super::source::{BLOCK_SIZE, KernelSource, file_name, nvrtc_options, write_error};

/// A filter to be compiled ahead of time, for machines that have a GPU driver but no NVRTC.
///
/// The cubin that NVRTC makes of `source` with `options` belongs into a file called `file_name`, in
/// the folder that the environment variable `PORTCULLIS_CUBINS` names where the filter is to run.
/// The name identifies source and architecture, not the version of NVRTC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CubinSource {
    /// Dispatch method that the kernel is for; that of `pipelined` serves `inline` as well.
    pub dispatch: Dispatch,
    /// The source in CUDA C++.
    pub source: String,
    /// Options for NVRTC.
    pub options: Vec<String>,
    /// Name of the cubin's file.
    pub file_name: String,
}

/// Error of NVRTC, CUDA's run-time compiler.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NvrtcError {
    /// NVRTC cannot be used on this machine; the text says why and what to install.
    #[error("{0}")]
    Unavailable(String),
    /// NVRTC has not compiled a source; the text has its messages.
    #[error("{0}")]
    Compile(String),
}

impl CubinSource {
    /// Compiles the cubin with this machine's NVRTC. Needs no GPU.
    ///
    /// # Errors
    /// [`NvrtcError`]: NVRTC cannot be loaded, or rejects the source.
    pub fn compile(&self) -> Result<Vec<u8>, NvrtcError> {
        let made = nvrtc()?.compile(&self.file_name, &self.source, &self.options, ImageKind::Cubin);
        made.map_err(NvrtcError::Compile)
    }

    /// Compiles the source to PTX, for tools that inspect it.
    ///
    /// # Errors
    /// As for [`compile`](Self::compile).
    pub fn ptx(&self) -> Result<Vec<u8>, NvrtcError> {
        let options = self.options.iter().map(|option| option.replace("=sm_", "=compute_"));
        let made = nvrtc()?.compile(&self.file_name, &self.source, &options.collect::<Vec<_>>(), ImageKind::Ptx);
        made.map_err(NvrtcError::Compile)
    }
}

/// Returns the version of this machine's NVRTC, major and minor.
///
/// # Errors
/// [`NvrtcError::Unavailable`] if NVRTC cannot be loaded.
pub fn nvrtc_version() -> Result<(i32, i32), NvrtcError> {
    Ok(nvrtc()?.version)
}

/// Loads NVRTC where no driver determines the version: 12 first.
fn nvrtc() -> Result<&'static Nvrtc, NvrtcError> {
    Nvrtc::get(12).map_err(NvrtcError::Unavailable)
}

/// Lists the kernels that a program needs on GPUs of an architecture (90 for compute capability
/// 9.0), each with one of the dispatch methods that use it.
///
/// # Errors
/// The filter has something in it that cannot be written in CUDA C++.
pub fn cubins(program: &Program, arch: u32) -> Result<Vec<CubinSource>, DeviceError> {
    let arch = arch as i32;
    let one = |dispatch| {
        let source =
            KernelSource::new(program, dispatch, BLOCK_SIZE, None).map_err(|error| write_error("cuda", error))?;
        Ok(CubinSource {
            dispatch,
            options: nvrtc_options(arch, ImageKind::Cubin),
            file_name: file_name(&source.text, arch),
            source: source.text,
        })
    };
    let methods = [Dispatch::Pipelined, Dispatch::Persistent, Dispatch::Graph];
    // The kernels of the other methods process packets concurrently, and so cannot keep flows in
    // order.
    let methods = if program.has_flows() { &methods[..1] } else { &methods[..] };
    methods.iter().copied().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use portcullis_core::diagnostics::Source as Text;
    use portcullis_core::program::ProgramOptions;
    use portcullis_wgsl as wgsl;

    fn program(name: &str, body: &str) -> Program {
        let text = format!("fn xdp_filter(pkt: u32) -> u32 {{ {body} }}");
        wgsl::compile(&Text::new(name, text), &ProgramOptions::default()).unwrap()
    }

    #[test]
    fn file_names_depend_on_source_and_architecture_but_not_on_the_filter_s_name() {
        let files = |name, body, arch| cubins(&program(name, body), arch).unwrap();
        let some = files("a.wgsl", "return XDP_PASS;", 90);
        assert_eq!(some.len(), 3);
        let mut names: Vec<_> = some.iter().map(|cubin| cubin.file_name.clone()).collect();
        names.dedup();
        assert_eq!(names.len(), 3, "a file for each kernel");
        assert!(names.iter().all(|name| name.len() == 32 + 12 && name.ends_with("-sm_90.cubin")), "{names:?}");
        assert_eq!(some[0].options, ["--gpu-architecture=sm_90", "--std=c++17", "--fmad=false"]);
        let same = |other: Vec<CubinSource>| other[0].file_name == some[0].file_name;
        assert!(same(files("folder/b.wgsl", "return XDP_PASS;", 90)), "the name of a filter does not matter");
        assert!(!same(files("a.wgsl", "return XDP_DROP;", 90)));
        assert!(!same(files("a.wgsl", "return XDP_PASS;", 75)));
    }

    #[test]
    fn filters_with_flows_are_prebuilt_for_pipelined_only() {
        let text = "fn xdp_flow(pkt: u32) -> u32 { return load_u8(pkt, 0u); }
            fn xdp_filter(pkt: u32) -> u32 { return XDP_PASS; }";
        let program = wgsl::compile(&Text::new("flows.wgsl", text), &ProgramOptions::default()).unwrap();
        let cubins = cubins(&program, 90).unwrap();
        assert_eq!(cubins.iter().map(|cubin| cubin.dispatch).collect::<Vec<_>>(), [Dispatch::Pipelined]);
    }
}
