//! Tests of the capture pipeline: packet order, totals, and every way in which a run can end early.

use std::io;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use portcullis::Filter;
use portcullis::device::{CancelToken, DeviceError, LoadOptions, Session};
use portcullis::devices;
use portcullis::map::layout::HEADER_WORDS;
use portcullis::packet::{Batch, VerdictCounts};
use portcullis::packet_io::synth::{Spec, SynthSource};
use portcullis::packet_io::{CaptureFormat, Progress, Sink, SinkError, Source, SourceError, SourceOptions, Written};
use portcullis::pipeline::{self, Event, Observer, Outputs, PipelineError, RunOutcome};

/// A session on the no-op device, which passes all packets.
fn session() -> Box<dyn Session> {
    let text = "fn xdp_filter(pkt: u32) -> u32 { return XDP_PASS; }";
    let program = Filter::wgsl(text).compile().unwrap();
    devices::open("noop").unwrap().load(&program, &LoadOptions::default()).unwrap()
}

fn synthetic(packets: u64, a_batch: usize) -> Box<dyn Source> {
    let options = SourceOptions::default().with_max_packets(a_batch);
    Box::new(SynthSource::new(&Spec { packets, ..Spec::default() }, &options))
}

/// A sink that keeps copies of its packets and fails once it has a certain number.
#[derive(Clone)]
struct RecordingSink {
    packets: Arc<Mutex<Vec<Vec<u8>>>>,
    most: usize,
    finished: Arc<Mutex<bool>>,
}

impl RecordingSink {
    fn new(most: usize) -> RecordingSink {
        RecordingSink { packets: Arc::default(), most, finished: Arc::default() }
    }

    fn outputs(&self) -> Outputs {
        Outputs::new(Some(Box::new(self.clone())), None, None)
    }

    fn packets(&self) -> Vec<Vec<u8>> {
        self.packets.lock().unwrap().clone()
    }

    fn is_finished(&self) -> bool {
        *self.finished.lock().unwrap()
    }
}

impl Sink for RecordingSink {
    fn write(&mut self, batch: &Batch, indices: &[u32]) -> Result<(), SinkError> {
        let mut packets = self.packets.lock().unwrap();
        packets.extend(indices.iter().map(|&i| batch.packet(i as usize).to_vec()));
        if packets.len() > self.most {
            return Err(SinkError::Write { name: "kept".into(), error: io::ErrorKind::StorageFull.into() });
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Written, SinkError> {
        *self.finished.lock().unwrap() = true;
        Ok(Written::default())
    }
}

fn run(source: Box<dyn Source>, outputs: Outputs) -> RunOutcome {
    pipeline::run(source, &mut *session(), outputs, &CancelToken::new(), &mut |_: Event<'_>| {})
}

#[test]
fn packets_keep_their_order_and_are_all_counted() {
    let mut expected = Vec::new();
    let mut source = synthetic(5000, usize::MAX);
    while let Some(batch) = source.next_batch().unwrap() {
        expected.extend(batch.packets().map(<[u8]>::to_vec));
    }
    for a_batch in [1, 7, 5000] {
        let kept = RecordingSink::new(usize::MAX);
        let mut seen = 0;
        let mut observe = |event: Event<'_>| {
            if let Event::Batch { totals, .. } = event {
                assert!(totals.packets > seen);
                seen = totals.packets;
            }
        };
        let finished =
            pipeline::run(synthetic(5000, a_batch), &mut *session(), kept.outputs(), &CancelToken::new(), &mut observe);
        assert!(finished.error.is_none() && !finished.stopped);
        assert_eq!(finished.totals.packets, 5000);
        assert_eq!(finished.totals.bytes, expected.iter().map(|p| p.len() as u64).sum::<u64>());
        assert_eq!(finished.totals.verdicts, VerdictCounts { pass: 5000, ..VerdictCounts::default() });
        assert_eq!(seen, 5000);
        assert!(kept.packets() == expected && kept.is_finished());
    }
}

#[test]
fn a_stop_completes_the_batches_in_flight() {
    let kept = RecordingSink::new(usize::MAX);
    let stop = CancelToken::new();
    let mut observe = |event: Event<'_>| {
        if let Event::Batch { .. } = event {
            stop.cancel();
        }
    };
    let finished = pipeline::run(synthetic(u64::MAX, 10), &mut *session(), kept.outputs(), &stop, &mut observe);
    assert!(finished.stopped && finished.error.is_none());
    assert!(finished.totals.packets > 0);
    assert_eq!(kept.packets().len() as u64, finished.totals.packets);
    assert!(kept.is_finished());
}

#[test]
fn a_failing_sink_ends_an_endless_run() {
    let kept = RecordingSink::new(25);
    let finished = run(synthetic(u64::MAX, 10), kept.outputs());
    assert!(matches!(finished.error, Some(PipelineError::Sink(_))), "{:?}", finished.error);
    assert!(!finished.error.unwrap().is_broken_pipe());
}

#[test]
fn a_failing_sink_leaves_the_others_finished() {
    let (full, other) = (RecordingSink::new(25), RecordingSink::new(usize::MAX));
    let outputs = Outputs::new(Some(Box::new(full.clone())), Some(Box::new(other.clone())), None);
    let finished = run(synthetic(100, 10), outputs);
    assert!(matches!(finished.error, Some(PipelineError::Sink(_))), "{:?}", finished.error);
    assert!(other.is_finished());
    assert!(!full.is_finished(), "it is of no more use");
}

/// A source that returns what it is sent, blocks while nothing is sent, and ends with an error.
struct Live {
    batches: Receiver<Batch>,
    format: CaptureFormat,
}

impl Source for Live {
    fn next_batch(&mut self) -> Result<Option<Batch>, SourceError> {
        self.batches.recv().map(Some).map_err(|_| SourceError::Empty { name: "live".into() })
    }

