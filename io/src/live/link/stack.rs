//! The way back into the kernel's stack for packets that pass.

use super::error::LinkError;
use super::interface::Interface;
use super::links::Links;
use super::name::ALIAS;
use super::tap::Tap;
use super::veth::VethPair;
use crate::af_xdp::BpfError;
use crate::af_xdp::reinject::{self, Reinjection};
use crate::af_xdp::xdp::Mode;

/// By what frames get back to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum StackDevice {
    /// By a veth pair; by a TAP interface where the kernel makes no pairs.
    #[default]
    Auto,
    /// By a veth pair: an AF_XDP socket sends into its first interface.
    Veth,
    /// By a TAP interface: frames are written, each with a system call.
    Tap,
}

/// Where frames are to be put.
#[derive(Debug, Clone, Copy)]
pub enum InjectionPoint<'a> {
    /// They are sent at this interface.
    Veth(&'a Interface),
    /// They are written here.
    Tap(&'a Tap),
}

/// What becomes of them where they come out.
#[derive(Debug)]
#[non_exhaustive]
pub enum StackDelivery {
    /// They are handed on to the interface that they are from, and the kernel sees them come in there.
    Redirected(Reinjection),
    /// They come in at an interface of the run's own. Sockets and routes find them; what asks for the interface they came in
    /// at sees that one: firewalls, sockets that are bound to an interface, IPv6 link-local addresses.
    Direct,
}

impl StackDelivery {
    /// `tcx`, `mirred`, `beside`.
    pub fn name(&self) -> &'static str {
        match self {
            StackDelivery::Redirected(reinjection) => reinjection.name(),
            StackDelivery::Direct => "beside",
        }
    }
}

/// Bytes that a frame may be longer than its interface's MTU allows: two VLAN tags.
const TAGS: u32 = 8;

/// Queues that are worth having: each takes memory, and lanes share them.
const MOST_QUEUES: u32 = 64;

/// Frames from an interface get back into the kernel's stack here. What it made is removed when it is dropped.
///
/// A frame that is put into the entrance before [`StackInjector::connect`] goes nowhere.
#[derive(Debug)]
pub struct StackInjector {
    // In the order in which they go.
    way: Option<StackDelivery>,
    made: Made,
    interface: Interface,
}

#[derive(Debug)]
enum Made {
    Veth(VethPair),
    Tap(Tap),
}

impl StackInjector {
    /// Makes a way back for frames from an interface of this thread's network namespace, which the thread is to be in for
    /// all else, too, but for the end.
    ///
    /// # Errors
    /// [`LinkError`]: it needs CAP_NET_ADMIN.
    pub fn open(interface: &str, kind: StackDevice) -> Result<StackInjector, LinkError> {
        let interface = Interface::find(interface)?;
        let (mtu, queues) = (interface.mtu.saturating_add(TAGS), interface.receive_queues.clamp(1, MOST_QUEUES));
        let made = match kind {
            StackDevice::Tap => Made::Tap(Tap::new()?),
            StackDevice::Veth => Made::Veth(VethPair::new(mtu, queues)?),
            StackDevice::Auto => match VethPair::new(mtu, queues) {
                Ok(pair) => Made::Veth(pair),
                Err(LinkError::NotSupported { .. }) => Made::Tap(Tap::new()?),
                Err(error) => return Err(error),
            },
        };
        let mut stack = StackInjector { way: None, made, interface };
        let alias = format!("{ALIAS}: back into the kernel as from {}", stack.interface.name);
        let quiet = |links: &mut Links, end: &Interface| {
            links.set_alias(end, &alias)?;
            links.without_ipv6_address(end)?;
            set_ipv6(end, false);
            Ok(())
        };
        match &mut stack.made {
            Made::Veth(pair) => {
                let (links, ends) = pair.links();
                ends.into_iter().try_for_each(|end| quiet(links, end))?;
                pair.set_up()?;
            }
            Made::Tap(tap) => {
                let (links, end) = tap.links();
                quiet(links, end)?;
                tap.set_up()?;
            }
        }
        Ok(stack)
    }

    /// Where frames are to be put.
    pub fn injection_point(&self) -> InjectionPoint<'_> {
        match &self.made {
            Made::Veth(pair) => InjectionPoint::Veth(pair.near()),
            Made::Tap(tap) => InjectionPoint::Tap(tap),
        }
    }

    /// The interface at which they come out.
    pub fn exit(&self) -> &Interface {
        match &self.made {
            Made::Veth(pair) => pair.far(),
            Made::Tap(tap) => tap.interface(),
        }
    }

    /// What becomes of frames that come out.
    pub fn delivery(&self) -> Option<&StackDelivery> {
        self.way.as_ref()
    }

    /// Has what comes out handed on to the interface, whose XDP program runs in this mode; or, where the kernel cannot do
    /// that, come in beside it ([`StackInjector::connect_direct`]).
    ///
    /// # Errors
    /// [`StackError`] tells what to do.
    pub fn connect(&mut self, mode: Mode) -> Result<&StackDelivery, StackError> {
        self.way = None;
        match reinject::attach(self.exit().index, self.interface.index, mode) {
            Ok(reinjection) => Ok(self.way.insert(StackDelivery::Redirected(reinjection))),
            Err(BpfError::NoReinjection) => self.connect_direct(),
            Err(error) => Err(error.into()),
        }
    }

    /// Has what comes out come in there, at an interface that looks like the one the frames are from as far as it can.
    ///
    /// # Errors
    /// [`StackError`] tells what to do.
    pub fn connect_direct(&mut self) -> Result<&StackDelivery, StackError> {
        self.way = None;
        let exit = self.exit();
        let variable = |interface: &str| format!("/proc/sys/net/ipv4/conf/{interface}/rp_filter");
        // Where an answer would go is another interface; of both variables the greater one counts
        // (Documentation/networking/ip-sysctl.rst).
        let all = std::fs::read_to_string(variable("all")).unwrap_or_default();
        if !matches!(all.trim(), "" | "0") {
            let value = all.trim().to_owned();
            return Err(LinkError::ReversePath { interface: exit.name.clone(), value }.into());
        }
        std::fs::write(variable(&exit.name), "0")
            .map_err(|error| LinkError::new(&exit.name, "turning its reverse path filter off", error))?;
        // To receive IPv6 takes IPv6, and no address.
        set_ipv6(exit, true);
        let (links, exit) = match &mut self.made {
            Made::Veth(pair) => {
                let (links, [_, far]) = pair.links();
                (links, far)
            }
            Made::Tap(tap) => tap.links(),
        };
        if let Some(mac) = self.interface.mac {
            links.set_mac(exit, mac)?;
        }
        Ok(self.way.insert(StackDelivery::Direct))
    }
}

/// Turns IPv6 on or off. A kernel may have none, and a container may not be let: then the interface has an address for the
/// kernel to speak from neither way, and a frame of IPv6 beside its interface is lost.
fn set_ipv6(interface: &Interface, on: bool) {
    let off = if on { "0" } else { "1" };
    let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{}/disable_ipv6", interface.name), off);
}

/// Why frames cannot get back into the kernel's stack.
#[derive(Debug, thiserror::Error)]
pub enum StackError {
    /// They cannot be handed on.
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// An interface cannot be set up.
    #[error(transparent)]
    Link(#[from] LinkError),
}
