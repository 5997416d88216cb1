//! `--control`: a socket at which others ask a run that goes on for something. The protocol is
//! `portcullis::control`.

mod server;
mod service;

pub use server::Server;
pub use service::{LaneStatus, Live};
