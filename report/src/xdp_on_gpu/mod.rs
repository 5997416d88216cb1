//! The workloads of XDP-on-GPU, by which this project is measured beside it: its way, which is
//! records that the host has parsed, 40 bytes to the device and 40 back for each packet; its loop
//! over them on one thread; and ours, from raw packets. What it publishes stands beside.
//!
//! All sides of a column take turns, so that whatever else the machine does hits each of them
//! alike; and all verdicts are held to the rule before anything is timed.

pub mod packet_runner;
pub mod published;
pub mod records;
mod run;
pub mod tables;
pub mod workloads;

pub use run::{Options, Side, open_records, run};
pub use tables::{Cell, Column, FormattedTable, Row, Source, Table};
