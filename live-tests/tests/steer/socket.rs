//! A bare AF_XDP socket that receives frames.

use std::num::NonZeroU32;
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use portcullis_live_tests::{End, wait_until};
use xsk_rs::config::{BindFlags, LibxdpFlags, SocketConfig, UmemConfig};
use xsk_rs::{CompQueue, FillQueue, FrameDesc, RxQueue, Socket, TxQueue, Umem};

/// Number of frames that a socket can receive in all.
const FRAMES: NonZeroU32 = NonZeroU32::new(64).unwrap();

/// A socket at queue 0 of an interface.
pub struct XdpSocket {
    received: RxQueue,
    umem: Umem,
    // Kept open, as the socket closes with them.
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
            let mut socket_parts = None;
            // The kernel releases a queue's last socket with a delay, and returns EBUSY until then.
            wait_until("a socket can be opened", Duration::from_secs(20), || {
                // SAFETY: no other socket uses this UMEM.
                socket_parts = unsafe { Socket::new(config, &umem, &name, 0) }.ok();
                socket_parts.is_some()
            });
            let (sent, received, rings) = socket_parts.unwrap();
            let mut rings = rings.unwrap();
            // SAFETY: the frames are this UMEM's, and posted once.
            assert_eq!(unsafe { rings.0.produce(&frames) }, frames.len());
            XdpSocket { received, umem, _sent: sent, _rings: rings }
        })
    }

    /// Returns the next frame, waiting up to `timeout` for it.
    pub fn receive(&mut self, timeout: Duration) -> Option<Vec<u8>> {
        let until = Instant::now() + timeout;
        let mut frame = FrameDesc::default();
        // SAFETY: the descriptor is only read.
        while unsafe { self.received.consume_one(&mut frame) } == 0 {
            if Instant::now() > until {
                return None;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        // SAFETY: the kernel has filled the frame and handed it over, and it is not posted again.
        Some(unsafe { self.umem.data(&frame) }.contents().to_vec())
    }
}

impl AsRawFd for XdpSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.received.fd().as_raw_fd()
    }
}
