//! Four packets at a time: the filter as a graph over lanes.
//!
//! - `dag`: the form in between (lane IR): pure operations in a graph without duplicates, and, in
//!   order, the steps that have effects. It says what one lane, which is one packet, does; how many
//!   lanes go side by side is for whoever executes it;
//! - `trace`: from a program to that form, by executing it symbolically;
//! - `interp`: executes that form, slowly: a second oracle beside the reference interpreter, which
//!   it shares nothing with.

pub(crate) mod dag;
pub mod interp;
