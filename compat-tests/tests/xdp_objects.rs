//! Unmodified XDP programs compiled by clang: on every device they give the Linux kernel's
//! verdicts, packets and map contents, packet by packet.
#![cfg(target_os = "linux")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portcullis_compat_tests::kernel::{self, Entries, KernelProgram, KernelRun};
use portcullis_compat_tests::objects::{self, FORMS};
use portcullis_compat_tests::{corpora, devices, layouts, oracle};
use portcullis_core::device::{Device, DeviceKind, LoadOptions, Session};
use portcullis_core::interp::InterpDevice;
use portcullis_core::map::Table;
use portcullis_core::packet::{Metadata, ResizeRoom};
use portcullis_core::program::{Program, ProgramOptions};
use portcullis_xdp::events::{Event, EventPayload, EventReader, RecordKind};
use portcullis_xdp::object::MapType;
use portcullis_xdp::{self as xdp};
use portcullis_xdp::{self, Object};

/// Programs that are refused or differ, by source and program, with the reason. The test fails if
/// one of them is accepted and equal.
const KNOWN_DIFFERENCES: &[(&str, &str)] = &[];

/// Programs whose events contain random numbers, which differ from the kernel's: the numbers of
/// events and their lengths are compared.
const RANDOM_EVENTS: &[&str] = &["random:"];

/// Programs among them that sample packets by a random number, with the divisor: each event
/// contains a multiple of it.
const SAMPLES: &[(&str, u32)] = &[("random:random_sampler", 128)];

/// Returns the source and program of a case's name.
fn program_of(name: &str) -> &str {
    name.split(" (").next().unwrap_or(name)
}

/// Returns the reason why a program is expected to differ.
fn known_difference(name: &str) -> Option<&'static str> {
    KNOWN_DIFFERENCES.iter().find(|(known, _)| *known == program_of(name)).map(|(_, why)| *why)
}

/// Returns packets of every kind, with lengths that the kernel accepts.
fn packets() -> Vec<Vec<u8>> {
    let mut packets = corpora::synthetic().packets;
    packets.truncate(500);
    packets.extend(corpora::hostile().packets.into_iter().take(1500));
    packets.retain(|packet| (14..=1514).contains(&packet.len()));
    packets
}

/// A program with the kernel's results for packets run one by one.
struct Case {
    name: String,
    program: Arc<Program>,
    ran: Vec<KernelRun>,
    /// Initial entries: map number, key, value.
    presets: Vec<(usize, Vec<u8>, Vec<u8>)>,
    /// Final contents of the program's maps, and those after [`FEW`] packets.
    maps: Vec<Option<Entries>>,
    few: Vec<Option<Entries>>,
    /// Whether the output of `bpf_printk` can be read.
    reads_prints: bool,
    /// Whether results are independent of packet order, according to the program's analysis and to
    /// a run of the kernel in reverse order.
    is_order_independent: bool,
}

/// Number of packets for programs that need them one by one, on devices where each batch is a round
/// trip.
const FEW: usize = 300;

/// Packets per batch: not a power of two, so that batches end within a group of packets.
const BATCH: usize = 611;

/// Returns all cases to compare, and the programs that either side refused, with the message.
fn cases(packets: &[Vec<u8>]) -> (Vec<Case>, Vec<(String, String)>) {
    kernel::on_first_processor();
    let (mut cases, mut refused) = (Vec::new(), Vec::new());
    for source in objects::sources() {
        for form in FORMS {
            let (processor, level) = form;
            let is_usual = form == FORMS[FORMS.len() - 1];
            let stem = source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let bytes = match objects::compile_with(&source, processor, &[level.into()]) {
                Ok(bytes) => bytes,
                Err(error) if is_usual => panic!("{stem}: {error}"),
                // The source needs atomics that return the previous value.
                Err(_) => continue,
            };
            let object = Object::read(&stem, &bytes).unwrap_or_else(|error| panic!("{stem}: {error}"));
            for function in object.programs() {
                let name = format!("{stem}:{} ({processor} {level})", function.name);
                let load = || KernelProgram::load(&object, &function.name);
                let there = load();
                let here = xdp::compile(&stem, &bytes, Some(&function.name), &ProgramOptions::default());
                match (there, here) {
                    (Ok(there), Ok(here)) => {
                        let presets = objects::presets(&stem);
                        cases.push(case(name, &there, load, here, &object, presets, packets));
                    }
                    // The verifier cannot follow all code that clang generates with unusual
                    // options.
                    (Err(error), _) if !is_usual => {
                        let why = error.lines().next_back().unwrap_or_default();
                        println!("{name}: skipped: the kernel refuses it: {why}");
                    }
                    (Err(error), Ok(_)) => refused.push((name, format!("the kernel refuses it: {error}"))),
                    (_, Err(error)) => refused.push((name, error.render())),
                }
            }
        }
    }
    (cases, refused)
}

