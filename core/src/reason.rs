//! Messages for errors of the operating system.

use std::io::{self, ErrorKind};

/// Returns the system's own text for an error, as people search for it, followed by what to do
/// where that is clear.
pub fn reason(error: &io::Error) -> String {
    let advice = match error.kind() {
        ErrorKind::ReadOnlyFilesystem => "; choose another place",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "; free space there or choose another place",
        ErrorKind::FileTooLarge => "; the file system or `ulimit -f` allows no larger file",
        // EMFILE, for which std has no kind; the number is the same on every Unix.
        _ if cfg!(unix) && error.raw_os_error() == Some(24) => "; raise the limit (`ulimit -n`) or use fewer files",
        _ => "",
    };
    format!("{error}{advice}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_text_is_kept_and_advice_follows_it() {
        // Linux: EPERM to EHWPOISON, and a number that no error has.
        for number in (1..=133).chain([4000]) {
            let error = io::Error::from_raw_os_error(number);
            assert!(reason(&error).starts_with(&error.to_string()), "{number}");
        }
        assert!(!cfg!(unix) || reason(&io::Error::from_raw_os_error(24)).contains("`ulimit -n`"));
        assert!(!cfg!(unix) || reason(&io::Error::from_raw_os_error(28)).contains("(os error 28); free space"));
        assert_eq!(reason(&io::Error::other("a text of its own")), "a text of its own");
    }
}
