//! DPDK ports with a function as the filter. All tests share the process's EAL, without huge pages.
#![cfg(all(target_os = "linux", feature = "dpdk"))]

mod support;

use std::time::Instant;

use portcullis_core::packet::{Action, Descriptor, ResizeRoom};
use portcullis_io::dpdk::{Dpdk, DpdkError, Options, PassTarget, open};
use portcullis_io::live::{ExecutedCounts, Loss};
use support::{
    TIMEOUT, capture, close_and_check, drive, drive_once, drive_pipelined, drive_run, numbered, options, packets,
    redirect, write_mixed_capture,
};

#[test]
fn a_capture_is_received_and_transmitted_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.pcap");
    let mixed = folder.path().join("mixed.pcap");
    write_mixed_capture(&mixed);
    let want = packets(&mixed);
    let port = format!("net_pcap0,rx_pcap={},tx_pcap={}", mixed.display(), out.display());
    let ended = drive(&options(&[&port]), want.len() as u64, |_, batch| vec![Action::Tx as u32; batch.len()]);
    assert_eq!(ended.of(Action::Tx), want.len() as u64);
    assert_eq!(ended.received[0].bytes, want.iter().map(|packet| packet.len() as u64).sum::<u64>());
    assert_eq!(packets(&out), want);
}

#[test]
fn each_verdict_is_executed_or_counted_as_lost() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let want = numbered((0..700).map(|number| 60 + number % 900));
    capture(&file("in.pcap"), &want);
    let port = format!("net_pcap1,rx_pcap={},tx_pcap={}", file("in.pcap").display(), file("back.pcap").display());
    let other = format!("net_pcap2,tx_pcap={}", file("other.pcap").display());
    let options = options(&[&port]).with_redirect(vec![(3, other.parse().unwrap())]);
    let says = [Action::Drop as u32, Action::Pass as u32, Action::Tx as u32, redirect(3), redirect(4), 0, 99];
    let mut number = 0;
    let ended = drive(&options, 700, |_, batch| {
        let first = number;
        number += batch.len();
        assert_eq!(batch.packet(0), want[first]);
        assert_eq!(batch.metadata_of(0).port, 0);
        (first..number).map(|number| says[number % says.len()]).collect()
    });
    let of = |say: usize| want.iter().skip(say).step_by(says.len()).cloned().collect::<Vec<_>>();
    assert_eq!(packets(&file("back.pcap")), of(2));
    assert_eq!(packets(&file("other.pcap")), of(3));
    assert_eq!((ended.of(Action::Drop), ended.of(Action::Tx), ended.of(Action::Redirect)), (100, 100, 100));
    assert_eq!((ended.lost(Loss::NoStack), ended.lost(Loss::NoTarget), ended.lost(Loss::Aborted)), (100, 100, 200));
    let bytes = |say| of(say).iter().map(|packet| packet.len() as u64).sum::<u64>();
    assert_eq!(ended.carried[0].bytes, [0, bytes(0), 0, bytes(2), bytes(3)]);
}

#[test]
fn batches_of_one_verdict_are_executed_like_mixed_ones() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    // 64 packets are received at a time, so each verdict covers a whole batch; then one batch has
    // redirects to two targets, and the last one all verdicts.
    let want = numbered((0..7 * 64 + 12).map(|number| 60 + number));
    capture(&file("in.pcap"), &want);
    let port = format!("net_pcap11,rx_pcap={},tx_pcap={}", file("in.pcap").display(), file("back.pcap").display());
    let other = format!("net_pcap12,tx_pcap={}", file("other.pcap").display());
    let options = options(&[&port]).with_redirect(vec![(3, other.parse().unwrap())]);
    let says = [Action::Drop as u32, Action::Pass as u32, Action::Tx as u32, redirect(3), redirect(4), 0];
    let say = |number: usize| match number / 64 {
        batch @ 0..6 => batch,
        6 => 3 + number % 2,
        _ => number % 6,
    };
    let (mut number, mut whole) = (0, 0);
    let ended = drive(&options, want.len() as u64, |_, batch| {
        let first = number;
        number += batch.len();
        let is_whole = (first..number).all(|number| say(number) == say(first));
        whole += usize::from(is_whole);
        (first..number).map(|number| says[say(number)]).collect()
    });
    assert!(whole >= 6, "{whole}");
    let of = |it: usize| -> Vec<Vec<u8>> {
        want.iter().enumerate().filter(|(number, _)| say(*number) == it).map(|(_, packet)| packet.clone()).collect()
    };
    assert_eq!(packets(&file("back.pcap")), of(2));
    assert_eq!(packets(&file("other.pcap")), of(3));
    let bytes = |say| of(say).iter().map(|packet| packet.len() as u64).sum::<u64>();
    assert_eq!(ended.carried[0].packets, [0, 66, 0, 66, 66 + 32]);
    assert_eq!(ended.carried[0].bytes, [0, bytes(0), 0, bytes(2), bytes(3)]);
    assert_eq!((ended.lost(Loss::NoStack), ended.lost(Loss::NoTarget), ended.lost(Loss::Aborted)), (66, 66 + 32, 66));
}

