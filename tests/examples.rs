//! Runs the examples, and the README's library snippet on the README's filter.

#[path = "../examples/capture.rs"]
#[expect(dead_code, reason = "its `main` reads the arguments, which are the test's")]
mod capture;
#[path = "../examples/filter_a_vec.rs"]
mod filter_a_vec;
#[path = "../examples/list_devices.rs"]
mod list_devices;
#[path = "../examples/maglev.rs"]
mod maglev;
#[path = "../examples/maps.rs"]
mod maps;
#[path = "../examples/two_in_flight.rs"]
mod two_in_flight;

use portcullis::{Device, Error, Filter, Verdict};

const README: &str = include_str!("../README.md");

#[test]
fn examples_end_without_an_error() {
    list_devices::main();
    filter_a_vec::main().unwrap();
    capture::split(capture::SYNTHETIC.into()).unwrap();
    maps::main().unwrap();
    maglev::main().unwrap();
    two_in_flight::main().unwrap();
}

/// The README's snippet. `the_readmes_snippet_is_this_one` compares the text.
fn snippet(packets: &[Vec<u8>]) -> Result<(), Error> {
    let filter = Filter::from_path("dns.wgsl")?.param("server", 5353)?;
    let mut run = filter.load(&Device::auto()?)?;
    for (packet, verdict) in run.filter(packets)? {
        if verdict == Verdict::Pass {
            println!("{} bytes pass", packet.len());
        }
    }
    Ok(())
}

/// Returns the README's indented block that starts with a line, without the indentation.
fn block(first: &str) -> String {
    let lines = README.lines().skip_while(|line| line.strip_prefix("    ") != Some(first));
    let block = lines.take_while(|line| line.is_empty() || line.starts_with("    "));
    let text: Vec<&str> = block.map(|line| line.strip_prefix("    ").unwrap_or(line)).collect();
    assert!(!text.is_empty(), "the README has no block that starts with `{first}`");
    text.join("\n").trim_end().to_owned()
}

#[test]
fn the_readmes_snippet_is_this_one_and_runs() {
    let source = include_str!("examples.rs");
    let (_, rest) = source.split_once("fn snippet(packets: &[Vec<u8>]) -> Result<(), Error> {\n").unwrap();
    let (body, _) = rest.split_once("    Ok(())\n").unwrap();
    let body: Vec<&str> = body.lines().map(|line| line.strip_prefix("    ").unwrap()).collect();
    let readme = block("use portcullis::{Device, Filter, Verdict};");
    let (_, readme) = readme.split_once("\n\n").unwrap();
    assert_eq!(readme, body.join("\n"));

    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("dns.wgsl"), block("override server: u32 = 53u;")).unwrap();
    // The other test opens no file by a relative name.
    std::env::set_current_dir(folder.path()).unwrap();
    let mut packet = vec![0; 60];
    packet[12..14].copy_from_slice(&[0x08, 0x00]);
    snippet(&[packet]).unwrap();
}
