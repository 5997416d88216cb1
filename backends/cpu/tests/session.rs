//! Properties of a session apart from verdicts: order, threads, cancellation, refusals. Verdicts
//! are covered by compat-tests.

mod common;

use std::num::NonZeroUsize;
use std::time::Duration;

use common::program;
use portcullis_core::device::{CancelToken, Device, DeviceError, LoadOptions};
use portcullis_core::packet::{Arena, Batch, BatchCutter, Descriptor, ResizeRoom, Verdict};
use portcullis_cpu::Cpu;

fn options(threads: usize, depth: usize) -> LoadOptions {
    LoadOptions::default().with_threads(NonZeroUsize::new(threads)).with_depth(depth)
}

/// Redirects to the number in the packet's first four bytes.
const ECHO: &str = "fn xdp_filter(pkt: u32) -> u32 { return redirect(load_le32(pkt, 0u)); }";

fn numbered(from: u32, n: u32) -> Batch {
    let packets: Vec<Vec<u8>> = (from..from + n).map(|i| i.to_le_bytes().to_vec()).collect();
    Batch::from_packets(&packets).unwrap()
}

#[test]
fn batches_complete_in_order_with_every_packet_filtered_once() {
    for threads in [1, 2, 3] {
        let mut session = Cpu::new().load(&program(ECHO), &options(threads, 3)).unwrap();
        // Sizes around those of chunks.
        let sizes = [0, 1, 63, 64, 65, 16_383, 64, 16_384, 16_385, 40_000];
        let mut expected = std::collections::VecDeque::new();
        let mut from = 0;
        let check = |session: &mut dyn portcullis_core::device::Session, (from, n): (u32, u32)| {
            let done = session.complete().unwrap().expect("a batch in flight");
            assert_eq!(done.verdicts.len(), n as usize);
            for (i, verdict) in done.verdicts.iter().enumerate() {
                assert_eq!(verdict, Verdict::Redirect(from + i as u32));
            }
        };
        for n in sizes {
            if session.in_flight() == session.depth() {
                check(&mut *session, expected.pop_front().unwrap());
            }
            session.submit(numbered(from, n)).unwrap();
            expected.push_back((from, n));
            from += n;
        }
        while let Some(next) = expected.pop_front() {
            check(&mut *session, next);
        }
        assert!(session.complete().unwrap().is_none());
    }
}

#[test]
fn a_full_queue_gives_the_batch_back() {
    let mut session = Cpu::new().load(&program(ECHO), &options(1, 1)).unwrap();
    session.submit(numbered(0, 3)).unwrap();
    let refused = session.submit(numbered(10, 2)).unwrap_err();
    assert!(matches!(refused.error, DeviceError::Refused(_)));
    assert_eq!(refused.batch.packet(1), 11u32.to_le_bytes());
    assert_eq!(session.complete().unwrap().unwrap().verdicts.len(), 3);
}

#[test]
fn a_filter_that_changes_lengths_needs_room() {
    let text = "fn xdp_filter(pkt: u32) -> u32 { return select(XDP_DROP, XDP_PASS, adjust_head(pkt, -4)); }";
    let mut session = Cpu::new().load(&program(text), &options(1, 1)).unwrap();
    let mut cutter = BatchCutter::new(Arena::new(64).unwrap(), None);
    let tight = cutter.cut_batch(vec![Descriptor { offset: 0, length: 60 }], Vec::new(), ResizeRoom::None).unwrap();
    assert!(matches!(session.submit(tight).unwrap_err().error, DeviceError::Refused(_)));
    let done = session.run(Batch::from_packets(&[[9u8; 60]]).unwrap()).unwrap();
    assert_eq!(done.batch.packet(0), [[0u8; 4].as_slice(), &[9; 60]].concat());
}

/// Uses up its fuel on every packet.
const ENDLESS: &str = "fn xdp_filter(pkt: u32) -> u32 { var n = 1u; loop { n = n * 3u + load_u8(pkt, n & 3u); if n == 0u { break; } n |= 1u; } return XDP_PASS; }";

#[test]
fn a_filter_that_runs_out_of_fuel_is_aborted() {
    let mut session = Cpu::new().load(&program(ENDLESS), &options(1, 1)).unwrap();
    let done = session.run(numbered(0, 5)).unwrap();
    assert!(done.verdicts.iter().all(|v| v == Verdict::Aborted));
}

#[test]
fn a_small_batch_can_be_cancelled() {
    let cancel = CancelToken::new();
    let options = options(1, 2).with_cancel(cancel.clone());
    let mut session = Cpu::new().load(&program(ECHO), &options).unwrap();
    session.submit(numbered(0, 5)).unwrap();
    cancel.cancel();
    assert!(matches!(session.complete(), Err(DeviceError::Cancelled)));
    assert!(matches!(session.run(numbered(0, 5)), Err(DeviceError::Cancelled)));
}

