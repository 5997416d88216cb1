// Parameters that the host sets, and one with its default value.
// probe: expect=pass set=limit=7 set=offset=-3 set=strict=true

override limit: u32 = 1u;
override offset: i32;
override strict: bool = false;
override untouched: u32 = limit * 2u;

fn xdp_filter(pkt: u32) -> u32 {
    if limit != 7u || offset != -3i || !strict || untouched != 14u { return XDP_DROP; }
    return XDP_PASS;
}