#[test]
fn packets_of_a_shared_lane_return_to_their_own_ports() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let sent = [numbered(60..160), numbered((300..360).rev())];
    let port = |number: usize| {
        let (from, to) = (file(&format!("in{number}.pcap")), file(&format!("out{number}.pcap")));
        capture(&from, &sent[number]);
        format!("net_pcap{},rx_pcap={},tx_pcap={}", 13 + number, from.display(), to.display())
    };
    let options = options(&[&port(0), &port(1)]).with_one_lane(true);
    let ended = drive(&options, 160, |_, batch| vec![Action::Tx as u32; batch.len()]);
    assert_eq!(ended.of(Action::Tx), 160);
    assert_eq!([packets(&file("out0.pcap")), packets(&file("out1.pcap"))], sent);
}

#[test]
fn packets_without_room_in_the_tx_queue_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("in.pcap");
    let sent = numbered((0..1500).map(|number| 60 + number % 700));
    capture(&from, &sent);
    // The ring holds 1,023 packets until someone receives them.
    let port = format!("net_pcap15,rx_pcap={}", from.display());
    let ports = options(&[&port, "net_ring2"]);
    let mut run =
        open(&ports.with_redirect(vec![(1, "net_ring2".parse().unwrap())])).unwrap_or_else(|error| panic!("{error}"));
    let begun = Instant::now();
    let mut number = 0;
    while run.lanes[0].executor.executed().all() < 1500 {
        assert!(begun.elapsed() < TIMEOUT);
        drive_once(&mut run.lanes[0], |batch| {
            number += batch.len();
            // Every third packet of the second half is dropped: by then the ring is full.
            let dropped = |index: usize| number > 1200 && index.is_multiple_of(3);
            (0..batch.len()).map(|index| if dropped(index) { Action::Drop as u32 } else { redirect(1) }).collect()
        });
    }
    let carried = *run.lanes[0].executor.executed();
    let (dropped, lost) = (carried.of(Action::Drop), carried.losses.of(Loss::NoRoom));
    assert_eq!((carried.of(Action::Redirect), dropped + lost), (1023, 477));
    assert!(dropped > 0 && lost > 0, "{carried:?}");
    let bytes = sent[..1023].iter().map(|packet| packet.len() as u64).sum::<u64>();
    assert_eq!(carried.bytes[Action::Redirect as usize], bytes);
    let mut arrived = 0;
    while arrived < 1023 {
        assert!(begun.elapsed() < TIMEOUT);
        drive_once(&mut run.lanes[1], |batch| {
            arrived += batch.len();
            vec![Action::Drop as u32; batch.len()]
        });
    }
    close_and_check(run);
}

#[test]
fn passed_packets_go_to_their_port() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let want = numbered((0..300).map(|number| 60 + number));
    capture(&file("in.pcap"), &want);
    let port = format!("net_pcap9,rx_pcap={},tx_pcap={}", file("in.pcap").display(), file("back.pcap").display());
    let stack = format!("net_pcap10,tx_pcap={}", file("stack.pcap").display());
    let options = options(&[&port]).with_pass_to(Some(stack.parse::<PassTarget>().unwrap()));
    let ended = drive(&options, 300, |_, batch| vec![Action::Pass as u32; batch.len()]);
    assert_eq!((ended.of(Action::Pass), ended.lost(Loss::NoStack)), (300, 0));
    assert_eq!((packets(&file("stack.pcap")), packets(&file("back.pcap"))), (want, vec![]));
}

