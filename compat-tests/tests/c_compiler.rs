//! OpenCL C's arithmetic is C's: random programs through the front end and the interpreter, and through
//! the system's C compiler (`CC`, or `cc`), give the same bytes. And every device gives them as well.

use std::fmt::Write as _;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;

use portcullis_compat_tests::c_programs::{PACKET, SHIM, packet, program};
use portcullis_compat_tests::harness::What;
use portcullis_compat_tests::{devices, harness};
use portcullis_core::device::DeviceError;
use portcullis_core::interp::Interpreter;
use portcullis_core::lang::opencl_c::files::NoIncludes;
use portcullis_core::lang::{Source, opencl_c};
use portcullis_core::packet::Metadata;
use portcullis_core::program::{Program, ProgramOptions};
use rand::SeedableRng;
use rand_pcg::Pcg64;

/// How many programs, where somebody wants more (or fewer) than [`PROGRAMS`].
const COUNT: &str = "PORTCULLIS_RANDOM_PROGRAMS";

/// The first seed, for looking at one failure.
const SEED: &str = "PORTCULLIS_RANDOM_SEED";

/// Programs a run, all in one file of C.
const PROGRAMS: u64 = 200;

/// Those that every device runs.
const ON_DEVICES: u64 = 30;

/// Those of them that a device runs whose compiler is slow.
const SHARE: usize = 10;

/// Packets for each.
const PACKETS: usize = 40;

/// Signed arithmetic wraps, pointers may be misaligned and of any type, as the programs have it.
const FLAGS: [&str; 6] = ["-std=gnu11", "-O1", "-fwrapv", "-fno-strict-aliasing", "-fsigned-char", "-w"];

/// All programs as one of C: packets come in on standard input, every program's answer to each goes out, the
/// packet as it left it and the verdict.
fn native(programs: &[String]) -> String {
    let mut text = format!("{SHIM}\n#include <stdio.h>\n#include <string.h>\n");
    let own =
        ["table", "pair", "tight", "colour", "RED", "GREEN", "BLUE", "helper0", "helper1", "helper2", "xdp_filter"];
    for (i, program) in programs.iter().enumerate() {
        for name in own {
            let _ = writeln!(text, "#define {name} {name}_{i}");
        }
        text += program;
        for name in own {
            let _ = writeln!(text, "#undef {name}");
        }
    }
    text += "typedef uint (*filter)(uchar *, uint);\nstatic const filter filters[] = {";
    for i in 0..programs.len() {
        let _ = write!(text, "xdp_filter_{i}, ");
    }
    let _ = write!(
        text,
        "}};
        int main(void) {{
            static _Alignas(64) uchar packet[{PACKET}], work[{PACKET}];
            while (fread(packet, sizeof packet, 1, stdin) == 1)
                for (unsigned i = 0; i < sizeof filters / sizeof *filters; i++) {{
                    memcpy(work, packet, sizeof packet);
                    putchar(filters[i](work, sizeof work));
                    fwrite(work, sizeof work, 1, stdout);
                }}
            return 0;
        }}"
    );
    text
}

fn seeds(count: u64) -> std::ops::Range<u64> {
    let number = |name, otherwise| match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")),
        Err(_) => otherwise,
    };
    let first = number(SEED, 0);
    first..first + number(COUNT, count)
}

fn compile(text: &str) -> Arc<Program> {
    let source = Source::new("program.cl", text);
    let compiled = opencl_c::compile(&source, &ProgramOptions::default(), &mut NoIncludes);
    Arc::new(compiled.unwrap_or_else(|errors| panic!("{}\n{text}", errors.render())))
}

#[test]
fn every_device_gives_what_the_interpreter_gives() {
    let mut random = Pcg64::seed_from_u64(2);
    let packets: Vec<Vec<u8>> = (0..PACKETS).map(|_| packet(&mut random)).collect();
    let seeds: Vec<u64> = seeds(ON_DEVICES).collect();
    devices::on_each("random C programs", |device| {
        for &seed in devices::share(device, &seeds, SHARE) {
            match harness::compare(&compile(&program(seed)), &**device, &packets, &[packets.len(), 7]) {
                Ok(()) => {}
                Err(mismatch) if matches!(mismatch.what, What::Device(DeviceError::Unsupported { .. })) => {
                    println!("{mismatch}");
                }
                Err(mismatch) => panic!("program {seed}: {mismatch}"),
            }
        }
    });
}

#[test]
fn random_programs_give_what_the_c_compiler_gives() {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let suite = "OpenCL C against the C compiler";
    let version = Command::new(&compiler).arg("--version").output();
    let Ok(version) = version else {
        return devices::record(suite, &compiler, "skipped", "there is no such compiler");
    };
    let programs: Vec<String> = seeds(PROGRAMS).map(program).collect();
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("c_compiler");
    std::fs::create_dir_all(&folder).unwrap();
    let (source, binary) = (folder.join("programs.c"), folder.join("programs"));
    std::fs::write(&source, native(&programs)).unwrap();
    let compiled = Command::new(&compiler).args(FLAGS).arg("-o").arg(&binary).arg(&source).output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));

    let mut random = Pcg64::seed_from_u64(1);
    let packets: Vec<Vec<u8>> = (0..PACKETS).map(|_| packet(&mut random)).collect();
    let mut child = Command::new(&binary).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = packets.concat();
    let output = std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(&input).unwrap());
        child.wait_with_output().unwrap()
    });
    assert!(output.status.success(), "{:?}", output.status);
    let native: Vec<&[u8]> = output.stdout.chunks(1 + PACKET).collect();
    assert_eq!(native.len(), packets.len() * programs.len());

    let mut answers = std::collections::HashSet::new();
    for (i, text) in programs.iter().enumerate() {
        let interpreter = Interpreter::new(&compile(text)).unwrap();
        for (p, packet) in packets.iter().enumerate() {
            let outcome = interpreter.run(packet, &Metadata::default()).unwrap();
            let (verdict, bytes) = native[p * programs.len() + i].split_first().unwrap();
            let got = (outcome.verdict.action() as u8, outcome.packet.as_slice());
            assert!(
                got == (*verdict, bytes),
                "program {i}, packet {p}\n{text}\npacket {packet:02x?}\ngot    {got:02x?}\nwant   {:02x?}",
                (verdict, bytes)
            );
            answers.insert(bytes.to_vec());
        }
    }
    // Programs that all did nothing would prove little.
    assert!(answers.len() > packets.len() * programs.len() / 2, "{} different answers", answers.len());
    let version = String::from_utf8_lossy(&version.stdout);
    devices::record(suite, &compiler, "passed", version.lines().next().unwrap_or_default());
}
