//! What there is to run filters on: `cargo run --example list_devices`.

fn main() {
    for backend in portcullis::devices::backends() {
        // Looking for devices loads drivers, so it happens here and not before.
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