/// Runs a program in the kernel. `load` loads it again, with maps of its own.
fn case(
    name: String,
    there: &KernelProgram,
    load: impl Fn() -> Result<KernelProgram, String>,
    here: Program,
    object: &Object,
    presets: Vec<(String, Vec<u8>, Vec<u8>)>,
    packets: &[Vec<u8>],
) -> Case {
    let origin = portcullis_xdp::ObjectInfo::of(&here).expect("compiled from an object");
    let set = |kernel: &KernelProgram, (map, key, value): &(String, Vec<u8>, Vec<u8>)| {
        let number = object.maps.iter().position(|it| it.name == *map);
        let number = number.unwrap_or_else(|| panic!("{name}: the object has no map `{map}`, which has presets"));
        let of = &object.maps[number];
        let sizes = (key.len(), value.len()) == (of.key_size as usize, of.value_size as usize);
        assert!(sizes, "{name}: `{map}`, {key:02x?}: {value:02x?}: {} and {} bytes", of.key_size, of.value_size);
        match kernel.set(number, key, value) {
            Ok(()) => {}
            // The map needs real sockets, which neither side has.
            Err(_) if of.ty == MapType::XSKMAP => return None,
            Err(error) => panic!("{name}: `{map}`, {key:02x?}: {value:02x?}: {error}"),
        }
        // `None` if this program does not use the map.
        let ours = origin.maps.iter().position(|it| it.as_ref().is_some_and(|it| it.name == *map))?;
        Some((ours, key.clone(), value.clone()))
    };
    let set_all =
        |kernel: &KernelProgram| -> Vec<_> { presets.iter().filter_map(|preset| set(kernel, preset)).collect() };
    let ours = set_all(there);
    let run = |of: &KernelProgram, packet: &Vec<u8>| of.run(packet).unwrap_or_else(|error| panic!("{name}: {error}"));
    let entries = |of: &KernelProgram| -> Vec<Option<Entries>> {
        let entries = |map: &Option<xdp::MapDefinition>| {
            let number = object.maps.iter().position(|it| Some(&it.name) == map.as_ref().map(|map| &map.name))?;
            of.entries(number).unwrap_or_else(|error| panic!("{name}: {error}"))
        };
        origin.maps.iter().map(entries).collect()
    };
    let (first, rest) = packets.split_at(FEW.min(packets.len()));
    let mut ran: Vec<KernelRun> = first.iter().map(|packet| run(there, packet)).collect();
    let few = entries(there);
    ran.extend(rest.iter().map(|packet| run(there, packet)));
    let maps = entries(there);
    if let Some(reason) = there.prints_missing() {
        println!("{name}: its output is not compared: {reason}");
    }
    let reads_prints = there.prints_missing().is_none();
    // Events must arrive in order.
    let is_order_independent = oracle::only_adds(&here) && ran.iter().all(|ran| ran.host_records.is_empty()) && {
        let other = load().unwrap_or_else(|error| panic!("{name}: {error}"));
        set_all(&other);
        let mut backwards: Vec<KernelRun> = packets.iter().rev().map(|packet| run(&other, packet)).collect();
        backwards.reverse();
        backwards == ran && entries(&other) == maps
    };
    Case { name, program: Arc::new(here), ran, presets: ours, maps, few, reads_prints, is_order_independent }
}

/// Runs the packets one by one, as the kernel did, and in batches if that must not matter. Returns
/// the number of packets compared and the first difference.
fn first_difference(device: &dyn Device, case: &Case, packets: &[Vec<u8>]) -> (usize, Option<String>) {
    let is_near = matches!(device.info().kind, DeviceKind::Cpu | DeviceKind::Reference);
    let mut count = 0;
    let mut difference = None;
    // On other devices each batch is a round trip, however few packets it has.
    if is_near || !case.is_order_independent {
        let some = if is_near { packets } else { &packets[..FEW.min(packets.len())] };
        count += some.len();
        difference = differs_by(device, case, some, 1);
    }
    // The reference runs packets one by one in any case.
    if case.is_order_independent && difference.is_none() && device.info().kind != DeviceKind::Reference {
        count += packets.len();
        difference = differs_by(device, case, packets, BATCH).map(|what| format!("in batches of {BATCH}: {what}"));
    }
    (count, difference)
}

