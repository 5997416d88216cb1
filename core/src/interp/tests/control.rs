//! Control flow, variables, pointers, calls and fuel.

use super::{Interpreter, Random, interpreter, program, run};
use crate::packet::{Metadata, Verdict};

/// Runs a filter with this body on a packet of the bytes 3, 200 and ten zeros, and returns the
/// packet's first byte afterwards.
fn byte_after(body: &str) -> u8 {
    let outcome = run(&format!("fn xdp_filter(pkt: u32) -> u32 {{ {body} }}"), &[3, 200, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(outcome.verdict, Verdict::Pass);
    outcome.packet[0]
}

#[test]
fn a_switch_takes_its_case_and_no_other() {
    let text = "fn xdp_filter(pkt: u32) -> u32 {
        var r = 0u;
        switch load_u8(pkt, 0u) {
            case 0u, 5u: { r = 1u; }
            case 1u: { r = 2u; if load_u8(pkt, 1u) == 1u { break; } r = 3u; }
            default: { r = 4u; }
            case 7u: { return redirect(7u); }
        }
        return redirect(r);
    }";
    let interpreter = interpreter(text);
    for (packet, target) in
        [([0, 0], 1), ([5, 0], 1), ([1, 1], 2), ([1, 0], 3), ([6, 0], 4), ([255, 0], 4), ([7, 0], 7)]
    {
        let outcome = interpreter.run(&packet, &Metadata::default()).unwrap();
        assert_eq!(outcome.verdict, Verdict::Redirect(target), "{packet:?}");
    }
}

#[test]
fn loops_break_continue_and_finish() {
    // 0 + 1 + 2 + 4 + 5: 3 is skipped, 6 adds 100 and breaks.
    let sum = "var sum = 0u;
        for (var i = 0u; i < 10u; i++) {
            if i == load_u8(pkt, 0u) { continue; }
            switch i { case 6u: { sum += 100u; } default: { } }
            if i == 6u { break; }
            sum += i;
        }
        store_u8(pkt, 0u, sum); return XDP_PASS;";
    assert_eq!(byte_after(sum), 112);
    let continuing = "var i = 0u; var n = 0u;
        loop {
            i++;
            if i % 2u == 0u { continue; }
            n += i;
            continuing { n += 10u; break if i >= 5u; }
        }
        store_u8(pkt, 0u, n); return XDP_PASS;";
    // The odd numbers 1 + 3 + 5, and ten for each of the five iterations.
    assert_eq!(byte_after(continuing), 59);
    let nested = "var n = 0u;
        var i = 0u;
        while i < 4u {
            var fresh: u32;
            loop {
                if fresh == i { break; }
                fresh++;
                switch fresh { case 2u: { continue; } default: { n++; } }
            }
            i++;
        }
        store_u8(pkt, 0u, n); return XDP_PASS;";
    // The inner loop runs 0, 1, 2 and 3 times; iterations with fresh == 2 do not count: 0 + 1 + 1 +
    // 2.
    assert_eq!(byte_after(nested), 4);
}

#[test]
fn a_load_is_not_affected_by_later_stores() {
    assert_eq!(
        byte_after(
            "var x = load_u8(pkt, 0u); let before = x; x = 9u; store_u8(pkt, 0u, before * 10u + x); return XDP_PASS;"
        ),
        39
    );
}

#[test]
fn indices_out_of_range_select_the_last_element() {
    let body = |index: &str| {
        format!(
            "var a = array<u32, 4>(10u, 20u, 30u, 40u);
             let i = {index};
             a[i] += 1u;
             var v = vec3<u32>(1u, 2u, 3u); v[i] += 4u;
             store_u8(pkt, 0u, a[i] + v[i] + a[3] + v.z); return XDP_PASS;"
        )
    };
    // in range: a[1] = 21, v[1] = 6, a[3] = 40, v.z = 3; out of range: 41 + 7 + 41 + 7
    assert_eq!(byte_after(&body("load_u8(pkt, 0u) - 2u")), 70);
    for index in ["load_u8(pkt, 1u)", "load_u8(pkt, 0u) - 4u", "i32(load_u8(pkt, 0u)) - 4i"] {
        assert_eq!(byte_after(&body(index)), 96, "{index}");
    }
    // Indexing a value follows the same rule as indexing a variable.
    assert_eq!(
        byte_after(
            "let v = vec3<u32>(1u, load_u8(pkt, 0u), 3u); store_u8(pkt, 0u, v[load_u8(pkt, 1u)]); return XDP_PASS;"
        ),
        3
    );
}

#[test]
fn structures_arrays_and_pointers() {
    let outcome = run(
        "struct Inner { a: vec2<u32>, b: array<u32, 3> }
         struct Record { x: u32, inner: array<Inner, 2>, y: bool }
         const TABLE = array<u32, 3>(7u, 8u, 9u);
         var<private> state: Record;
         var<private> counter: u32 = 5u;
         fn bump(p: ptr<function, u32>, by: u32) { *p += by; }
         fn deep(p: ptr<function, Record>, i: u32) -> u32 { (*p).inner[i].b[2] = 77u; return (*p).inner[i].a.y; }
         fn xdp_filter(pkt: u32) -> u32 {
             let one = load_u8(pkt, 0u);
             var local = Record(one, array<Inner, 2>(), true);
             local.inner[one].a = vec2<u32>(4u, 6u);
             local.inner[one].b = TABLE;
             state = local;
             var n = 1u;
             bump(&n, 2u);
             counter += n;
             store_u8(pkt, 0u, deep(&local, one));
             store_u8(pkt, 1u, local.inner[one].b[2] - state.inner[1].b[2]);
             store_u8(pkt, 2u, counter);
             store_u8(pkt, 3u, TABLE[one] + state.x + u32(state.y) + local.inner[0].a.x);
             return XDP_PASS;
         }",
        &[1, 0, 0, 0],
    );
    assert_eq!(outcome.packet, [6, 68, 8, 10]);
}

#[test]
fn private_variables_are_reset_for_each_packet() {
    let interpreter = interpreter("var<private> n: u32; fn xdp_filter(pkt: u32) -> u32 { n++; return redirect(n); }");
    for _ in 0..3 {
        assert_eq!(interpreter.run(&[], &Metadata::default()).unwrap().verdict, Verdict::Redirect(1));
    }
}

#[test]
fn helpers_return_from_anywhere() {
    let interpreter = interpreter(
        "fn kind(x: u32) -> u32 {
             for (var i = 0u; i < 8u; i++) {
                 if (x >> i) == 1u { return i; }
             }
             if x == 0u { return 100u; }
             return 200u;
         }
         fn twice(x: u32) -> u32 { return kind(x) + kind(x + 1u); }
         fn xdp_filter(pkt: u32) -> u32 { return redirect(twice(load_u8(pkt, 0u))); }",
    );
    for (byte, target) in [(0, 100), (1, 1), (3, 3), (255, 207)] {
        assert_eq!(interpreter.run(&[byte], &Metadata::default()).unwrap().verdict, Verdict::Redirect(target));
    }
}

