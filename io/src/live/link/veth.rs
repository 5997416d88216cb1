//! Pairs of virtual Ethernet interfaces (veth).

use super::configure::LinkConfigurator;
use super::error::LinkError;
use super::interface::Interface;
use super::netlink::Message;
use super::reserved_name::{ALIAS, ReservedName};

/// `VETH_INFO_PEER`, include/uapi/linux/veth.h.
const VETH_INFO_PEER: u16 = 1;

/// Maximum MTU of a pair: `ETH_MAX_MTU`, include/uapi/linux/if_ether.h.
const MAX_MTU: u32 = 65_535;

/// Two interfaces, each of which receives what the other transmits. They are removed on drop, or by
/// the next run if this process is killed.
#[derive(Debug)]
pub struct VethPair {
    links: LinkConfigurator,
    near: Interface,
    far: Interface,
    _name: ReservedName,
}

impl VethPair {
    /// Creates a pair with this MTU (at most 65,535) and number of queues per direction; both
    /// interfaces are down and have no addresses.
    ///
    /// # Errors
    /// [`LinkError`]; CAP_NET_ADMIN is required.
    pub fn new(mtu: u32, queues: u32) -> Result<VethPair, LinkError> {
        let name_reservation = ReservedName::new()?;
        let (near, far) = (name_reservation.name('a'), name_reservation.name('b'));
        let fill = |message: &mut Message, name: &str| {
            message.string(libc::IFLA_IFNAME, name);
            message.number(libc::IFLA_MTU, mtu.min(MAX_MTU));
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
        let mut links = LinkConfigurator::open(&near)?;
        links.create(&message).map_err(|error| match error.raw_os_error() {
            Some(libc::EOPNOTSUPP) => LinkError::NotSupported {
                what: "veth pairs",
                hint: "load the module veth (`modprobe veth`), or build it with CONFIG_VETH",
            },
            _ => LinkError::new(&near, "creating a veth pair", error),
        })?;
        let near = links.find(&near)?;
        // From here on, drop removes the pair.
        let mut pair = VethPair { links, far: near.clone(), near, _name: name_reservation };
        pair.far = pair.links.find(&far)?;
        // One alias is enough: removing either end removes both.
        pair.links.set_alias(&pair.near, ALIAS)?;
        Ok(pair)
    }

    /// The end that frames are transmitted on.
    pub fn near(&self) -> &Interface {
        &self.near
    }

    /// The end that receives them.
    pub fn far(&self) -> &Interface {
        &self.far
    }

    /// Sets both ends up. On return, frames sent at the near end arrive at the far end.
    ///
    /// # Errors
    /// [`LinkError`]; CAP_NET_ADMIN is required.
    pub fn set_up(&mut self) -> Result<(), LinkError> {
        // The end set up second has carrier at once, the first one a moment later: end with the
        // near one.
        self.links.set_up(&self.far)?;
        self.links.set_up(&self.near)
    }

    pub(crate) fn links(&mut self) -> (&mut LinkConfigurator, [&Interface; 2]) {
        (&mut self.links, [&self.near, &self.far])
    }
}

impl Drop for VethPair {
    fn drop(&mut self) {
        // The pair may be gone already, with its namespace or by hand.
        let _ = self.links.delete(&self.near);
    }
}
