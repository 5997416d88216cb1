//! A device that is wrong, for tests.

use std::sync::{Arc, Mutex};

use portcullis_core::device::{
    Completion, Device, DeviceError, DeviceInfo, Imported, Instrumented, LoadOptions, Session, SubmitError,
};
use portcullis_core::packet::{Batch, Span, Verdicts};
use portcullis_core::program::Program;

/// A device that injects a fault into the results of a correct one.
pub struct FaultyDevice {
    device: Arc<dyn Device>,
    fault: Fault,
    /// Batches completed in all of its sessions.
    batches: Arc<Mutex<usize>>,
}

/// A fault of a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    /// The results stay right.
    Nothing,
    /// Changes the last verdict of a batch, after batch N.
    Verdict(usize),
    /// Changes the verdict of the seventh packet of a batch.
    SeventhVerdict,
    /// Changes the last byte of a packet.
    Byte,
    /// Returns empty maps.
    Maps,
    /// Fails after batch N as a lost device does.
    Lost(usize),
    /// Warns with every batch; the results stay right.
    Warns,
}

struct FaultySession {
    session: Box<dyn Session>,
    fault: Fault,
    batches: Arc<Mutex<usize>>,
}

impl FaultyDevice {
    /// Injects a fault into the results of a device.
    pub fn new(device: Arc<dyn Device>, fault: Fault) -> FaultyDevice {
        FaultyDevice { device, fault, batches: Arc::default() }
    }
}

impl Device for FaultyDevice {
    fn info(&self) -> &DeviceInfo {
        self.device.info()
    }

    fn load(&self, program: &Arc<Program>, options: &LoadOptions) -> Result<Box<dyn Session>, DeviceError> {
        let session = self.device.load(program, options)?;
        Ok(Box::new(FaultySession { session, fault: self.fault, batches: self.batches.clone() }))
    }
}

impl Session for FaultySession {
    fn import(&mut self, span: &Arc<Span>) -> Result<Imported, DeviceError> {
        self.session.import(span)
    }

    fn submit(&mut self, batch: Batch) -> Result<(), SubmitError> {
        self.session.submit(batch)
    }

    fn complete(&mut self) -> Result<Option<Completion>, DeviceError> {
        let Some(mut done) = self.session.complete()? else { return Ok(None) };
        let mut batches = self.batches.lock().unwrap();
        *batches += 1;
        match self.fault {
            Fault::Verdict(from) if *batches > from => {
                let mut actions = done.verdicts.actions().to_vec();
                let last = actions.last_mut().unwrap();
                *last = 3 - *last;
                done.verdicts = Verdicts::new(actions, done.verdicts.targets().to_vec());
            }
            Fault::SeventhVerdict => {
                let mut returns: Vec<u32> = done.verdicts.iter().map(|verdict| verdict.to_return()).collect();
                returns[6] = if returns[6] == 1 { 2 } else { 1 };
                done.verdicts = Verdicts::from_returns(&returns, true);
            }
            Fault::Byte => *done.batch.packet_mut(5).last_mut().unwrap() ^= 1,
            Fault::Lost(at) if *batches > at => {
                return Err(DeviceError::Failed { device: "faulty".into(), reason: "lost".into() });
            }
            _ => {}
        }
        Ok(Some(done))
    }

    fn set_map_words(&mut self, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        self.session.set_map_words(map, at, words)
    }

    fn map_words(&mut self, map: usize) -> Result<Vec<u32>, DeviceError> {
        let words = self.session.map_words(map)?;
        Ok(if self.fault == Fault::Maps { vec![0; words.len()] } else { words })
    }

    fn in_flight(&self) -> usize {
        self.session.in_flight()
    }

    fn depth(&self) -> usize {
        self.session.depth()
    }
}

impl Instrumented for FaultySession {
    fn take_warnings(&mut self) -> Vec<String> {
        if self.fault == Fault::Warns { vec!["faulty: slow".into()] } else { Vec::new() }
    }
}
