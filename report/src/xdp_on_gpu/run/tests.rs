use std::collections::HashSet;

use portcullis_core::interp::InterpDevice;

use super::super::workloads::Workload;
use super::*;
use crate::faulty::{Fault, FaultyDevice};

/// Longer than any of these tests takes.
const GRACE: Duration = Duration::from_secs(60);

fn options(sizes: &[usize], all: bool) -> Options {
    Options {
        sizes: sizes.to_vec(),
        time: Duration::ZERO,
        grace: GRACE,
        confidence: 0.95,
        all,
        cancel: CancelToken::new(),
    }
}

/// A record kernel on the processor, wrong on request.
struct CpuRecords {
    memory: Vec<u8>,
    rule: fn(Fields) -> u8,
    wrong: bool,
}

impl RecordKernel for CpuRecords {
    fn host(&mut self) -> &mut [u8] {
        &mut self.memory
    }

    fn run(&mut self, count: usize, chunk: usize) -> Result<(), DeviceError> {
        assert!(chunk > 0);
        let (records, _) = self.memory.as_chunks_mut::<SIZE>();
        for record in &mut records[..count] {
            record[ACTION] = (self.rule)(Fields::from_record(record));
        }
        if self.wrong {
            records[3][ACTION] ^= 1;
        }
        Ok(())
    }
}

fn fake_records(wrong: bool) -> Box<OpenRecords> {
    Box::new(move |workload: &Workload, _, count, _| {
        Ok(Box::new(CpuRecords { memory: vec![0; count * SIZE], rule: workload.rule, wrong }))
    })
}

#[test]
fn every_column_has_every_side() {
    let side = Side { device: Arc::new(InterpDevice::new()), records: Some(fake_records(false)) };
    let options = options(&[100, 1000], false);
    let mut told = 0;
    let tables = run(&[side], &options, &mut |_| told += 1);
    assert_eq!((told, tables.len()), (options.columns(), 6));
    for table in &tables {
        assert_eq!(table.columns, [100, 1000]);
        let sources: HashSet<_> = table.rows.iter().map(|row| row.source).collect();
        assert_eq!(sources.len(), 4, "{}", table.title);
        let sides: Vec<&str> =
            table.rows.iter().filter(|row| row.source == Source::LikeForLike).map(|row| row.side.as_str()).collect();
        assert_eq!(
            sides,
            ["interp, pinned", "interp, pinned, parsed by one thread", "interp, pinned, parsed by all threads"]
        );
        for row in table.rows.iter().filter(|row| row.source != Source::Published) {
            for (cell, &column) in row.cells.iter().zip(&table.columns) {
                let Cell::Measured { packets, median_ns, low_ns, high_ns, samples } = *cell else {
                    panic!("{}, {}: {cell:?}", table.title, row.side)
                };
                assert_eq!(packets, column);
                assert!(low_ns > 0.0 && low_ns <= median_ns && median_ns <= high_ns && samples >= MIN_ROUNDS as u64);
            }
        }
    }
}

#[test]
fn wrong_sides_have_no_rate() {
    let device = FaultyDevice::new(Arc::new(InterpDevice::new()), Fault::SeventhVerdict);
    let side = Side { device: Arc::new(device), records: Some(fake_records(true)) };
    let tables = run(&[side], &options(&[100], false), &mut |_| ());
    for row in tables.iter().flat_map(|table| &table.rows) {
        let is_wrong = matches!(row.cells[0], Cell::Mismatch { .. });
        assert_eq!(is_wrong, matches!(row.source, Source::Portcullis | Source::LikeForLike), "{row:?}");
        if let Cell::Mismatch { reason } = &row.cells[0] {
            let first = if row.source == Source::Portcullis { "packet 6 " } else { "record 3 " };
            assert!(reason.starts_with(first), "{reason}");
        }
    }
}

#[test]
fn cancelling_ends_the_comparison() {
    let options = options(&[100, 1000], true);
    options.cancel.cancel();
    let tables = run(&[], &options, &mut |_| ());
    let cells = || tables.iter().flat_map(|table| &table.rows).filter(|row| row.source != Source::Published);
    assert!(cells().flat_map(|row| &row.cells).all(|cell| matches!(cell, Cell::None { .. })));
}

#[test]
fn late_columns_are_left_out_with_the_reason() {
    let side = Side { device: Arc::new(InterpDevice::new()), records: Some(fake_records(false)) };
    let options = options(&[100], false);
    for (late, is_left_out) in [(Duration::ZERO, false), (GRACE + Duration::from_secs(1), true)] {
        let Some(began) = Instant::now().checked_sub(late) else { continue };
        let mut told = 0;
        let mut progress = |_: &str| told += 1;
        let mut run = Run { options: &options, began, left: 1, progress: &mut progress };
        let table = measure_workload(&WORKLOADS[0], std::slice::from_ref(&side), &mut run);
        assert_eq!((run.left, told), (0, 1));
        let cells: Vec<_> = table.rows.iter().filter(|row| row.source != Source::Published).collect();
        assert_eq!(cells.len(), 5);
        for row in cells {
            let left_out = matches!(&row.cells[0], Cell::None { reason: Some(reason) } if reason == TIME_USED_UP);
            assert_eq!((left_out, row.cells[0].mpps().is_none()), (is_left_out, is_left_out), "{row:?}");
        }
    }
}

#[test]
fn columns_share_the_remaining_time() {
    let options = Options { time: Duration::from_secs(100), ..options(&[100], false) };
    let mut progress = |_: &str| ();
    let mut run = Run { options: &options, began: Instant::now(), left: 20, progress: &mut progress };
    let near = |found: Duration, wanted: f64| (wanted * 0.9..=wanted).contains(&found.as_secs_f64());
    assert!(near(run.budget(3), 2.5), "a fortieth, as getting ready takes the other half");
    assert_eq!(run.budget(1), MAX_SIDE_TIME);
    run.left = 1;
    assert_eq!(run.budget(3), 3 * MAX_SIDE_TIME);
    run.began = run.began.checked_sub(Duration::from_secs(101)).unwrap_or(run.began);
    assert!(run.budget(3) < Duration::from_secs(1) || run.began.elapsed() < Duration::from_secs(99));
}

/// The record kernels follow the rules on every OpenCL device.
#[cfg(feature = "opencl")]
#[test]
fn kernels_keep_to_the_rules() {
    let devices = match portcullis_opencl::probe() {
        Ok(devices) => devices,
        Err(error) => {
            eprintln!("skipped: {error}");
            assert!(!is_demanded("opencl"), "{error}");
            return;
        }
    };
    for device in devices {
        let open = open_records(&device.info().id).expect("it was found");
        for workload in &super::super::workloads::WORKLOADS {
            for memory in [HostMemory::Pageable, HostMemory::Pinned, HostMemory::Imported] {
                // A chunk size that divides the count, one that does not, and one above it.
                for chunk in [1000, 300, 5000] {
                    let mut records = open(workload, memory, 3000, chunk).unwrap();
                    fill(records.host(), workload, 3000);
                    records.run(3000, chunk).unwrap();
                    let wrong = first_wrong(records.host(), workload, 3000);
                    assert_eq!(wrong, None, "{}, {}, {chunk} at a time", workload.name, memory.name());
                }
            }
        }
    }
}

#[cfg(feature = "opencl")]
fn is_demanded(device: &str) -> bool {
    std::env::var("PORTCULLIS_REQUIRE").is_ok_and(|all| all.split(',').any(|one| one == device))
}
