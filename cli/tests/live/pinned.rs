//! Maps pinned in the kernel: read byte for byte, and written in bpftool's format.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Output};

use portcullis::packet_io::synth::Random;
use portcullis_live_tests::Suite;
use portcullis_xdp::Object;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::objects::compile;
use crate::program::pcap;

/// An entry in bpftool's JSON, of which the part formatted by BTF is used.
#[derive(Deserialize)]
struct Entry {
    formatted: Formatted,
}

#[derive(Deserialize)]
struct Formatted {
    /// Variables of a section have no key.
    #[serde(default)]
    key: Option<Box<RawValue>>,
    #[serde(default)]
    value: Option<Box<RawValue>>,
    #[serde(default)]
    values: Vec<CpuValue>,
}

#[derive(Deserialize)]
struct CpuValue {
    value: Box<RawValue>,
}

/// Keys and values as they stand in the text; the order of entries is unspecified.
type Rows = BTreeSet<(String, String)>;

fn key(row: &Formatted) -> String {
    row.key.as_ref().map(|key| key.get().to_owned()).unwrap_or_default()
}

fn from_bpftool(text: &[u8]) -> Rows {
    let entries: Vec<Entry> =
        serde_json::from_slice(text).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(text)));
    let value = |it: &Formatted| it.value.as_ref().map(|value| value.get().to_owned()).unwrap_or_default();
    entries.iter().map(|it| (key(&it.formatted), value(&it.formatted))).collect()
}

fn from_portcullis(text: &[u8]) -> Rows {
    let rows: Vec<Formatted> =
        serde_json::from_slice(text).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(text)));
    rows.into_iter().map(|row| (key(&row), row.value.map(|it| it.get().to_owned()).unwrap_or_default())).collect()
}

/// A folder with the object, in which each script mounts a BPF file system in its own mount
/// namespace.
struct Place(tempfile::TempDir);

impl Place {
    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.0.path().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Returns the sizes of a map's keys and values, in bytes.
    fn sizes(&self, map: &str) -> (usize, usize) {
        let object = Object::read("pinned.o", &self.read("pinned.o")).unwrap();
        let map = object.maps.iter().find(|it| it.name == map).expect("the object has the map");
        (map.key_size as usize, map.value_size as usize)
    }

    /// Runs shell commands in a mount namespace in which the object is loaded and its maps are
    /// pinned in `bpf/maps`.
    fn script(&self, lines: &str) -> Output {
        let program = env!("CARGO_BIN_EXE_portcullis");
        let text = format!(
            "mkdir -p bpf\nmount -t bpf bpf bpf\nbpftool -m prog load pinned.o bpf/program pinmaps bpf/maps >/dev/null\n\
             portcullis() {{ '{program}' run pinned.o --read in.pcap --device interp --json \"$@\"; }}\n{lines}"
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-e", "-c", &text]).current_dir(self.0.path());
        command.output().unwrap()
    }

    fn assert_script_succeeds(&self, lines: &str) {
        let output = self.script(lines);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{lines}: {stderr}{}", String::from_utf8_lossy(&output.stdout));
    }
}

/// Prepares the folder; `None` if pinning cannot be tested here.
fn place(name: &'static str) -> Option<(Place, Suite)> {
    let suite = Suite::begin(name, "bpftool", &["bpftool", "clang", "unshare", "mount"])?;
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/live/pinned.c");
    if let Err(reason) = compile(&source, &folder.path().join("pinned.o")) {
        suite.skip(reason.lines().next().unwrap_or_default());
        return None;
    }
    std::fs::write(folder.path().join("in.pcap"), pcap(&[&[0; 60]])).unwrap();
    let place = Place(folder);
    let probe = place.script("ls bpf/maps");
    if !probe.status.success() {
        suite.skip(String::from_utf8_lossy(&probe.stderr).lines().next().unwrap_or("no maps can be pinned"));
        return None;
    }
    Some((place, suite))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x} ");
        text
    })
}

