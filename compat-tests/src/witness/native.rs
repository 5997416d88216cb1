//! Native C compilers, and clang as an OpenCL C compiler for the host.

use std::fmt::Write as _;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{Answer, Unavailable, Unit};

/// Prelude that turns a filter into plain C. `long` has 64 bits on the systems that run the tests.
const SHIM: &str = "
#include <stdbool.h>
#define __global
#define __constant static const
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
_Static_assert(sizeof(long) == 8, \"long has 64 bits\");
";

/// Flags for the filters' semantics: signed arithmetic wraps, and pointers may be misaligned and
/// alias any type.
const FLAGS: [&str; 5] = ["-O1", "-fwrapv", "-fno-strict-aliasing", "-fsigned-char", "-w"];

/// Language to compile the source as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum As {
    /// C, with a prelude.
    C,
    /// OpenCL C 1.2, by clang, which declares the built-in functions but does not define them.
    OpenClC,
}

/// Returns the first line of a compiler's `--version` output, or `None` if it is not installed.
pub fn version(compiler: &str) -> Option<String> {
    let output = Command::new(compiler).arg("--version").stderr(Stdio::null()).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned())
}

/// Runs every filter on every packet, all of `length` bytes. The results are ordered by filter,
/// then by packet.
///
/// # Errors
/// See [`Unavailable`].
pub fn answers(
    compiler: &str,
    language: As,
    filters: &[Unit],
    packets: &[Vec<u8>],
) -> Result<Vec<Vec<Answer>>, Unavailable> {
    if version(compiler).is_none() {
        return Err(Unavailable::Missing(format!("{compiler} is not installed")));
    }
    let length = packets.first().map_or(0, Vec::len);
    assert!(packets.iter().all(|packet| packet.len() == length), "packets of one length");
    let folder = tempfile::tempdir().map_err(failed)?;
    let at = |name: &str| folder.path().join(name);
    let texts = filters.iter().enumerate().map(|(number, filter)| filter.numbered(number)).collect::<String>();
    let compile = |options: &[&str], source: &Path, text: String, to: &Path, objects: &[&Path]| {
        std::fs::write(source, text).map_err(failed)?;
        let output =
            Command::new(compiler).args(FLAGS).args(options).arg("-o").arg(to).arg(source).args(objects).output();
        let output = output.map_err(failed)?;
        match output.status.success() {
            true => Ok(()),
            false => Err(Unavailable::Failed(String::from_utf8_lossy(&output.stderr).into_owned())),
        }
    };
    let (object, program) = (at("filters.o"), at("filters"));
    match language {
        As::C => compile(&["-std=gnu11", "-x", "c", "-c"], &at("filters.c"), format!("{SHIM}{texts}"), &object, &[])?,
        As::OpenClC => {
            let language = ["-x", "cl", "-cl-std=CL1.2", "-Xclang", "-finclude-default-header", "-fPIC", "-c"];
            let header = include_str!("../../../include/portcullis.h");
            compile(&language, &at("filters.cl"), format!("{header}{texts}"), &object, &[])?;
        }
    }
    compile(&["-std=gnu11"], &at("main.c"), main(filters.len(), length), &program, &[&object])?;

    let mut child = Command::new(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
    let Some(mut stdin) = child.stdin.take() else { return Err(failed("no pipe to the program")) };
    let input = packets.concat();
    let output = std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(&input));
        child.wait_with_output()
    });
    let output = output.map_err(failed)?;
    if !output.status.success() || output.stdout.len() != packets.len() * filters.len() * (4 + length) {
        return Err(failed(format!("the program broke down: {:?}", output.status)));
    }
    let mut answers = vec![Vec::with_capacity(packets.len()); filters.len()];
    for (index, record) in output.stdout.chunks(4 + length).enumerate() {
        let (value, packet) = record.split_at(4);
        let value = u32::from_le_bytes(value.try_into().expect("four bytes"));
        answers[index % filters.len()].push(Answer { value, packet: packet.to_vec() });
    }
    Ok(answers)
}

fn failed(what: impl std::fmt::Display) -> Unavailable {
    Unavailable::Failed(what.to_string())
}

/// Generates the main function, which reads packets from standard input and writes each filter's
/// return value and packet.
fn main(filters: usize, length: usize) -> String {
    let mut text = String::from("#include <stdio.h>\n#include <string.h>\n");
    for i in 0..filters {
        let _ = writeln!(text, "unsigned xdp_filter_{i}(unsigned char *, unsigned);");
    }
    text += "typedef unsigned (*filter)(unsigned char *, unsigned);\nstatic const filter filters[] = {";
    for i in 0..filters {
        let _ = write!(text, "xdp_filter_{i}, ");
    }
    let _ = write!(
        text,
        "}};
        int main(void) {{
            static _Alignas(64) unsigned char packet[{length}], work[{length}];
            while (fread(packet, sizeof packet, 1, stdin) == 1)
                for (unsigned i = 0; i < sizeof filters / sizeof *filters; i++) {{
                    memcpy(work, packet, sizeof packet);
                    unsigned value = filters[i](work, sizeof work);
                    fwrite(&value, sizeof value, 1, stdout);
                    fwrite(work, sizeof work, 1, stdout);
                }}
            return 0;
        }}"
    );
    text
}
