//! A session for filters with flows, out of one that gives the numbers of packets' flows and one that keeps packets of
//! equal numbers in order.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Device, DeviceError, Done, Imported, LoadOptions, Plan, Session, Stages, SubmitError, check_batch};
use crate::packet::{Batch, Span};
use crate::program::{FLOW_BITS, Program};

/// A session that filters packets of a flow one at a time, in the order in which they came.
pub trait InOrder: Session {
    /// Whether [`InOrder::submit_in_order`] would take the batch, as far as the batch can tell.
    ///
    /// # Errors
    /// Why it would not.
    fn check(&mut self, batch: &Batch) -> Result<(), DeviceError>;

    /// As [`Session::submit`], of a batch whose packets belong to flows of these numbers, one a packet.
    ///
    /// # Errors
    /// As [`Session::submit`]'s.
    fn submit_in_order(&mut self, batch: Batch, numbers: &[u32]) -> Result<(), SubmitError>;
}

/// Packets of one flow that make a batch one-sided, at least.
const LARGE: usize = 1024;

/// And which part of the batch they have to be, at least.
const PART: usize = 64;

/// How many one-sided batches more than others there have to have been lately for a change of device, and how many of
/// them are remembered: moving costs a copy of all maps.
const MOVES: u32 = 2;
const MOST: u32 = 4;

/// A filter with flows on a device: see the module.
///
/// A lane takes all packets of a flow. So a batch most of which is one flow is left to another device where there is one
/// ([`LoadOptions::one_sided`]), and the maps go with it.
pub struct Flows<S> {
    program: Arc<Program>,
    options: LoadOptions,
    /// Redirects packets to the numbers of their flows.
    numbers: Box<dyn Session>,
    session: S,
    /// What takes one-sided batches; there once it was needed.
    other: Option<Box<dyn Session>>,
    /// Where batches go now, and with them the maps.
    aside: bool,
    /// How many batches were one-sided lately.
    one_sided: u32,
    /// Of each batch that went on, whether it went aside.
    sent: VecDeque<bool>,
    /// Why a batch between the sessions is lost; all behind it are as well.
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
        let flows = program.flow_program().expect("it is for programs with flows");
        Ok(Flows {
            program: program.clone(),
            options: options.clone(),
            numbers: device.load(&Arc::new(flows), &LoadOptions { work: None, ..options.clone() })?,
            session,
            other: None,
            aside: false,
            one_sided: 0,
            sent: VecDeque::new(),
            failed: None,
        })
    }

    /// Has the oldest batch go on whose numbers are asked for, once they are there.
    fn go_on(&mut self) -> Result<(), DeviceError> {
        let Some(Done { batch, verdicts, .. }) = self.numbers.complete()? else { return Ok(()) };
        self.choose(&batch, verdicts.targets())?;
        let sent = match (self.aside, &mut self.other) {
            (true, Some(other)) => other.submit(batch),
            _ => self.session.submit_in_order(batch, verdicts.targets()),
        };
        sent.map_err(|refused| refused.error)?;
        self.sent.push_back(self.aside);
        Ok(())
    }

    /// Decides where the next batch goes, and moves the maps there.
    fn choose(&mut self, batch: &Batch, numbers: &[u32]) -> Result<(), DeviceError> {
        let Some(device) = self.options.one_sided.clone() else { return Ok(()) };
        let aside = if !batch.span().is_on_host() {
            // The other one need not reach it.
            self.one_sided = 0;
            false
        } else if numbers.len() <= LARGE {
            // Nothing can be said of it, and it is soon done wherever it goes.
            self.aside
        } else {
            self.one_sided = match longest(numbers) > LARGE.max(numbers.len() / PART) {
                true => (self.one_sided + 1).min(MOST),
                false => self.one_sided.saturating_sub(1),
            };
            if self.aside { self.one_sided > 0 } else { self.one_sided >= MOVES }
        };
        if aside == self.aside {
            return Ok(());
        }
        if self.other.is_none() {
            let options = LoadOptions { dispatch: None, one_sided: None, ..self.options.clone() };
            match device.load(&self.program, &options) {
                Ok(other) => self.other = Some(other),
                // It was not asked for: what there is goes on.
                Err(_) => self.options.one_sided = None,
            }
        }
        let Some(other) = &mut self.other else { return Ok(()) };
        // Both wait for the batches before.
        for map in 0..self.program.maps().len() {
            match aside {
                true => other.set_map_words(map, 0, &self.session.map_words(map)?)?,
                false => self.session.set_map_words(map, 0, &other.map_words(map)?)?,
            }
        }
        self.aside = aside;
        Ok(())
    }

    /// Has batches go on until no more than so many are asked about. One that fails is told of when it is completed.
    fn go_on_until(&mut self, most: usize) {
        while self.failed.is_none() && self.numbers.in_flight() > most {
            self.failed = self.go_on().err();
        }
    }

    /// The session that has the maps, when all batches have gone on.
    fn maps(&mut self) -> Result<&mut dyn Session, DeviceError> {
        self.go_on_until(0);
        match (&self.failed, &mut self.other) {
            (Some(error), _) => Err(error.clone()),
            (None, Some(other)) if self.aside => Ok(&mut **other),
            _ => Ok(&mut self.session),
        }
    }
}

