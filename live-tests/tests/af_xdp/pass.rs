//! PASS: back into the kernel's stack, where a peer's echoes and connections are answered.

use std::net::IpAddr;

use portcullis_core::packet::Action;
use portcullis_io::af_xdp::xdp::Mode;
use portcullis_io::af_xdp::{Options, Steering};
use portcullis_io::live::link::StackDevice;
use portcullis_live_tests::{Namespace, Veth, lane_options, ping, run_lanes, tcp_echo};

use crate::{NOTHING, SOON, all, begin};

/// What a connection carries: many packets.
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
        let (left, right) = (Namespace::new(), Namespace::new());
        let veth = Veth::between(&left, &right).queues(2).make();
        // In native mode the kernel sees to it itself. Checksums are left to a card that is not
        // there.
        veth.left.ethtool(&["-K", "tso off gso off"]);
        let addresses: [IpAddr; 2] = [veth.right.ipv4().into(), veth.right.ipv6().into()];
        let options = Options {
            stack: Some(kind),
            steer: Steering::Default,
            mode: Some(mode),
            ..lane_options(&[veth.right.name()])
        };
        let ((), ended) = run_lanes(&right, &options, all(Action::Pass), |ports| {
            assert_eq!((ports[0].mode, ports[0].stack.as_deref()), (mode, Some(expected)));
            for address in addresses {
                assert!(ping(&left, address, SOON), "{expected}: {address}");
                tcp_echo(&left, &right, (address, 0), BYTES, SOON)
                    .unwrap_or_else(|e| panic!("{expected}: {address}: {e}"));
            }
        });
        println!("{expected}: {ended:?}");
        // All of it came this way.
        assert!(ended.of(Action::Pass) > 2 * BYTES as u64 / 1500 && ended.sum(|it| it.checksums) > 500, "{ended:?}");
        assert!(!right.ip(&["link"]).contains("pc0-"));

        run_lanes(&right, &options, all(Action::Drop), |_| {
            for address in addresses {
                assert!(!ping(&left, address, NOTHING), "{expected}: {address}");
                assert!(tcp_echo(&left, &right, (address, 0), 1, NOTHING).is_err(), "{expected}: {address}");
            }
        });
    }
}
