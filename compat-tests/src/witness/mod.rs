//! Other compilers of OpenCL C and C: what they make of the same text is what it means, as far as
//! their languages and ours are the same.

pub mod native;
pub mod opencl;

/// What a filter made of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Return value.
    pub value: u32,
    /// The packet as it left it.
    pub packet: Vec<u8>,
}

/// Why there are no answers.
#[derive(Debug)]
pub enum Unavailable {
    /// There is no such compiler here.
    Missing(String),
    /// The compiler rejected the text, or the program crashed.
    Failed(String),
}

/// Filters' texts, each to be compiled beside the others.
#[derive(Debug, Clone)]
pub struct Unit {
    /// The text.
    pub text: String,
    /// Names that it declares outside functions; `xdp_filter` is one of them.
    pub names: Vec<String>,
}

impl Unit {
    /// The text with every one of its names made its own by a number.
    fn numbered(&self, number: usize) -> String {
        let define = |name: &String| format!("#define {name} {name}_{number}\n");
        let undefine = |name: &String| format!("#undef {name}\n");
        let (before, after): (String, String) =
            (self.names.iter().map(define).collect(), self.names.iter().map(undefine).collect());
        format!("{before}{}\n{after}", self.text)
    }
}