#[test]
fn returned_values_become_verdicts() {
    let interpreter = interpreter("fn xdp_filter(pkt: u32) -> u32 { return load_le32(pkt, 0u); }");
    let mut random = Random(1);
    for value in [0, 1, 2, 3, 4, 5, 0x104, 0x102, 0xffff_ff04, 0xffff_ffff]
        .into_iter()
        .chain((0..100).map(|_| random.next() as u32))
    {
        let expected = match value {
            1 => Verdict::Drop,
            2 => Verdict::Pass,
            3 => Verdict::Tx,
            v if v & 0xff == 4 => Verdict::Redirect(v / 256),
            _ => Verdict::Aborted,
        };
        let outcome = interpreter.run(&u32::to_le_bytes(value), &Metadata::default()).unwrap();
        assert_eq!(outcome.verdict, expected, "{value:#x}");
    }
}

#[test]
fn fuel_is_the_number_of_iterations() {
    // The packet's first byte is the iteration count of the filter's and the helper's loop.
    let text = "fn helper(n: u32) -> u32 { var i = 0u; while i < n { i++; } return i; }
        fn xdp_filter(pkt: u32) -> u32 {
            let n = load_u8(pkt, 0u);
            for (var i = 0u; i < n; i++) { store_u8(pkt, 1u, i + 1u); }
            if !adjust_tail(pkt, 2i) { return XDP_DROP; }
            let m = helper(n);
            store_u8(pkt, 2u, m);
            return XDP_PASS;
        }";
    // The `while` and `for` conditions are inside the loop, so the iteration that only finds the
    // condition false costs fuel too: 2n + 2 in all.
    for (n, fuel, aborted) in [(4u8, 10, false), (4, 9, true), (0, 2, false), (0, 1, true), (100, 202, false)] {
        let interpreter = Interpreter::new(&program(text, fuel)).unwrap();
        let mut packet = vec![0; 20];
        packet[0] = n;
        let outcome = interpreter.run(&packet, &Metadata::default()).unwrap();
        assert_eq!(outcome.verdict == Verdict::Aborted, aborted, "n = {n}, fuel = {fuel}");
        assert_eq!(outcome.trace.iterations, if aborted { fuel.into() } else { u64::from(n) * 2 + 2 });
        // Effects from before the fuel ran out remain.
        assert_eq!(outcome.packet[1], n);
        assert_eq!(outcome.packet[2], if aborted { 0 } else { n });
        assert_eq!(outcome.packet.len(), 22);
    }
    let none = Interpreter::new(&program(text, 0)).unwrap().run(&[1; 20], &Metadata::default()).unwrap();
    assert_eq!((none.verdict, none.packet), (Verdict::Aborted, vec![1; 20]));
    let endless = "fn xdp_filter(pkt: u32) -> u32 { loop { if pkt_len(pkt) == 0u { break; } } return XDP_PASS; }";
    assert_eq!(run(endless, &[0]).verdict, Verdict::Aborted);
    assert_eq!(run(endless, &[0]).trace.iterations, 32_768);
    assert_eq!(run(endless, &[]).verdict, Verdict::Pass);
}