fn differs_by(device: &dyn Device, case: &Case, packets: &[Vec<u8>], size: usize) -> Option<String> {
    let mut session = match device.load(&case.program, &LoadOptions::default()) {
        Ok(session) => session,
        Err(error) => return Some(format!("{error}")),
    };
    for (number, map) in case.program.maps().iter().enumerate() {
        let mut presets = case.presets.iter().filter(|(of, ..)| *of == number).peekable();
        if presets.peek().is_none() {
            continue;
        }
        let set = |presets: &mut dyn Iterator<Item = &(usize, Vec<u8>, Vec<u8>)>| {
            let mut table = Table::new(map, session.map_words(number).ok()?);
            for (_, key, value) in presets {
                table.set(&objects::key(map, key), &objects::words(value)).ok()?;
            }
            let (at, words) = table.changes();
            session.set_map_words(number, at, words).ok()
        };
        if { set }(&mut presets).is_none() {
            return Some(format!("cannot set the presets of the map {}", map.name));
        }
    }
    let mut drain = match EventReader::begin(&case.program, &mut *session) {
        Ok(drain) => drain,
        Err(error) => return Some(format!("{error}")),
    };
    // Packets of the kernel's test run come from the loopback interface, index 1.
    let metadata = |i| Metadata { port: 1, ..layouts::metadata(i) };
    let (batches, guarded) = layouts::batches_with(packets, size, ResizeRoom::Both, metadata);
    for ((batch, want), packets) in batches.into_iter().zip(case.ran.chunks(size)).zip(packets.chunks(size)) {
        let done = match session.run(batch) {
            Ok(done) => done,
            Err(error) => return Some(format!("{error}")),
        };
        for (index, (want, packet)) in want.iter().zip(packets).enumerate() {
            let got = (objects::of_ours(done.verdicts.get(index)), done.batch.packet(index));
            let want = (objects::of_kernel(want.verdict), want.packet.as_slice());
            if got != want {
                return Some(format!(
                    "of {} bytes {packet:02x?}\n  verdict {}, {} bytes {:02x?}\n  the kernel {}, {} bytes {:02x?}",
                    packet.len(),
                    got.0,
                    got.1.len(),
                    got.1,
                    want.0,
                    want.1.len(),
                    want.1
                ));
            }
        }
    }
    if let Some(at) = guarded.stray_write() {
        return Some(format!("write outside the packets, at byte {at}"));
    }
    if let Some(drain) = &mut drain
        && let Some(difference) = event_difference(drain, &mut *session, case, &case.ran[..packets.len()])
    {
        return Some(difference);
    }
    let maps = if packets.len() == case.ran.len() { &case.maps } else { &case.few };
    let origin = portcullis_xdp::ObjectInfo::of(&case.program)?;
    for (number, (map, definition)) in case.program.maps().iter().zip(&origin.maps).enumerate() {
        let (Some(definition), Some(want)) = (definition, &maps[number]) else { continue };
        let table = match session.map_words(number) {
            Ok(words) => Table::new(map, words),
            Err(error) => return Some(format!("{error}")),
        };
        let got = objects::entries(map, definition, &table);
        if got != *want {
            let first = want.iter().find(|(key, value)| got.get(*key) != Some(value));
            let more = got.iter().find(|(key, _)| !want.contains_key(*key));
            return Some(format!(
                "the map {}: {} entries, and {} in the kernel; {first:02x?}, here {:02x?}; only here {more:02x?}",
                definition.name,
                got.len(),
                want.len(),
                first.and_then(|(key, _)| got.get(key))
            ));
        }
    }
    None
}