/// How many packets have the number that most have.
fn longest(numbers: &[u32]) -> usize {
    // By the highest bits, as lanes share flows out.
    const BITS: u32 = 12;
    let mut counts = vec![0_usize; 1 << BITS];
    numbers.iter().for_each(|number| counts[(number >> (FLOW_BITS - BITS)) as usize & ((1 << BITS) - 1)] += 1);
    // Others share those bits: an even part of the batch is not the flow's.
    counts.into_iter().max().unwrap_or(0).saturating_sub((2 * numbers.len()) >> BITS)
}

impl<S: InOrder> Session for Flows<S> {
    fn import(&mut self, span: &Arc<Span>) -> Result<Imported, DeviceError> {
        self.numbers.import(span)?;
        self.session.import(span)
    }

    fn submit(&mut self, batch: Batch) -> Result<(), SubmitError> {
        let checked = check_batch(&self.program, &batch, self.in_flight(), self.depth());
        // Once its numbers are known nobody could be given it back.
        if let Err(error) = checked.and_then(|()| self.session.check(&batch)) {
            return Err(SubmitError { batch: Box::new(batch), error });
        }
        self.go_on_until(self.numbers.depth() - 1);
        if let Some(error) = &self.failed {
            return Err(SubmitError { batch: Box::new(batch), error: error.clone() });
        }
        self.numbers.submit(batch)?;
        // The numbers of this one are found while those before are filtered.
        self.go_on_until(1);
        Ok(())
    }

    fn complete(&mut self) -> Result<Option<Done>, DeviceError> {
        if self.sent.is_empty() {
            self.go_on_until(0);
        }
        match (self.sent.pop_front(), &self.failed, &mut self.other) {
            (None, Some(error), _) => Err(error.clone()),
            (Some(true), _, Some(other)) => other.complete(),
            (Some(_), ..) => self.session.complete(),
            (None, None, _) => Ok(None),
        }
    }

    fn map_words(&mut self, map: usize) -> Result<Vec<u32>, DeviceError> {
        self.maps()?.map_words(map)
    }

    fn map_words_at(&mut self, map: usize, at: usize, words: usize) -> Result<Vec<u32>, DeviceError> {
        self.maps()?.map_words_at(map, at, words)
    }

    fn set_map_words(&mut self, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        self.maps()?.set_map_words(map, at, words)
    }

    fn plan(&self) -> Option<Plan> {
        self.session.plan()
    }

    /// Finding the numbers of flows is the filter's time as well; its bytes are not counted twice as packets.
    fn stages(&self) -> Option<Stages> {
        let (mut sum, numbers) = self.session.stages().zip(self.numbers.stages())?;
        let (batches, packets, taken) = (sum.batches, sum.packets, sum.taken);
        sum += numbers;
        (sum.batches, sum.packets, sum.taken) = (batches, packets, taken);
        if let Some(other) = self.other.as_ref().and_then(|other| other.stages()) {
            sum += other;
        }
        Some(sum)
    }

    fn in_flight(&self) -> usize {
        self.numbers.in_flight() + self.sent.len()
    }

    fn depth(&self) -> usize {
        self.options.depth.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_large_flow_makes_a_batch_one_sided() {
        let numbers = |count: u32, of_one: u32| -> Vec<u32> {
            let number = |i: u32| if i % 100 < of_one { 7 << 12 } else { i.wrapping_mul(0x9e37_79b1) >> 8 };
            (0..count).map(number).collect()
        };
        let large = |count, of_one| longest(&numbers(count, of_one)) > LARGE.max(count as usize / PART);
        assert!(!large(1000, 100), "a lane is done with them soon");
        assert!(large(2000, 90) && large(100_000, 90) && large(1_000_000, 3));
        assert!(!large(2000, 20) && !large(100_000, 1) && !large(1_000_000, 0));
    }
}
