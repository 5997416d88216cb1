//! A bridge between two networks. It copies frames from one packet socket to another, so that
//! nothing but the frame's bytes is carried over.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::SetOnDrop;
use crate::namespace::Namespace;
use crate::packet_socket::{Frame, PacketSocket};
use crate::veth::{End, Veth};

/// Two hosts, on the left and on the right, that only the bridge connects.
#[derive(Debug)]
pub struct Bridge {
    _between: Namespace,
    near: Veth,
    far: Veth,
    /// The bridge's ends.
    sockets: [PacketSocket; 2],
}

impl Bridge {
    /// Creates the networks. Senders cut segments themselves; all other offloads stay on.
    ///
    /// # Panics
    /// If the system refuses.
    #[expect(clippy::new_without_default, reason = "creates system objects")]
    pub fn new() -> Bridge {
        let (left, between, right) = (Namespace::new(), Namespace::new(), Namespace::new());
        let near = Veth::between(&left, &between).make();
        let far = Veth::between(&between, &right).make();
        for end in [&near.left, &far.right] {
            end.ethtool(&["-K", "tso off gso off"]);
        }
        for end in [&near.right, &far.left] {
            between.ip(&["address", "flush", "dev", end.name()]);
        }
        let sockets = [PacketSocket::at(&near.right), PacketSocket::at(&far.left)];
        Bridge { _between: between, near, far, sockets }
    }

    /// Returns the interface of the left host.
    pub fn left(&self) -> &End {
        &self.near.left
    }

    /// Returns the interface of the right host.
    pub fn right(&self) -> &End {
        &self.far.right
    }

    /// Returns the addresses of the left and the right host: of IPv4, and of IPv6.
    pub fn addresses(&self) -> [[IpAddr; 2]; 2] {
        let ends = [self.left(), self.right()];
        [ends.map(|end| end.ipv4().into()), ends.map(|end| end.ipv6().into())]
    }

    /// Forwards frames both ways while `while_this` runs in the networks on the left and right.
    /// `forward` gets each frame, whether it comes from the left, and the socket to send it to.
    ///
    /// # Panics
    /// If a socket fails.
    pub fn carry<T>(
        &mut self,
        forward: impl Fn(Frame, bool, &PacketSocket) + Send,
        while_this: impl FnOnce(&Namespace, &Namespace) -> T,
    ) -> T {
        let is_done = AtomicBool::new(false);
        let [near, far] = &mut self.sockets;
        std::thread::scope(|scope| {
            let is_done = &is_done;
            scope.spawn(move || {
                while !is_done.load(Ordering::Relaxed) {
                    // Alternate with short timeouts, so that neither direction waits long.
                    while let Some(frame) = near.receive(Duration::from_millis(1)) {
                        forward(frame, true, far);
                    }
                    while let Some(frame) = far.receive(Duration::from_millis(1)) {
                        forward(frame, false, near);
                    }
                }
            });
            let _done = SetOnDrop(is_done);
            while_this(self.near.left.namespace(), self.far.right.namespace())
        })
    }
}
