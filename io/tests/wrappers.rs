//! Wrapper sources, and the sink with a file for each target.

use std::path::Path;

use portcullis_core::packet::{Batch, ResizeRoom};
use portcullis_io::capture::CaptureSink;
use portcullis_io::wrap::{Fault, Faults, Limit, Repeat, Tee};
use portcullis_io::{
    CaptureFormat, RedirectSink, Resolution, Source, SourceError, SourceOptions, Warning, Written, open,
};

fn options(max_packets: usize) -> SourceOptions {
    SourceOptions::default().with_max_packets(max_packets)
}

fn synth(packets: u64, max_packets: usize) -> Box<dyn Source> {
    open(format!("synth:packets={packets},seed=3,size=64..200"), &options(max_packets)).unwrap()
}

fn drain(source: &mut dyn Source) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    while let Some(batch) = source.next_batch().unwrap() {
        packets.extend(batch.packets().map(<[u8]>::to_vec));
    }
    packets
}

#[test]
fn limit_ends_after_exactly_that_many_packets() {
    let all = drain(&mut *synth(100, 1000));
    for limit in [0u64, 1, 29, 30, 31, 60, 99, 100, 101, u64::MAX] {
        let got = drain(&mut Limit::new(synth(100, 30), limit));
        assert_eq!(got, all[..(limit as usize).min(100)], "{limit}");
    }
}

#[test]
fn repeat_returns_all_packets_that_many_times() {
    let all = drain(&mut *synth(100, 1000));
    let mut repeat = Repeat::new(3, || Ok(synth(100, 30))).unwrap();
    assert_eq!(repeat.progress().total, Some(300));
    assert_eq!(drain(&mut repeat), [&all[..], &all, &all].concat());
    assert_eq!(repeat.progress().done, 300);
    assert!(drain(&mut Repeat::new(0, || Ok(synth(100, 30))).unwrap()).is_empty());
    // An empty source is not reopened forever.
    assert!(drain(&mut Repeat::new(u64::MAX, || Ok(synth(0, 30))).unwrap()).is_empty());
}

#[test]
fn repeat_reports_errors_of_reopening() {
    let mut rounds = 0;
    let mut repeat = Repeat::new(3, move || {
        rounds += 1;
        if rounds == 2 { open("/nowhere", &options(1)) } else { Ok(synth(1, 1)) }
    })
    .unwrap();
    assert_eq!(repeat.next_batch().unwrap().unwrap().len(), 1);
    assert!(matches!(repeat.next_batch(), Err(SourceError::Open { .. })));
    assert!(matches!(repeat.next_batch(), Ok(None)));
}

#[test]
fn repeat_reports_the_same_warning_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cut.pcap");
    portcullis_io::synth::sample::write(&"packets=10".parse().unwrap(), &path).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.pop();
    std::fs::write(&path, bytes).unwrap();
    let mut repeat = Repeat::new(4, move || open(path.to_str().unwrap(), &options(100))).unwrap();
    assert_eq!(drain(&mut repeat).len(), 36);
    assert!(matches!(repeat.take_warnings()[..], [Warning::Truncated { .. }]));
}

#[test]
fn tee_writes_packets_before_they_are_changed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("copy.pcapng");
    let all = drain(&mut *synth(100, 1000));
    let inner = synth(100, 30);
    let sink = CaptureSink::create(&path, inner.format()).unwrap();
    let mut tee = Tee::new(inner, Box::new(sink));
    while let Some(mut batch) = tee.next_batch().unwrap() {
        for i in 0..batch.len() {
            batch.packet_mut(i).fill(0);
        }
    }
    // The sink is finished at the source's end, while the wrapper still exists.
    assert_eq!(drain(&mut *open(path.to_str().unwrap(), &options(1000)).unwrap()), all);
    // If the wrapper is dropped early, the copy has the packets seen so far.
    let inner = synth(100, 30);
    let sink = CaptureSink::create(&path, inner.format()).unwrap();
    let mut tee = Tee::new(inner, Box::new(sink));
    tee.next_batch().unwrap();
    drop(tee);
    assert_eq!(drain(&mut *open(path.to_str().unwrap(), &options(1000)).unwrap()), all[..30]);
}

