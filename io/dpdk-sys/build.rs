//! Generates bindings and links DPDK if the feature `link` is enabled.

#[cfg(feature = "link")]
#[path = "build/link.rs"]
mod link;

fn main() {
    #[cfg(feature = "link")]
    link::main();
}