#[test]
fn packets_left_in_rings_are_freed_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("in.pcap");
    capture(&from, &numbered((0..1000).map(|number| 60 + number)));
    let port = |number: usize| format!("net_pcap{number},rx_pcap={}", from.display());
    // Packets stay in a ring when its port is closed.
    let redirects = options(&[&port(17)]).with_redirect(vec![(3, "net_ring3".parse().unwrap())]);
    let ended = drive(&redirects, 1000, |_, batch| vec![redirect(3); batch.len()]);
    assert_eq!(ended.of(Action::Redirect), 1000);
    let passes = options(&[&port(18)]).with_pass_to(Some("net_ring4".parse().unwrap()));
    let mut run = open(&passes).unwrap_or_else(|error| panic!("{error}"));
    // From now on nothing is received from the destination of passed packets.
    run.stop();
    let ended = drive_run(run, 1000, |_, batch| vec![Action::Pass as u32; batch.len()]);
    assert_eq!((ended.of(Action::Pass), ended.carried[0].from_stack), (1000, 0));
}

/// Passes all packets of a run with one lane, until `count` have been forwarded back or lost.
fn pass_and_come_back(options: &Options, count: u64) -> ExecutedCounts {
    let mut run = open(options).unwrap_or_else(|error| panic!("{error}"));
    let begun = Instant::now();
    let came = |run: &Dpdk| {
        let carried = run.lanes[0].executor.executed();
        carried.from_stack + carried.from_stack_lost
    };
    while came(&run) < count {
        assert!(begun.elapsed() < TIMEOUT, "{:?}", run.lanes[0].executor.executed());
        drive_once(&mut run.lanes[0], |batch| vec![Action::Pass as u32; batch.len()]);
        run.lanes[0].executor.poll().unwrap();
    }
    let carried = *run.lanes[0].executor.executed();
    close_and_check(run);
    carried
}

#[test]
fn packets_from_the_stack_are_forwarded_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let sent = numbered((0..600).map(|number| 60 + number * 3));
    capture(&file("in.pcap"), &sent);
    // With two segments, and contiguous.
    for (number, split) in [Some(64), None].into_iter().enumerate() {
        let out = file(&format!("out{number}.pcap"));
        let port = format!("net_pcap{},rx_pcap={},tx_pcap={}", 21 + number, file("in.pcap").display(), out.display());
        let ring = format!("net_ring{}", 6 + number);
        let options =
            options(&[&port]).with_split(split).with_room(ResizeRoom::None).with_pass_to(Some(ring.parse().unwrap()));
        let carried = pass_and_come_back(&options, 600);
        assert_eq!((carried.of(Action::Pass), carried.from_stack, carried.from_stack_lost), (600, 600, 0));
        assert_eq!(packets(&out), sent);
    }
}

#[test]
fn malformed_packets_from_the_stack_are_counted() {
    // This driver claims that all packets are longer than their buffers.
    for (number, split) in [Some(64), None].into_iter().enumerate() {
        let null = format!("net_null{},size=9000", 5 + number);
        let port = format!("net_ring{}", 8 + number);
        let options =
            options(&[&port]).with_split(split).with_room(ResizeRoom::None).with_pass_to(Some(null.parse().unwrap()));
        let carried = pass_and_come_back(&options, 100);
        assert!(carried.from_stack == 0 && carried.from_stack_lost >= 100, "{carried:?}");
    }
}

#[test]
fn packets_from_the_stack_left_at_the_end_are_counted() {
    // The ring holds 1,023 packets, because nobody receives from it; others wait.
    let options = options(&["net_ring10"]).with_pass_to(Some("net_null7".parse().unwrap()));
    let mut run = open(&options).unwrap_or_else(|error| panic!("{error}"));
    let executor = &mut run.lanes[0].executor;
    for _ in 0..20 {
        executor.poll().unwrap();
    }
    executor.finish().unwrap();
    let carried = executor.executed();
    assert_eq!((carried.from_stack, carried.from_stack_lost), (1023, 1));
    close_and_check(run);
}

