//! What must hold of any text of a filter, in whatever language.

use std::sync::Arc;

use portcullis_core::diagnostics::{Diagnostics, Source};
use portcullis_core::interp::Interpreter;
use portcullis_core::map::layout::Layout;
use portcullis_core::packet::Metadata;
use portcullis_core::program::{Lowering, Program, ProgramOptions, lower};
use portcullis_cpu::vector::LaneProgram;

/// Compiles the bytes; what compiles is run on a few packets, lowered, and made native code, and what
/// does not has a reason that can be shown.
///
/// # Panics
/// Where the compiler failed, or let through what a device cannot take: faults of Portcullis.
pub(crate) fn run(data: &[u8], compile: impl FnOnce(&Source, &ProgramOptions) -> Result<Program, Diagnostics>) {
    let options = ProgramOptions { fuel: 100, ..ProgramOptions::default() };
    let compiled = Source::from_bytes("fuzz", data.to_vec()).and_then(|source| compile(&source, &options));
    match compiled {
        Ok(program) => taken(&Arc::new(program)),
        Err(errors) => refused(&errors),
    }
}

/// There is a reason, and it can be shown.
///
/// # Panics
/// Where there is none, or the compiler failed.
pub(crate) fn refused(errors: &Diagnostics) {
    assert!(!errors.errors.is_empty(), "refused without a reason");
    let text = errors.render() + &errors.to_string();
    assert!(!text.contains("the compiler itself failed"), "{text}");
    assert!(!text.contains('\u{1b}'), "{text:?}");
}

/// What compiles runs on a few packets, by the interpreter and from the form for several packets side by side, can be lowered,
/// and becomes native code.
///
/// # Panics
/// Where it does not.
pub(crate) fn taken(program: &Arc<Program>) {
    let interpreter = Interpreter::new(program).expect("the verifier lets through what the interpreter takes");
    let traced = LaneProgram::trace(program);
    if let Err(reason) = &traced {
        let blames_us = |words: &str| reason.contains(words);
        assert!(!blames_us("fault of Portcullis") && !blames_us("bug in Portcullis"), "{reason}");
    }
    for packet in [&[][..], &[0x45; 60], &[0xff; 1500]] {
        let want = interpreter.run(packet, &Metadata::default()).expect("a packet that can be run");
        // Executed by something else, from another form: only what has no such form has but one answer.
        let Ok(traced) = &traced else { continue };
        let mut maps: Vec<_> = program.maps().iter().map(|map| vec![0; Layout::of(map).words()]).collect();
        let got = traced.run(&[(packet, &Metadata::default())], &mut maps, 0x5ca1_ab1e);
        let got = got.unwrap_or_else(|fault| panic!("{fault}\n{}", traced.dump())).remove(0);
        assert_eq!((got.verdict, got.packet), (want.verdict.to_return(), want.packet), "{}", traced.dump());
    }
    lower(program, Lowering::SPIRV).expect("a valid filter can be lowered");
    portcullis_cpu::render_clif(program).expect("a valid filter becomes native code");
}
