//! The processors that code is made for.

use cranelift_codegen::isa::{self, Builder, OwnedTargetIsa};
use cranelift_codegen::settings::{self, Configurable};

/// A processor that code is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Processor {
    /// The one at hand, with all that it can do.
    #[default]
    Host,
    /// Any with a 64-bit x86's first instructions: SSE2, but nothing newer (the psABI's level `x86-64`).
    X86_64,
    /// Any from about 2009 on: up to SSE4.2, but without AVX (level `x86-64-v2`).
    X86_64V2,
    /// Any of Arm's with 64 bits (Armv8.0-A): NEON, and exclusive accesses where newer ones have atomic instructions.
    /// Known where the crate is built with feature `aarch64`, or for such a processor.
    Aarch64,
}

impl Processor {
    /// Its name, as compilers have it.
    pub fn name(self) -> &'static str {
        match self {
            Processor::Host => "native",
            Processor::X86_64 => "x86-64",
            Processor::X86_64V2 => "x86-64-v2",
            Processor::Aarch64 => "aarch64",
        }
    }

    /// Whether its code runs on the processor at hand, or would where that can do what it asks for.
    pub(crate) fn is_of_host(self) -> bool {
        match self {
            Processor::Host => true,
            Processor::X86_64 | Processor::X86_64V2 => cfg!(target_arch = "x86_64"),
            Processor::Aarch64 => cfg!(target_arch = "aarch64"),
        }
    }

    /// What generates code for it.
    ///
    /// # Errors
    /// Why there is nothing that does, in words.
    pub(crate) fn isa(self) -> Result<OwnedTargetIsa, String> {
        let mut flags = settings::builder();
        for (name, value) in [
            ("opt_level", "speed"),
            ("is_pic", "false"),
            ("use_colocated_libcalls", "false"),
            // Our own output is checked in release builds too: a fault of ours is then an error and
            // not wild code, for a tenth of the time that compiling takes.
            ("enable_verifier", "true"),
            // A filter's variables may take more than the guard page below the stack.
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