#[test]
fn packets_are_transmitted_with_the_lengths_that_the_filter_sets() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let sent = numbered([60, 100, 1500, 2048, 2100, 9000, 60]);
    capture(&file("in.pcap"), &sent);
    let port = format!("net_pcap3,rx_pcap={},tx_pcap={}", file("in.pcap").display(), file("out.pcap").display());
    // In turn: 128 bytes more at both ends, 20 less at the start, unchanged.
    let change = |index: usize, Descriptor { offset, length }: Descriptor| match index % 3 {
        0 => Descriptor { offset: offset - 128, length: length + 256 },
        1 => Descriptor { offset: offset + 20, length: length - 20 },
        _ => Descriptor { offset, length },
    };
    let mut number = 0;
    drive(&options(&[&port]), 7, |_, batch| {
        let changed = batch.descriptors().to_vec().into_iter().map(|it| {
            number += 1;
            change(number - 1, it)
        });
        let changed: Vec<Descriptor> = changed.collect();
        batch.resize(changed.clone()).unwrap();
        for (index, it) in changed.iter().enumerate().filter(|(_, it)| it.length % 2 == 0) {
            // Headroom and tailroom are writable to both ends.
            let packet = batch.packet_mut(index);
            (packet[0], packet[it.length as usize - 1]) = (0xaa, 0xbb);
        }
        vec![Action::Tx as u32; changed.len()]
    });
    let out = packets(&file("out.pcap"));
    assert_eq!(out.len(), sent.len());
    for (number, (out, sent)) in out.iter().zip(&sent).enumerate() {
        // The contents of headroom and tailroom are unspecified.
        let memory: Vec<Option<u8>> =
            [vec![None; 128], sent.iter().copied().map(Some).collect(), vec![None; 128]].concat();
        let Descriptor { offset, length } = change(number, Descriptor { offset: 128, length: sent.len() as u32 });
        let mut want = memory[offset as usize..(offset + length) as usize].to_vec();
        if length % 2 == 0 {
            (want[0], want[length as usize - 1]) = (Some(0xaa), Some(0xbb));
        }
        let is_so =
            out.len() == want.len() && out.iter().zip(&want).all(|(out, want)| want.is_none_or(|want| want == *out));
        assert!(is_so, "packet {number}: {out:x?}");
    }
}

#[test]
fn long_packets_are_linearised() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let sent = numbered([60, 2304, 9018, 64, 65000, 1514]);
    capture(&file("in.pcap"), &sent);
    let port = format!("net_pcap4,rx_pcap={},tx_pcap={}", file("in.pcap").display(), file("out.pcap").display());
    let ended = drive(&options(&[&port]), 6, |_, batch| vec![Action::Tx as u32; batch.len()]);
    assert_eq!(ended.received[0].reassembled, 3);
    assert_eq!(packets(&file("out.pcap")), sent);
}

#[test]
fn more_long_packets_than_long_buffers_arrive_batch_by_batch() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let sent = numbered((0..1500).map(|number| if number % 3 == 0 { 60 + number } else { 4000 + number }));
    capture(&file("in.pcap"), &sent);
    let port = format!("net_pcap19,rx_pcap={},tx_pcap={}", file("in.pcap").display(), file("out.pcap").display());
    let received = drive_pipelined(&options(&[&port]), 1500).received[0];
    let bytes = sent.iter().map(|packet| packet.len() as u64).sum::<u64>();
    assert_eq!((received.packets, received.bytes, received.reassembled), (1500, bytes, 1000));
    assert_eq!((received.refused, received.dropped_by_kernel), (0, 0));
    assert_eq!(packets(&file("out.pcap")), sent);
}

#[test]
fn long_packets_are_dropped_if_long_buffers_stay_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("in.pcap");
    capture(&from, &numbered((0..900).map(|number| if number % 9 == 0 { 60 } else { 4000 })));
    let port = format!("net_pcap20,rx_pcap={}", from.display());
    let options = options(&[&port]).with_redirect(vec![(1, "net_ring5".parse().unwrap())]);
    let mut run = open(&options).unwrap_or_else(|error| panic!("{error}"));
    let begun = Instant::now();
    let received = loop {
        // Nobody receives from the ring.
        drive_once(&mut run.lanes[0], |batch| vec![redirect(1); batch.len()]);
        let received = run.lanes[0].receiver.received();
        if received.packets + received.dropped_by_kernel == 900 {
            break received;
        }
        assert!(begun.elapsed() < TIMEOUT, "{received:?}");
    };
    assert!((1..800).contains(&received.dropped_by_kernel), "{received:?}");
    // Short packets continue.
    assert_eq!((received.packets - received.reassembled, received.refused), (100, 0));
    close_and_check(run);
}

