//! Tests of sessions that look inside them.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis_core::device::{LoadOptions, Session};
use portcullis_core::diagnostics::Source;
use portcullis_core::packet::Batch;
use portcullis_core::program::ProgramOptions;
use portcullis_wgsl as wgsl;

use super::CpuSession;
use crate::compile::background::BackgroundCell;
use crate::compile::filter_code::PrefetchPolicy;
use crate::compile::pipeline::{StyleSet, compile_filter, compile_vector_code};
use crate::compile::processor::Processor;

/// Workers that always find another batch never return to their pool.
#[test]
fn vector_code_is_compiled_although_workers_are_always_awake() {
    let text = "fn xdp_filter(pkt: u32) -> u32 { return load_be16(pkt, 12u) % 3u; }";
    let program = wgsl::compile(&Source::new("f.wgsl", text), &ProgramOptions::default());
    let program = Arc::new(program.unwrap_or_else(|e| panic!("{}", e.render())));
    if compile_vector_code(&program, Processor::Host, &|| true).is_none() {
        println!("skipped: there is no vector code for this processor");
        return;
    }
    let batch = || Batch::from_packets(&vec![[7_u8; 60]; 20_000]).unwrap();
    for threads in [1, 2] {
        let code = compile_filter(&program, StyleSet::All, PrefetchPolicy::IfFaster, Processor::Host).unwrap();
        let scalar = code.variant_count();
        let compiled = program.clone();
        let code = code.with_background(BackgroundCell::new(move |keep_going| {
            compile_vector_code(&compiled, Processor::Host, keep_going)
        }));
        let options = LoadOptions::default().with_threads(NonZeroUsize::new(threads));
        let options = options.with_idle_spin(Duration::from_secs(100));
        let mut session = CpuSession::new(program.clone(), code, None, None, false, &options).unwrap();
        let (shared, begin) = (session.shared.clone(), Instant::now());
        session.submit(batch()).unwrap();
        while shared.code.variant_count() == scalar && begin.elapsed() < Duration::from_secs(60) {
            session.submit(batch()).unwrap();
            session.complete().unwrap();
        }
        assert!(shared.code.variant_count() > scalar, "{threads} threads");
    }
}
