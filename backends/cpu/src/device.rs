//! The CPU as a [`Device`].

use std::num::NonZeroU64;
use std::sync::Arc;

use portcullis_core::device::{Device, DeviceError, DeviceInfo, Dispatch, LoadOptions, Session, load_initial_maps};
use portcullis_core::program::Program;

use crate::compile::background::BackgroundCell;
use crate::compile::filter_code::{FilterCode, PrefetchPolicy};
use crate::compile::lowered::Style;
use crate::compile::pipeline::{MAX_OPERATIONS_FOR_VARIANTS, StyleSet, compile_filter, compile_vector_code};
use crate::compile::processor::Processor;
use crate::probe;
use crate::session::CpuSession;
use crate::session::shared::{CALLER_STACK_BYTES, max_chunk};

/// The host's processor.
#[derive(Debug)]
pub struct Cpu {
    info: DeviceInfo,
    styles: StyleSet,
    prefetch: PrefetchPolicy,
    processor: Processor,
}

impl Cpu {
    /// Opens the device. This cannot fail; on a processor that the code generator does not support,
    /// loading a program does.
    pub fn new() -> Cpu {
        Cpu {
            info: probe::info(),
            styles: StyleSet::All,
            prefetch: PrefetchPolicy::IfFaster,
            processor: Processor::Host,
        }
    }

    /// Opens the device with code of a single style instead of measuring which style is fastest,
    /// for tests and measurements. The device's id names the style.
    pub fn with_style(style: Style) -> Cpu {
        let mut info = probe::info();
        info.id = format!("cpu ({})", style.name());
        Cpu { info, styles: StyleSet::Only(style), ..Cpu::new() }
    }

    /// Opens the device without vector code, as the baseline to measure vector code against.
    pub fn scalar_only() -> Cpu {
        let mut info = probe::info();
        info.id = "cpu (scalar)".into();
        Cpu { info, styles: StyleSet::Scalar, ..Cpu::new() }
    }

    /// Opens the device with map entries always prefetched, and batches always partitioned by where
    /// their packets' searches begin, for tests and measurements. Otherwise only searches in large
    /// maps are prefetched, and both happens only if it measures faster.
    pub fn with_prefetch() -> Cpu {
        let mut info = probe::info();
        info.id = "cpu (prefetch)".into();
        Cpu { info, prefetch: PrefetchPolicy::Always, ..Cpu::new() }
    }

    /// Restricts the code to what an older processor can run, for tests. The device's id names it.
    #[must_use]
    pub fn with_processor(mut self, processor: Processor) -> Cpu {
        self.info.id = match self.info.id.strip_suffix(')') {
            Some(id) => format!("{id}, {})", processor.name()),
            None => format!("{} ({})", self.info.id, processor.name()),
        };
        Cpu { processor, ..self }
    }
}

impl Cpu {
    /// Has vector code compiled in the background, if that is one of the styles. `work` is extra
    /// work per packet in nanoseconds.
    fn with_vector_code(&self, code: FilterCode, program: &Arc<Program>, work: u64) -> FilterCode {
        if self.styles != StyleSet::All || code.operations > MAX_OPERATIONS_FOR_VARIANTS {
            return code;
        }
        let (program, processor) = (program.clone(), self.processor);
        let (stack, operations) = (code.stack_bytes, code.operations);
        code.with_background(BackgroundCell::new(move |keep_going| {
            let native = compile_vector_code(&program, processor, keep_going)?;
            // The session chose its stack and chunk size for the scalar code: vector code must not
            // need more stack, nor smaller chunks to be cancelled in time.
            let fits = native.stack_bytes <= stack.max(CALLER_STACK_BYTES)
                && max_chunk(&program, native.operations, work) >= max_chunk(&program, operations, work);
            fits.then_some(native)
        }))
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
        let work_nanos = work.map_or(0, NonZeroU64::get);
        let code = compile_filter(program, self.styles, self.prefetch, self.processor)?;
        let code = if program.has_flows() { code } else { self.with_vector_code(code, program, work_nanos) };
        let flows = program
            .flow_program()
            .map(|flows| {
                // Scalar code of one style: which is faster would not pay to find out, as vector
                // code is faster than either.
                let styles =
                    if let StyleSet::Only(_) = self.styles { self.styles } else { StyleSet::Only(Style::BranchFree) };
                let code = compile_filter(&flows, styles, self.prefetch, self.processor)?;
                Ok(self.with_vector_code(code, &Arc::new(flows), 0))
            })
            .transpose()?;
        let session = CpuSession::new(program.clone(), code, flows, work, dispatch == Dispatch::Inline, options)?;
        load_initial_maps(program, dispatch.wrap(session))
    }
}

#[cfg(test)]
mod tests {
    use portcullis_core::diagnostics::Source;
    use portcullis_core::program::ProgramOptions;
    use portcullis_wgsl as wgsl;

    use super::*;

    #[test]
    fn vector_code_adds_variants_once_it_is_compiled() {
        // The offset of the port depends on the packet, so there is speculative code as well.
        let text = "fn xdp_filter(pkt: u32) -> u32 {
            let header = (load_u8(pkt, 14u) & 15u) * 4u;
            if load_be16(pkt, 16u + header) != 80u { return XDP_DROP; }
            return XDP_PASS;
        }";
        let program = wgsl::compile(&Source::new("test.wgsl", text), &ProgramOptions::default());
        let program = program.unwrap_or_else(|e| panic!("{}", e.render()));
        assert!(compile_vector_code(&program, Processor::Host, &|| false).is_none(), "compilation was cancelled");
        let vector = compile_vector_code(&program, Processor::Host, &|| true).expect("the filter has vector code");
        let scalar = compile_filter(&program, StyleSet::All, PrefetchPolicy::IfFaster, Processor::Host).unwrap();
        assert_eq!(scalar.variant_count(), 2, "until then there is scalar code only");
        assert!(vector.stack_bytes <= CALLER_STACK_BYTES, "{}", vector.stack_bytes);
        let chunk = |operations| max_chunk(&program, operations, 0);
        assert!(chunk(vector.operations) >= chunk(scalar.operations));
        let both = scalar.with_background(BackgroundCell::new(move |_| Some(vector)));
        both.background().expect("set above").wait();
        assert_eq!(both.variant_count(), 4);
    }
}
