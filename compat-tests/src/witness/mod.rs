//! Other compilers of OpenCL C and C as references: their results define a source's meaning where
//! their language and Portcullis's agree.

pub mod native;
pub mod opencl;

/// A filter's result for one packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Return value.
    pub value: u32,
    /// The packet after the filter.
    pub packet: Vec<u8>,
}

/// Reason why there are no results.
#[derive(Debug)]
pub enum Unavailable {
    /// The compiler is not installed.
    Missing(String),
    /// The compiler rejected the source, or the program crashed.
    Failed(String),
}

/// A filter's source, to be compiled together with others.
#[derive(Debug, Clone)]
pub struct Unit {
    /// Source text.
    pub text: String,
    /// Names that the source declares at file scope, including `xdp_filter`.
    pub names: Vec<String>,
}

impl Unit {
    /// Returns the source with a number appended to each of its names, so that they are unique.
    fn numbered(&self, number: usize) -> String {
        let define = |name: &String| format!("#define {name} {name}_{number}\n");
        let undefine = |name: &String| format!("#undef {name}\n");
        let (before, after): (String, String) =
            (self.names.iter().map(define).collect(), self.names.iter().map(undefine).collect());
        format!("{before}{}\n{after}", self.text)
    }
}
