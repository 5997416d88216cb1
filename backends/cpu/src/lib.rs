//! The CPU device: a filter becomes native code for a whole batch (Cranelift), and rayon's threads
//! share the batch's packets.
//!
//! The code of a batch is one loop with everything inlined. Packet accesses that the filter has
//! already made sure of go unchecked; all others are checked, so that no filter and no packet can
//! make it touch memory that is not the packet's. There are several pieces of code for a filter: one with
//! few branches and one with all of them, and one or two that have several packets at a time, side by side; which is
//! the fastest depends on the traffic, and is measured while the traffic is filtered. `docs/performance.md` has the
//! figures behind it.

#![allow(unsafe_code)]

mod compile;
pub mod cross;
mod late;
mod maps;
mod memory;
mod probe;
mod processor;
mod runtime;
mod session;
pub mod vector;
mod walk;

use std::num::NonZeroU64;
use std::sync::Arc;

use portcullis_core::device::{Device, DeviceError, DeviceInfo, Dispatch, LoadOptions, Session, load_initial_maps};
use portcullis_core::program::Program;

use late::Late;
use memory::{Ahead, When};
use vector::emit::{self, Offsets};
use walk::Walk;

pub use compile::Style;
pub use processor::Processor;

/// The host's processor.
#[derive(Debug)]
pub struct Cpu {
    info: DeviceInfo,
    styles: Styles,
    ahead: When,
    processor: Processor,
}

/// Which styles of code a filter is compiled to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Styles {
    /// Those that may be the fastest.
    All,
    /// Those of them that have one packet at a time.
    OneByOne,
    Only(Style),
}

impl Cpu {
    /// The device; it is always there, though a program is refused on a processor that the code
    /// generator does not know.
    pub fn new() -> Cpu {
        Cpu { info: probe::info(), styles: Styles::All, ahead: When::WhereFaster, processor: Processor::Host }
    }

    /// The same device with one style of code only, where it would otherwise measure which of them
    /// is the fastest for its traffic: for tests and measurements. Its id names the style.
    pub fn with_style(style: Style) -> Cpu {
        let mut info = probe::info();
        info.id = format!("cpu ({})", style.name());
        Cpu { info, styles: Styles::Only(style), ahead: When::WhereFaster, processor: Processor::Host }
    }

    /// The same device without code that has several packets at a time: what that gains is measured against it.
    pub fn scalar_only() -> Cpu {
        let mut info = probe::info();
        info.id = "cpu (scalar)".into();
        Cpu { info, styles: Styles::OneByOne, ahead: When::WhereFaster, processor: Processor::Host }
    }

    /// The same device, on which what filters search for in maps is always fetched ahead of them, where it would
    /// otherwise measure whether that is faster, for large maps alone: for tests and measurements.
    pub fn with_prefetch() -> Cpu {
        let mut info = probe::info();
        info.id = "cpu (prefetch)".into();
        Cpu { info, styles: Styles::All, ahead: When::Always, processor: Processor::Host }
    }

    /// The same device with code that an older processor could run too: for tests. Its id names that.
    #[must_use]
    pub fn with_processor(mut self, processor: Processor) -> Cpu {
        self.info.id = match self.info.id.strip_suffix(')') {
            Some(id) => format!("{id}, {})", processor.name()),
            None => format!("{} ({})", self.info.id, processor.name()),
        };
        Cpu { processor, ..self }
    }
}

impl Default for Cpu {
    fn default() -> Self {
        Cpu::new()
    }
}

impl Device for Cpu {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn load(&self, program: &Arc<Program>, options: &LoadOptions) -> Result<Box<dyn Session>, DeviceError> {
        let dispatch = Dispatch::select(&self.info, options)?;
        let work = options.synthetic_work_ns(&self.info.id)?;
        let mut code = compiled(program, self.styles, self.ahead, self.processor)?;
        // Numbers of flows are found in one way.
        let one = if let Styles::Only(_) = self.styles { self.styles } else { Styles::Only(Style::BranchFree) };
        let flows =
            program.flow_program().map(|flows| compiled(&flows, one, self.ahead, self.processor)).transpose()?;
        if self.styles == Styles::All && !program.has_flows() && code.operations <= WORTH_A_CHOICE {
            let (program, processor) = (program.clone(), self.processor);
            let (stack, operations, work) = (code.stack, code.operations, work.map_or(0, NonZeroU64::get));
            code = code.with_late(Late::new(move |wanted| {
                let native = several_at_once(&program, processor, wanted)?;
                // Neither may the caller's thread be too small for it, nor a piece of packets take longer than was thought.
                let piece = session::piece;
                let fits = native.stack <= stack.max(session::CALLERS_STACK)
                    && piece(&program, native.operations, work) >= piece(&program, operations, work);
                fits.then_some(native)
            }));
        }
        let session = session::CpuSession::new(program.clone(), code, flows, work, options)?;
        load_initial_maps(program, dispatch.wrap(session))
    }
}