#[test]
fn faults_occur_at_their_rates_and_are_reproducible() {
    let all = drain(&mut *synth(4000, 100_000));
    let faults = Faults { corrupt_one_in: 4, truncate_one_in: 10, seed: 1 };
    let damaged = |max_packets, room| {
        let options = options(max_packets).with_room(room);
        let inner = open("synth:packets=4000,seed=3,size=64..200", &options).unwrap();
        drain(&mut Fault::new(inner, faults))
    };
    let got = damaged(100_000, ResizeRoom::None);
    assert!(got == damaged(7, ResizeRoom::Both));
    let mut cut = 0;
    let mut flipped = 0;
    for (before, after) in all.iter().zip(&got) {
        cut += usize::from(after.len() < before.len());
        let bits: u32 = before.iter().zip(after).map(|(a, b)| (a ^ b).count_ones()).sum();
        assert!(bits <= 1);
        flipped += bits;
    }
    // Means 400 and 1,000 (less those truncated away), standard deviations 19 and 27.
    assert!((310..490).contains(&cut), "{cut}");
    assert!((850..1100).contains(&flipped), "{flipped}");
    assert!(drain(&mut Fault::new(synth(4000, 100_000), Faults::default())) == all);
}

fn read_file(path: &Path) -> Vec<Vec<u8>> {
    drain(&mut *open(path.to_str().unwrap(), &options(usize::MAX)).unwrap())
}

#[test]
fn every_target_gets_its_packets_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let inner = dir.path().join("a/b");
    let format = CaptureFormat { resolution: Resolution::Micro, ..CaptureFormat::default() };
    let mut sink = RedirectSink::create(&inner, &format).unwrap();
    // More targets than open files, in several rounds, with packets longer than a buffer.
    let mut wanted = vec![Vec::new(); 200];
    let mut written = Written::default();
    for round in 0..3 {
        let packets: Vec<Vec<u8>> = (0..200)
            .map(|target| vec![(target + round) as u8; if target % 50 == 7 { 20_000 } else { 1500 + target }])
            .collect();
        let batch = Batch::from_packets(&packets).unwrap();
        let targets: Vec<u32> = (0..200).map(|target| target * 80_000).collect();
        for _ in 0..8 {
            let indices: Vec<u32> = (0..200).filter(|i| i % 3 != round as u32).collect();
            sink.write(&batch, &indices, &targets).unwrap();
            for &i in &indices {
                wanted[i as usize].push(packets[i as usize].clone());
                written.packets += 1;
                written.bytes += packets[i as usize].len() as u64;
            }
        }
    }
    assert_eq!(sink.finish().unwrap(), written);
    assert_eq!(std::fs::read_dir(&inner).unwrap().count(), 200);
    for (target, packets) in wanted.iter().enumerate() {
        assert!(&read_file(&inner.join(format!("{}.pcap", target * 80_000))) == packets, "{target}");
    }
}

#[test]
fn targets_beyond_the_limit_share_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut sink = RedirectSink::create(dir.path(), &CaptureFormat::default()).unwrap();
    let packets: Vec<Vec<u8>> = (0..1100u32).map(|i| i.to_be_bytes().repeat(15)).collect();
    let batch = Batch::from_packets(&packets).unwrap();
    // Not in numerical order: the first targets to occur get files.
    let targets: Vec<u32> = (0..1100).rev().collect();
    let indices: Vec<u32> = (0..1100).chain(0..1100).collect();
    sink.write(&batch, &indices, &targets).unwrap();
    sink.finish().unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1025);
    assert_eq!(read_file(&dir.path().join("1099.pcap")), [packets[0].clone(), packets[0].clone()]);
    assert_eq!(read_file(&dir.path().join("76.pcap")).len(), 2);
    assert!(!dir.path().join("75.pcap").exists());
    let others = read_file(&dir.path().join("other.pcap"));
    assert_eq!(others, [&packets[1024..], &packets[1024..]].concat());
}

#[test]
fn a_directory_that_cannot_be_created_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    std::fs::write(&path, b"x").unwrap();
    let error = RedirectSink::create(&path, &CaptureFormat::default()).unwrap_err().to_string();
    assert!(error.contains("file: cannot be created: "), "{error}");
}
