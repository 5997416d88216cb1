//! Processors that code is generated for.

use cranelift_codegen::isa::{self, Builder, OwnedTargetIsa};
use cranelift_codegen::settings::{self, Configurable};

/// A processor, or level of an instruction set, to generate code for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Processor {
    /// The host's processor with all its extensions.
    #[default]
    Host,
    /// The baseline of 64-bit x86: SSE2 and nothing newer (psABI level `x86-64`).
    X86_64,
    /// 64-bit x86 of about 2009: up to SSE4.2, without AVX (psABI level `x86-64-v2`).
    X86_64V2,
    /// Armv8.0-A: NEON, and load-exclusive/store-exclusive instead of LSE atomics. Available on
    /// such a processor, or if the crate is built with feature `aarch64`.
    Aarch64,
}

impl Processor {
    /// Name as in compilers' `-march` option.
    pub fn name(self) -> &'static str {
        match self {
            Processor::Host => "native",
            Processor::X86_64 => "x86-64",
            Processor::X86_64V2 => "x86-64-v2",
            Processor::Aarch64 => "aarch64",
        }
    }

    /// Whether this is the host's architecture. The host may still lack an extension.
    pub(crate) fn is_of_host(self) -> bool {
        match self {
            Processor::Host => true,
            Processor::X86_64 | Processor::X86_64V2 => cfg!(target_arch = "x86_64"),
            Processor::Aarch64 => cfg!(target_arch = "aarch64"),
        }
    }

    /// Creates the code generator.
    ///
    /// # Errors
    ///
    /// Why Cranelift cannot generate code for the processor, in words.
    pub(crate) fn isa(self) -> Result<OwnedTargetIsa, String> {
        let mut flags = settings::builder();
        for (name, value) in [
            ("opt_level", "speed"),
            ("is_pic", "false"),
            ("use_colocated_libcalls", "false"),
            // Verify our own output in release builds too, for a tenth of the compile time: a bug
            // of ours is then an error instead of wild code.
            ("enable_verifier", "true"),
            // A filter's variables may exceed the guard page below the stack.
            ("enable_probestack", "true"),
            ("probestack_strategy", "inline"),
            ("unwind_info", "false"),
        ] {
            flags.set(name, value).map_err(|e| format!("code generator flag {name}: {e}"))?;
        }
        self.builder()?.finish(settings::Flags::new(flags)).map_err(|e| e.to_string())
    }

    fn builder(self) -> Result<Builder, String> {
        let architecture = match self {
            Processor::Host => return cranelift_native::builder().map_err(str::to_owned),
            Processor::X86_64 | Processor::X86_64V2 => "x86_64",
            Processor::Aarch64 => "aarch64",
        };
        let unknown = |error| format!("no code generator for {}: {error}", self.name());
        let mut builder = isa::lookup_by_name(architecture).map_err(|e| unknown(e.to_string()))?;
        if architecture == "x86_64" {
            builder.enable(self.name()).map_err(|e| unknown(e.to_string()))?;
        }
        Ok(builder)
    }
}
