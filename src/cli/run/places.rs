//! Whether a run's files get in each other's way.

use std::path::{Path, PathBuf};

use portcullis::io::same_file;

use super::Args;
use crate::cli::failure::Failure;

/// Refuses outputs that would wipe out an input or each other.
pub fn check(args: &Args) -> Result<(), Failure> {
    let mut inputs = Vec::new();
    if !args.filter.is_stdin() {
        inputs.push((args.filter.filter.clone(), "the filter"));
    }
    if args.read != "-" && !args.read.starts_with("synth:") {
        inputs.push((PathBuf::from(&args.read), "the capture that is read"));
    }
    let mut taken: Vec<(PathBuf, &str)> = inputs;
    for (path, option) in [(&args.write, "--write"), (&args.write_tx, "--write-tx")] {
        let Some(path) = path.as_ref().map(PathBuf::from) else { continue };
        if let Some((_, what)) = taken.iter().find(|(other, _)| collide(other, &path)) {
            return Err(Failure::Usage(format!("{option} {}: this is {what}; choose another name", path.display())));
        }
        taken.push((path, if option == "--write" { "what --write writes to" } else { "what --write-tx writes to" }));
    }
    if let Some(dir) = args.write_redirect.as_deref().map(Path::new) {
        for (path, what) in &taken {
            let named = path.extension().is_some_and(|extension| extension == "pcap");
            if named && path != Path::new("-") && place(path).parent() == Some(&place(dir)) {
                return Err(Failure::Usage(format!(
                    "--write-redirect {}: {what}, {}, lies in this folder and could be overwritten; choose another one",
                    dir.display(),
                    path.display()
                )));
            }
        }
    }
    Ok(())
}

/// Whether writing to `two` would harm `one`, by their names or by what they are links to.
fn collide(one: &Path, two: &Path) -> bool {
    let special = two.metadata().is_ok_and(|metadata| !metadata.is_file());
    same_file(one, two) || (!special && place(one) == place(two))
}

/// Where a path leads, also when nothing is there yet.
fn place(path: &Path) -> PathBuf {
    if let Ok(real) = path.canonicalize() {
        return real;
    }
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    match (parent.canonicalize(), path.file_name()) {
        (Ok(parent), Some(name)) => parent.join(name),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_under_two_names_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a.pcap"), dir.path().join("b.pcap"));
        assert!(collide(&a, &dir.path().join("./x/../a.pcap").components().collect::<PathBuf>()) || !a.exists());
        assert!(collide(&a, &dir.path().join(".").join("a.pcap")));
        assert!(!collide(&a, &b));
        std::fs::write(&a, "x").unwrap();
        std::fs::hard_link(&a, &b).unwrap();
        assert!(collide(&a, &b));
        assert!(!collide(Path::new("/dev/null"), Path::new("/dev/null")));
        assert!(collide(Path::new("-"), Path::new("-")));
    }
}
