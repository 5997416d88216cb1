//! A bare AF_XDP socket: what it is given, and nothing else.

use std::num::NonZeroU32;
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use portcullis_live_tests::{End, wait_until};
use xsk_rs::config::{BindFlags, LibxdpFlags, SocketConfig, UmemConfig};
use xsk_rs::{CompQueue, FillQueue, FrameDesc, RxQueue, Socket, TxQueue, Umem};

/// Frames that a socket can be given in all.
const FRAMES: NonZeroU32 = NonZeroU32::new(64).unwrap();

/// A socket for queue 0 of an interface.
pub struct XdpSocket {
    received: RxQueue,
    umem: Umem,
    // Kept, so that the socket lives.
    _sent: TxQueue,
    _rings: (FillQueue, CompQueue),
}

impl XdpSocket {
    pub fn at(end: &End) -> XdpSocket {
        end.namespace().run(|| {
            let (umem, frames) = Umem::new(UmemConfig::default(), FRAMES, false).unwrap();
            let config = SocketConfig::builder()
                .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
                .bind_flags(BindFlags::XDP_COPY)
                .build();
            let name = end.name().parse().unwrap();
            let mut made = None;
            // The kernel takes a moment to forget the last socket of a queue: EBUSY until then.
            wait_until("a socket is made", Duration::from_secs(20), || {
                // SAFETY: no other socket has this UMEM.
                made = unsafe { Socket::new(config, &umem, &name, 0) }.ok();
                made.is_some()
            });
            let (sent, received, rings) = made.unwrap();
            let mut rings = rings.unwrap();
            // SAFETY: the frames are this UMEM's, and nobody has them.
            assert_eq!(unsafe { rings.0.produce(&frames) }, frames.len());
            XdpSocket { received, umem, _sent: sent, _rings: rings }
        })
    }

    /// The next frame, for which it waits this long.
    pub fn receive(&mut self, most: Duration) -> Option<Vec<u8>> {
        let until = Instant::now() + most;
        let mut frame = FrameDesc::default();
        // SAFETY: the descriptor is only read.
        while unsafe { self.received.consume_one(&mut frame) } == 0 {
            if Instant::now() > until {
                return None;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        // SAFETY: the kernel has filled the frame and given it here; it is not given back.
        Some(unsafe { self.umem.data(&frame) }.contents().to_vec())
    }
}

impl AsRawFd for XdpSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.received.fd().as_raw_fd()
    }
}