/// Stack for the compiler, whose recursion follows the filter's nesting (bounded by the verifier:
/// expressions and blocks 256 deep, in a chain of helpers). It is reserved, not used.
const COMPILER_STACK: usize = 256 << 20;

/// Runs a piece of the compiler on a stack that is large enough.
fn with_stack<T: Send>(work: impl FnOnce() -> Result<T, DeviceError> + Send) -> Result<T, DeviceError> {
    on_large_stack(work).map_err(failed)?
}

/// The same of anything.
fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("portcullis-compile".into())
            .stack_size(COMPILER_STACK)
            .spawn_scoped(scope, work)
            .map_err(|error| format!("no thread for the compiler: {error}"))?
            .join()
            .map_err(|_| "the code generator failed; this is a fault of Portcullis".into())
    })
}

fn failed(reason: String) -> DeviceError {
    DeviceError::Failed { device: "cpu".into(), reason }
}

fn unsupported(reason: compile::Unsupported) -> DeviceError {
    DeviceError::Unsupported { device: "cpu".into(), reason: reason.0 }
}

/// Filters of more operations get one style of code only: the other would take as long to compile
/// again, and what they compute outweighs their branches.
const WORTH_A_CHOICE: u64 = 20_000;

/// What runs ahead does again what the filter does before its first search. Of more operations than these that is what takes
/// the time, and not the search; and it would take as long to compile as the filter (sample filters have 800 at most).
const WORTH_REPEATING: u64 = 4_000;

/// The filter in each style that is worth having, the first preferred until more is known; it takes the packets that others
/// leave out. And whether it is worth having for itself.
fn lowered(
    program: &Program,
    styles: Styles,
    isa: &dyn cranelift_codegen::isa::TargetIsa,
) -> Result<(Vec<(Style, compile::Lowered)>, bool), DeviceError> {
    let lower = |style| compile::lower(program, style, isa).map(|lowered| (style, lowered)).map_err(unsupported);
    let mut all = match styles {
        Styles::Only(style) if !style.is_vector() => return Ok((vec![lower(style)?], true)),
        _ => vec![lower(Style::BranchFree)?],
    };
    if let Styles::Only(style) = styles {
        all.extend(side_by_side(program, Some(style), isa));
        let offered = all.len() == 1;
        return Ok((all, offered));
    }
    let first = &all[0].1;
    let worth_a_choice = first.operations <= WORTH_A_CHOICE;
    if first.saves_branches && worth_a_choice {
        all.push(lower(Style::Branching)?);
    }
    Ok((all, true))
}

/// The filter for several packets side by side, where that can be had: in the style asked for, or in each.
fn side_by_side(
    program: &Program,
    style: Option<Style>,
    isa: &dyn cranelift_codegen::isa::TargetIsa,
) -> Vec<(Style, compile::Lowered)> {
    if !emit::fits(isa) {
        return Vec::new();
    }
    let Ok(lanes) = vector::trace::trace(program) else { return Vec::new() };
    if !emit::keeps_order(&lanes) {
        return Vec::new();
    }
    let mut all = Vec::new();
    for (candidate, offsets) in [(Style::SpeculativeVector, Offsets::Guessed), (Style::Vector, Offsets::PerLane)] {
        // Where there is nothing to guess, both are one.
        if style.is_none_or(|style| style == candidate || all.is_empty() && candidate == Style::Vector)
            && let Ok(Some(lowered)) = emit::lower(&lanes, offsets, program.facts().redirects, isa)
        {
            all.push((candidate, lowered));
        }
    }
    all
}

