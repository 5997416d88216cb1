//! Errors of network interfaces.

use std::io;

use portcullis_core::reason;

/// Why an operation on an interface failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// No interface has this name.
    #[error("{}", no_interface(.interface))]
    NoInterface {
        /// The name that was looked up.
        interface: String,
    },
    /// The process lacks CAP_NET_ADMIN.
    #[error(
        "{interface}: {what} needs the capability CAP_NET_ADMIN; run as root, or grant it to the program with setcap"
    )]
    NotPermitted {
        /// The interface.
        interface: String,
        /// The operation.
        what: &'static str,
    },
    /// The kernel does not support this kind of interface.
    #[error("this kernel cannot create {what}: {hint}")]
    NotSupported {
        /// The kind of interface.
        what: &'static str,
        /// The next step.
        hint: &'static str,
    },
    /// Reverse path filtering would make the kernel drop what arrives at an interface of this run.
    #[error(
        "{interface}: the kernel drops packets received on it, since net.ipv4.conf.all.rp_filter is {value}; set it \
         to 0 (`sysctl net.ipv4.conf.all.rp_filter=0`), then restore each interface's rp_filter"
    )]
    ReversePath {
        /// The interface.
        interface: String,
        /// The value of the sysctl.
        value: String,
    },
    /// The system refused an operation.
    #[error("{interface}: {what}: {}", reason(.error))]
    System {
        /// The interface.
        interface: String,
        /// The operation.
        what: &'static str,
        /// The system's error.
        error: io::Error,
    },
}

/// The message for an interface name unknown in the calling thread's network namespace.
pub(crate) fn no_interface(name: &str) -> String {
    format!("there is no interface `{name}` here; `ip link` lists the interfaces")
}

impl LinkError {
    /// Classifies a system error about an interface.
    pub(crate) fn new(interface: &str, what: &'static str, error: io::Error) -> LinkError {
        let interface = interface.to_owned();
        match error.raw_os_error() {
            Some(libc::ENODEV) => LinkError::NoInterface { interface },
            Some(libc::EPERM | libc::EACCES) => LinkError::NotPermitted { interface, what },
            _ => LinkError::System { interface, what, error },
        }
    }
}
