//! Verdicts carried out on frames of AF_XDP sockets, seen from the other side of the link.
#![cfg(all(target_os = "linux", feature = "af-xdp"))]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use portcullis_core::device::{Done, StageTimes};
use portcullis_core::packet::{Batch, Room, Verdicts};
use portcullis_io::af_xdp::{self, AfXdp, Copying, Frames, Lanes, Options, Steer};
use portcullis_io::live::{Carried, Loss, Received};
use portcullis_live_tests::{Namespace, PacketSocket, Suite, Veth};

/// Long enough for whatever is to happen, on a busy machine, too.
const SOON: Duration = Duration::from_secs(20);

/// Long enough to see that nothing happens.
const NOTHING: Duration = Duration::from_millis(300);

const DROP: u32 = 1;
const PASS: u32 = 2;
const TX: u32 = 3;

fn redirect(target: u32) -> u32 {
    4 | target << 8
}

fn options(ports: &[&str]) -> Options {
    Options {
        ports: ports.iter().map(|port| port.parse().unwrap()).collect(),
        redirect: Vec::new(),
        stack: None,
        lanes: Lanes::Each,
        // Kernels have things to say to each other, too.
        steer: "ethertype/0x88b5".parse().map(Steer::Only).unwrap(),
        mode: None,
        copying: Copying::Auto,
        busy_poll: None,
        huge_pages: false,
        room: Room::Both,
        metadata: true,
        rewrites: false,
        frames: 512,
    }
}

/// How a run ended.
struct Ended {
    received: Vec<Received>,
    carried: Vec<Carried>,
    frames: Frames,
}

impl Ended {
    fn sum(&self, of: impl Fn(&Carried) -> u64) -> u64 {
        self.carried.iter().map(of).sum()
    }
}

/// Runs lanes in a namespace with a filter that is a function, while `meanwhile` happens.
fn run<T>(
    namespace: &Namespace,
    options: &Options,
    filter: impl Fn(&mut Batch) -> Vec<u32> + Sync,
    meanwhile: impl FnOnce() -> T,
) -> (T, Ended) {
    let (ready, is_ready) = channel();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            namespace.run(|| {
                let mut run: AfXdp = af_xdp::open(options).unwrap_or_else(|error| panic!("{error}"));
                println!("{:?}", run.ports);
                ready.send(()).unwrap();
                loop {
                    let is_last = stop.load(Ordering::Relaxed);
                    if is_last {
                        run.detach();
                    }
                    let mut packets = 0;
                    for lane in &mut run.lanes {
                        packets += lane.receiver.receive(64).unwrap();
                        if let Some(mut batch) = lane.receiver.close() {
                            let returns = filter(&mut batch);
                            let verdicts = Verdicts::from_returns(&returns, true);
                            lane.executor.carry_out(Done { batch, verdicts, times: StageTimes::default() }).unwrap();
                        }
                        lane.executor.tend().unwrap();
                    }
                    if packets == 0 && is_last {
                        break;
                    }
                    if packets == 0 {
                        run.lanes[0].receiver.wait(Duration::from_micros(500)).unwrap();
                    }
                }
                let received = run.lanes.iter_mut().map(|lane| lane.receiver.received()).collect();
                let carried = run.lanes.iter().map(|lane| *lane.executor.carried()).collect();
                Ended { received, carried, frames: run.accounts.frames() }
            })
        });
        is_ready.recv_timeout(SOON).expect("the ports are open");
        let result = meanwhile();
        stop.store(true, Ordering::Relaxed);
        let ended = run.join().unwrap();
        assert_eq!(ended.frames.rest(), 0, "{:?}", ended.frames);
        (result, ended)
    })
}

/// A frame from the left to the right, of an EtherType for experiments (IEEE 802), which no kernel answers.
fn frame(veth: &Veth, number: u32, length: usize) -> Vec<u8> {
    let mut frame = [&veth.right.mac()[..], &veth.left.mac(), &[0x88, 0xb5], &number.to_be_bytes()].concat();
    let filler = (frame.len()..length).map(|at| (at as u32 ^ number) as u8);
    frame.extend(filler.collect::<Vec<_>>());
    frame
}

