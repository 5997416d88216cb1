//! Compares XDP programs compiled by clang on the CPU device, with one thread, against the Linux
//! kernel's JIT and rbpf's JIT: `cargo bench -p portcullis-compat-tests --bench objects`.
//!
//! The kernel's time is measured with `BPF_PROG_TEST_RUN`, as in `bpftool prog run`. `feeder.c`
//! supplies another packet in each run and calls the program behind it; the time of the same runs
//! with an empty program is subtracted. Portcullis is timed over a whole batch of the same packets.
//! rbpf's JIT gets the same packets, for programs without maps only (it supports none), and with a
//! context that holds the packet's ends as 64-bit addresses, as rbpf expects. The last part
//! measures how long a large program takes to translate and to compile.

#[cfg(target_os = "linux")]
#[path = "../../benches/support/mod.rs"]
mod support;

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("This bench compares with the Linux kernel and needs Linux.");
}

#[cfg(target_os = "linux")]
fn main() {
    support::restore_sigpipe();
    linux::main();
}

#[cfg(target_os = "linux")]
mod linux {
    use std::hint::black_box;
    use std::sync::Arc;
    use std::time::Instant;

    use portcullis::packet_io::synth::Random;
    use portcullis_compat_tests::kernel::{self, KernelProgram};
    use portcullis_compat_tests::objects;
    use portcullis_core::device::{Device, LoadOptions, Session};
    use portcullis_core::map::Table as MapTable;
    use portcullis_core::packet::Batch;
    use portcullis_core::program::{Program, ProgramOptions};
    use portcullis_cpu::Cpu;
    use portcullis_xdp::{self as xdp, Object};

    use crate::support::{
        LENGTH, ReusedBatch, Sample, Table, is_test_run, record_bar, sample_in_turn, threads, time, time_alone,
        time_in_turn, written_batch,
    };

    const COMMAND: &str = "cargo bench -p portcullis-compat-tests --bench objects";

    /// Upper bound on the time to compile a program of 2,500 instructions, in seconds.
    const MAX_COMPILE_SECONDS: f64 = 0.1;

    /// Upper bound on the time to create a wgpu pipeline from the same program, in seconds.
    const MAX_WGPU_SECONDS: f64 = 5.0;

