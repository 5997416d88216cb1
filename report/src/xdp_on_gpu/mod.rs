//! The XDP-on-GPU baseline: its workloads by its method (records of 40 bytes that the host has
//! parsed, copied to the device and back), by its loop over records on one thread, and by
//! Portcullis from raw packets, beside the figures that it publishes.
//!
//! All sides of a column take turns, so that other load of the machine affects them alike. All
//! verdicts are compared with the workload's rule before timing.

pub mod packet_runner;
pub mod published;
pub mod records;
mod run;

pub mod workloads;

pub use crate::comparison_tables::{Cell, Column, FormattedTable, Row, Source, Table};
pub use run::{Options, Side, open_records, run};
