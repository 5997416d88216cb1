//! Reinjecting passed packets into the kernel's stack.

use super::BpfError;
use super::reinject::{self, Reinjection};
use super::xdp::Mode;
use crate::live::link::{ALIAS, Interface, LinkConfigurator, LinkError, Tap, VethPair};

/// The kind of interface through which frames enter the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum StackDevice {
    /// A veth pair, or a TAP interface if the kernel does not support veth.
    #[default]
    Auto,
    /// A veth pair: an AF_XDP socket transmits into its first interface.
    Veth,
    /// A TAP interface: each frame is written with a system call.
    Tap,
}

/// The point at which the caller injects frames.
#[derive(Debug, Clone, Copy)]
pub enum InjectionPoint<'a> {
    /// Transmit frames on this interface.
    Veth(&'a Interface),
    /// Write frames to this interface.
    Tap(&'a Tap),
}

/// How the kernel receives the injected frames.
#[derive(Debug)]
#[non_exhaustive]
pub enum StackDelivery {
    /// Redirected to the ingress of the interface that they came from.
    Redirected(Reinjection),
    /// Received at an interface of this run. Sockets and routes find the frames, but whatever
    /// depends on the ingress interface sees this one: firewalls, sockets bound to an interface,
    /// IPv6 link-local addresses.
    Direct,
}

impl StackDelivery {
    /// Name for reports: `tcx`, `mirred`, `beside`.
    pub fn name(&self) -> &'static str {
        match self {
            StackDelivery::Redirected(reinjection) => reinjection.name(),
            StackDelivery::Direct => "beside",
        }
    }
}

/// Bytes by which a frame may exceed its interface's MTU: two VLAN tags.
const VLAN_TAGS_LENGTH: u32 = 8;

/// Maximum number of queues of the pair: each takes memory, and lanes share them.
const MAX_QUEUES: u32 = 64;

/// Injects frames of an interface into the kernel's stack. The interfaces it created are removed on
/// drop.
///
/// Frames injected before [`StackInjector::connect`] are lost.
#[derive(Debug)]
pub struct StackInjector {
    // Fields are dropped in order: first the redirection, then the interfaces.
    delivery: Option<StackDelivery>,
    link: StackLink,
    interface: Interface,
}

#[derive(Debug)]
enum StackLink {
    Veth(VethPair),
    Tap(Tap),
}

impl StackInjector {
    /// Creates the interfaces for frames from `interface`. The calling thread has to stay in its
    /// network namespace for all other methods, except drop.
    ///
    /// # Errors
    /// [`LinkError`]; CAP_NET_ADMIN is required.
    pub fn open(interface: &str, kind: StackDevice) -> Result<StackInjector, LinkError> {
        let interface = Interface::find(interface)?;
        let (mtu, queues) =
            (interface.mtu.saturating_add(VLAN_TAGS_LENGTH), interface.receive_queues.clamp(1, MAX_QUEUES));
        let link = match kind {
            StackDevice::Tap => StackLink::Tap(Tap::new()?),
            StackDevice::Veth => StackLink::Veth(VethPair::new(mtu, queues)?),
            StackDevice::Auto => match VethPair::new(mtu, queues) {
                Ok(pair) => StackLink::Veth(pair),
                Err(LinkError::NotSupported { .. }) => StackLink::Tap(Tap::new()?),
                Err(error) => return Err(error),
            },
        };
        let mut stack = StackInjector { delivery: None, link, interface };
        let alias = format!("{ALIAS}: back into the kernel as from {}", stack.interface.name);
        let quiet = |links: &mut LinkConfigurator, end: &Interface| {
            links.set_alias(end, &alias)?;
            links.disable_ipv6_addresses(end)?;
            set_ipv6(end, false);
            Ok(())
        };
        match &mut stack.link {
            StackLink::Veth(pair) => {
                let (links, ends) = pair.links();
                ends.into_iter().try_for_each(|end| quiet(links, end))?;
                pair.set_up()?;
            }
            StackLink::Tap(tap) => {
                let (links, end) = tap.links();
                quiet(links, end)?;
                tap.set_up()?;
            }
        }
        Ok(stack)
    }

    /// Returns the injection point.
    pub fn injection_point(&self) -> InjectionPoint<'_> {
        match &self.link {
            StackLink::Veth(pair) => InjectionPoint::Veth(pair.near()),
            StackLink::Tap(tap) => InjectionPoint::Tap(tap),
        }
    }

    /// The interface at which injected frames come out.
    pub fn exit(&self) -> &Interface {
        match &self.link {
            StackLink::Veth(pair) => pair.far(),
            StackLink::Tap(tap) => tap.interface(),
        }
    }

    /// How the kernel receives the frames, once connected.
    pub fn delivery(&self) -> Option<&StackDelivery> {
        self.delivery.as_ref()
    }

    /// Redirects injected frames to the interface whose XDP program runs in `mode`, or, if the
    /// kernel cannot, delivers them directly ([`StackInjector::connect_direct`]).
    ///
    /// # Errors
    /// [`StackError`] names the next step.
    pub fn connect(&mut self, mode: Mode) -> Result<&StackDelivery, StackError> {
        self.delivery = None;
        match reinject::attach(self.exit().index, self.interface.index, mode) {
            Ok(reinjection) => Ok(self.delivery.insert(StackDelivery::Redirected(reinjection))),
            Err(BpfError::NoReinjection) => self.connect_direct(),
            Err(error) => Err(error.into()),
        }
    }

    /// Lets the kernel receive the frames at the exit interface, configured to resemble the
    /// original one as far as possible.
    ///
    /// # Errors
    /// [`StackError`] names the next step.
    pub fn connect_direct(&mut self) -> Result<&StackDelivery, StackError> {
        self.delivery = None;
        let exit = self.exit();
        let variable = |interface: &str| format!("/proc/sys/net/ipv4/conf/{interface}/rp_filter");
        // Replies would leave through another interface, which strict reverse path filtering
        // rejects; the greater of both sysctls applies (Documentation/networking/ip-sysctl.rst).
        let all = std::fs::read_to_string(variable("all")).unwrap_or_default();
        if !matches!(all.trim(), "" | "0") {
            let value = all.trim().to_owned();
            return Err(LinkError::ReversePath { interface: exit.name.clone(), value }.into());
        }
        std::fs::write(variable(&exit.name), "0")
            .map_err(|error| LinkError::new(&exit.name, "disabling its reverse path filter", error))?;
        // Receiving IPv6 needs IPv6 enabled, but no address.
        set_ipv6(exit, true);
        let (links, exit) = match &mut self.link {
            StackLink::Veth(pair) => {
                let (links, [_, far]) = pair.links();
                (links, far)
            }
            StackLink::Tap(tap) => tap.links(),
        };
        if let Some(mac) = self.interface.mac {
            links.set_mac(exit, mac)?;
        }
        Ok(self.delivery.insert(StackDelivery::Direct))
    }
}

/// Enables or disables IPv6. Failure is ignored: the kernel may lack IPv6, or a container forbid
/// it. Then the kernel has no address to send from at this interface in either case, and directly
/// delivered IPv6 frames are lost.
fn set_ipv6(interface: &Interface, on: bool) {
    let off = if on { "0" } else { "1" };
    let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{}/disable_ipv6", interface.name), off);
}

/// Why the kernel's stack cannot be reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StackError {
    /// The frames cannot be redirected.
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// An interface cannot be configured.
    #[error(transparent)]
    Link(#[from] LinkError),
}
