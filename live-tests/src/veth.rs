//! Links between namespaces.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::namespace::{Namespace, output};
use crate::wait_until;

/// A pair of virtual Ethernet interfaces: what goes out of one comes in at the other. It goes with
/// either namespace.
#[derive(Debug)]
pub struct Veth {
    /// The end in the first namespace, which has the lower addresses.
    pub left: End,
    /// The end in the second.
    pub right: End,
}

/// One of the interfaces.
#[derive(Debug)]
pub struct End {
    namespace: Namespace,
    name: String,
    subnet: u8,
    /// 1 on the left, 2 on the right.
    host: u8,
}

/// How a link is to be.
#[derive(Debug)]
#[must_use]
pub struct Options<'n> {
    namespaces: [&'n Namespace; 2],
    queues: u32,
    mtu: u32,
    subnet: u8,
    ipv4: bool,
    ipv6: bool,
    offloads: bool,
}

impl Veth {
    /// A link between two namespaces, with one queue, an MTU of 1,500 bytes, IPv4 and IPv6
    /// addresses, and all offloads that the kernel gives it, unless it is told otherwise:
    /// [`Options::make`] makes it.
    pub fn between<'n>(left: &'n Namespace, right: &'n Namespace) -> Options<'n> {
        Options { namespaces: [left, right], queues: 1, mtu: 1500, subnet: 0, ipv4: true, ipv6: true, offloads: true }
    }

    /// Removes both interfaces.
    ///
    /// # Panics
    /// When they are gone.
    pub fn delete(self) {
        self.left.namespace.ip(&["link", "delete", &self.left.name]);
    }
}

impl Options<'_> {
    /// Receive and transmit queues of each end.
    pub fn queues(mut self, queues: u32) -> Self {
        self.queues = queues;
        self
    }

    /// Bytes behind the Ethernet header.
    pub fn mtu(mut self, mtu: u32) -> Self {
        self.mtu = mtu;
        self
    }

    /// Which of 256 networks the addresses are of: 0 where nothing is said. Links that meet in a
    /// namespace need different ones.
    pub fn subnet(mut self, subnet: u8) -> Self {
        self.subnet = subnet;
        self
    }

    /// No IPv4 addresses.
    pub fn without_ipv4(mut self) -> Self {
        self.ipv4 = false;
        self
    }

    /// No IPv6, not even link-local addresses. Without either, the kernels at both ends keep
    /// silent.
    pub fn without_ipv6(mut self) -> Self {
        self.ipv6 = false;
        self
    }

    /// Nothing is left to be done by the other end: no checksums, no segments to be cut or put
    /// together.
    pub fn without_offloads(mut self) -> Self {
        self.offloads = false;
        self
    }

    /// Makes the link. Both ends are up, and frames go through, when it is done.
    ///
    /// # Panics
    /// When the system refuses.
    pub fn make(self) -> Veth {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let end = |index: usize| End {
            namespace: self.namespaces[index].clone(),
            name: format!("veth{number}{}", ["l", "r"][index]),
            subnet: self.subnet,
            host: index as u8 + 1,
        };
        let veth = Veth { left: end(0), right: end(1) };
        let (left, right) = (&veth.left, &veth.right);
        let queues = &self.queues.to_string();
        let words = |end: &End| format!("{} address {} mtu {}", end.name, text(end.mac()), self.mtu);
        let (near, far) = (words(left), words(right));
        let queues = ["numrxqueues", queues, "numtxqueues", queues];
        let mut arguments = vec!["link", "add"];
        arguments.extend(near.split(' '));
        arguments.extend(queues);
        arguments.extend(["type", "veth", "peer", "name"]);
        arguments.extend(far.split(' '));
        arguments.extend(queues);
        arguments.extend(["netns", right.namespace.name()]);
        left.namespace.ip(&arguments);

        for end in [left, right] {
            if !self.ipv6 {
                end.namespace.sysctl(&format!("net/ipv6/conf/{}/disable_ipv6", end.name), "1");
            }
            if !self.offloads {
                end.ethtool(&["-K", "rx off tx off sg off tso off gso off gro off"]);
            }
        }
        for end in [left, right] {
            let (ipv4, ipv6) = (format!("{}/24", end.ipv4()), format!("{}/64", end.ipv6()));
            end.up();
            if self.ipv4 {
                end.namespace.ip(&["address", "add", &ipv4, "dev", &end.name]);
            }
            if self.ipv6 {
                end.namespace.ip(&["address", "add", &ipv6, "dev", &end.name, "nodad"]);
            }
        }
        left.wait_until_running();
        right.wait_until_running();
        veth
    }
}

impl End {
    /// The namespace it is in.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the MAC address: `02:77:00:00:00:01` on the left of subnet 0.
    pub fn mac(&self) -> [u8; 6] {
        [0x02, 0x77, 0, 0, self.subnet, self.host]
    }

    /// Returns the IPv4 address, with a prefix of 24 bits: `10.77.0.1` on the left of subnet 0.
    pub fn ipv4(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, self.subnet, self.host)
    }

    /// Returns the IPv6 address, with a prefix of 64 bits: `fd77::1` on the left of subnet 0.
    pub fn ipv6(&self) -> Ipv6Addr {
        Ipv6Addr::new(0xfd77, 0, 0, self.subnet.into(), 0, 0, 0, self.host.into())
    }

    /// Sets it up. [`End::wait_until_running`] waits for what follows.
    ///
    /// # Panics
    /// When the system refuses.
    pub fn up(&self) {
        self.namespace.ip(&["link", "set", &self.name, "up"]);
    }

    /// Sets it down: then the other end has no carrier.
    ///
    /// # Panics
    /// When the system refuses.
    pub fn down(&self) {
        self.namespace.ip(&["link", "set", &self.name, "down"]);
    }

    /// Waits until frames go out: the kernel drops them for a moment after the other end came up.
    ///
    /// # Panics
    /// When that does not happen.
    pub fn wait_until_running(&self) {
        let is_running = || self.namespace.ip(&["-oneline", "link", "show", &self.name]).contains("state UP");
        wait_until(&format!("{} is running", self.name), Duration::from_secs(10), is_running);
    }

    /// Sets its MTU.
    ///
    /// # Panics
    /// When the system refuses.
    pub fn set_mtu(&self, mtu: u32) {
        self.namespace.ip(&["link", "set", &self.name, "mtu", &mtu.to_string()]);
    }

    /// Runs `ethtool` on it: an option, and what follows the interface's name, such as `-K` and
    /// `tso off gso off`.
    ///
    /// # Panics
    /// When it fails.
    pub fn ethtool(&self, arguments: &[&str]) -> String {
        let (option, rest) = arguments.split_first().expect("an option");
        let mut command: Command = self.namespace.command("ethtool");
        command.args([option, self.name.as_str()]).args(rest.iter().flat_map(|words| words.split(' ')));
        output(&mut command).unwrap_or_else(|e| panic!("{e}"))
    }
}

/// An address as `ip` takes it.
fn text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
