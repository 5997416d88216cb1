//! What DPDK's functions need to be linked, where they are wanted.

#[cfg(feature = "link")]
#[path = "build/link.rs"]
mod link;

fn main() {
    #[cfg(feature = "link")]
    link::main();
}
