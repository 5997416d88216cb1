//! `samples/mixed.pcap`: the capture that comes with the project.

use std::path::PathBuf;

use portcullis_io::synth::sample;

fn path() -> PathBuf {
    crate::root().join("samples/mixed.pcap")
}

/// Writes the sample capture. It is the same to the byte every time.
pub fn write() -> Result<(), String> {
    let path = path();
    std::fs::create_dir_all(path.parent().expect("it is in a folder")).map_err(|e| e.to_string())?;
    let written = sample::write(&sample::sample(), &path).map_err(|e| format!("{}: {e}", path.display()))?;
    println!("{}: {} packets", path.display(), written.packets);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_sample_is_what_the_source_makes() {
        let made = std::env::temp_dir().join(format!("portcullis-sample-{}.pcap", std::process::id()));
        sample::write(&sample::sample(), &made).expect("there is room for it");
        let bytes = std::fs::read(&made).expect("just written");
        std::fs::remove_file(&made).expect("just written");
        let committed = std::fs::read(path()).expect("samples/mixed.pcap is committed");
        assert!(committed == bytes, "samples/mixed.pcap is out of date: run `cargo xtask samples` and commit it");
    }
}
