//! How long frames are on their way to the other end of a link and back.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io::Error;
use std::mem::{MaybeUninit, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use portcullis_live_tests::{End, on_processor};

/// Bytes of a frame.
const LENGTH: usize = 64;

/// Where a frame says when it was sent.
const STAMP: usize = 40;

/// What a frame of ours has in front of it.
const MARK: [u8; 4] = *b"port";

/// How long the last frames may take.
const LAST: Duration = Duration::from_millis(100);

/// Sends frames at an even rate out of an end of a link, whose other end sends them back as they
/// are or with addresses swapped, and gives how long each was away, in nanoseconds, ascending; and
/// how many were sent.
///
/// A frame bears the time just before it was sent. That of its return is the kernel's
/// (`SO_TIMESTAMPNS`), so that it does not count how long nobody looked. The calling thread stays
/// on the first processor for that time.
pub fn round_trips(end: &End, frame: &[u8], rate: f64, time: Duration) -> (Vec<u64>, u64) {
    end.namespace().run(|| {
        on_processor(0);
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
            if before >= begun + (time + LAST).as_nanos() as u64 {
                times.sort_unstable();
                return (times, sent);
            }
            if before >= next && before < begun + time.as_nanos() as u64 {
                // Where this thread was held up, what was missed is not sent at once: that would be
                // another load.
                next = (next + interval).max(before);
                frame[STAMP..STAMP + 8].copy_from_slice(&now().to_be_bytes());
                sent += u64::from(socket.send(&frame));
            } else {
                times.extend(socket.receive());
            }
        }
    })
}

/// The value below which this share of sorted values lies.
pub fn quantile(sorted: &[u64], share: f64) -> u64 {
    let index = (sorted.len() as f64 * share) as usize;
    sorted.get(index.min(sorted.len().saturating_sub(1))).copied().unwrap_or(0)
}

/// `CLOCK_REALTIME`, in nanoseconds.
fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

struct Socket(OwnedFd);

impl Socket {
    /// Frames of IPv4 at an interface.
    fn open(interface: &str) -> Socket {
        let protocol = (libc::ETH_P_IP as u16).to_be();
        let name = CString::new(interface).expect("a name");
        // SAFETY: values that outlive the calls, with their lengths; the descriptor is new, and
        // nobody else's.
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

    /// Whether the frame went out.
    fn send(&self, frame: &[u8]) -> bool {
        // SAFETY: pointer and length are those of a slice.
        unsafe { libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) == frame.len() as isize }
    }

    /// How long the next frame that has come back was away.
    fn receive(&self) -> Option<u64> {
        let mut frame = [0_u8; LENGTH];
        let mut control = MaybeUninit::<[u64; 16]>::zeroed();
        let mut piece = libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: frame.len() };
        // SAFETY: all bytes zero are a header without an address; then it has one piece and room
        // for control data, both of which outlive the call, and control data are walked as its
        // macros do.
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
            let came = libc::CMSG_DATA(data).cast::<libc::timespec>().read_unaligned();
            let came = came.tv_sec as u64 * 1_000_000_000 + came.tv_nsec as u64;
            let sent = u64::from_be_bytes(frame[STAMP..STAMP + 8].try_into().expect("eight bytes"));
            Some(came.saturating_sub(sent))
        }
    }
}