#[test]
fn cancelling_ends_a_batch_that_would_take_minutes() {
    let cancel = CancelToken::new();
    let options = options(2, 1).with_cancel(cancel.clone());
    let mut session = Cpu::new().load(&program(ENDLESS), &options).unwrap();
    // Two million packets of 32,768 iterations each.
    let mut cutter = BatchCutter::new(Arena::new(8 << 20).unwrap(), None);
    let descriptors = (0..2 << 20).map(|i| Descriptor { offset: i * 4, length: 4 }).collect();
    session.submit(cutter.cut_batch(descriptors, Vec::new(), ResizeRoom::None).unwrap()).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    cancel.cancel();
    assert!(matches!(session.complete(), Err(DeviceError::Cancelled)));
}

#[test]
fn cancelling_ends_a_batch_that_slows_down_midway() {
    // A hundred thousand packets that end at once, then as many that use up their fuel: chunks must
    // stay small however fast the first ones were.
    let text = ENDLESS.replacen('{', "{ if load_u8(pkt, 0u) == 0u { return XDP_DROP; }", 1);
    let cancel = CancelToken::new();
    let options = options(1, 1).with_cancel(cancel.clone());
    let mut session = Cpu::new().load(&program(&text), &options).unwrap();
    let n = 100_000;
    let mut arena = Arena::new(8 * n).unwrap();
    arena[4 * n..].fill(1);
    let descriptors = (0..2 * n as u32).map(|i| Descriptor { offset: i * 4, length: 4 }).collect();
    session
        .submit(BatchCutter::new(arena, None).cut_batch(descriptors, Vec::new(), ResizeRoom::None).unwrap())
        .unwrap();
    std::thread::sleep(Duration::from_millis(300));
    cancel.cancel();
    assert!(matches!(session.complete(), Err(DeviceError::Cancelled)));
}

/// Each helper has 4 KiB of variables; together they would exceed any thread's stack.
#[test]
fn variables_of_sibling_calls_share_stack_space() {
    let mut text = String::new();
    let mut calls = String::new();
    for i in 0..300 {
        text += &format!(
            "fn helper{i}(pkt: u32) -> u32 {{ var table: array<u32, 1000>; let i = load_u8(pkt, 1u); table[i] = {i}u; return table[load_u8(pkt, 0u)] + table[999]; }}\n"
        );
        calls += &format!("    sum += helper{i}(pkt);\n");
    }
    text += &format!("fn xdp_filter(pkt: u32) -> u32 {{\n    var sum = 0u;\n{calls}    return redirect(sum);\n}}");
    let mut session = Cpu::new().load(&program(&text), &options(1, 1)).unwrap();
    let done = session.run(Batch::from_packets(&[[7u8, 7], [7, 8]]).unwrap()).unwrap();
    assert_eq!(done.verdicts.get(0), Verdict::Redirect((0..300).sum()));
    assert_eq!(done.verdicts.get(1), Verdict::Redirect(0));
    let form = portcullis_cpu::render_clif(&program(&text)).unwrap();
    assert!(form.contains("explicit_slot 4000"), "{}", form.lines().take(5).collect::<String>());
}

#[test]
fn filters_with_too_many_operations_are_refused() {
    // Each copy of the array is 4,000 scalars.
    let copies = "    table = again; again = table;\n".repeat(500);
    let text = format!(
        "fn xdp_filter(pkt: u32) -> u32 {{\n    var table: array<u32, 2000>;\n    var again: array<u32, 2000>;\n{copies}    return table[load_u8(pkt, 0u)];\n}}"
    );
    let error = Cpu::new().load(&program(&text), &options(1, 1)).err().expect("2 million loads and stores");
    assert!(error.to_string().contains("scalar operations"), "{error}");
}

#[test]
fn clif_can_be_rendered() {
    let text = portcullis_cpu::render_clif(&program(ECHO)).unwrap();
    assert!(text.starts_with("; branch-free\nfunction u0:0(i64, i64, i64)"), "{text}");
}

/// Returns the text of the branching style, if it differs from the branch-free one.
fn branching_form(text: &str) -> Option<String> {
    let form = portcullis_cpu::render_clif(&program(text)).unwrap();
    let (_, branching) = form.split_once("; branching\n")?;
    Some(branching.split("\n; ").next().unwrap_or(branching).to_owned())
}

