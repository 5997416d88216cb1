//! The programs that run in the kernel, written here instruction by instruction, so that neither building nor running
//! needs a BPF compiler.
//!
//! - [`insn`] and [`asm`]: instructions, and an assembler for them.
//! - [`steer`]: the XDP program that decides which frames come to user space.
//! - [`sys`]: programs, maps and links as the kernel has them, and [`error`], what it says when it does not want them.

pub mod asm;
pub mod error;
pub mod insn;
pub mod steer;
pub mod sys;

#[cfg(test)]
mod tests;
