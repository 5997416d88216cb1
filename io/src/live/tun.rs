//! The device by which programs make TAP interfaces: Documentation/networking/tuntap.rst.

/// It.
pub(crate) const DEVICE: &str = "/dev/net/tun";

/// What to do where it is not there.
pub(crate) const MISSING: &str =
    "there is no /dev/net/tun; load the module tun (`modprobe tun`), or give the container the device";