#[test]
fn conditions_become_branches_without_materialised_booleans() {
    let form = branching_form(
        "fn xdp_filter(pkt: u32) -> u32 {
            if pkt_len(pkt) < 8u { return XDP_DROP; }
            let a = load_u8(pkt, 0u);
            let b = load_u8(pkt, 1u);
            if (a == 1u || !(b == 2u && load_u8(pkt, 2u) == 3u)) && (b > 9u || load_u8(pkt, 3u) < 4u) { return XDP_TX; }
            return XDP_PASS;
        }",
    )
    .expect("the filter has a branching style");
    // A boolean that is passed between blocks would be an 8-bit parameter.
    let parameters = form.lines().filter(|line| line.starts_with("block") && line.contains(": i8")).count();
    assert_eq!(parameters, 0, "{form}");
    assert_eq!(form.matches("brif").count(), 8, "one for each condition, one for the loop, one before it: {form}");
}

#[test]
fn a_filter_without_conditions_has_a_single_scalar_style() {
    assert_eq!(branching_form("fn xdp_filter(pkt: u32) -> u32 { return XDP_PASS; }"), None);
    let one_condition = "fn xdp_filter(pkt: u32) -> u32 {
        if load_u8(pkt, 0u) == 1u && load_u8(pkt, 1u) == 2u { return XDP_DROP; }
        return XDP_PASS;
    }";
    assert!(branching_form(one_condition).is_some());
}

#[test]
fn facts_about_repeated_conditions_do_not_grow_exponentially() {
    let chain = |first: &str, step: &dyn Fn(u32) -> String| {
        let steps: String = (1..=60).map(step).collect();
        format!("fn xdp_filter(pkt: u32) -> u32 {{\n    {first}\n{steps}    return select(1u, 2u, b60);\n}}")
    };
    let first = "let b0 = pkt_len(pkt) >= 14u; let c0 = load_u8(pkt, 0u) + 4u < pkt_len(pkt);";
    for (and, or) in [("&&", "||"), ("&", "|")] {
        for text in [
            chain(first, &|i| format!("    let b{i} = b{0} {and} b{0};\n", i - 1)),
            chain(first, &|i| format!("    let b{i} = b{0} {or} b{0};\n", i - 1)),
            chain(first, &|i| {
                let before = i - 1;
                format!(
                    "    let b{i} = (b{before} {and} c{before}) {or} b0; let c{i} = (c{before} {or} b{before}) {and} c0;\n"
                )
            }),
            chain("var v = vec4<bool>(pkt_len(pkt) > 5u);", &|i| {
                format!("    v = vec4<bool>(all(v)); let b{i} = any(v);\n")
            }),
        ] {
            let mut session = Cpu::new().load(&program(&text), &options(1, 1)).unwrap();
            let done = session.run(Batch::from_packets(&[vec![1u8; 60], vec![]]).unwrap()).unwrap();
            assert_eq!(done.verdicts.get(0), Verdict::Pass, "{text}");
            assert_eq!(done.verdicts.get(1), Verdict::Drop, "{text}");
        }
    }
}

/// Cancels after `delay`, while a batch is filtered, and returns how long that took to end it.
fn time_to_cancel(text: &str, threads: usize, packets: u32, delay: Duration) -> Duration {
    let cancel = CancelToken::new();
    let options = options(threads, 2).with_cancel(cancel.clone());
    let mut session = Cpu::new().load(&program(text), &options).unwrap();
    session.submit(numbered(0, packets)).unwrap();
    std::thread::sleep(delay);
    let cancelled = std::time::Instant::now();
    cancel.cancel();
    assert!(matches!(session.complete(), Err(DeviceError::Cancelled)), "{text}");
    cancelled.elapsed()
}

/// The batches would take minutes.
#[test]
fn flows_can_be_cancelled_at_any_step() {
    let endless = "var n = 1u; loop { n = n * 3u + load_u8(pkt, n & 3u); if n == 0u { break; } n |= 1u; }";
    let in_flow = format!(
        "fn xdp_flow(pkt: u32) -> u32 {{ {endless} return 1u; }}
        fn xdp_filter(pkt: u32) -> u32 {{ return XDP_PASS; }}"
    );
    let in_filter = format!(
        "fn xdp_flow(pkt: u32) -> u32 {{ return load_le32(pkt, 0u); }}
        fn xdp_filter(pkt: u32) -> u32 {{ {endless} return XDP_PASS; }}"
    );
    // One thread needs no flow numbers.
    for (text, counts) in [(in_flow, &[2, 3][..]), (in_filter, &[1, 2, 3])] {
        for &threads in counts {
            let time = time_to_cancel(&text, threads, 2_000_000, Duration::from_millis(300));
            assert!(time < Duration::from_secs(30), "{text}, {threads} threads: {time:?}");
        }
    }
}
