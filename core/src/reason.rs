//! The system's errors in words.

use std::io::{self, ErrorKind};

/// What went wrong, and what to do where that is clear. Never the number that Rust puts behind the
/// system's words.
pub fn reason(error: &io::Error) -> String {
    if let Some(words) = error.get_ref() {
        return words.to_string();
    }
    let words = match error.kind() {
        ErrorKind::NotFound => "there is no such file or folder",
        ErrorKind::PermissionDenied => "permission denied; run as a user who may, or choose another place",
        ErrorKind::IsADirectory => "it is a folder, not a file",
        ErrorKind::NotADirectory => "a part of its path is a file, not a folder",
        ErrorKind::ReadOnlyFilesystem => "the file system is read-only; choose another place",
        ErrorKind::StorageFull => "there is no space left on the device; make room there, or choose another place",
        ErrorKind::QuotaExceeded => "your quota there is used up; make room, or choose another place",
        ErrorKind::FileTooLarge => "the file would be longer than its file system or your limits allow",
        // EMFILE and ENFILE, of which Rust knows no kind: the numbers of every Unix.
        _ if cfg!(unix) && error.raw_os_error() == Some(24) => {
            "this program has as many files open as it may; raise the limit (`ulimit -n`), or use fewer files"
        }
        _ if cfg!(unix) && error.raw_os_error() == Some(23) => {
            "the system has as many files open as it may; end what holds them open, or raise its limit"
        }
        _ => {
            let text = error.to_string();
            return text.rfind(" (os error ").map_or(text.clone(), |at| text[..at].to_owned());
        }
    };
    words.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_shown() {
        // Linux: EPERM to EHWPOISON, and one that there is not.
        for number in (1..=133).chain([4000]) {
            let text = reason(&io::Error::from_raw_os_error(number));
            assert!(!text.contains("os error") && text.len() > 5, "{number}: {text}");
        }
        assert!(!cfg!(unix) || reason(&io::Error::from_raw_os_error(24)).contains("`ulimit -n`"));
        assert!(!cfg!(unix) || reason(&io::Error::from_raw_os_error(23)).contains("the system"));
        assert_eq!(reason(&io::Error::other("its own words")), "its own words");
        assert_eq!(reason(&ErrorKind::StorageFull.into()), reason(&io::Error::from_raw_os_error(28)));
    }
}
