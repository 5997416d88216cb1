//! Pairs of virtual interfaces.

use super::error::LinkError;
use super::interface::Interface;
use super::links::Links;
use super::name::{ALIAS, Claim};
use super::netlink::Message;

/// `VETH_INFO_PEER`, include/uapi/linux/veth.h.
const VETH_INFO_PEER: u16 = 1;

/// The longest MTU that a pair can have: `ETH_MAX_MTU`, include/uapi/linux/if_ether.h.
const LONGEST: u32 = 65_535;

/// Two interfaces of which one receives what the other sends. They are removed when this is dropped, and by the next run
/// where there was no time for that.
#[derive(Debug)]
pub struct VethPair {
    links: Links,
    near: Interface,
    far: Interface,
    _claim: Claim,
}

impl VethPair {
    /// A pair with this MTU (65,535 at most) and as many queues each way, both still down, without addresses.
    ///
    /// # Errors
    /// [`LinkError`]: it needs CAP_NET_ADMIN.
    pub fn new(mtu: u32, queues: u32) -> Result<VethPair, LinkError> {
        let claim = Claim::new()?;
        let (near, far) = (claim.name('a'), claim.name('b'));
        let fill = |message: &mut Message, name: &str| {
            message.string(libc::IFLA_IFNAME, name);
            message.number(libc::IFLA_MTU, mtu.min(LONGEST));
            message.number(libc::IFLA_NUM_RX_QUEUES, queues);
            message.number(libc::IFLA_NUM_TX_QUEUES, queues);
        };
        let mut message = Message::link(0, 0, 0);
        fill(&mut message, &near);
        message.nested(libc::IFLA_LINKINFO, |message| {
            message.string(libc::IFLA_INFO_KIND, "veth");
            message.nested(libc::IFLA_INFO_DATA, |message| {
                message.nested(VETH_INFO_PEER, |message| {
                    message.append(&Message::link(0, 0, 0));
                    fill(message, &far);
                });
            });
        });
        let mut links = Links::open(&near)?;
        links.make(&message).map_err(|error| match error.raw_os_error() {
            Some(libc::EOPNOTSUPP) => LinkError::NotSupported {
                what: "veth pairs",
                hint: "load the module veth (`modprobe veth`), or build it with CONFIG_VETH",
            },
            _ => LinkError::new(&near, "making a veth pair", error),
        })?;
        let near = links.find(&near)?;
        // From here on it is removed.
        let mut pair = VethPair { links, far: near.clone(), near, _claim: claim };
        pair.far = pair.links.find(&far)?;
        // With one the other goes.
        pair.links.set_alias(&pair.near, ALIAS)?;
        Ok(pair)
    }

    /// The first.
    pub fn near(&self) -> &Interface {
        &self.near
    }

    /// The second.
    pub fn far(&self) -> &Interface {
        &self.far
    }

    /// Sets both up. When it is done, what is sent at the first comes in at the second.
    ///
    /// # Errors
    /// [`LinkError`]: it needs CAP_NET_ADMIN.
    pub fn set_up(&mut self) -> Result<(), LinkError> {
        // Whoever comes up second has a link at once, and the other one a moment later.
        self.links.set_up(&self.far)?;
        self.links.set_up(&self.near)
    }

    pub(super) fn links(&mut self) -> (&mut Links, [&Interface; 2]) {
        (&mut self.links, [&self.near, &self.far])
    }
}

impl Drop for VethPair {
    fn drop(&mut self) {
        // It may be gone: with its namespace, or removed by hand.
        let _ = self.links.delete(&self.near);
    }
}
