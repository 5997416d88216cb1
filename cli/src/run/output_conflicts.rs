//! Checks that the files of a run do not overwrite each other.

use std::path::{Path, PathBuf};

use portcullis::packet_io::{resolved_path, same_destination, same_file};

use super::Args;
use crate::failure::Failure;

/// Refuses outputs that would overwrite an input or each other. To be called when the inputs are
/// open and the outputs are not.
pub fn check(args: &Args) -> Result<(), Failure> {
    // On Unix, a file opened by the shell is found through these names; elsewhere they name
    // nothing.
    let named = |path: &Path, stream| if path == Path::new("-") { PathBuf::from(stream) } else { path.to_owned() };
    let mut inputs: Vec<_> =
        args.filter.file().map(|file| (named(file, "/dev/stdin"), "the filter")).into_iter().collect();
    if let Some(read) = args.read.as_deref().filter(|read| !is_synthetic(read)) {
        inputs.push((named(read, "/dev/stdin"), "the input capture"));
    }
    inputs.extend(args.maps.map.iter().map(|it| (it.file.clone(), "the input of --map")));
    inputs.extend(args.maps.watch_map.iter().map(|it| (it.file.clone(), "the input of --watch-map")));
    let mut outputs = Vec::new();
    if !args.takes_stdout() {
        outputs.push((PathBuf::from("/dev/stdout"), "the destination of standard output"));
    }
    let captures =
        [(&args.write, "--write", "the output of --write"), (&args.write_tx, "--write-tx", "the output of --write-tx")];
    let captures = captures.into_iter().filter_map(|(given, option, meaning)| {
        let given = given.as_ref()?;
        Some((given.display().to_string(), given, option, meaning))
    });
    let state = args.maps.state.iter().map(|file| (file.display().to_string(), file, "--state", "the file of --state"));
    let dumps = args.maps.dump_map.iter().map(|dump| {
        let given = dump.to_string();
        (given, &dump.file, "--dump-map", "the output of --dump-map")
    });
    let events =
        args.maps.events.iter().map(|file| (file.display().to_string(), file, "--events", "the output of --events"));
    for (given, file, option, meaning) in captures.chain(state).chain(dumps).chain(events) {
        let path = named(file, "/dev/stdout");
        let input = inputs.iter().find(|(input, _)| same_file(input, &path));
        if let Some((_, what)) = input.or_else(|| outputs.iter().find(|(output, _)| same_destination(output, &path))) {
            return Err(Failure::Usage(format!("{option} {given}: this is {what}; choose another name")));
        }
        outputs.push((path, meaning));
    }
    if args.write_redirect.as_deref() == Some(Path::new("-")) {
        return Err(Failure::Usage("--write-redirect -: expected a folder, not standard output".into()));
    }
    let Some(dir) = args.write_redirect.as_deref() else { return Ok(()) };
    let there: Vec<PathBuf> = dir.read_dir().map_or(Vec::new(), |entries| {
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| is_redirect_file(path)).collect()
    });
    for (path, what) in inputs.iter().chain(&outputs) {
        let new = is_redirect_file(path) && resolved_path(path).parent() == Some(&resolved_path(dir));
        if new || there.iter().any(|entry| same_file(entry, path)) {
            return Err(Failure::Usage(format!(
                "--write-redirect {}: {what}, {}, lies in this folder and could be overwritten; choose another one",
                dir.display(),
                path.display()
            )));
        }
    }
    Ok(())
}

/// Whether `--read` names generated traffic instead of a file.
fn is_synthetic(read: &Path) -> bool {
    read.to_str().is_some_and(|text| text.starts_with("synth:"))
}

/// Whether redirected packets may be written to a file of this name.
fn is_redirect_file(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.strip_suffix(".pcap").is_some_and(|stem| stem == "other" || stem.parse::<u32>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_under_two_names_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a.pcap"), dir.path().join("b.pcap"));
        assert!(same_destination(&a, &dir.path().join(".").join("a.pcap")));
        assert!(!same_destination(&a, &b));
        std::fs::write(&a, "x").unwrap();
        std::fs::hard_link(&a, &b).unwrap();
        assert!(same_destination(&a, &b));
        assert!(!same_destination(Path::new("/dev/null"), Path::new("/dev/null")));
        for name in ["0.pcap", "16777215.pcap", "other.pcap", "x/3.pcap"] {
            assert!(is_redirect_file(Path::new(name)), "{name}");
        }
        for name in ["passed.pcap", "3.pcapng", "3", "3.4.pcap", ".pcap", "-1.pcap", "3.pcap/x"] {
            assert!(!is_redirect_file(Path::new(name)), "{name}");
        }
    }
}
