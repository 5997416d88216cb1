//! What ships with the program: the stock filters in both languages, a sample capture, and the
//! header for editors of OpenCL C filters.

macro_rules! texts {
    ($ending:literal: $($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../shaders/", $name, ".", $ending)))),*]
    };
}

/// Stock filters without maps in WGSL: name and text.
pub const STATELESS_WGSL: &[(&str, &str)] = texts!(
    "wgsl":
    "simple_filter", "port_filter", "minimal", "complex_filter", "http_only", "hash_lb", "mac_swap", "dscp_mark",
    "vlan_pop", "sampler",
);

/// Twins of [`STATELESS_WGSL`] in OpenCL C, with the same names and verdicts.
pub const STATELESS_OPENCL_C: &[(&str, &str)] = texts!(
    "cl":
    "simple_filter", "port_filter", "minimal", "complex_filter", "http_only", "hash_lb", "mac_swap", "dscp_mark",
    "vlan_pop", "sampler",
);

/// Stock filters with maps in WGSL: name and text. Their verdicts depend on earlier packets.
pub const STATEFUL_WGSL: &[(&str, &str)] = texts!(
    "wgsl":
    "gtpu_decap", "flow_stats", "maglev_lb", "conntrack_fw", "token_bucket", "policer", "syn_flood", "router_v4",
    "router_v6", "blacklist",
);

/// Twins of [`STATEFUL_WGSL`] in OpenCL C.
pub const STATEFUL_OPENCL_C: &[(&str, &str)] = texts!(
    "cl":
    "gtpu_decap", "flow_stats", "maglev_lb", "conntrack_fw", "token_bucket", "policer", "syn_flood", "router_v4",
    "router_v6", "blacklist",
);

/// A capture of 4,000 packets of mixed traffic (classic pcap).
pub const SAMPLE_CAPTURE: &[u8] = include_bytes!("../samples/mixed.pcap");

/// The C header that declares the prelude, for editors and language servers.
pub const OPENCL_C_HEADER: &str = include_str!("../include/portcullis.h");

/// Returns the WGSL text of the stock filter of this name.
pub fn wgsl(name: &str) -> Option<&'static str> {
    STATELESS_WGSL.iter().chain(STATEFUL_WGSL).find(|(stock, _)| *stock == name).map(|(_, text)| *text)
}

/// Returns the OpenCL C text of the stock filter of this name.
pub fn opencl_c(name: &str) -> Option<&'static str> {
    STATELESS_OPENCL_C.iter().chain(STATEFUL_OPENCL_C).find(|(stock, _)| *stock == name).map(|(_, text)| *text)
}