/// Returns the first difference between the events of the host and the kernel.
fn event_difference(
    drain: &mut EventReader,
    session: &mut dyn Session,
    case: &Case,
    ran: &[KernelRun],
) -> Option<String> {
    let mut host_records: BTreeMap<String, Vec<Vec<u8>>> = BTreeMap::new();
    let mut take = |event: Event<'_>| {
        let bytes = match event.payload {
            EventPayload::Data(data) => data,
            EventPayload::WithPacket { data, packet, .. } => [data, packet].concat(),
            EventPayload::Text(text) => text.into_bytes(),
        };
        host_records.entry(event.ring.name.clone()).or_default().push(bytes);
    };
    if let Err(error) = drain.read(session, Some(&mut take)) {
        return Some(format!("{error}"));
    }
    if drain.counts().lost > 0 {
        return Some(format!("{:?}", drain.counts()));
    }
    if let Some((_, rate)) = SAMPLES.iter().find(|(known, _)| *known == program_of(&case.name)) {
        return sampling_fault(host_records.values().flatten(), ran.len(), *rate);
    }
    let is_random = RANDOM_EVENTS.iter().any(|source| case.name.starts_with(source));
    for ring in portcullis_xdp::ObjectInfo::of(&case.program).map_or(&[][..], |origin| &origin.rings) {
        if ring.records == RecordKind::Prints && !case.reads_prints {
            continue;
        }
        let (got, want) = (host_records.remove(&ring.name).unwrap_or_default(), {
            let records = ran.iter().filter_map(|ran| ran.host_records.get(&ring.name));
            records.flatten().collect::<Vec<_>>()
        });
        // The kernel pads samples: with their length field they are multiples of eight bytes.
        let same = |got: &Vec<u8>, want: &Vec<u8>| match ring.records {
            _ if is_random => got.len() == want.len(),
            RecordKind::Perf => want.starts_with(got) && want.len() == (got.len() + 4).next_multiple_of(8) - 4,
            _ => got == want,
        };
        let first = got.iter().zip(&want).position(|(got, want)| !same(got, want));
        if got.len() != want.len() || first.is_some() {
            let at = first.unwrap_or(got.len().min(want.len()));
            let show = |it: Option<&Vec<u8>>| match it {
                Some(bytes) if ring.records == RecordKind::Prints => String::from_utf8_lossy(bytes).into_owned(),
                other => format!("{other:02x?}"),
            };
            return Some(format!(
                "{}: {} events, and {} in the kernel; number {at}: {}\n  in the kernel {}",
                ring.name,
                got.len(),
                want.len(),
                show(got.get(at)),
                show(want.get(at).copied())
            ));
        }
    }
    None
}

/// Returns why records are not a sample of one packet in `rate`, each with a multiple of `rate`.
fn sampling_fault<'a>(host_records: impl Iterator<Item = &'a Vec<u8>>, packets: usize, rate: u32) -> Option<String> {
    let numbers: Vec<Option<u32>> =
        host_records.map(|it| it.as_slice().try_into().ok().map(u32::from_le_bytes)).collect();
    if let Some(wrong) = numbers.iter().find(|number| number.is_none_or(|number| number % rate != 0)) {
        return Some(format!("{wrong:?} is in an event, but is not a multiple of {rate}"));
    }
    // Within six standard deviations.
    let (count, mean) = (numbers.len() as f64, packets as f64 / f64::from(rate));
    let is_far = (count - mean).abs() > 6.0 * mean.sqrt();
    is_far.then(|| format!("{count} of {packets} packets have events, expected about {mean:.1}"))
}

/// Returns each program once, as compiled for one of the processors in turn. The front end is the
/// same for all devices, and nearby devices have run the other variants.
fn one_variant_per_program(cases: &[Case]) -> Vec<&Case> {
    let mut of_program: BTreeMap<&str, Vec<&Case>> = BTreeMap::new();
    for case in cases {
        of_program.entry(program_of(&case.name)).or_default().push(case);
    }
    of_program.values().enumerate().map(|(number, cases)| cases[number % cases.len()]).collect()
}

#[test]
fn objects_agree_with_the_kernel() {
    let suite = "objects in the kernel";
    if objects::is_kernel_missing(suite) || objects::is_missing(suite) {
        return;
    }
    let packets = packets();
    // On a thread of its own, which it pins to a CPU; the devices' threads would inherit that.
    let (cases, refused) = std::thread::scope(|scope| scope.spawn(|| cases(&packets)).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    println!("{} programs, {} packets", cases.len(), packets.len());
    let (expected, refused): (Vec<_>, Vec<_>) =
        refused.into_iter().partition(|(name, _)| known_difference(name).is_some());
    expected.iter().for_each(|(name, _)| println!("{name}: not yet: {}", known_difference(name).unwrap_or_default()));
    let free = cases.iter().filter(|case| case.is_order_independent).count();
    println!("{free} of them also in batches, as they do not depend on the packets' order");
    assert!(free * 4 > cases.len(), "only {free} of {} programs may run in batches", cases.len());
    let mut table = oracle::Table::default();
    let mut named = BTreeSet::new();
    let each = |device: &Arc<dyn Device>| {
        let (mut failures, mut same) = (Vec::new(), 0);
        // Of the CPU's code styles one runs all programs, as does the reference.
        let has_all = matches!(device.info().id.as_str(), "cpu" | "interp");
        let all = if has_all { cases.iter().collect::<Vec<_>>() } else { one_variant_per_program(&cases) };
        // Devices of the same name share a compiler: the first runs all programs, the others enough
        // to cover every feature.
        let some = match named.insert(device.info().id.clone()) {
            true => all.iter().collect(),
            false => devices::share_of_all(device, &all, 30, |case| oracle::parts(&case.program)),
        };
        println!("{}: {} of {} programs", device.info().id, some.len(), all.len());
        for case in some {
            let (count, difference) = first_difference(&**device, case, &packets);
            table.note(&device.info().id, &case.name, count, difference.is_some());
            match (difference, known_difference(&case.name)) {
                (None, None) => same += 1,
                (Some(_), Some(why)) => println!("{}: {}: not yet: {why}", device.info().id, case.name),
                (Some(difference), None) => failures.push(format!("{}: {difference}", case.name)),
                (None, Some(_)) => failures.push(format!("{} is the same by now: it may go from the list", case.name)),
            }
        }
        println!("{}: {same} programs agree with the kernel, {} differ", device.info().id, failures.len());
        assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    };
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut each = each;
        devices::on_each("objects and the kernel", &mut each);
    }));
    table.print();
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let refused: Vec<String> = refused.into_iter().map(|(name, why)| format!("{name}: {why}")).collect();
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