/// Returns random bytes of one kind: any, zeros, ones, or letters, as arrays of `char` are text.
fn bytes(random: &mut Random, count: usize) -> Vec<u8> {
    let kind = random.below(5);
    let mut byte = || match kind {
        0 => 0,
        1 => 0xff,
        // No backslash, which bpftool turns into a line feed.
        2 => b"abcxyz\", \0\0"[random.below(11) as usize],
        _ => random.below(256) as u8,
    };
    (0..count).map(|_| byte()).collect()
}

/// Maps, and the number of entries to insert into each.
const MAPS: [(&str, u32); 5] = [("table", 60), ("recent", 30), ("numbered", 6), ("routes", 25), ("areas", 25)];

#[test]
fn pinned_entries_are_read_and_written_like_bpftools() {
    let Some((place, _suite)) = place("pinned maps, and bpftool") else { return };
    let mut random = Random::new(11, 3);
    let (mut updates, mut compared) = (String::new(), 0);
    for (map, entries) in MAPS {
        let (key, value) = place.sizes(map);
        for number in 0..entries {
            let key = match map {
                "numbered" => number.to_le_bytes().to_vec(),
                "routes" | "areas" => {
                    let bits = 8 * (key as u32 - 4);
                    [&[random.below(bits + 1) as u8, 0, 0, 0][..], &bytes(&mut random, key - 4)].concat()
                }
                _ => bytes(&mut random, key),
            };
            let (key, value) = (hexadecimal(&key), hexadecimal(&bytes(&mut random, value)));
            let _ = writeln!(updates, "map update pinned bpf/maps/{map} key hex {key}value hex {value}");
        }
    }
    std::fs::write(place.0.path().join("updates"), updates).unwrap();
    let maps = MAPS.map(|(map, ..)| (map, map));
    let maps = [&maps[..], &[("pinned_data", ".data"), ("pinned_bss", ".bss")]].concat();
    let mut lines = "bpftool batch file updates >/dev/null\n".to_owned();
    for (pinned, map) in &maps {
        let _ = writeln!(
            lines,
            "if [ -e bpf/maps/{pinned} ]; then\n\
             bpftool -j map dump pinned bpf/maps/{pinned} > kernel-{pinned}.json\n\
             portcullis --limit 0 --from-pin {map}=bpf/maps/{pinned} --dump-map {map}=ours-{pinned}.json --dump-map {map}=ours-{pinned}.csv\n\
             portcullis --limit 0 --map {map}=kernel-{pinned}.json --dump-map {map}=file-{pinned}.json\n\
             portcullis --limit 0 --map {map}=ours-{pinned}.csv --dump-map {map}=rows-{pinned}.json --dump-map {map}=rows-{pinned}.csv\n\
             fi"
        );
    }
    place.assert_script_succeeds(&lines);
    for (pinned, _) in &maps {
        if !place.0.path().join(format!("kernel-{pinned}.json")).exists() {
            continue;
        }
        let (kernel, ours) = (
            from_bpftool(&place.read(&format!("kernel-{pinned}.json"))),
            from_portcullis(&place.read(&format!("ours-{pinned}.json"))),
        );
        let is_section = pinned.starts_with("pinned_");
        // bpftool does not format keys of sections, and keeps a prefix's bits beyond its length,
        // which are meaningless.
        let without_keys = |rows: &Rows| rows.iter().map(|(_, value)| value.clone()).collect::<BTreeSet<_>>();
        if is_section || matches!(*pinned, "routes" | "areas") {
            assert_eq!(without_keys(&ours), without_keys(&kernel), "{pinned}");
        } else {
            if let Some(row) = ours.difference(&kernel).next() {
                let in_kernel = kernel.iter().find(|(key, _)| *key == row.0);
                panic!("{pinned}\nkernel {in_kernel:?}\nours   {row:?}");
            }
            assert_eq!(ours.len(), kernel.len(), "{pinned}");
        }
        assert!(!ours.is_empty(), "{pinned}");
        compared += ours.len();
        // bpftool's file gives the same entries as the kernel.
        assert_eq!(from_portcullis(&place.read(&format!("file-{pinned}.json"))), ours, "{pinned}, from bpftool's file");
        // CSV preserves everything.
        let csv = |name: &str| String::from_utf8(place.read(&format!("{name}-{pinned}.csv"))).unwrap();
        assert_eq!(csv("rows"), csv("ours"), "{pinned}");
    }
    println!("{compared} entries are written as bpftool writes them");
}

