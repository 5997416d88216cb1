//! Links between namespaces.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::namespace::{Namespace, output};
use crate::wait_until;

/// A pair of virtual Ethernet interfaces: what one sends the other receives. Removing either
/// namespace removes the pair.
#[derive(Debug)]
pub struct Veth {
    /// End in the first namespace, with the lower addresses.
    pub left: End,
    /// End in the second namespace.
    pub right: End,
}

/// One interface of a link.
#[derive(Debug)]
pub struct End {
    namespace: Namespace,
    name: String,
    subnet: u8,
    /// 1 on the left, 2 on the right.
    host: u8,
}

/// Options of a link to be created.
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
    /// Returns the options of a link between two namespaces: one queue, an MTU of 1,500 bytes, IPv4
    /// and IPv6 addresses, and all of the kernel's offloads. [`Options::make`] creates the link.
    pub fn between<'n>(left: &'n Namespace, right: &'n Namespace) -> Options<'n> {
        Options { namespaces: [left, right], queues: 1, mtu: 1500, subnet: 0, ipv4: true, ipv6: true, offloads: true }
    }

    /// Removes both interfaces.
    ///
    /// # Panics
    /// If they are gone already.
    pub fn delete(self) {
        self.left.namespace.ip(&["link", "delete", &self.left.name]);
    }
}

/// Creates two namespaces and a link between them with default options.
///
/// # Panics
/// If the system refuses.
pub fn create_link() -> (Namespace, Namespace, Veth) {
    create_link_with(|link| link)
}

/// Creates two namespaces and a link between them with these options.
///
/// # Panics
/// If the system refuses.
pub fn create_link_with(options: impl FnOnce(Options<'_>) -> Options<'_>) -> (Namespace, Namespace, Veth) {
    let (left, right) = (Namespace::new(), Namespace::new());
    let veth = options(Veth::between(&left, &right)).make();
    (left, right, veth)
}

impl Options<'_> {
    /// Sets the number of receive and of transmit queues of each end.
    pub fn queues(mut self, queues: u32) -> Self {
        self.queues = queues;
        self
    }

    /// Sets the MTU, in bytes behind the Ethernet header.
    pub fn mtu(mut self, mtu: u32) -> Self {
        self.mtu = mtu;
        self
    }

    /// Chooses one of 256 subnets for the addresses; 0 by default. Links that share a namespace
    /// need different subnets.
    pub fn subnet(mut self, subnet: u8) -> Self {
        self.subnet = subnet;
        self
    }

    /// Leaves out IPv4 addresses.
    pub fn without_ipv4(mut self) -> Self {
        self.ipv4 = false;
        self
    }

    /// Disables IPv6, link-local addresses included. Without IPv4 and IPv6 the kernels send no
    /// frames of their own.
    pub fn without_ipv6(mut self) -> Self {
        self.ipv6 = false;
        self
    }

    /// Disables offloads: senders complete checksums and cut segments, and receivers do not merge
    /// them.
    pub fn without_offloads(mut self) -> Self {
        self.offloads = false;
        self
    }

    /// Creates the link. When this returns, both ends are up and forward frames.
    ///
    /// # Panics
    /// If the system refuses.
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
        let words = |end: &End| format!("{} address {} mtu {}", end.name, mac_text(end.mac()), self.mtu);
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
    /// Returns the namespace that holds the interface.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Returns the interface's name.
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

    /// Sets the interface up. Wait with [`End::wait_until_running`] before sending.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn up(&self) {
        self.namespace.ip(&["link", "set", &self.name, "up"]);
    }

    /// Sets the interface down; the other end loses its carrier.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn down(&self) {
        self.namespace.ip(&["link", "set", &self.name, "down"]);
    }

    /// Waits until frames can be sent: the kernel drops them for a moment after the other end comes
    /// up.
    ///
    /// # Panics
    /// If the interface is not running within 10 s.
    pub fn wait_until_running(&self) {
        let is_running = || self.namespace.ip(&["-oneline", "link", "show", &self.name]).contains("state UP");
        wait_until(&format!("{} is running", self.name), Duration::from_secs(10), is_running);
    }

    /// Runs `ethtool OPTION INTERFACE ARGUMENTS`: the first argument is the option, such as `-K`,
    /// and the rest follows the interface's name, such as `tso off gso off`.
    ///
    /// # Panics
    /// If it fails.
    pub fn ethtool(&self, arguments: &[&str]) -> String {
        let (option, rest) = arguments.split_first().expect("an option");
        let mut command: Command = self.namespace.command("ethtool");
        command.args([option, self.name.as_str()]).args(rest.iter().flat_map(|words| words.split(' ')));
        output(&mut command).unwrap_or_else(|e| panic!("{e}"))
    }
}

/// Formats a MAC address as `ip` takes it.
fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