    fn format(&self) -> &CaptureFormat {
        &self.format
    }

    fn progress(&self) -> Progress {
        Progress::default()
    }
}

#[test]
fn packets_before_an_error_of_the_source_are_written() {
    let (send, batches) = channel();
    for byte in 0..5u8 {
        send.send(Batch::from_packets(&[[byte; 60], [byte; 60]]).unwrap()).unwrap();
    }
    drop(send);
    let kept = RecordingSink::new(usize::MAX);
    let finished = run(Box::new(Live { batches, format: CaptureFormat::default() }), kept.outputs());
    assert!(matches!(finished.error, Some(PipelineError::Source(SourceError::Empty { .. }))));
    assert_eq!(finished.totals.packets, 10);
    assert_eq!(kept.packets().len(), 10);
    assert!(kept.is_finished());
}

/// A source that blocks on input must not delay a stop.
#[test]
fn a_stop_does_not_wait_for_a_blocking_source() {
    let (send, batches) = channel();
    send.send(Batch::from_packets(&[[1u8; 60]]).unwrap()).unwrap();
    let kept = RecordingSink::new(usize::MAX);
    let stop = CancelToken::new();
    let mut observe = |event: Event<'_>| {
        if let Event::Batch { .. } = event {
            stop.cancel();
        }
    };
    let source = Box::new(Live { batches, format: CaptureFormat::default() });
    let finished = pipeline::run(source, &mut *session(), kept.outputs(), &stop, &mut observe);
    assert!(finished.stopped && finished.error.is_none());
    assert_eq!(kept.packets(), [[1u8; 60]]);
    assert!(kept.is_finished());
    // The source has been blocking all along.
    drop(send);
}

/// A source that blocks on input must not delay the error of a sink either.
#[test]
fn an_error_of_a_sink_does_not_wait_for_a_blocking_source() {
    let (send, batches) = channel();
    send.send(Batch::from_packets(&[[1u8; 60]]).unwrap()).unwrap();
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let source = Box::new(Live { batches, format: CaptureFormat::default() });
        let _ = tell.send(run(source, RecordingSink::new(0).outputs()));
    });
    let finished = told.recv_timeout(Duration::from_secs(30)).expect("it waits for the source");
    assert!(matches!(finished.error, Some(PipelineError::Sink(_))), "{:?}", finished.error);
    drop(send);
}

/// Sets a number in a map before each batch.
struct Numbering {
    batches: u32,
}

impl Observer for Numbering {
    fn on_event(&mut self, _: Event<'_>) {}

    fn on_batch_boundary(&mut self, session: &mut dyn Session, _: usize) -> Result<(), DeviceError> {
        self.batches += 1;
        session.set_map_words(0, HEADER_WORDS as usize, &[self.batches])
    }
}

#[test]
fn map_changes_at_a_boundary_affect_only_later_batches() {
    let text = "//! map number: array value=1 entries=1
        fn xdp_filter(pkt: u32) -> u32 { store_be32(pkt, 0u, number_read(0u, 0u)); return XDP_PASS; }";
    let program = Filter::wgsl(text).compile().unwrap();
    for device in ["cpu", "interp"] {
        let Ok(device) = devices::open(device) else { continue };
        let mut session = device.load(&program, &LoadOptions::default()).unwrap();
        let (kept, mut numbering) = (RecordingSink::new(usize::MAX), Numbering { batches: 0 });
        let source = synthetic(500, 70);
        let finished = pipeline::run(source, &mut *session, kept.outputs(), &CancelToken::new(), &mut numbering);
        assert!(finished.error.is_none() && numbering.batches == 8, "{finished:?}");
        for (index, packet) in kept.packets().iter().enumerate() {
            let number = u32::from_be_bytes(packet[..4].try_into().unwrap());
            assert_eq!(number, index as u32 / 70 + 1, "packet {index}");
        }
    }
}

#[test]
fn an_error_at_a_boundary_ends_the_run() {
    struct Failing;
    impl Observer for Failing {
        fn on_event(&mut self, _: Event<'_>) {}
        fn on_batch_boundary(&mut self, session: &mut dyn Session, _: usize) -> Result<(), DeviceError> {
            session.set_map_words(7, 0, &[1])
        }
    }
    let kept = RecordingSink::new(usize::MAX);
    let stop = CancelToken::new();
    let finished = pipeline::run(synthetic(500, 70), &mut *session(), kept.outputs(), &stop, &mut Failing);
    assert!(matches!(finished.error, Some(PipelineError::Device(_))), "{finished:?}");
    assert!(kept.is_finished() && kept.packets().is_empty());
}
