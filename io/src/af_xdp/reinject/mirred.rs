//! Redirection by traffic control: a match-all filter at the first interface's ingress with the
//! action `mirred`, equivalent to:
//!
//! ```text
//! ip link set dev FROM address MAC-OF-TO
//! tc qdisc add dev FROM clsact
//! tc filter add dev FROM ingress protocol all u32 match u32 0 0 \
//!     action mirred ingress redirect dev TO
//! ```
//!
//! The kernel decides by MAC address at the first ingress whether a frame is for this machine, so
//! both interfaces get the same address.
//!
//! If the process is killed, the configuration stays until its interface is removed, and does
//! nothing: the sender at the other end of the pair is gone.

use std::io;

use super::names;
use crate::af_xdp::bpf::error::BpfError;
use crate::live::link::netlink::{LINK_HEADER, Message, Netlink, attributes};

/// Redirects frames until dropped.
#[derive(Debug)]
pub struct Mirred {
    netlink: Netlink,
    interface: u32,
}

impl Drop for Mirred {
    fn drop(&mut self) {
        // Removing the qdisc removes the filter. Ignore failure: the interface may be gone already.
        let _ = self.netlink.request(libc::RTM_DELQDISC, 0, &clsact(self.interface));
    }
}

/// Redirects frames like [`attach`](super::attach).
///
/// # Errors
/// [`BpfError::NoReinjection`] if the kernel lacks a part of it; others name the next step.
pub fn attach(from: u32, to: u32) -> Result<Mirred, BpfError> {
    let (from_name, to_name) = names(from, to)?;
    let failed = |what: &str, error: io::Error| match error.raw_os_error() {
        Some(libc::ENODEV) => BpfError::NoInterface { interface: format!("{from_name} or {to_name}") },
        // A kind of qdisc, filter or action that the kernel does not know.
        Some(libc::ENOENT | libc::EOPNOTSUPP) => BpfError::NoReinjection,
        _ => BpfError::new(format!("from {from_name} to {to_name}: {what}"), error),
    };
    let mut netlink = Netlink::open(0).map_err(|error| failed("opening an rtnetlink socket", error))?;
    copy_mac(&mut netlink, to, from)
        .map_err(|error| failed("copying the MAC address of the second to the first", error))?;
    let new = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    netlink.request(libc::RTM_NEWQDISC, new, &clsact(from)).map_err(|error| failed("adding a qdisc", error))?;
    // From here on, drop removes the qdisc.
    let mut mirred = Mirred { netlink, interface: from };
    let added = mirred.netlink.request(libc::RTM_NEWTFILTER, new, &redirect(from, to));
    added.map_err(|error| failed("adding a filter", error))?;
    Ok(mirred)
}

// include/uapi/linux/pkt_sched.h
const TC_H_CLSACT: u32 = 0xffff_fff1;
const TC_H_CLSACT_INGRESS: u32 = 0xffff_fff2;
// include/uapi/linux/pkt_cls.h
const TCA_U32_SEL: u16 = 5;
const TCA_U32_ACT: u16 = 7;
const TC_U32_TERMINAL: u8 = 1;
const TCA_ACT_KIND: u16 = 1;
const TCA_ACT_OPTIONS: u16 = 2;
const TC_ACT_STOLEN: u32 = 4;
// include/uapi/linux/tc_act/tc_mirred.h
const TCA_MIRRED_PARMS: u16 = 2;
const TCA_INGRESS_REDIR: u32 = 3;

/// `struct tcmsg`, include/uapi/linux/rtnetlink.h.
fn tcmsg(interface: u32, handle: u32, parent: u32, info: u32) -> Message {
    let family = 0;
    Message::new(&[family, interface, handle, parent, info])
}

/// The qdisc that ingress filters attach to.
fn clsact(interface: u32) -> Message {
    let mut message = tcmsg(interface, 0xffff_0000, TC_H_CLSACT, 0);
    message.string(libc::TCA_KIND, "clsact");
    message
}

fn redirect(from: u32, to: u32) -> Message {
    // The only filter, for all EtherTypes; the protocol is in network byte order.
    let (priority, protocol) = (1, u32::from((libc::ETH_P_ALL as u16).to_be()));
    let mut message = tcmsg(from, 0, TC_H_CLSACT_INGRESS, priority << 16 | protocol);
    message.string(libc::TCA_KIND, "u32");
    message.nested(libc::TCA_OPTIONS, |message| {
        // `struct tc_u32_sel` with one `struct tc_u32_key`, whose zero mask matches everything.
        let mut selector = [0; 32];
        selector[0] = TC_U32_TERMINAL;
        selector[2] = 1;
        message.attribute(TCA_U32_SEL, &selector);
        message.nested(TCA_U32_ACT, |message| {
            // The first action.
            message.nested(1, |message| {
                message.string(TCA_ACT_KIND, "mirred");
                message.nested(TCA_ACT_OPTIONS, |message| {
                    // `struct tc_mirred`: index, capabilities, action, reference and bind counts,
                    // mirred action, interface.
                    let parameters = [0, 0, TC_ACT_STOLEN, 0, 0, TCA_INGRESS_REDIR, to].map(u32::to_ne_bytes);
                    message.attribute(TCA_MIRRED_PARMS, parameters.as_flattened());
                });
            });
        });
    });
    message
}

/// Sets interface `to`'s MAC address to that of `from`.
fn copy_mac(netlink: &mut Netlink, from: u32, to: u32) -> io::Result<()> {
    let answer = netlink.query(libc::RTM_GETLINK, &Message::link(from, 0, 0))?;
    let mut message = Message::link(to, 0, 0);
    for (kind, address) in attributes(answer.get(LINK_HEADER..).unwrap_or_default()) {
        if kind == libc::IFLA_ADDRESS {
            message.attribute(kind, address);
        }
    }
    netlink.request(libc::RTM_NEWLINK, 0, &message)
}