/// Native code for several packets at once, where that can be had, as long as somebody wants it.
fn several_at_once(program: &Program, processor: Processor, wanted: late::Wanted<'_>) -> Option<memory::Native> {
    let isa = processor.isa().ok()?;
    let lowered: Vec<_> = side_by_side(program, None, &*isa).into_iter().map(|(_, lowered)| lowered).collect();
    if lowered.is_empty() || !wanted() {
        return None;
    }
    memory::Native::new(lowered, isa).ok()
}

/// The code that runs ahead of the filter, where it is worth having.
fn ahead(
    program: &Program,
    when: When,
    isa: &dyn cranelift_codegen::isa::TargetIsa,
) -> Result<Option<Ahead>, DeviceError> {
    let to_fetch = compile::ahead::to_fetch(program);
    let each = || program.maps().iter().zip(&to_fetch).filter_map(|(map, bytes)| Some((map, (*bytes)?)));
    let worth = |size| size >= compile::ahead::WORTH_FETCHING || when == When::Always;
    let Some(bytes) = each().map(|(_, bytes)| bytes).max() else { return Ok(None) };
    if !each().any(|(map, _)| worth(compile::ahead::size(map))) {
        return Ok(None);
    }
    let lowered = compile::lower_ahead(program, isa).map_err(unsupported)?;
    let lowered = lowered.filter(|lowered| lowered.operations <= WORTH_REPEATING || when == When::Always);
    let walks = program.maps().iter().map(Walk::of).collect();
    Ok(lowered.map(|lowered| Ahead { lowered, when, bytes, walks }))
}

fn compiled(program: &Program, styles: Styles, when: When, processor: Processor) -> Result<memory::Code, DeviceError> {
    if !processor.is_of_host() {
        return Err(failed(format!("code for {} does not run here", processor.name())));
    }
    with_stack(|| {
        let isa = processor.isa().map_err(failed)?;
        let (lowered, offered) = lowered(program, styles, &*isa)?;
        let lowered = lowered.into_iter().map(|(_, lowered)| lowered).collect();
        let ahead = ahead(program, when, &*isa)?;
        memory::Code::new(lowered, offered, ahead, isa).map_err(failed)
    })
}

/// The filter in Cranelift's intermediate form, before optimisation, a function for each style of
/// code, and one for what runs ahead: `check --emit clif`.
///
/// # Errors
/// [`DeviceError::Unsupported`] where the filter needs something that the code generator lacks.
pub fn clif(program: &Program) -> Result<String, DeviceError> {
    with_stack(|| {
        let isa = Processor::Host.isa().map_err(failed)?;
        let mut text = String::new();
        let mut all = lowered(program, Styles::All, &*isa)?.0;
        if all[0].1.operations <= WORTH_A_CHOICE {
            all.extend(side_by_side(program, None, &*isa));
        }
        for (style, lowered) in all {
            text += &format!("; {}\n{}", style.name(), lowered.body);
        }
        if let Some(Ahead { lowered, .. }) = ahead(program, When::WhereFaster, &*isa)? {
            text += &format!("; prefetch\n{}", lowered.body);
        }
        Ok(text)
    })
}

#[cfg(test)]
mod tests {
    use portcullis_core::lang::{Source, wgsl};
    use portcullis_core::program::ProgramOptions;

    use super::*;

    #[test]
    fn code_that_comes_later_has_several_packets_and_is_made_for_whoever_wants_it() {
        let text = include_str!("../../../shaders/http_only.wgsl");
        let program = wgsl::compile(&Source::new("http_only.wgsl", text), &ProgramOptions::default());
        let program = program.unwrap_or_else(|e| panic!("{}", e.render()));
        assert!(several_at_once(&program, Processor::Host, &|| false).is_none());
        let late = several_at_once(&program, Processor::Host, &|| true).expect("there is such code");
        let first = compiled(&program, Styles::All, When::WhereFaster, Processor::Host).unwrap();
        assert_eq!(first.len(), 2, "at first there is code for one packet at a time");
        assert!(late.stack <= session::CALLERS_STACK, "{}", late.stack);
        let piece = |operations| session::piece(&program, operations, 0);
        assert!(piece(late.operations) >= piece(first.operations));
        let both = first.with_late(Late::new(move |_| Some(late)));
        both.late().expect("set above").wait();
        assert_eq!(both.len(), 4);
    }
}
