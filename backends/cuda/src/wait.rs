//! Waiting for the device without being at the mercy of its driver.
//!
//! The driver's own waits cannot be told to stop. So it is asked whether something has ended, at first
//! again and again, as small batches take no longer than that, then with growing pauses, and who waits
//! looks at the clock and at the cancel token meanwhile.

use std::time::{Duration, Instant};

use portcullis_core::device::offload::LAUNCH_TIMEOUT;
use portcullis_core::device::{CancelToken, DeviceError};

/// How long nothing but asking is done.
const SPIN: Duration = Duration::from_micros(200);

/// The longest pause.
const PAUSE: Duration = Duration::from_millis(1);

/// How long to pause after so long a time: a part of it, so that nobody comes much too late.
fn pause(waited: Duration) {
    std::thread::sleep((waited / 16).clamp(Duration::from_micros(10), PAUSE));
}

/// Asks until `ended` says so.
///
/// # Errors
/// The question's own; [`DeviceError::Cancelled`] where the token was used meanwhile, and the device may be
/// busy still; [`DeviceError::Failed`] where it is silent for long.
pub(crate) fn until(
    device: &str,
    cancel: &CancelToken,
    mut ended: impl FnMut() -> Result<bool, DeviceError>,
) -> Result<(), DeviceError> {
    let began = Instant::now();
    loop {
        if ended()? {
            return Ok(());
        }
        let waited = began.elapsed();
        if waited < SPIN {
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

/// Asks until `ended` says so, the time is over, or the token was used; whether it has ended.
pub(crate) fn within(time: Duration, cancel: Option<&CancelToken>, mut ended: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    loop {
        if ended() {
            return true;
        }
        let waited = began.elapsed();
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
    fn waiting_ends_by_the_answer_the_token_or_an_error() {
        let token = CancelToken::new();
        let mut questions = 0;
        let answer = until("cuda:0", &token, || {
            questions += 1;
            Ok(questions == 5)
        });
        assert_eq!((answer, questions), (Ok(()), 5));
        let gone = DeviceError::Failed { device: "cuda:0".into(), reason: "gone".into() };
        assert_eq!(until("cuda:0", &token, || Err(gone.clone())), Err(gone));
        token.cancel();
        assert_eq!(until("cuda:0", &token, || Ok(false)), Err(DeviceError::Cancelled));
        // What has ended has ended, cancelled or not.
        assert_eq!(until("cuda:0", &token, || Ok(true)), Ok(()));
        assert!(!within(Duration::from_millis(1), None, || false) && within(Duration::ZERO, None, || true));
        assert!(!within(Duration::from_secs(60), Some(&token), || false));
    }
}
