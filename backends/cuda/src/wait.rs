//! Waiting for the device without being at the mercy of its driver.
//!
//! The driver's own waits cannot be told to stop. So it is asked whether something has ended, at first
//! again and again, as small batches take no longer than that, then with growing pauses, and who waits
//! looks at the clock and at the cancel token meanwhile.

use std::time::{Duration, Instant};

use portcullis_core::device::offload::SILENCE;
use portcullis_core::device::{CancelToken, DeviceError};

/// How long nothing but asking is done.
const SPIN: Duration = Duration::from_micros(200);

/// Pauses grow up to this.
const PAUSE: Duration = Duration::from_millis(1);

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
    let mut pause = Duration::from_micros(10);
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
        if waited >= SILENCE {
            return Err(DeviceError::Failed {
                device: device.into(),
                reason: format!("no answer for {} s: the device or its driver has died", SILENCE.as_secs()),
            });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE);
    }
}

/// Asks until `ended` says so, or the time is over; whether it did.
pub(crate) fn within(time: Duration, mut ended: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + time;
    let mut pause = Duration::from_micros(10);
    loop {
        if ended() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE);
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
        assert!(!within(Duration::from_millis(1), || false) && within(Duration::ZERO, || true));
    }
}
