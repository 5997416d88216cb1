//! The device through which processes create TAP interfaces: Documentation/networking/tuntap.rst.

/// Path of the device.
pub(crate) const DEVICE: &str = "/dev/net/tun";

/// Error text with the next step if the device does not exist.
pub(crate) const MISSING: &str =
    "there is no /dev/net/tun; load the module tun (`modprobe tun`), or give the container the device";
