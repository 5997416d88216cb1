//! Messages for I/O errors: the system's own text and, where there is one, the next step.

use std::io::{self, ErrorKind};

/// Describes an I/O error: the system's text unchanged, so that it can be searched for, followed by
/// what the user can do about it. A custom error is described by its own text alone.
pub fn reason(error: &io::Error) -> String {
    let next_step = match error.kind() {
        _ if error.get_ref().is_some() => None,
        ErrorKind::PermissionDenied => Some("run as a user with access, or choose another path"),
        ErrorKind::ReadOnlyFilesystem => Some("choose another path"),
        ErrorKind::StorageFull => Some("free some space, or choose another path"),
        ErrorKind::QuotaExceeded => Some("free some of the quota, or choose another path"),
        ErrorKind::FileTooLarge => Some("check the limits of the file system and of the process (`ulimit -f`)"),
        // EMFILE and ENFILE have no stable `ErrorKind`; their numbers are the same on every Unix.
        _ if cfg!(unix) && error.raw_os_error() == Some(24) => {
            Some("raise the limit (`ulimit -n`), or use fewer files")
        }
        _ if cfg!(unix) && error.raw_os_error() == Some(23) => {
            Some("close programs that hold files open, or raise the system's limit (`fs.file-max`)")
        }
        _ => None,
    };
    match next_step {
        Some(next_step) => format!("{error}; {next_step}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_start_with_the_text_of_the_system() {
        // Linux: EPERM to EHWPOISON, and a number that is no errno.
        for number in (1..=133).chain([4000]) {
            let error = io::Error::from_raw_os_error(number);
            assert!(reason(&error).starts_with(&error.to_string()), "{number}: {}", reason(&error));
        }
        assert!(!cfg!(unix) || reason(&io::Error::from_raw_os_error(24)).contains("`ulimit -n`"));
        assert!(!cfg!(unix) || reason(&io::Error::from_raw_os_error(23)).contains("`fs.file-max`"));
        assert_eq!(reason(&io::Error::other("its own text")), "its own text");
        assert!(reason(&ErrorKind::StorageFull.into()).ends_with("; free some space, or choose another path"));
    }
}
