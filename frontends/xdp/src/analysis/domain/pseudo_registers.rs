//! Pseudo registers: state of a program that its own registers do not hold.

/// Pseudo registers of a frame, numbered after all that an instruction can encode (0 to 15): round,
/// limit, argument and callback of a `bpf_loop`.
pub(crate) const LOOP_ROUND: u8 = 16;
pub(crate) const LOOP_LIMIT: u8 = 17;
pub(crate) const LOOP_ARGUMENT: u8 = 18;
pub(crate) const LOOP_CALLBACK: u8 = 19;
/// Pseudo registers of the program: redirect target plus one, tail calls made, bytes of metadata,
/// random numbers drawn.
pub(crate) const REDIRECT_TARGET: u8 = 20;
pub(crate) const TAIL_CALL_COUNT: u8 = 21;
pub(crate) const METADATA_LENGTH: u8 = 22;
pub(crate) const RANDOM_DRAWS: u8 = 23;
