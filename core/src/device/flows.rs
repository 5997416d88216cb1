//! A session for filters with flows, out of one that gives the numbers of packets' flows and one that keeps packets of
//! equal numbers in order.

use std::sync::Arc;

use super::{Device, DeviceError, Done, Imported, LoadOptions, Session, SubmitError, check_submission};
use crate::packet::{Batch, Span};
use crate::program::Program;

/// A session that filters packets of a flow one at a time, in the order in which they came.
pub trait InOrder: Session {
    /// As [`Session::submit`], of a batch whose packets belong to flows of these numbers, one a packet.
    ///
    /// # Errors
    /// As [`Session::submit`]'s.
    fn submit_in_order(&mut self, batch: Batch, numbers: &[u32]) -> Result<(), SubmitError>;
}

/// A filter with flows on a device: see the module.
pub struct Flows<S> {
    program: Arc<Program>,
    /// Redirects packets to the numbers of their flows.
    numbers: Box<dyn Session>,
    session: S,
    depth: usize,
    /// Why a batch between the two sessions is lost; all behind it are as well.
    failed: Option<DeviceError>,
}

impl<S: InOrder> Flows<S> {
    /// Over a session of the program on the device, which is asked for the numbers as well.
    ///
    /// # Errors
    /// As [`Device::load`]'s.
    pub fn new(
        device: &dyn Device,
        session: S,
        program: &Arc<Program>,
        options: &LoadOptions,
    ) -> Result<Flows<S>, DeviceError> {
        let flows = program.flows().expect("it is for programs with flows");
        let numbers = device.load(&Arc::new(flows), options)?;
        let depth = options.depth.max(1);
        Ok(Flows { program: program.clone(), numbers, session, depth, failed: None })
    }

    /// Has the oldest batch go on whose numbers are asked for, once they are there; whether there is one.
    fn go_on(&mut self) -> Result<bool, DeviceError> {
        let Some(Done { batch, verdicts, .. }) = self.numbers.complete()? else { return Ok(false) };
        self.session.submit_in_order(batch, verdicts.targets()).map_err(|refused| refused.error)?;
        Ok(true)
    }

    /// Has batches go on until no more than so many are asked about. One that fails is told of when it is completed.
    fn go_on_until(&mut self, most: usize) {
        while self.failed.is_none() && self.numbers.in_flight() > most {
            self.failed = self.go_on().err();
        }
    }
}

impl<S: InOrder> Session for Flows<S> {
    fn import(&mut self, span: &Arc<Span>) -> Result<Imported, DeviceError> {
        self.numbers.import(span)?;
        self.session.import(span)
    }

    fn submit(&mut self, batch: Batch) -> Result<(), SubmitError> {
        if let Err(error) = check_submission(&self.program, &batch, self.in_flight(), self.depth) {
            return Err(SubmitError { batch: Box::new(batch), error });
        }
        if self.numbers.in_flight() == self.numbers.depth() {
            self.go_on_until(self.numbers.depth() - 1);
        }
        if let Some(error) = &self.failed {
            return Err(SubmitError { batch: Box::new(batch), error: error.clone() });
        }
        self.numbers.submit(batch)?;
        // The numbers of this one are found while those before are filtered.
        self.go_on_until(1);
        Ok(())
    }

    fn complete(&mut self) -> Result<Option<Done>, DeviceError> {
        if self.session.in_flight() == 0 {
            self.go_on_until(0);
        }
        if let (0, Some(error)) = (self.session.in_flight(), &self.failed) {
            return Err(error.clone());
        }
        self.session.complete()
    }

    fn map_words(&mut self, map: usize) -> Result<Vec<u32>, DeviceError> {
        self.settle()?;
        self.session.map_words(map)
    }

    fn map_words_at(&mut self, map: usize, at: usize, words: usize) -> Result<Vec<u32>, DeviceError> {
        self.settle()?;
        self.session.map_words_at(map, at, words)
    }

    fn set_map_words(&mut self, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        self.settle()?;
        self.session.set_map_words(map, at, words)
    }

    fn in_flight(&self) -> usize {
        self.numbers.in_flight() + self.session.in_flight()
    }

    fn depth(&self) -> usize {
        self.depth
    }
}

impl<S: InOrder> Flows<S> {
    /// Has all batches go on.
    fn settle(&mut self) -> Result<(), DeviceError> {
        self.go_on_until(0);
        self.failed.clone().map_or(Ok(()), Err)
    }
}
