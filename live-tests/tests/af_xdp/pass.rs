//! PASS: packets reach the kernel's stack, which answers a peer's echo requests and connections.

use std::net::IpAddr;

use portcullis_core::packet::Action;
use portcullis_io::af_xdp::StackDevice;
use portcullis_io::af_xdp::Steering;
use portcullis_io::af_xdp::xdp::Mode;
use portcullis_live_tests::{create_link_with, lane_options, ping, run_lanes, tcp_echo};

use crate::{QUIET_TIME, TIMEOUT, all, begin};

/// Bytes that a connection carries: many packets.
const BYTES: usize = 400_000;

#[test]
fn packets_that_pass_are_answered_by_the_stack() {
    let Some(_suite) = begin("AF_XDP PASS") else { return };
    for (kind, mode, expected) in [
        (StackDevice::Auto, Mode::Native, "tcx"),
        (StackDevice::Veth, Mode::Skb, "mirred"),
        (StackDevice::Tap, Mode::Native, "tap, tcx"),
        (StackDevice::Tap, Mode::Skb, "tap, mirred"),
    ] {
        let (left, right, veth) = create_link_with(|link| link.queues(2));
        // In native mode the kernel turns segmentation off by itself. Checksum offload stays on, so
        // that checksums arrive incomplete.
        veth.left.ethtool(&["-K", "tso off gso off"]);
        let addresses: [IpAddr; 2] = [veth.right.ipv4().into(), veth.right.ipv6().into()];
        let options = lane_options(&[veth.right.name()]).with_stack(kind).with_steer(Steering::Default).with_mode(mode);
        let ((), ended) = run_lanes(&right, &options, all(Action::Pass), |ports| {
            assert_eq!((ports[0].mode, ports[0].stack.as_deref()), (mode, Some(expected)));
            for address in addresses {
                assert!(ping(&left, address, TIMEOUT), "{expected}: {address}");
                tcp_echo(&left, &right, (address, 0), BYTES, TIMEOUT)
                    .unwrap_or_else(|e| panic!("{expected}: {address}: {e}"));
            }
        });
        println!("{expected}: {ended:?}");
        // All traffic came through the lanes.
        assert!(ended.of(Action::Pass) > 2 * BYTES as u64 / 1500 && ended.sum(|it| it.checksums) > 500, "{ended:?}");
        assert!(!right.ip(&["link"]).contains("pc0-"));

        run_lanes(&right, &options, all(Action::Drop), |_| {
            for address in addresses {
                assert!(!ping(&left, address, QUIET_TIME), "{expected}: {address}");
                assert!(tcp_echo(&left, &right, (address, 0), 1, QUIET_TIME).is_err(), "{expected}: {address}");
            }
        });
    }
}
