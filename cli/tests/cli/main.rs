//! The program as users meet it: exit codes, what goes to which stream, and that nothing makes it
//! panic.

#[cfg(unix)]
mod any_bytes;
mod arguments;
mod bench;
mod broadcast;
mod calibrate;
mod check;
#[allow(dead_code, reason = "it is shared with other tests, and none of them needs all of it")]
#[path = "../../../compat-tests/src/clang.rs"]
mod clang;
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
