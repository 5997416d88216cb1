//! Kernel helper functions by number (linux/bpf.h, `enum bpf_func_id`).

pub const MAP_LOOKUP_ELEM: u32 = 1;
pub const MAP_UPDATE_ELEM: u32 = 2;
pub const MAP_DELETE_ELEM: u32 = 3;
pub const KTIME_GET_NS: u32 = 5;
pub const TRACE_PRINTK: u32 = 6;
pub const GET_PRANDOM_U32: u32 = 7;
pub const GET_SMP_PROCESSOR_ID: u32 = 8;
pub const TAIL_CALL: u32 = 12;
pub const REDIRECT: u32 = 23;
pub const PERF_EVENT_OUTPUT: u32 = 25;
pub const CSUM_DIFF: u32 = 28;
pub const XDP_ADJUST_HEAD: u32 = 44;
pub const REDIRECT_MAP: u32 = 51;
pub const XDP_ADJUST_META: u32 = 54;
pub const XDP_ADJUST_TAIL: u32 = 65;
pub const FIB_LOOKUP: u32 = 69;
pub const SPIN_LOCK: u32 = 93;
pub const SPIN_UNLOCK: u32 = 94;
pub const KTIME_GET_BOOT_NS: u32 = 125;
pub const RINGBUF_OUTPUT: u32 = 130;
pub const RINGBUF_RESERVE: u32 = 131;
pub const RINGBUF_SUBMIT: u32 = 132;
pub const RINGBUF_DISCARD: u32 = 133;
pub const RINGBUF_QUERY: u32 = 134;
pub const KTIME_GET_COARSE_NS: u32 = 160;
pub const CHECK_MTU: u32 = 163;
pub const FOR_EACH_MAP_ELEM: u32 = 164;
pub const TRACE_VPRINTK: u32 = 177;
pub const LOOP: u32 = 181;
pub const XDP_GET_BUFF_LEN: u32 = 188;
pub const XDP_LOAD_BYTES: u32 = 189;
pub const XDP_STORE_BYTES: u32 = 190;
pub const MAP_LOOKUP_PERCPU_ELEM: u32 = 195;
pub const KTIME_GET_TAI_NS: u32 = 208;

/// Names by number, without the prefix `bpf_`, separated by spaces.
const NAMES: &str = "\
    unspec map_lookup_elem map_update_elem map_delete_elem probe_read ktime_get_ns trace_printk \
    get_prandom_u32 get_smp_processor_id skb_store_bytes l3_csum_replace l4_csum_replace \
    tail_call clone_redirect get_current_pid_tgid get_current_uid_gid get_current_comm \
    get_cgroup_classid skb_vlan_push skb_vlan_pop skb_get_tunnel_key skb_set_tunnel_key \
    perf_event_read redirect get_route_realm perf_event_output skb_load_bytes get_stackid \
    csum_diff skb_get_tunnel_opt skb_set_tunnel_opt skb_change_proto skb_change_type \
    skb_under_cgroup get_hash_recalc get_current_task probe_write_user current_task_under_cgroup \
    skb_change_tail skb_pull_data csum_update set_hash_invalid get_numa_node_id skb_change_head \
    xdp_adjust_head probe_read_str get_socket_cookie get_socket_uid set_hash setsockopt \
    skb_adjust_room redirect_map sk_redirect_map sock_map_update xdp_adjust_meta \
    perf_event_read_value perf_prog_read_value getsockopt override_return sock_ops_cb_flags_set \
    msg_redirect_map msg_apply_bytes msg_cork_bytes msg_pull_data bind xdp_adjust_tail \
    skb_get_xfrm_state get_stack skb_load_bytes_relative fib_lookup sock_hash_update \
    msg_redirect_hash sk_redirect_hash lwt_push_encap lwt_seg6_store_bytes lwt_seg6_adjust_srh \
    lwt_seg6_action rc_repeat rc_keydown skb_cgroup_id get_current_cgroup_id get_local_storage \
    sk_select_reuseport skb_ancestor_cgroup_id sk_lookup_tcp sk_lookup_udp sk_release \
    map_push_elem map_pop_elem map_peek_elem msg_push_data msg_pop_data rc_pointer_rel spin_lock \
    spin_unlock sk_fullsock tcp_sock skb_ecn_set_ce get_listener_sock skc_lookup_tcp \
    tcp_check_syncookie sysctl_get_name sysctl_get_current_value sysctl_get_new_value \
    sysctl_set_new_value strtol strtoul sk_storage_get sk_storage_delete send_signal \
    tcp_gen_syncookie skb_output probe_read_user probe_read_kernel probe_read_user_str \
    probe_read_kernel_str tcp_send_ack send_signal_thread jiffies64 read_branch_records \
    get_ns_current_pid_tgid xdp_output get_netns_cookie get_current_ancestor_cgroup_id sk_assign \
    ktime_get_boot_ns seq_printf seq_write sk_cgroup_id sk_ancestor_cgroup_id ringbuf_output \
    ringbuf_reserve ringbuf_submit ringbuf_discard ringbuf_query csum_level skc_to_tcp6_sock \
    skc_to_tcp_sock skc_to_tcp_timewait_sock skc_to_tcp_request_sock skc_to_udp6_sock \
    get_task_stack load_hdr_opt store_hdr_opt reserve_hdr_opt inode_storage_get \
    inode_storage_delete d_path copy_from_user snprintf_btf seq_printf_btf skb_cgroup_classid \
    redirect_neigh per_cpu_ptr this_cpu_ptr redirect_peer task_storage_get task_storage_delete \
    get_current_task_btf bprm_opts_set ktime_get_coarse_ns ima_inode_hash sock_from_file \
    check_mtu for_each_map_elem snprintf sys_bpf btf_find_by_name_kind sys_close timer_init \
    timer_set_callback timer_start timer_cancel get_func_ip get_attach_cookie task_pt_regs \
    get_branch_snapshot trace_vprintk skc_to_unix_sock kallsyms_lookup_name find_vma loop strncmp \
    get_func_arg get_func_ret get_func_arg_cnt get_retval set_retval xdp_get_buff_len \
    xdp_load_bytes xdp_store_bytes copy_from_user_task skb_set_tstamp ima_file_hash kptr_xchg \
    map_lookup_percpu_elem skc_to_mptcp_sock dynptr_from_mem ringbuf_reserve_dynptr \
    ringbuf_submit_dynptr ringbuf_discard_dynptr dynptr_read dynptr_write dynptr_data \
    tcp_raw_gen_syncookie_ipv4 tcp_raw_gen_syncookie_ipv6 tcp_raw_check_syncookie_ipv4 \
    tcp_raw_check_syncookie_ipv6 ktime_get_tai_ns user_ringbuf_drain";