#[test]
fn per_cpu_values_are_summed() {
    let Some((place, _suite)) = place("pinned maps of each processor") else { return };
    // bpftool sets the same value on all processors.
    place.assert_script_succeeds(
        "bpftool map update pinned bpf/maps/shares key hex 01 00 00 00 00 00 00 00 value hex 05 00 00 40\n\
         bpftool map update pinned bpf/maps/shares key hex 02 00 00 00 00 00 00 00 value hex ff ff ff ff\n\
         bpftool -j map dump pinned bpf/maps/shares > kernel.json\n\
         portcullis --limit 0 --from-pin shares=bpf/maps/shares --dump-map shares=ours.json\n\
         portcullis --limit 0 --map shares=kernel.json --dump-map shares=file.json",
    );
    let entries: Vec<Entry> = serde_json::from_slice(&place.read("kernel.json")).unwrap();
    let sum = |values: &[CpuValue]| {
        let number = |it: &CpuValue| it.value.get().parse::<u32>().unwrap();
        values.iter().map(number).fold(0_u32, u32::wrapping_add).to_string()
    };
    let wanted: Rows = entries.iter().map(|it| (key(&it.formatted), sum(&it.formatted.values))).collect();
    assert!(wanted.len() == 2 && entries[0].formatted.values.len() > 1, "the test needs several processors");
    assert_eq!(from_portcullis(&place.read("ours.json")), wanted);
    assert_eq!(from_portcullis(&place.read("file.json")), wanted);
}

#[test]
fn pinned_maps_that_do_not_fit_are_refused() {
    let Some((place, _suite)) = place("pinned maps that do not fit") else { return };
    for (arguments, words) in [
        ("--from-pin table=bpf/maps/recent", "the kernel's map is of type lru_hash, and `table` is of type hash"),
        ("--from-pin numbered=bpf/maps/pinned_bss", "the kernel's map has values of"),
        ("--from-pin table=bpf/maps/none", "--from-pin table=bpf/maps/none: bpf/maps/none: No such file or directory"),
        ("--from-pin table=bpf/program", "the pinned object is not a map: it is a BPF program\n"),
        ("--from-pin table=in.pcap", "no BPF object is"),
        ("--from-pin tabel=bpf/maps/table", "the filter has no map `tabel`"),
        ("--from-pin table", "expected NAME=FILE, for example --from-pin flows=/sys/fs/bpf/flows"),
        ("--from-pin numbered=bpf/maps/numbered --set numbered.max_entries=3", "there is no room"),
    ] {
        let key = "key hex 05 00 00 00 value hex 01";
        let rest = "00 ".repeat(place.sizes("numbered").1 - 1);
        let fill = format!("bpftool map update pinned bpf/maps/numbered {key} {rest}\n");
        let output = place.script(&format!("{fill}portcullis {arguments}"));
        let stderr = String::from_utf8_lossy(&output.stderr);
        let wanted = if words == "there is no room" { "has no room for more than" } else { words };
        assert!(!output.status.success() && stderr.contains(wanted), "{arguments}: {stderr}");
    }
    // The kernel's map is not modified.
    place.assert_script_succeeds(
        "bpftool -j map dump pinned bpf/maps/table > before.json\n\
         portcullis --from-pin table=bpf/maps/table --from-pin .data=bpf/maps/pinned_data --dump-map .data=data.json\n\
         bpftool -j map dump pinned bpf/maps/table > after.json",
    );
    assert_eq!(place.read("before.json"), place.read("after.json"));
    let data: Value = serde_json::from_slice(&place.read("data.json")).unwrap();
    assert_eq!(data[0]["value"][".data"][0]["total"], 8, "{data}");
}
