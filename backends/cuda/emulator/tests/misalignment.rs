//! The emulated device ends the process at the first misaligned access, as a GPU ends the context
//! (`cuda.h`, `CUDA_ERROR_MISALIGNED_ADDRESS`); x86 processors forgive it.

use std::path::Path;
use std::process::{Command, Output};

use portcullis_cuda_emulator::{Unavailable, build};

/// Kernel bodies over `uchar *memory`, which is aligned to 256 bytes.
const ALIGNED: [&str; 7] = [
    "memory[1] = memory[3];",
    "*(uint *)(memory + 4) = *(const uint *)(memory + 8);",
    "*(uint2 *)(memory + 8) = pc_load8(memory + 16);",
    "*(uint4 *)(memory + 16) = pc_load16(memory + 32);",
    "atomicAdd((uint *)(memory + 4), 1u); atomicExch((uint *)(memory + 8), 1u); atomicCAS((uint *)(memory + 12), 0u, 1u);",
    "atomicAdd((unsigned long long *)(memory + 8), 1ull);",
    "uchar *even = (uchar *)__builtin_assume_aligned(memory + 2, 2); even[0] = 1;",
];

const MISALIGNED: [&str; 11] = [
    "memory[0] = (uchar)*(const uint *)(memory + 1);",
    "const uint *words = (const uint *)(memory + 2); memory[0] = (uchar)words[3];",
    "*(uint *)(memory + 3) = 1u;",
    "memory[0] = (uchar)pc_load4(memory + 5);",
    "*(uint2 *)(memory + 4) = make_uint2(1u, 2u);",
    "memory[0] = (uchar)pc_load16(memory + 8).x;",
    "atomicAdd((uint *)(memory + 2), 1u);",
    "atomicAdd((unsigned long long *)(memory + 4), 1ull);",
    "atomicExch((uint *)(memory + 1), 1u);",
    "atomicCAS((uint *)(memory + 6), 0u, 1u);",
    "uchar *even = (uchar *)__builtin_assume_aligned(memory + 1, 2); even[0] = 1;",
];

/// Returns the emulated driver's folder and a program that runs a kernel on it, or `None` if this
/// machine cannot build them.
fn launcher(folder: &Path) -> Option<(String, String)> {
    let driver = match build(Path::new(env!("CARGO_TARGET_TMPDIR")), &[]) {
        Ok(driver) => driver,
        Err(Unavailable::NotSupported(reason)) => {
            println!("skipped: {reason}");
            return None;
        }
        Err(broken) => panic!("{broken}"),
    };
    let launcher = folder.join("launch").display().to_string();
    let mut compiler = Command::new("c++");
    compiler.args(["-std=c++17", "-o", &launcher]).arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/launch.cpp"));
    let output = compiler.arg(driver.join("libcuda.so.1")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some((driver.display().to_string(), launcher))
}

#[test]
fn misaligned_accesses_end_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let Some((driver, launcher)) = launcher(folder.path()) else { return };
    let run = |body: &str| -> Output {
        let source = folder.path().join("k.cu");
        let types = "typedef unsigned char uchar;\ntypedef unsigned int uint;\n";
        std::fs::write(&source, format!("{types}extern \"C\" __global__ void k(uchar *memory) {{ {body} }}\n"))
            .unwrap();
        Command::new(&launcher).arg(&source).env("LD_LIBRARY_PATH", &driver).output().unwrap()
    };
    for body in ALIGNED {
        let output = run(body);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && output.stdout == b"done\n", "{body}\n{error}");
    }
    for body in MISALIGNED {
        let output = run(body);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && output.stdout.is_empty(), "{body}\n{error}");
        assert!(error.contains("misaligned"), "{body}\n{error}");
    }
}
