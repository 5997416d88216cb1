//! Receiving by AF_XDP: what a filter costs over a bare loop that receives and drops.
//!
//! One kernel sends as much as it can over a veth pair; each round lasts a second, and the sides take turns.
//!
//! `cargo bench -p portcullis-live-tests --features bench --bench af_xdp`, as root.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use portcullis::device::{CancelToken, Device, Dispatch, LoadOptions};
use portcullis::io::af_xdp::{self, Copying, Lanes, Options, Steer, xdp::Attached};
use portcullis::lang::{Source, wgsl};
use portcullis::packet::Room;
use portcullis::pipeline::live::{Closing, LaneStats, LiveLane, LiveOptions, run_live};
use portcullis::program::{Program, ProgramOptions};
use portcullis_live_tests::{Flood, Namespace, Veth};
use xsk_rs::config::{BindFlags, LibxdpFlags, SocketConfig, UmemConfig};
use xsk_rs::socket::Socket;
use xsk_rs::umem::{Umem, frame::FrameDesc};

const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_secs(1);
const WARM_UP: Duration = Duration::from_millis(300);
const FRAMES: u32 = 8192;

fn main() {
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let (left, right) = (Namespace::new(), Namespace::new());
    let veth = Veth::between(&left, &right).make();
    let frame = [&veth.right.mac()[..], &veth.left.mac(), &[0x08, 0x00, 0x45], &[0; 49]].concat();
    let sides: [(&str, &(dyn Fn(&str) -> f64 + Sync)); 4] = [
        ("bare loop", &bare),
        ("minimal, cpu, inline", &|name| filtered(name, "minimal", Dispatch::Inline)),
        ("simple_filter, cpu, inline", &|name| filtered(name, "simple_filter", Dispatch::Inline)),
        ("minimal, cpu, pipelined", &|name| filtered(name, "minimal", Dispatch::Pipelined)),
    ];
    let mut rates = vec![Vec::new(); sides.len()];
    for _ in 0..ROUNDS {
        for ((_, side), rates) in sides.iter().zip(&mut rates) {
            let flood = Flood::start(&veth.left, &frame);
            rates.push(right.run(|| side(veth.right.name())));
            drop(flood);
        }
    }
    println!("{:<28} {:>8}  {:>6}", "received over veth", "Mpps", "ratio");
    let median = |rates: &[f64]| {
        let mut sorted = rates.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    };
    let base = rates[0].clone();
    for ((name, _), rates) in sides.iter().zip(&rates) {
        let ratios: Vec<f64> = rates.iter().zip(&base).map(|(rate, base)| rate / base).collect();
        println!("{name:<28} {:>8.3}  {:>6.2}", median(rates) / 1e6, median(&ratios));
    }
}

/// Packets a second, of what `received` counts while the time runs.
fn rate(mut received: impl FnMut() -> u64) -> f64 {
    std::thread::sleep(WARM_UP);
    let (begun, before) = (Instant::now(), received());
    std::thread::sleep(ROUND);
    (received() - before) as f64 / begun.elapsed().as_secs_f64()
}

fn program(name: &str) -> Arc<Program> {
    let path = format!("{}/../shaders/{name}.wgsl", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).expect("a stock filter");
    let program = wgsl::compile(&Source::new(&path, &*text), &ProgramOptions::default());
    Arc::new(program.unwrap_or_else(|error| panic!("{}", error.render())))
}

fn filtered(interface: &str, filter: &str, dispatch: Dispatch) -> f64 {
    let options = Options {
        ports: vec![format!("{interface}:0").parse().unwrap()],
        redirect: vec![],
        stack: None,
        lanes: Lanes::Each,
        steer: Steer::Default,
        mode: None,
        copying: Copying::Auto,
        busy_poll: None,
        huge_pages: false,
        room: Room::None,
        metadata: false,
        rewrites: false,
        frames: FRAMES,
    };
    let load = LoadOptions { threads: NonZeroUsize::new(1), dispatch: Some(dispatch), ..LoadOptions::default() };
    let device = portcullis::devices::open("cpu").unwrap();
    let device: &dyn Device = &*device;
    let session = device.load(&program(filter), &load).unwrap();
    let mut run = af_xdp::open(&options).unwrap_or_else(|error| panic!("{error}"));
    let lanes = run.lanes.drain(..).zip([session]).map(|(lane, session)| LiveLane::new(lane, session)).collect();
    let stats = [Arc::new(LaneStats::default())];
    let stop = CancelToken::new();
    let live = LiveOptions { closing: Closing::default(), dispatch, processors: vec![] };
    std::thread::scope(|scope| {
        let (stop, stats) = (&stop, &stats);
        let ran = scope.spawn(move || {
            let (lanes, error) =
                run_live(lanes, stats, &live, stop, || run.detach(), &mut |_: portcullis::pipeline::Event<'_>| {});
            assert!(error.is_none(), "{error:?}");
            drop(lanes);
            assert_eq!(run.accounts.frames().rest(), 0);
        });
        let rate = rate(|| stats[0].snapshot().carried.all());
        stop.cancel();
        ran.join().unwrap();
        rate
    })
}

/// A loop over xsk-rs that receives frames and gives them back.
fn bare(interface: &str) -> f64 {
    let umem = UmemConfig::builder()
        .frame_size(2048.try_into().unwrap())
        .fill_queue_size((FRAMES / 2).try_into().unwrap())
        .comp_queue_size((FRAMES / 4).try_into().unwrap())
        .build()
        .unwrap();
    let (umem, descs) = Umem::new(umem, FRAMES.try_into().unwrap(), false).unwrap();
    let config = SocketConfig::builder()
        .rx_queue_size((FRAMES / 4).try_into().unwrap())
        .tx_queue_size((FRAMES / 4).try_into().unwrap())
        .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
        .bind_flags(BindFlags::XDP_USE_NEED_WAKEUP)
        .build();
    let name: xsk_rs::config::Interface = interface.parse().unwrap();
    let begun = Instant::now();
    #[expect(unsafe_code, reason = "the library's")]
    let (_tx, mut rx, rings) = loop {
        // SAFETY: nobody else has this queue.
        match unsafe { Socket::new(config, &umem, &name, 0) } {
            Ok(made) => break made,
            Err(_) if begun.elapsed() < Duration::from_secs(2) => std::thread::sleep(Duration::from_millis(20)),
            Err(error) => panic!("{error}"),
        }
    };
    let (mut fill, _completion) = rings.unwrap();
    let program = Attached::new(interface, 1, &Steer::Default, &Default::default()).unwrap();
    program.set_socket(0, rx.fd()).unwrap();
    #[expect(unsafe_code, reason = "the library's")]
    // SAFETY: the frames are this UMEM's, and given once.
    unsafe {
        fill.produce(&descs[..FRAMES as usize / 2])
    };
    let (to, from) = channel::<()>();
    let count = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        let count = &count;
        let ran = scope.spawn(move || {
            let mut descs = [FrameDesc::default(); 64];
            while from.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                // SAFETY: what is received is given back once.
                #[expect(unsafe_code, reason = "the library's")]
                unsafe {
                    let came = rx.consume(&mut descs);
                    if came == 0 {
                        rx.poll(1).unwrap();
                        continue;
                    }
                    while fill.produce(&descs[..came]) == 0 {}
                    count.fetch_add(came as u64, std::sync::atomic::Ordering::Relaxed);
                }
            }
        });
        let rate = rate(|| count.load(std::sync::atomic::Ordering::Relaxed));
        drop(to);
        ran.join().unwrap();
        rate
    })
}