/// Name of a helper, without its prefix.
fn short_name(helper: u32) -> Option<&'static str> {
    NAMES.split(' ').nth(helper as usize).filter(|_| helper > 0)
}

/// Name of a helper, with its prefix; `helper N` if the number is unknown.
pub fn name(helper: u32) -> String {
    short_name(helper).map_or_else(|| format!("helper {helper}"), |name| format!("bpf_{name}"))
}

/// Name of the feature that an unsupported helper needs.
pub fn missing_feature(helper: u32) -> String {
    let name = name(helper);
    let Some(short) = short_name(helper) else {
        let (last, name) = NAMES.split(' ').enumerate().last().unwrap_or_default();
        return format!("helpers beyond those of linux/bpf.h that are known here (up to {last}, bpf_{name})");
    };
    let begins = |prefixes: &str| prefixes.split(' ').any(|prefix| short.starts_with(prefix));
    let theme = match short {
        "spin_lock" | "spin_unlock" => "spin locks",
        "map_push_elem" | "map_pop_elem" | "map_peek_elem" => "queues, stacks and Bloom filters",
        "kptr_xchg" => "kernel pointers in maps",
        "user_ringbuf_drain" => "ring buffers that the host writes",
        _ if short.contains("dynptr") => "dynptrs",
        _ if short.contains("syncookie") => "SYN cookies",
        _ if begins("timer_") => "timers",
        _ if begins("sk_lookup skc_ sk_release") => "kernel sockets",
        _ if begins(OTHER_HOOK_PREFIXES) => "programs for hooks other than XDP, which alone may call it",
        _ => return name,
    };
    format!("{theme} ({name})")
}

/// Prefixes of helpers that the kernel does not offer to XDP programs (`xdp_func_proto`,
/// net/core/filter.c), separated by spaces.
const OTHER_HOOK_PREFIXES: &str = "\
    skb_ l3_csum l4_csum clone_redirect get_route_realm get_stackid get_hash_recalc csum_update \
    csum_level set_hash get_socket setsockopt getsockopt sk_redirect sock_ override_return msg_ \
    bind lwt_ rc_ get_local_storage sk_select_reuseport sk_fullsock tcp_sock tcp_send_ack \
    get_listener_sock sysctl_ sk_storage xdp_output get_netns_cookie sk_assign seq_ sk_cgroup_id \
    sk_ancestor load_hdr_opt store_hdr_opt reserve_hdr_opt inode_storage d_path redirect_neigh \
    redirect_peer bprm_ ima_ get_func get_attach_cookie get_retval set_retval";

