//! `portcullis devices`: lists backends, their devices, and why others are missing.

use portcullis::devices::{Backend, BackendDevices, backends};
use serde_json::json;

use super::failure::Failure;
use super::out;

/// List backends with their devices and limits, and why unavailable ones are missing
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print one line of JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Probes every backend and prints what it finds.
pub fn run(args: Args) -> Result<(), Failure> {
    let found: Vec<(&Backend, BackendDevices)> = backends().iter().map(|b| (b, b.probe())).collect();
    if args.json { out::print(as_json(&found) + "\n") } else { out::print(as_text(&found)) }
}

fn as_text(found: &[(&Backend, BackendDevices)]) -> String {
    let mut text = String::new();
    for (backend, found) in found {
        text += &format!("{}: {}\n", backend.name, backend.description);
        match found {
            Err(reason) => text += &format!("  none: {reason}\n"),
            Ok(devices) => {
                for device in devices {
                    let info = device.info();
                    let mut rows = vec![vec![format!("  {}", info.id), info.name.clone()]];
                    rows.push(vec!["    kind".into(), info.kind.name().into()]);
                    rows.push(vec!["    driver".into(), info.driver.clone()]);
                    rows.push(vec![
                        "    dispatch".into(),
                        info.dispatch.iter().map(|d| d.name()).collect::<Vec<_>>().join(", "),
                    ]);
                    rows.extend(
                        info.limits.iter().map(|limit| vec![format!("    {}", limit.name()), limit.value().to_owned()]),
                    );
                    text += &out::table(rows, &[]);
                }
            }
        }
    }
    text
}

fn as_json(found: &[(&Backend, BackendDevices)]) -> String {
    let backends: Vec<_> = found
        .iter()
        .map(|(backend, found)| {
            let (devices, missing) = match found {
                Ok(devices) => (devices.as_slice(), None),
                Err(reason) => (&[][..], Some(reason.to_string())),
            };
            let devices: Vec<_> = devices
                .iter()
                .map(|device| {
                    let info = device.info();
                    let limits: serde_json::Map<_, _> =
                        info.limits.iter().map(|limit| (limit.name().to_owned(), json!(limit.value()))).collect();
                    let dispatch: Vec<_> = info.dispatch.iter().map(|method| method.name()).collect();
                    json!({
                        "id": info.id, "name": info.name, "kind": info.kind.name(), "driver": info.driver,
                        "dispatch": dispatch, "limits": limits,
                    })
                })
                .collect();
            json!({"backend": backend.name, "about": backend.description, "devices": devices, "missing": missing})
        })
        .collect();
    json!({ "backends": backends }).to_string()
}
