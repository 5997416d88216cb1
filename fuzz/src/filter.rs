//! Properties that hold for every input of every front end, shared by the fuzz targets.

use std::sync::Arc;

use portcullis_core::diagnostics::{Diagnostics, Source};
use portcullis_core::interp::Interpreter;
use portcullis_core::map::layout::Layout;
use portcullis_core::packet::Metadata;
use portcullis_core::program::{Lowering, Program, ProgramOptions, lower};
use portcullis_cpu::vector::LaneProgram;

/// Compiles the bytes, then checks the program with [`check_accepted`] or the diagnostics with
/// [`check_rejected`].
///
/// # Panics
/// If the compiler panics, rejects without a reason, or accepts what a device cannot run.
pub(crate) fn run(data: &[u8], compile: impl FnOnce(&Source, &ProgramOptions) -> Result<Program, Diagnostics>) {
    let options = ProgramOptions::default().with_fuel(100);
    let compiled = Source::from_bytes("fuzz", data.to_vec()).and_then(|source| compile(&source, &options));
    match compiled {
        Ok(program) => check_accepted(&Arc::new(program)),
        Err(errors) => check_rejected(&errors),
    }
}

/// Checks that the diagnostics contain an error and that they render to text.
///
/// # Panics
/// If there is no error, the compiler reports an internal failure, or a terminal escape from the
/// input reaches the text.
pub(crate) fn check_rejected(errors: &Diagnostics) {
    assert!(!errors.errors.is_empty(), "refused without a reason");
    let text = errors.render() + &errors.to_string();
    assert!(!text.contains("the compiler itself failed"), "{text}");
    assert!(!text.contains('\u{1b}'), "{text:?}");
}

/// Checks that an accepted program runs on a few packets with equal results in the interpreter and
/// as a lane program, can be lowered to SPIR-V, and compiles to native code.
///
/// # Panics
/// If any of these fails.
pub(crate) fn check_accepted(program: &Arc<Program>) {
    let interpreter = Interpreter::new(program).expect("the interpreter accepts what the verifier accepts");
    let traced = LaneProgram::trace(program);
    if let Err(error) = &traced {
        let reason = error.to_string();
        let reports_a_bug = |words: &str| reason.contains(words);
        assert!(!reports_a_bug("fault of Portcullis") && !reports_a_bug("bug in Portcullis"), "{reason}");
    }
    for packet in [&[][..], &[0x45; 60], &[0xff; 1500]] {
        let want = interpreter.run(packet, &Metadata::default()).expect("the packet can be run");
        // Compare with an independent executor, unless the program has no vector form.
        let Ok(traced) = &traced else { continue };
        let mut maps: Vec<_> = program.maps().iter().map(|map| vec![0; Layout::of(map).words()]).collect();
        let got = traced.run(&[(packet, &Metadata::default())], &mut maps, 0x5ca1_ab1e);
        let got = got.unwrap_or_else(|fault| panic!("{fault}\n{}", traced.dump())).remove(0);
        assert_eq!((got.verdict, got.packet), (want.verdict.to_return(), want.packet), "{}", traced.dump());
    }
    lower(program, Lowering::SPIRV).expect("a valid filter can be lowered");
    portcullis_cpu::render_clif(program).expect("a valid filter becomes native code");
}
