//! The programs that run in the kernel. They are assembled here, so that neither building nor
//! running requires a BPF compiler.
//!
//! - [`insn`] and [`asm`]: instructions, and an assembler for them.
//! - [`steer`]: generates the XDP program that redirects frames to user space.
//! - [`sys`]: system calls for programs, maps and links; [`error`]: their errors.

pub mod asm;
pub mod error;
pub mod insn;
pub mod steer;
pub mod sys;

#[cfg(test)]
mod tests;
