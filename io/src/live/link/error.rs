//! What can be wrong with interfaces.

use std::io;

use portcullis_core::reason;

/// Why something cannot be done with an interface.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// There is no such interface.
    #[error("{}", no_interface(.interface))]
    NoInterface {
        /// What was asked for.
        interface: String,
    },
    /// This process may not.
    #[error(
        "{interface}: {what} needs the capability CAP_NET_ADMIN; run as root, or grant it to the program with setcap"
    )]
    NotPermitted {
        /// The interface.
        interface: String,
        /// What was to be done.
        what: &'static str,
    },
    /// The kernel has no such interfaces.
    #[error("this kernel makes no {what}: {hint}")]
    NotSupported {
        /// What was to be made.
        what: &'static str,
        /// What to do.
        hint: &'static str,
    },
    /// What comes in at an interface of the run's own would be dropped by the kernel.
    #[error(
        "{interface}: the kernel drops what comes in there, since net.ipv4.conf.all.rp_filter is {value}; set it to 0 \
         (`sysctl net.ipv4.conf.all.rp_filter=0`), and that of each interface to what it was"
    )]
    ReversePath {
        /// The interface.
        interface: String,
        /// The variable's value.
        value: String,
    },
    /// The system refused something.
    #[error("{interface}: {what}: {}", reason(.error))]
    System {
        /// The interface.
        interface: String,
        /// What was to be done.
        what: &'static str,
        /// The system's.
        error: io::Error,
    },
}

/// For whoever looks for an interface in this thread's network namespace.
pub(crate) fn no_interface(name: &str) -> String {
    format!("there is no interface `{name}` here; `ip link` lists those that there are")
}

impl LinkError {
    /// What the system says about an interface.
    pub(super) fn new(interface: &str, what: &'static str, error: io::Error) -> LinkError {
        let interface = interface.to_owned();
        match error.raw_os_error() {
            Some(libc::ENODEV) => LinkError::NoInterface { interface },
            Some(libc::EPERM | libc::EACCES) => LinkError::NotPermitted { interface, what },
            _ => LinkError::System { interface, what, error },
        }
    }
}