/// Number of arguments of a helper; 5, the maximum, if the helper is not supported.
pub fn argument_count(helper: u32) -> u32 {
    match helper {
        KTIME_GET_NS | GET_PRANDOM_U32 | GET_SMP_PROCESSOR_ID | KTIME_GET_BOOT_NS | KTIME_GET_COARSE_NS
        | KTIME_GET_TAI_NS => 0,
        SPIN_LOCK | SPIN_UNLOCK | XDP_GET_BUFF_LEN => 1,
        MAP_LOOKUP_ELEM | MAP_DELETE_ELEM | REDIRECT | XDP_ADJUST_HEAD | XDP_ADJUST_META | XDP_ADJUST_TAIL
        | RINGBUF_SUBMIT | RINGBUF_DISCARD | RINGBUF_QUERY => 2,
        TAIL_CALL | REDIRECT_MAP | RINGBUF_RESERVE | MAP_LOOKUP_PERCPU_ELEM => 3,
        MAP_UPDATE_ELEM | FIB_LOOKUP | RINGBUF_OUTPUT | FOR_EACH_MAP_ELEM | TRACE_VPRINTK | LOOP | XDP_LOAD_BYTES
        | XDP_STORE_BYTES => 4,
        _ => 5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_the_kernels() {
        let named = [
            (MAP_LOOKUP_ELEM, "bpf_map_lookup_elem"),
            (MAP_UPDATE_ELEM, "bpf_map_update_elem"),
            (MAP_DELETE_ELEM, "bpf_map_delete_elem"),
            (KTIME_GET_NS, "bpf_ktime_get_ns"),
            (TRACE_PRINTK, "bpf_trace_printk"),
            (GET_PRANDOM_U32, "bpf_get_prandom_u32"),
            (GET_SMP_PROCESSOR_ID, "bpf_get_smp_processor_id"),
            (TAIL_CALL, "bpf_tail_call"),
            (REDIRECT, "bpf_redirect"),
            (PERF_EVENT_OUTPUT, "bpf_perf_event_output"),
            (CSUM_DIFF, "bpf_csum_diff"),
            (XDP_ADJUST_HEAD, "bpf_xdp_adjust_head"),
            (REDIRECT_MAP, "bpf_redirect_map"),
            (XDP_ADJUST_META, "bpf_xdp_adjust_meta"),
            (XDP_ADJUST_TAIL, "bpf_xdp_adjust_tail"),
            (FIB_LOOKUP, "bpf_fib_lookup"),
            (SPIN_LOCK, "bpf_spin_lock"),
            (SPIN_UNLOCK, "bpf_spin_unlock"),
            (KTIME_GET_BOOT_NS, "bpf_ktime_get_boot_ns"),
            (RINGBUF_OUTPUT, "bpf_ringbuf_output"),
            (RINGBUF_RESERVE, "bpf_ringbuf_reserve"),
            (RINGBUF_SUBMIT, "bpf_ringbuf_submit"),
            (RINGBUF_DISCARD, "bpf_ringbuf_discard"),
            (RINGBUF_QUERY, "bpf_ringbuf_query"),
            (KTIME_GET_COARSE_NS, "bpf_ktime_get_coarse_ns"),
            (CHECK_MTU, "bpf_check_mtu"),
            (FOR_EACH_MAP_ELEM, "bpf_for_each_map_elem"),
            (TRACE_VPRINTK, "bpf_trace_vprintk"),
            (LOOP, "bpf_loop"),
            (XDP_GET_BUFF_LEN, "bpf_xdp_get_buff_len"),
            (XDP_LOAD_BYTES, "bpf_xdp_load_bytes"),
            (XDP_STORE_BYTES, "bpf_xdp_store_bytes"),
            (MAP_LOOKUP_PERCPU_ELEM, "bpf_map_lookup_percpu_elem"),
            (KTIME_GET_TAI_NS, "bpf_ktime_get_tai_ns"),
        ];
        for (number, name) in named {
            assert_eq!(super::name(number), name);
        }
        assert_eq!((NAMES.split(' ').count(), name(209).as_str()), (210, "bpf_user_ringbuf_drain"));
        assert_eq!(missing_feature(SPIN_LOCK), "spin locks (bpf_spin_lock)");
        assert_eq!(missing_feature(42), "bpf_get_numa_node_id");
        assert_eq!(missing_feature(84), "kernel sockets (bpf_sk_lookup_tcp)");
        assert!(
            missing_feature(9).contains("hooks other than XDP")
                && missing_feature(9).ends_with("(bpf_skb_store_bytes)")
        );
        assert!(missing_feature(999).ends_with("(up to 209, bpf_user_ringbuf_drain)"));
        assert_eq!([0, 88, 165, 100_000].map(name), ["helper 0", "bpf_map_pop_elem", "bpf_snprintf", "helper 100000"]);
    }
}
