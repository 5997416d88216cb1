//! By traffic control at the ingress of the first interface: a filter that takes all frames, and the action `mirred`,
//! as this would set them up:
//!
//! ```text
//! ip link set dev FROM address MAC-OF-TO
//! tc qdisc add dev FROM clsact
//! tc filter add dev FROM ingress protocol all u32 match u32 0 0 action mirred ingress redirect dev TO
//! ```
//!
//! Whether a frame is for this machine was decided where it first came in, by the MAC address there; so both have the
//! same.
//!
//! What is set up goes with its interface, and is not taken back when the process is killed: without what sends into
//! the other end of the pair it does nothing.

use std::io;

use super::names;
use crate::af_xdp::bpf::error::BpfError;
use crate::live::link::netlink::{LINK_HEADER, Message, Netlink, attributes};

/// Hands frames on until it is dropped.
#[derive(Debug)]
pub struct Mirred {
    netlink: Netlink,
    interface: u32,
}

impl Drop for Mirred {
    fn drop(&mut self) {
        // With the qdisc goes the filter. The interface may be gone, and all of it.
        let _ = self.netlink.request(libc::RTM_DELQDISC, 0, &clsact(self.interface));
    }
}

/// As [`attach`](super::attach).
///
/// # Errors
/// [`BpfError::NoReinjection`] where the kernel lacks a part of it; other ones tell what to do.
pub fn attach(from: u32, to: u32) -> Result<Mirred, BpfError> {
    let (from_name, to_name) = names(from, to)?;
    let failed = |what: &str, error: io::Error| match error.raw_os_error() {
        Some(libc::ENODEV) => BpfError::NoInterface { interface: format!("{from_name} or {to_name}") },
        // A kind of qdisc, of filter or of action that it does not know.
        Some(libc::ENOENT | libc::EOPNOTSUPP) => BpfError::NoReinjection,
        _ => BpfError::new(format!("from {from_name} to {to_name}: {what}"), error),
    };
    let mut netlink = Netlink::open(0).map_err(|error| failed("a netlink socket", error))?;
    copy_mac(&mut netlink, to, from)
        .map_err(|error| failed("giving the first the MAC address of the second", error))?;
    let new = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    netlink.request(libc::RTM_NEWQDISC, new, &clsact(from)).map_err(|error| failed("adding a qdisc", error))?;
    // From here on it is taken back.
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

/// The qdisc at whose ingress filters are.
fn clsact(interface: u32) -> Message {
    let mut message = tcmsg(interface, 0xffff_0000, TC_H_CLSACT, 0);
    message.string(libc::TCA_KIND, "clsact");
    message
}

fn redirect(from: u32, to: u32) -> Message {
    // The only filter, for frames of any EtherType, which stands here in the order of the network.
    let (priority, protocol) = (1, u32::from((libc::ETH_P_ALL as u16).to_be()));
    let mut message = tcmsg(from, 0, TC_H_CLSACT_INGRESS, priority << 16 | protocol);
    message.string(libc::TCA_KIND, "u32");
    message.nested(libc::TCA_OPTIONS, |message| {
        // `struct tc_u32_sel` with one `struct tc_u32_key`, whose mask of zeros fits all.
        let mut selector = [0; 32];
        selector[0] = TC_U32_TERMINAL;
        selector[2] = 1;
        message.attribute(TCA_U32_SEL, &selector);
        message.nested(TCA_U32_ACT, |message| {
            // The first action.
            message.nested(1, |message| {
                message.string(TCA_ACT_KIND, "mirred");
                message.nested(TCA_ACT_OPTIONS, |message| {
                    // `struct tc_mirred`: index, capabilities, action, two counts, what is done, the interface.
                    let parameters = [0, 0, TC_ACT_STOLEN, 0, 0, TCA_INGRESS_REDIR, to].map(u32::to_ne_bytes);
                    message.attribute(TCA_MIRRED_PARMS, parameters.as_flattened());
                });
            });
        });
    });
    message
}

/// Gives an interface another's MAC address.
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