#[test]
fn loops_of_the_prelude_cost_no_fuel() {
    let interpreter = Interpreter::new(&program(
        "fn xdp_filter(pkt: u32) -> u32 { return select(XDP_DROP, XDP_PASS, adjust_tail(pkt, 128i)); }",
        0,
    ));
    let outcome = interpreter.unwrap().run(&[1; 20], &Metadata::default()).unwrap();
    assert_eq!((outcome.verdict, outcome.packet.len()), (Verdict::Pass, 148));
}

#[test]
fn deep_nesting_does_not_use_the_hosts_stack() {
    // A chain of 340 calls, each inside some blocks: about the deepest that the verifier accepts.
    // It runs on a thread with 64 KiB of stack; compiling needs more.
    let mut text = String::from("fn f0(x: u32) -> u32 { return x; }\n");
    for i in 1..340 {
        text += &format!("fn f{i}(x: u32) -> u32 {{ if x > 0u {{ {{ return f{}(x) + 1u; }} }} return 0u; }}\n", i - 1);
    }
    text += "fn xdp_filter(pkt: u32) -> u32 { return redirect(f339(load_u8(pkt, 0u))); }";
    let program =
        std::thread::Builder::new().stack_size(64 << 20).spawn(move || program(&text, 0)).unwrap().join().unwrap();
    let outcome = std::thread::Builder::new()
        .stack_size(64 << 10)
        .spawn(move || Interpreter::new(&program).unwrap().run(&[1], &Metadata::default()).unwrap())
        .unwrap()
        .join()
        .unwrap();
    assert_eq!(outcome.verdict, Verdict::Redirect(340));
}
