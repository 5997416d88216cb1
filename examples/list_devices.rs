//! Lists the devices that can run filters: `cargo run --example list_devices`.

pub(crate) fn main() {
    for backend in portcullis::devices::backends() {
        // Looking for devices loads drivers, so it happens only here.
        match backend.probe() {
            Ok(devices) => {
                for device in devices {
                    let info = device.info();
                    println!("{:8} {} ({})", info.id, info.name, info.kind.name());
                }
            }
            // The reason says what to install.
            Err(reason) => println!("{:8} none: {reason}", backend.name),
        }
    }
}