#[test]
fn a_verdict_of_tx_sends_a_frame_back_as_the_filter_has_left_it() {
    let Some(_suite) = Suite::begin("AF_XDP verdicts", "af-xdp", &[]) else { return };
    let (left, right) = (Namespace::new(), Namespace::new());
    let veth = Veth::between(&left, &right).make();
    let mut peer = PacketSocket::at(&veth.left);
    // Each frame goes back with its addresses swapped, cut at its front, at its end, or grown on both.
    let filter = |batch: &mut Batch| {
        for index in 0..batch.len() {
            let packet = batch.packet_mut(index);
            let (to, from) = packet.split_at_mut(6);
            to.swap_with_slice(&mut from[..6]);
        }
        let moved = batch.descriptors().iter().enumerate().map(|(index, now)| {
            let number = u32::from_be_bytes(batch.packet(index)[14..18].try_into().unwrap());
            let mut now = *now;
            match number % 4 {
                1 => (now.offset, now.length) = (now.offset + 4, now.length - 4),
                2 => now.length -= 10,
                3 => (now.offset, now.length) = (now.offset - 2, now.length + 2 + 1),
                _ => {}
            }
            now
        });
        let moved = moved.collect();
        batch.resize(moved).unwrap();
        vec![TX; batch.len()]
    };
    let lengths = [60, 61, 128, 700, 1513, 1514];
    let (came, ended) = run(&right, &options(&[&format!("{}:0", veth.right.name())]), filter, || {
        let mut came = Vec::new();
        for number in 0..600 {
            peer.send(&frame(&veth, number, lengths[number as usize % 6]));
            came.push(peer.receive_where(SOON, |frame| frame.ether_type() != 0x86dd).expect("it comes back").bytes);
        }
        came
    });
    for (number, came) in (0..).zip(came) {
        let mut want = frame(&veth, number, lengths[number as usize % 6]);
        let (to, from) = want.split_at_mut(6);
        to.swap_with_slice(&mut from[..6]);
        match number % 4 {
            1 => assert_eq!(came, want[4..], "{number}"),
            2 => assert_eq!(came, want[..want.len() - 10], "{number}"),
            // What was before and behind it is anybody's.
            3 => assert_eq!((&came[2..2 + want.len()], came.len()), (&want[..], want.len() + 3), "{number}"),
            _ => assert_eq!(came, want, "{number}"),
        }
    }
    assert_eq!((ended.received[0].packets, ended.sum(|it| it.of(portcullis_core::packet::Action::Tx))), (600, 600));
}

#[test]
fn frames_are_redirected_to_other_ports_dropped_or_lost_for_a_reason() {
    let Some(_suite) = Suite::begin("AF_XDP verdicts", "af-xdp", &[]) else { return };
    let (left, right, other) = (Namespace::new(), Namespace::new(), Namespace::new());
    let veth = Veth::between(&left, &right).make();
    let beyond = Veth::between(&other, &right).subnet(2).make();
    let mut peer = PacketSocket::at(&veth.left);
    let mut far = PacketSocket::at(&beyond.left);
    let filter = |batch: &mut Batch| {
        let number = |index| u32::from_be_bytes(batch.packet(index)[14..18].try_into().unwrap());
        let verdict = |number| [DROP, redirect(3), PASS, redirect(9), 0, TX][number as usize % 6];
        (0..batch.len()).map(|index| verdict(number(index))).collect()
    };
    let mut options = options(&[&format!("{}:0", veth.right.name())]);
    options.redirect.push((3, beyond.right.name().into()));
    let ((), ended) = run(&right, &options, filter, || {
        for number in 0..3000 {
            peer.send(&frame(&veth, number, 60 + number as usize % 1000));
            match number % 6 {
                1 => {
                    let came = far.receive_where(SOON, |frame| frame.ether_type() == 0x88b5).expect("it is redirected");
                    assert_eq!(came.bytes, frame(&veth, number, 60 + number as usize % 1000));
                }
                5 => {
                    let came = peer.receive_where(SOON, |frame| frame.ether_type() == 0x88b5).expect("it comes back");
                    assert_eq!(came.bytes, frame(&veth, number, 60 + number as usize % 1000));
                }
                _ => {}
            }
        }
        assert!(far.receive_where(NOTHING, |frame| frame.ether_type() == 0x88b5).is_none());
        assert!(peer.receive_where(NOTHING, |frame| frame.ether_type() == 0x88b5).is_none());
    });
    assert_eq!(ended.received[0].packets, 3000);
    assert_eq!(ended.carried[0].packets, [0, 500, 0, 500, 500]);
    let losses = ended.carried[0].losses;
    let lost = [Loss::NoStack, Loss::NoTarget, Loss::Aborted].map(|loss| losses.of(loss));
    assert_eq!((lost, losses.all()), ([500, 500, 500], 1500));
}
