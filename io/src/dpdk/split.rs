//! Header split: the first bytes of packets in host memory for the filter, the rest elsewhere.

use portcullis_core::program::facts::{Facts, Window};

use super::error::DpdkError;
use super::memory::DATA;

/// Minimum length in bytes that a filter may leave a packet (`adjust_head`), and so of a head.
const FEWEST: u16 = 14;

/// Refuses a head of `bytes` bytes for a filter that may access or move what follows.
///
/// # Errors
/// [`DpdkError::Split`] with the reason.
pub fn check_split(bytes: u16, facts: &Facts) -> Result<(), DpdkError> {
    let refused = |why: String| Err(DpdkError::Split { bytes, why });
    if !(FEWEST..=DATA as u16).contains(&bytes) {
        return refused(format!("a head has {FEWEST} to {DATA} bytes"));
    }
    if facts.changes_length {
        return refused("the filter changes packets' lengths, which requires contiguous packets".into());
    }
    for (verb, window) in [("reads", facts.reads), ("writes", facts.writes)] {
        let what = match window {
            Window::WholePacket => format!("the filter {verb} whole packets"),
            window if window.max_bytes() > u32::from(bytes) => {
                format!("the filter {verb} up to byte {}", window.max_bytes())
            }
            _ => continue,
        };
        return refused(format!("{what}, and only the first {bytes} bytes are accessible"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(reads: Window, writes: Window, changes_length: bool) -> Facts {
        Facts { reads, writes, changes_length, ..Facts::unknown() }
    }

    #[test]
    fn a_filter_that_accesses_more_than_the_head_is_refused() {
        let upto = Window::Bytes;
        let fits = |bytes, facts: &Facts| check_split(bytes, facts).map_err(|error| error.to_string());
        assert_eq!(fits(54, &facts(upto(54), upto(12), false)), Ok(()));
        assert_eq!(fits(54, &facts(Window::Nothing, Window::Nothing, false)), Ok(()));
        for (bytes, facts, part) in [
            (53, facts(upto(54), Window::Nothing, false), "reads up to byte 54, and only the first 53 bytes"),
            (53, facts(Window::Nothing, upto(54), false), "writes up to byte 54"),
            (200, facts(Window::WholePacket, Window::Nothing, false), "reads whole packets"),
            (200, facts(upto(1), upto(1), true), "changes packets' lengths"),
            (13, facts(upto(1), upto(1), false), "14 to 2048 bytes"),
            (2049, facts(upto(1), upto(1), false), "14 to 2048 bytes"),
        ] {
            let error = fits(bytes, &facts).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
