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
    "router_v6", "blacklist", "ecpri_reorder",
);

/// Twins of [`STATEFUL_WGSL`] in OpenCL C.
pub const STATEFUL_OPENCL_C: &[(&str, &str)] = texts!(
    "cl":
    "gtpu_decap", "flow_stats", "maglev_lb", "conntrack_fw", "token_bucket", "policer", "syn_flood", "router_v4",
    "router_v6", "blacklist", "ecpri_reorder",
);

/// A capture of 4,000 packets of mixed traffic (classic pcap).
pub const SAMPLE_CAPTURE: &[u8] = include_bytes!("../samples/mixed.pcap");

/// The C header that declares the prelude, for editors and language servers.
pub const OPENCL_C_HEADER: &str = include_str!("../include/portcullis.h");

/// A stock filter, in both of its languages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StockFilter {
    /// The name, as in `shaders/NAME.wgsl`.
    pub name: &'static str,
    /// The filter in WGSL.
    pub wgsl: &'static str,
    /// The filter in OpenCL C.
    pub opencl_c: &'static str,
}

impl StockFilter {
    /// The first sentence of the filter's head comment, without the full stop.
    pub fn description(&self) -> String {
        let lines = self.wgsl.lines().map_while(|line| line.strip_prefix("// "));
        let head = lines.collect::<Vec<_>>().join(" ");
        let text = head.strip_prefix(self.name).and_then(|text| text.strip_prefix(": ")).unwrap_or(&head);
        text.split_once(". ").map_or(text, |(sentence, _)| sentence).trim_end_matches('.').to_owned()
    }
}

/// Returns all stock filters, those without maps first.
pub fn filters() -> impl Iterator<Item = StockFilter> {
    let in_wgsl = STATELESS_WGSL.iter().chain(STATEFUL_WGSL);
    let in_c = STATELESS_OPENCL_C.iter().chain(STATEFUL_OPENCL_C);
    in_wgsl.zip(in_c).map(|(&(name, wgsl), &(_, opencl_c))| StockFilter { name, wgsl, opencl_c })
}

/// Returns the stock filter of this name.
pub fn find(name: &str) -> Option<StockFilter> {
    filters().find(|filter| filter.name == name)
}

/// Returns the WGSL text of the stock filter of this name.
pub fn wgsl(name: &str) -> Option<&'static str> {
    find(name).map(|filter| filter.wgsl)
}

/// Returns the OpenCL C text of the stock filter of this name.
pub fn opencl_c(name: &str) -> Option<&'static str> {
    find(name).map(|filter| filter.opencl_c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twins_have_the_same_name_and_a_head() {
        for (in_wgsl, in_c) in [(STATELESS_WGSL, STATELESS_OPENCL_C), (STATEFUL_WGSL, STATEFUL_OPENCL_C)] {
            assert!(in_wgsl.iter().map(|(name, _)| name).eq(in_c.iter().map(|(name, _)| name)));
        }
        for filter in filters() {
            let description = filter.description();
            assert!(filter.wgsl.starts_with(&format!("// {}: {}", filter.name, &description[..10])), "{description}");
            assert!(description.split_whitespace().count() > 2 && !description.ends_with('.'), "{description}");
        }
        assert_eq!(find("minimal").unwrap().description(), "passes every packet");
        assert_eq!(find("none"), None);
    }
}
