use portcullis_conformance::filters;

use super::*;
use crate::faulty::{Fault, FaultyDevice};
use crate::traffic::Packets;

fn lane(id: &str, fault: Fault) -> Lane {
    let device = FaultyDevice::new(portcullis::devices::open(id).unwrap(), fault);
    let (transfer, dispatch) = (Transfer::Auto, Dispatch::Pipelined);
    Lane::new(Contender {
        device: Arc::new(device),
        id: format!("{id} {fault:?}"),
        threads: None,
        transfer,
        resident: false,
        dispatch,
    })
}

fn settings() -> Settings {
    Settings {
        confidence: 0.95,
        width: 0.5,
        least: 6,
        budget: Duration::from_millis(30),
        deadline: Instant::now() + Duration::from_secs(3600),
        loads: true,
        stop: CancelToken::new(),
        give_up: CancelToken::new(),
    }
}

/// Measures a stock filter in these lanes, over 300 packets in batches of 70.
fn measure_stock_filter(filter: &str, lanes: &mut [Lane], settings: &Settings) -> Vec<CellOutcome> {
    let all = [filters::cases(), filters::stateful()].concat();
    let program = all.iter().find(|case| case.name == filter).unwrap().compile().unwrap();
    let pool = Pool::new(Packets::Bytes(64), 300);
    let expected = Expected::of(&program, &pool, &*portcullis::devices::open("interp").unwrap()).unwrap();
    let subject =
        MeasuredFilter { program: &program, pool: &pool, expected: &expected, rotation: RING, memory: 1 << 30 };
    measure(lanes, subject, 70, settings, &mut |_| {}).unwrap()
}

#[test]
fn a_wrong_device_has_no_rate() {
    let mut lanes = [
        lane("cpu", Fault::Nothing),
        lane("cpu", Fault::Verdict(0)),
        lane("cpu", Fault::Byte),
        lane("noop", Fault::Nothing),
    ];
    let all = measure_stock_filter("port_filter", &mut lanes, &settings());
    let CellOutcome::Figures(figures) = &all[0] else { panic!("{:?}", all[0]) };
    assert!(figures.compared >= 2 * 70 * 936 && figures.repetitions >= 6, "{figures:?}");
    assert!(figures.packet.low > 0.0 && figures.latency.1 >= MIN_LATENCIES);
    assert_eq!(figures.loads.len(), LOADS.len());
    let CellOutcome::Mismatch(detail) = &all[1] else { panic!("{:?}", all[1]) };
    assert!(detail.starts_with("packet 69 of a batch of 70: "), "{detail}");
    // Packets that a filter does not write are not compared.
    assert!(matches!(all[2], CellOutcome::Figures(_)), "{:?}", all[2]);
    assert!(matches!(all[3], CellOutcome::Mismatch(_)), "{:?}", all[3]);

    let mut lanes = [lane("cpu", Fault::Nothing), lane("cpu", Fault::Byte)];
    let all = measure_stock_filter("mac_swap", &mut lanes, &settings());
    assert!(matches!(all[0], CellOutcome::Figures(_)), "{:?}", all[0]);
    let CellOutcome::Mismatch(detail) = &all[1] else { panic!("{:?}", all[1]) };
    assert!(detail.starts_with("packet 5 of a batch of 70, byte 63: 0x"), "{detail}");
}

/// After the deadline no filter is loaded and no batch sent, whatever the cell's own budget is.
#[test]
fn no_cell_starts_after_the_deadline() {
    let mut lanes = [lane("cpu", Fault::Nothing), lane("cpu", Fault::Nothing)];
    let settings = Settings { deadline: Instant::now(), budget: Duration::from_secs(3600), ..settings() };
    for outcome in measure_stock_filter("simple_filter", &mut lanes, &settings) {
        assert!(matches!(&outcome, CellOutcome::Absent(reason) if reason == TIME_USED_UP), "{outcome:?}");
    }
    assert!(lanes.iter().all(|lane| lane.session.is_none()), "no filter was loaded");
}

#[test]
fn a_device_that_becomes_wrong_while_timed_is_detected() {
    // The first comparison sends each batch once.
    let batches = (1 << 16) / 70;
    let all = measure_stock_filter("port_filter", &mut [lane("cpu", Fault::Verdict(batches + 100))], &settings());
    assert!(matches!(all[0], CellOutcome::Mismatch(_)), "{:?}", all[0]);
}

#[test]
fn a_lost_device_does_not_affect_others() {
    for at in [3, (1 << 16) / 70 + 100] {
        let mut lanes = [lane("cpu", Fault::Lost(at)), lane("cpu", Fault::Nothing)];
        let all = measure_stock_filter("simple_filter", &mut lanes, &settings());
        assert!(matches!(&all[0], CellOutcome::Failed(reason) if reason == "faulty: lost"), "{:?}", all[0]);
        assert!(matches!(all[1], CellOutcome::Figures(_)), "{:?}", all[1]);
    }
}

#[test]
fn warnings_of_sessions_are_kept() {
    let mut lanes = [lane("cpu", Fault::Warns), lane("cpu", Fault::Nothing)];
    let all = measure_stock_filter("simple_filter", &mut lanes, &settings());
    for (outcome, expected) in all.iter().zip([&["faulty: slow".to_owned()][..], &[]]) {
        let CellOutcome::Figures(figures) = outcome else { panic!("{outcome:?}") };
        assert_eq!(figures.warnings, expected);
    }
}

#[test]
fn filters_with_maps_start_from_empty_maps() {
    let mut lanes = [lane("cpu", Fault::Nothing), lane("noop", Fault::Nothing)];
    // The filter's verdicts depend on its maps.
    let all = measure_stock_filter("conntrack_fw", &mut lanes[..1], &settings());
    assert!(matches!(all[0], CellOutcome::Figures(_)), "{:?}", all[0]);
}

#[test]
fn a_device_with_wrong_maps_has_no_rate() {
    let mut lanes = [lane("cpu", Fault::Nothing), lane("cpu", Fault::Maps)];
    let all = measure_stock_filter("flow_stats", &mut lanes, &settings());
    assert!(matches!(all[0], CellOutcome::Figures(_)), "{:?}", all[0]);
    let CellOutcome::Mismatch(detail) = &all[1] else { panic!("{:?}", all[1]) };
    assert!(detail.starts_with("map `flows`, 0 entries instead of "), "{detail}");
}

#[test]
fn an_interrupted_cell_is_dropped() {
    let settings = settings();
    settings.stop.cancel();
    let all = measure_stock_filter("simple_filter", &mut [lane("cpu", Fault::Nothing)], &settings);
    assert!(matches!(all[0], CellOutcome::Dropped), "{:?}", all[0]);
}

#[test]
fn transfers_that_a_device_lacks_are_no_failures() {
    let mut lanes = [lane("cpu", Fault::Nothing)];
    lanes[0].contender.transfer = Transfer::Window;
    let all = measure_stock_filter("simple_filter", &mut lanes, &settings());
    assert!(matches!(&all[0], CellOutcome::Absent(why) if why.contains("window")), "{:?}", all[0]);
}