#[test]
fn packets_of_several_mempools_are_freed_to_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("in.pcap");
    // Far more long packets than long buffers.
    capture(&from, &numbered((0..400).map(|number| if number % 2 == 0 { 60 } else { 9018 })));
    let port = format!("net_pcap16,rx_pcap={}", from.display());
    let ended = drive(&options(&[&port]), 400, |_, batch| vec![Action::Drop as u32; batch.len()]);
    assert_eq!((ended.of(Action::Drop), ended.received[0].reassembled, ended.received[0].refused), (400, 200, 0));
}

#[test]
fn packets_are_forwarded_from_port_to_port() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let sent = numbered((0..500).map(|number| 60 + number));
    capture(&file("in.pcap"), &sent);
    // A ring returns what is sent into it.
    let first = format!("net_pcap5,rx_pcap={}", file("in.pcap").display());
    let last = format!("net_pcap6,tx_pcap={}", file("out.pcap").display());
    let ports = options(&[&first, "net_ring1"]);
    let redirects = vec![(1, "net_ring1".parse().unwrap()), (2, last.parse().unwrap())];
    let options = ports.with_redirect(redirects);
    let ended = drive(&options, 1000, |lane, batch| {
        assert!(batch.metadata().iter().all(|metadata| metadata.port as usize == lane));
        vec![redirect(lane as u32 + 1); batch.len()]
    });
    assert_eq!((ended.carried[0].of(Action::Redirect), ended.carried[1].of(Action::Redirect)), (500, 500));
    assert_eq!(packets(&file("out.pcap")), sent);
}

#[test]
fn a_dropped_batch_frees_its_mbufs() {
    let mut run = open(&options(&["net_null1"])).unwrap_or_else(|error| panic!("{error}"));
    let receiver = &mut run.lanes[0].receiver;
    while !receiver.is_full() {
        receiver.receive(256).unwrap();
    }
    let batch = receiver.take_batch().unwrap();
    assert!(batch.len() >= 2048, "{}", batch.len());
    assert!(receiver.receive(64).unwrap() > 0, "other mbufs are free");
    drop(batch);
    close_and_check(run);
}

#[test]
fn packets_longer_than_their_buffers_are_refused_and_freed() {
    // This driver claims that of all packets.
    let mut run = open(&options(&["net_null4,size=9000"])).unwrap_or_else(|error| panic!("{error}"));
    let receiver = &mut run.lanes[0].receiver;
    for _ in 0..10 {
        assert_eq!(receiver.receive(256).unwrap(), 0);
    }
    let received = receiver.received();
    assert_eq!((received.packets, received.bytes, received.refused), (0, 0, 2560));
    assert!(receiver.take_batch().is_none());
    close_and_check(run);
}

#[test]
fn errors_name_the_port_and_the_cause() {
    let said = |options: &Options| match open(options) {
        Ok(_) => panic!("{options:?} opens"),
        Err(error) => error.to_string(),
    };
    for (port, parts) in [
        ("net_nothing0", &["net_nothing0", "librte-net-nothing"][..]),
        ("net_pcap7,rx_pcap=/nowhere/in.pcap", &["net_pcap7", "/nowhere/in.pcap"]),
        ("net_null2,nonsense=1", &["net_null2", "nonsense"]),
    ] {
        let error = said(&options(&[port]));
        assert!(parts.iter().all(|part| error.contains(part)), "{port}: {error}");
    }
    let error = said(&options(&["net_pcap8,rx_pcap=/dev/null"]).with_queues(2));
    assert!(error.contains("net_pcap8"), "{error}");
    // A process initialises the EAL only once.
    let other = options(&["net_null3"]).with_eal(vec!["--log-level=8".into()]);
    assert!(matches!(open(&other), Err(DpdkError::Twice { .. })));
}
