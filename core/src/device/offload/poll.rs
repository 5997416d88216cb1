//! Polling for completion, with a timeout and cancellation.
//!
//! A driver's blocking waits cannot be interrupted, so completion is polled instead: busily at
//! first, since small batches complete within that time, then with pauses that grow with the time
//! waited. The cancel token and the clock are checked in between.

use std::time::{Duration, Instant};

use super::LAUNCH_TIMEOUT;
use crate::device::{CancelToken, DeviceError};

/// How long [`until`] polls without pauses.
const SPIN_TIME: Duration = Duration::from_micros(200);

/// Longest pause between two polls.
const MAX_PAUSE: Duration = Duration::from_millis(1);

/// Sleeps for a sixteenth of the time waited so far, which bounds the relative delay.
fn pause(waited: Duration) {
    std::thread::sleep((waited / 16).clamp(Duration::from_micros(10), MAX_PAUSE));
}

/// Polls until `is_complete` returns true.
///
/// # Errors
/// Errors of `is_complete`; [`DeviceError::Cancelled`] if the token is used while waiting, in which
/// case the device may still be busy; [`DeviceError::Failed`] after [`LAUNCH_TIMEOUT`].
pub fn until(
    device: &str,
    cancel: &CancelToken,
    mut is_complete: impl FnMut() -> Result<bool, DeviceError>,
) -> Result<(), DeviceError> {
    let start = Instant::now();
    loop {
        if is_complete()? {
            return Ok(());
        }
        let waited = start.elapsed();
        if waited < SPIN_TIME {
            std::hint::spin_loop();
            continue;
        }
        if cancel.is_cancelled() {
            return Err(DeviceError::Cancelled);
        }
        if waited >= LAUNCH_TIMEOUT {
            return Err(DeviceError::Failed {
                device: device.into(),
                reason: format!("no answer for {} s: the device or its driver has died", LAUNCH_TIMEOUT.as_secs()),
            });
        }
        pause(waited);
    }
}

/// Polls until `is_complete` returns true, the time is over or the token is used; returns whether
/// it was true.
pub fn within(time: Duration, cancel: Option<&CancelToken>, mut is_complete: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if is_complete() {
            return true;
        }
        let waited = start.elapsed();
        if waited >= time || cancel.is_some_and(CancelToken::is_cancelled) {
            return false;
        }
        pause(waited);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_ends_on_completion_cancellation_timeout_or_an_error() {
        let token = CancelToken::new();
        let mut polls = 0;
        let result = until("cuda:0", &token, || {
            polls += 1;
            Ok(polls == 5)
        });
        assert_eq!((result, polls), (Ok(()), 5));
        let gone = DeviceError::Failed { device: "cuda:0".into(), reason: "gone".into() };
        assert_eq!(until("cuda:0", &token, || Err(gone.clone())), Err(gone));
        token.cancel();
        assert_eq!(until("cuda:0", &token, || Ok(false)), Err(DeviceError::Cancelled));
        // Completion takes precedence over cancellation.
        assert_eq!(until("cuda:0", &token, || Ok(true)), Ok(()));
        assert!(!within(Duration::from_millis(1), None, || false) && within(Duration::ZERO, None, || true));
        assert!(!within(Duration::from_secs(60), Some(&token), || false));
    }
}
