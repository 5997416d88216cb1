//! Round-trip times of frames over a link.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io::Error;
use std::mem::{MaybeUninit, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use portcullis_live_tests::{End, pin_to_processor};

/// Length of a frame, in bytes.
const LENGTH: usize = 64;

/// Offset of the time of sending in a frame.
const STAMP: usize = 40;

/// Bytes before the time of sending that identify a frame of this benchmark.
const MARK: [u8; 4] = *b"port";

/// Time to wait for the last frames.
const LAST_FRAME_TIMEOUT: Duration = Duration::from_millis(100);

/// Sends frames at an even rate out of an end of a link whose other end returns them, unchanged or
/// with addresses swapped. Returns the round-trip times in nanoseconds, ascending, and the number
/// of frames sent.
///
/// A frame carries the time just before it was sent. Its return is stamped by the kernel
/// (`SO_TIMESTAMPNS`), so that delays of this thread do not count. The calling thread is pinned to
/// the first processor.
pub fn round_trips(end: &End, frame: &[u8], rate: f64, time: Duration) -> (Vec<u64>, u64) {
    end.namespace().run(|| {
        pin_to_processor(0);
        let socket = Socket::open(end.name());
        let mut frame = frame.to_vec();
        frame.resize(LENGTH, 0);
        frame[STAMP - MARK.len()..STAMP].copy_from_slice(&MARK);
        let interval = (1e9 / rate) as u64;
        let begun = now();
        let (mut next, mut sent) = (begun, 0);
        let mut times = Vec::with_capacity((rate * time.as_secs_f64() * 1.2) as usize);
        loop {
            let before = now();
            if before >= begun + (time + LAST_FRAME_TIMEOUT).as_nanos() as u64 {
                times.sort_unstable();
                return (times, sent);
            }
            if before >= next && before < begun + time.as_nanos() as u64 {
                // If this thread was delayed, missed frames are not sent in a burst: that would be
                // a different load.
                next = (next + interval).max(before);
                frame[STAMP..STAMP + 8].copy_from_slice(&now().to_be_bytes());
                sent += u64::from(socket.send(&frame));
            } else {
                times.extend(socket.receive());
            }
        }
    })
}

/// Returns the quantile `share` of ascending values.
pub fn quantile(sorted: &[u64], share: f64) -> u64 {
    let index = (sorted.len() as f64 * share) as usize;
    sorted.get(index.min(sorted.len().saturating_sub(1))).copied().unwrap_or(0)
}

/// Returns `CLOCK_REALTIME` in nanoseconds.
fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

struct Socket(OwnedFd);

impl Socket {
    /// Opens a socket for IPv4 frames at an interface.
    fn open(interface: &str) -> Socket {
        let protocol = (libc::ETH_P_IP as u16).to_be();
        let name = CString::new(interface).expect("an interface name without NUL");
        // SAFETY: values that outlive the calls, with their lengths; the call has just returned the
        // descriptor, and nothing else owns it.
        unsafe {
            let socket = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_NONBLOCK, protocol.into());
            assert!(socket >= 0, "a packet socket: {}", Error::last_os_error());
            let socket = OwnedFd::from_raw_fd(socket);
            let mut address: libc::sockaddr_ll = zeroed();
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = protocol;
            address.sll_ifindex = libc::if_nametoindex(name.as_ptr()) as i32;
            let length = size_of_val(&address) as libc::socklen_t;
            let bound = libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length);
            assert_eq!(bound, 0, "{interface}: {}", Error::last_os_error());
            for (option, value) in [(libc::SO_TIMESTAMPNS, 1), (libc::SO_RCVBUFFORCE, 64 << 20)] {
                let value: libc::c_int = value;
                let length = size_of_val(&value) as libc::socklen_t;
                let at = (&raw const value).cast();
                assert_eq!(libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, at, length), 0);
            }
            Socket(socket)
        }
    }

    /// Returns whether the frame was sent.
    fn send(&self, frame: &[u8]) -> bool {
        // SAFETY: pointer and length are those of a slice.
        unsafe { libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) == frame.len() as isize }
    }

    /// Returns the round-trip time of the next frame that has come back.
    fn receive(&self) -> Option<u64> {
        let mut frame = [0_u8; LENGTH];
        let mut control = MaybeUninit::<[u64; 16]>::zeroed();
        let mut piece = libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: frame.len() };
        // SAFETY: a zeroed header is valid; it gets one buffer and one control buffer, both of
        // which outlive the call, and control messages are walked by the system's macros.
        unsafe {
            let mut header: libc::msghdr = zeroed();
            header.msg_iov = &raw mut piece;
            header.msg_iovlen = 1;
            header.msg_control = control.as_mut_ptr().cast();
            header.msg_controllen = size_of_val(&control);
            let length = libc::recvmsg(self.0.as_raw_fd(), &raw mut header, 0);
            if length < LENGTH as isize || frame[STAMP - MARK.len()..STAMP] != MARK {
                return None;
            }
            let data = libc::CMSG_FIRSTHDR(&raw const header);
            if data.is_null() || (*data).cmsg_type != libc::SCM_TIMESTAMPNS {
                return None;
            }
            let arrived = libc::CMSG_DATA(data).cast::<libc::timespec>().read_unaligned();
            let arrived = arrived.tv_sec as u64 * 1_000_000_000 + arrived.tv_nsec as u64;
            let sent = u64::from_be_bytes(frame[STAMP..STAMP + 8].try_into().expect("eight bytes"));
            Some(arrived.saturating_sub(sent))
        }
    }
}