/// Every device accepts a program that is too large for the kernel's verifier, also those with
/// software compilers, and agrees with the reference interpreter.
#[test]
fn every_device_accepts_a_large_object() {
    if objects::is_missing("a large object") {
        return;
    }
    let bytes = objects::large().unwrap_or_else(|said| panic!("{said}"));
    let program = xdp::compile("large", &bytes, Some("gateway"), &ProgramOptions::default());
    let program = Arc::new(program.unwrap_or_else(|errors| panic!("{}", errors.render())));
    let mut packets = packets();
    packets.truncate(FEW);
    let run = |device: &dyn Device| {
        let mut session = device.load(&program, &LoadOptions::default()).unwrap_or_else(|error| panic!("{error}"));
        let mut all = Vec::new();
        // Packets run one by one because the connection table depends on their order.
        let (batches, guarded) = layouts::batches_with(&packets, 1, ResizeRoom::Both, layouts::metadata);
        for batch in batches {
            let done = session.run(batch).unwrap_or_else(|error| panic!("{error}"));
            all.push((done.verdicts.get(0), done.batch.packet(0).to_vec()));
        }
        assert_eq!(guarded.stray_write(), None, "{}: write outside the packets", device.info().id);
        all
    };
    let wanted = run(&InterpDevice::new());
    let verdicts: BTreeSet<_> = wanted.iter().map(|(verdict, _)| objects::of_ours(*verdict)).collect();
    assert!(verdicts.len() > 1, "all verdicts are equal: {verdicts:?}");
    devices::on_each("a large object", |device| {
        let got = run(&**device);
        let first_difference = got.iter().zip(&wanted).position(|(got, wanted)| got != wanted);
        assert_eq!(
            first_difference,
            None,
            "{}: {:?}",
            device.info().id,
            first_difference.map(|at| (&packets[at], &got[at], &wanted[at]))
        );
    });
}

/// At least two programs use each feature that the page lists.
#[test]
fn features_listed_in_the_page_are_used_by_two_programs() {
    if objects::is_missing("features of objects") {
        return;
    }
    let mut used: BTreeMap<String, u32> = BTreeMap::new();
    for source in objects::all_sources() {
        let Ok(bytes) = objects::compile(&source, "v3") else { continue };
        let Ok(object) = Object::read("object", &bytes) else { continue };
        for program in object.programs() {
            let compiled = xdp::compile("object", &bytes, Some(&program.name), &ProgramOptions::default());
            let of_it = compiled.map(|program| oracle::used(&program)).unwrap_or_default();
            of_it.into_iter().for_each(|name| *used.entry(name).or_default() += 1);
        }
    }
    let page = include_str!("../../docs/guide/xdp-objects.md");
    let mut maps = oracle::claimed(page, "maps");
    maps.retain(|name| (0..64).any(|number| MapType(number).name() == *name));
    maps.extend(["percpu_hash", "percpu_array", "lru_percpu_hash"].map(str::to_owned));
    let helpers = oracle::claimed(page, "helpers");
    assert!(maps.len() > 10 && helpers.len() > 15, "{maps:?} {helpers:?}");
    let few: Vec<_> = maps.iter().chain(&helpers).filter(|name| used.get(*name).copied().unwrap_or(0) < 2).collect();
    println!("{used:?}");
    assert!(few.is_empty(), "used by fewer than two programs: {few:?}");
}