    /// Initial contents of a map: its name, and its entries in the kernel's layout.
    type Preset = (&'static str, Vec<(Vec<u8>, Vec<u8>)>);

    /// A program and the initial contents of its maps.
    struct Case {
        name: &'static str,
        presets: Vec<Preset>,
    }

    fn number(value: u32) -> Vec<u8> {
        value.to_ne_bytes().to_vec()
    }

    /// Returns the programs, with maps as full as a user's would be.
    fn cases() -> Vec<Case> {
        let ring = (0..256).map(|slot| (number(slot), number(slot % 16))).collect();
        let backend = |id: u8| vec![2, 0, 0, 0, 1, id, 1, 0];
        let backends = (0..16).map(|id| (number(id.into()), backend(id))).collect();
        let mut random = Random::new(0, 0);
        // A default route, so that only expired TTLs miss, and prefixes of the most frequent
        // lengths.
        let mut routes = vec![([number(0), vec![0; 4]].concat(), number(0))];
        for at in 1..50_000 {
            let length = random.pick(&[16, 20, 22, 24, 24, 24, 32]);
            let address = random.u32() & u32::MAX << (32 - length);
            routes.push(([number(length), address.to_be_bytes().to_vec()].concat(), number(at % 200)));
        }
        let hop = |id: u8| vec![2, 0, 0, 0, 2, id, 2, 0, 0, 0, 3, id];
        let hops = (0..200).map(|id| (number(id.into()), hop(id))).collect();
        vec![
            Case { name: "port_filter", presets: vec![] },
            Case { name: "hash_balancer", presets: vec![("ring", ring), ("backends", backends)] },
            Case { name: "lpm_router", presets: vec![("routes", routes), ("next_hops", hops)] },
        ]
    }

    /// Returns a TCP or UDP packet over IPv4 without options, with random endpoints: each packet is
    /// a flow of its own.
    fn frame(random: &mut Random) -> [u8; LENGTH] {
        let mut frame = [0; LENGTH];
        frame[..15].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00, 0x45]);
        frame[22..24].copy_from_slice(&[255, if random.below(100) < 70 { 6 } else { 17 }]);
        let port: u16 = match random.below(100) {
            0..20 => 443,
            20..30 => 53,
            30..35 => 23,
            _ => 1024 + random.below(60_000) as u16,
        };
        frame[26..30].copy_from_slice(&random.u32().to_be_bytes());
        frame[30..34].copy_from_slice(&random.u32().to_be_bytes());
        frame[34..36].copy_from_slice(&(1024 + random.below(60_000) as u16).to_be_bytes());
        frame[36..38].copy_from_slice(&port.to_be_bytes());
        frame
    }

    fn frames(count: usize) -> Vec<[u8; LENGTH]> {
        let mut random = Random::new(0, 0);
        (0..count).map(|_| frame(&mut random)).collect()
    }

    /// Packs the frames into one batch, without gaps.
    fn batch(frames: &[[u8; LENGTH]]) -> Batch {
        written_batch(frames.len(), |number, packet| packet.copy_from_slice(&frames[number]))
    }

    fn program(name: &str, bytes: &[u8]) -> Arc<Program> {
        objects::program(name, bytes, name, &ProgramOptions::default())
    }

    fn session(program: &Arc<Program>, presets: &[Preset]) -> Box<dyn Session> {
        let mut session = Cpu::new().load(program, &threads(1)).expect("the CPU accepts the program");
        for (map, entries) in presets {
            let of = &portcullis_xdp::ObjectInfo::of(program).expect("compiled from an object").maps;
            let is_it = |it: &Option<xdp::MapDefinition>| it.as_ref().is_some_and(|it| it.name == *map);
            let number = of.iter().position(is_it).expect("the program has that map");
            let declared = &program.maps()[number];
            let mut table = MapTable::new(declared, session.map_words(number).expect("the map can be read"));
            for (key, value) in entries {
                table.set(&objects::key(declared, key), &objects::words(value)).expect("the map is large enough");
            }
            let (at, words) = table.changes();
            session.set_map_words(number, at, words).expect("the words are inside the map");
        }
        session
    }

    /// A program loaded into the kernel, called by another program that feeds it packets.
    struct FedProgram {
        feeder: KernelProgram,
        program: KernelProgram,
        nothing: KernelProgram,
    }

    impl FedProgram {
        fn new(case: &Case, bytes: &[u8], frames: &[[u8; LENGTH]]) -> Result<FedProgram, String> {
            let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/feeder.c");
            let object =
                Object::read("feeder", &objects::compile(&source, "v3")?).map_err(|error| error.to_string())?;
            let (feeder, nothing) = (KernelProgram::load(&object, "feeder")?, KernelProgram::load(&object, "nothing")?);
            let map = |object: &Object, name: &str| object.maps.iter().position(|map| map.name == name);
            let frames_map = map(&object, "frames").ok_or("the feeder has no frames")?;
            let fails = |error: std::io::Error| error.to_string();
            for (at, frame) in (0..).zip(frames) {
                feeder.set(frames_map, &number(at), frame).map_err(fails)?;
            }
            let object = Object::read(case.name, bytes).map_err(|error| error.to_string())?;
            let program = KernelProgram::load(&object, case.name)?;
            for (name, entries) in &case.presets {
                let map = map(&object, name).ok_or("the program has no such map")?;
                for (key, value) in entries {
                    program.set(map, key, value).map_err(fails)?;
                }
            }
            Ok(FedProgram { feeder, program, nothing })
        }

        /// Measures the time that `packets` packets take, less the cost of feeding and calling.
        fn run(&self, packets: u32) -> Sample {
            let timed = |behind: &KernelProgram| {
                self.feeder.call("behind", 0, behind).expect("the map is large enough");
                time(|| self.feeder.run_times(&[0; LENGTH], packets).expect("the program runs"))
            };
            let (empty, whole) = (timed(&self.nothing), timed(&self.program));
            Sample {
                wall: whole.wall.saturating_sub(empty.wall),
                processor: whole.processor.saturating_sub(empty.processor),
            }
        }
    }

    fn against_the_kernel(packets: usize, rounds: usize) {
        let mut table = Table::new("one thread; the kernel net of feeding it", "ours", "kernel's JIT");
        let mut bars = Vec::new();
        let frames = frames(packets);
        for case in cases() {
            let bytes = objects::object(case.name);
            let fed = match FedProgram::new(&case, &bytes, &frames) {
                Ok(fed) => fed,
                Err(reason) => return println!("the kernel is not measured: {reason}"),
            };
            let program = program(case.name, &bytes);
            // Once with as many packets as flows, and once with few enough to stay in the CPU's
            // cache, as the kernel's packets do.
            for (what, count) in [("1 Mi packets", packets), ("in the cache", packets.min(1 << 14))] {
                let (mut session, times) = (session(&program, &case.presets), packets / count);
                let ours = || {
                    // Fresh packets: an expired TTL would take another path through the program.
                    let ours = ReusedBatch::new(batch(&frames[..count]));
                    ours.run(&mut *session);
                    time(|| (0..times).for_each(|_| drop(ours.run(&mut *session))))
                };
                let pair = sample_in_turn(rounds, ours, || fed.run((times * count) as u32));
                let name = format!("{}, {what}", case.name);
                table.rates(&name, times * count, pair);
                bars.push((name, pair.ratio()));
            }
        }
        table.print();
        record_bar("CPU, one thread, XDP objects", "the kernel's JIT net of its harness", 1.0, COMMAND, &bars);
    }

    /// Extends the borrow of a packet for rbpf, which requires it to live as long as the machine.
    #[expect(unsafe_code, reason = "rbpf's borrows are longer than its uses")]
    fn lent<'a>(frame: &mut [u8; LENGTH]) -> &'a mut [u8] {
        // SAFETY: the frames live until the end of the function that owns the machine, and nobody
        // accesses a frame while the machine has it.
        unsafe { std::slice::from_raw_parts_mut(frame.as_mut_ptr(), LENGTH) }
    }

    /// Programs that use neither maps nor helpers.
    const PLAIN: [&str; 2] = ["port_filter", "ttl"];

    /// Compiles the same source for rbpf, with a context of 64-bit addresses.
    fn wide(name: &str) -> Vec<u8> {
        let header = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/wide_context.h");
        let source = objects::folder().join(name).with_extension("c");
        let options = ["-include".into(), header.to_string_lossy().into_owned()];
        let object = objects::compile_with(&source, "v3", &options).unwrap_or_else(|said| panic!("{name}: {said}"));
        let object = Object::read(name, &object).unwrap_or_else(|error| panic!("{name}: {error}"));
        let linked = kernel::Linked::of(&object, name, &[]).unwrap_or_else(|error| panic!("{name}: {error}"));
        linked.instructions.iter().flat_map(|it| it.to_le_bytes()).collect()
    }

    fn against_rbpf(packets: usize, rounds: usize) {
        let mut jit = Table::new("one thread, in the cache", "ours", "rbpf's JIT");
        let mut interpreter = Table::new("one thread, in the cache", "ours", "rbpf's interpreter");
        let mut bars = Vec::new();
        let count = packets.min(1 << 14);
        let frames = frames(count);
        for name in PLAIN {
            let program = program(name, &objects::object(name));
            let mut session = session(&program, &[]);
            let code = wide(name);
            let mut machine = rbpf::EbpfVmFixedMbuff::new(Some(&code), 0, 8).expect("rbpf takes the program");
            machine.jit_compile().expect("rbpf has a JIT for this processor");
            let mut copies = frames.clone();
            // Check that both return the same results before timing them.
            let ours = ReusedBatch::new(batch(&frames));
            let verdicts = ours.run(&mut *session);
            for (number, frame) in copies.iter_mut().enumerate() {
                let theirs = machine.execute_program(lent(frame)).expect("rbpf runs it");
                assert_eq!(u64::from(verdicts.get(number).to_return()), theirs, "{name}: packet {number}");
                assert_eq!(ours.get().packet(number), frame, "{name}: packet {number}");
            }
            copies.clone_from(&frames);
            let pair = time_in_turn(
                rounds,
                || (0..8).for_each(|_| drop(ours.run(&mut *session))),
                || {
                    for frame in (0..8).flat_map(|_| 0..count) {
                        // SAFETY: the kernel's verifier accepts the program, so its compiled code
                        // stays within the packet.
                        #[expect(unsafe_code, reason = "rbpf's JIT checks nothing as it runs")]
                        let verdict = unsafe { machine.execute_program_jit(lent(&mut copies[frame])) };
                        black_box(verdict.expect("it ran before"));
                    }
                },
            );
            jit.rates(name, 8 * count, pair);
            bars.push((name.to_owned(), pair.ratio()));
            let pair = time_in_turn(
                rounds.min(3),
                || ours.run(&mut *session),
                || {
                    copies.iter_mut().for_each(|frame| {
                        black_box(machine.execute_program(lent(frame)).expect("it ran before"));
                    });
                },
            );
            interpreter.rates(name, count, pair);
        }
        jit.print();
        interpreter.print();
        record_bar("CPU, one thread, XDP objects without maps", "rbpf's JIT", 2.0, COMMAND, &bars);
    }

    /// Measures the time from the object's bytes to compiled code, for a program of 2,500
    /// instructions.
    fn compile_times(rounds: usize) {
        let bytes = objects::large().unwrap_or_else(|said| panic!("{said}"));
        let object = Object::read("gateway", &bytes).expect("clang's output is an object");
        let function = object.programs().next().expect("the object has a program");
        println!("\na program of {} instructions", function.end - function.first);
        let show = |what: &str, f: &mut dyn FnMut()| {
            let median = time_alone(rounds, f).processor.as_secs_f64();
            println!("{what:<28} {:>7.1} ms of CPU time", median * 1e3);
            median
        };
        let translating = show("translation", &mut || drop(black_box(program("gateway", &bytes))));
        let program = program("gateway", &bytes);
        let compiling = show("compilation for the CPU", &mut || {
            drop(black_box(Cpu::new().load(&program, &threads(1)).expect("the CPU accepts the program")))
        });
        let ratio = |name: &str, most: f64, took: f64| [(name.to_owned(), most / took)];
        let cpu = ratio("gateway", MAX_COMPILE_SECONDS, translating + compiling);
        record_bar("an XDP object of 2,500 instructions, to code for the CPU", "100 ms", 1.0, COMMAND, &cpu);
        let device = match portcullis::devices::open("wgpu:0") {
            Ok(device) => device,
            Err(error) => return println!("{error}"),
        };
        let started = Instant::now();
        // Software drivers compile when the first packet arrives. A refusal counts like a
        // compilation that takes too long.
        let first = device.load(&program, &LoadOptions::default()).and_then(|mut session| {
            session.run(batch(&frames(1)))?;
            Ok(started.elapsed().as_secs_f64())
        });
        let took = first.unwrap_or_else(|error| {
            println!("{error}");
            f64::INFINITY
        });
        println!("{} ({}) {took:.2} s", device.info().id, device.info().name);
        let wgpu = ratio(&device.info().name, MAX_WGPU_SECONDS, took);
        record_bar("the same, to a pipeline of wgpu's", "5 s", 1.0, COMMAND, &wgpu);
    }

    pub fn main() {
        if let Some(reason) = objects::missing() {
            return println!("{reason}");
        }
        let (packets, rounds) = if is_test_run() { (4096, 1) } else { (1 << 20, 11) };
        kernel::on_first_processor();
        against_rbpf(packets, rounds);
        compile_times(rounds);
        against_the_kernel(packets, rounds);
    }
}
