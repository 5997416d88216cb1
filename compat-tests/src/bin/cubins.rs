//! Compiles filters ahead of time for three generations of NVIDIA GPUs: `cubins FOLDER`. `cargo
//! xtask gpu-bundle` runs it.
//!
//! The stock filters are compiled for every dispatch method, the probes for the method that the
//! self-test uses. A machine with a driver but without NVRTC can then run both.

use std::path::PathBuf;
use std::process::ExitCode;

use portcullis::backend::cuda::cubins;
use portcullis::device::Dispatch;
use portcullis_compat_tests::nvidia::ARCHITECTURES;
use portcullis_conformance::filters;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let [folder] = &arguments[..] else {
        eprintln!("Usage: cubins FOLDER");
        return ExitCode::from(2);
    };
    match compile(&PathBuf::from(folder)) {
        Ok(count) => {
            println!("{count} filters compiled");
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("cubins: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn compile(folder: &std::path::Path) -> Result<usize, String> {
    let mut count = 0;
    for case in filters::cases() {
        let is_stock = portcullis::stock::STATELESS_WGSL.iter().any(|(name, _)| *name == case.name);
        let program = case.compile().map_err(|errors| errors.render())?;
        for arch in ARCHITECTURES {
            for cubin in cubins(&program, arch).map_err(|error| format!("{}: {error}", case.name))? {
                if !is_stock && cubin.dispatch != Dispatch::Pipelined {
                    continue;
                }
                let file = folder.join(&cubin.file_name);
                // A filter whose variants for both languages mean the same may compile to the same
                // CUDA C++.
                if file.exists() {
                    continue;
                }
                let image = cubin.compile().map_err(|reason| format!("{}: {reason}", case.name))?;
                std::fs::write(&file, image).map_err(|error| format!("{}: {error}", file.display()))?;
                count += 1;
            }
        }
    }
    Ok(count)
}
