//! The command line: exit codes, output streams, messages, and no panics.

#[cfg(unix)]
mod any_bytes;
mod arguments;
mod bench;
mod broadcast;
mod calibrate;
mod check;
#[allow(dead_code, reason = "shared by several test programs, none of which uses all of it")]
#[path = "../../../compat-tests/src/clang.rs"]
mod clang;
#[cfg(feature = "cuda")]
mod device_faults;
mod events;
mod expressions;
#[cfg(unix)]
mod flows;
mod interrupts;
mod live;
mod look_around;
mod man;
mod map_files;
mod maps;
mod objects;
mod outputs;
mod pipes;
mod readme;
mod refused;
mod run;
mod state;
mod stock_filters;
mod support;
mod tcpdump;
mod traps;
mod watch;
