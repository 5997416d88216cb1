//! How batches are handed to a device: the dispatch methods, and the one that every device has.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::{
    Completion, Device, DeviceError, DeviceInfo, Imported, LoadOptions, Session, Stages, SubmitError, TransferPlan,
};
use crate::packet::{Batch, Span};
use crate::program::Program;

/// A way of getting batches to a device and verdicts back. One vocabulary for all backends; which
/// of them a device has is in [`DeviceInfo::dispatch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dispatch {
    /// Submit one batch and wait for it: nothing overlaps.
    Inline,
    /// Several batches in flight: one is copied in while another is filtered and a third copied out.
    Pipelined,
    /// One resident kernel that polls a ring of batch slots: no launch for a batch.
    Persistent,
    /// Kernels queued ahead of their batches, each behind a wait for a value in memory.
    WaitValue,
    /// A graph of copies and kernel, made once for each slot and launched as one.
    Graph,
}

impl Dispatch {
    /// All of them.
    pub const ALL: [Dispatch; 5] =
        [Dispatch::Inline, Dispatch::Pipelined, Dispatch::Persistent, Dispatch::WaitValue, Dispatch::Graph];

    /// What a device has that has nothing special: the default first.
    pub const COMMON: &[Dispatch] = &[Dispatch::Pipelined, Dispatch::Inline];

    /// It alone.
    fn as_single_slice(self) -> &'static [Dispatch] {
        match self {
            Dispatch::Inline => &[Dispatch::Inline],
            Dispatch::Pipelined => &[Dispatch::Pipelined],
            Dispatch::Persistent => &[Dispatch::Persistent],
            Dispatch::WaitValue => &[Dispatch::WaitValue],
            Dispatch::Graph => &[Dispatch::Graph],
        }
    }

    /// What `--dispatch` takes.
    pub fn name(self) -> &'static str {
        match self {
            Dispatch::Inline => "inline",
            Dispatch::Pipelined => "pipelined",
            Dispatch::Persistent => "persistent",
            Dispatch::WaitValue => "waitvalue",
            Dispatch::Graph => "graph",
        }
    }

    /// The method to use on a device: the one asked for, or the device's own choice.
    ///
    /// # Errors
    /// [`DeviceError::NoDispatch`] where the device does not have it.
    pub fn select(info: &DeviceInfo, options: &LoadOptions) -> Result<Dispatch, DeviceError> {
        let first = info.dispatch.first().copied().unwrap_or(Dispatch::Pipelined);
        match options.dispatch {
            None => Ok(first),
            Some(asked) if info.dispatch.contains(&asked) => Ok(asked),
            Some(asked) => {
                Err(DeviceError::NoDispatch { device: info.id.clone(), asked, known: join_names(info.dispatch.iter()) })
            }
        }
    }

    /// A session that takes several batches, as one that works by this method: inline where this is
    /// [`Dispatch::Inline`], as it is otherwise.
    pub fn wrap(self, session: impl Session + 'static) -> Box<dyn Session> {
        if self == Dispatch::Inline { Box::new(InlineSession { session, done: None }) } else { Box::new(session) }
    }
}

impl fmt::Display for Dispatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no method has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no dispatch method `{asked}`; there are {}", join_names(Dispatch::ALL.iter()))]
pub struct UnknownDispatch {
    /// What was asked for.
    pub asked: String,
}

impl FromStr for Dispatch {
    type Err = UnknownDispatch;

    fn from_str(text: &str) -> Result<Dispatch, UnknownDispatch> {
        let found = Dispatch::ALL.into_iter().find(|method| method.name() == text);
        found.ok_or_else(|| UnknownDispatch { asked: text.escape_debug().to_string() })
    }
}

/// `a, b and c`.
fn join_names<'a>(methods: impl Iterator<Item = &'a Dispatch>) -> String {
    let names: Vec<&str> = methods.map(|method| method.name()).collect();
    match names.as_slice() {
        [] => "none".into(),
        [one] => (*one).into(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

/// A device by one of its methods, as if it had no other: for judging and measuring each by itself.
pub struct SingleDispatch {
    device: Arc<dyn Device>,
    info: DeviceInfo,
    dispatch: Dispatch,
}

impl SingleDispatch {
    /// The device by this method, under the id `ID METHOD`.
    ///
    /// # Errors
    /// [`DeviceError::NoDispatch`] where the device does not have it.
    pub fn new(device: &Arc<dyn Device>, dispatch: Dispatch) -> Result<SingleDispatch, DeviceError> {
        let info = device.info();
        Dispatch::select(info, &LoadOptions { dispatch: Some(dispatch), ..LoadOptions::default() })?;
        let id = format!("{} {dispatch}", info.id);
        Ok(SingleDispatch {
            device: device.clone(),
            info: DeviceInfo { id, dispatch: dispatch.as_single_slice(), ..info.clone() },
            dispatch,
        })
    }
}

impl Device for SingleDispatch {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn load(&self, program: &Arc<Program>, options: &LoadOptions) -> Result<Box<dyn Session>, DeviceError> {
        Dispatch::select(&self.info, options)?;
        self.device.load(program, &LoadOptions { dispatch: Some(self.dispatch), ..options.clone() })
    }
}

/// A session whose batches are done when [`Session::submit`] returns.
struct InlineSession<S> {
    session: S,
    done: Option<Result<Completion, DeviceError>>,
}

impl<S: Session> Session for InlineSession<S> {
    fn import(&mut self, span: &Arc<Span>) -> Result<Imported, DeviceError> {
        self.session.import(span)
    }

    fn submit(&mut self, batch: Batch) -> Result<(), SubmitError> {
        if self.done.is_some() {
            let error = DeviceError::Refused("one batch is in flight already, complete it first".into());
            return Err(SubmitError { batch: Box::new(batch), error });
        }
        self.session.submit(batch)?;
        self.done = self.session.complete().transpose();
        Ok(())
    }

    fn complete(&mut self) -> Result<Option<Completion>, DeviceError> {
        self.done.take().transpose()
    }

    fn map_words(&mut self, map: usize) -> Result<Vec<u32>, DeviceError> {
        self.session.map_words(map)
    }

    fn map_words_at(&mut self, map: usize, at: usize, words: usize) -> Result<Vec<u32>, DeviceError> {
        self.session.map_words_at(map, at, words)
    }

    fn set_map_words(&mut self, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        self.session.set_map_words(map, at, words)
    }

    fn finish_background_work(&mut self) {
        self.session.finish_background_work();
    }

    fn transfer_plan(&self) -> Option<TransferPlan> {
        self.session.transfer_plan()
    }

    fn stages(&self) -> Option<Stages> {
        self.session.stages()
    }

    fn in_flight(&self) -> usize {
        usize::from(self.done.is_some())
    }

    fn depth(&self) -> usize {
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::noop::NoopDevice;
    use crate::diagnostics::Source;
    use crate::interp::InterpDevice;
    use crate::map::layout::HEADER_WORDS;
    use crate::program::ProgramOptions;
    use crate::testing as wgsl;

    #[test]
    fn names_read_as_they_are_written() {
        for method in Dispatch::ALL {
            assert_eq!(method.to_string().parse(), Ok(method));
        }
        let error = "Inline\n".parse::<Dispatch>().unwrap_err().to_string();
        assert_eq!(
            error,
            "there is no dispatch method `Inline\\n`; there are inline, pipelined, persistent, waitvalue and graph"
        );
    }

    #[test]
    fn a_method_that_a_device_lacks_is_an_error_that_lists_those_it_has() {
        let text = "fn xdp_filter(pkt: u32) -> u32 { return XDP_PASS; }";
        let program = wgsl::compile(&Source::new("f.wgsl", text), &ProgramOptions::default());
        let program = Arc::new(program.unwrap_or_else(|e| panic!("{}", e.render())));
        let load = |dispatch| NoopDevice::new().load(&program, &LoadOptions { dispatch, ..LoadOptions::default() });
        let error = load(Some(Dispatch::Graph)).err().unwrap().to_string();
        assert_eq!(error, "noop has no dispatch method `graph`; it has pipelined and inline");
        assert_eq!(load(None).unwrap().depth(), 3);

        let noop: Arc<dyn Device> = Arc::new(NoopDevice::new());
        assert_eq!(
            SingleDispatch::new(&noop, Dispatch::Graph).err().unwrap(),
            load(Some(Dispatch::Graph)).err().unwrap()
        );
        let only = SingleDispatch::new(&noop, Dispatch::Inline).unwrap();
        assert_eq!((only.info().id.as_str(), only.info().dispatch), ("noop inline", &[Dispatch::Inline][..]));
        assert_eq!(only.load(&program, &LoadOptions::default()).unwrap().depth(), 1);
        let pipelined = LoadOptions { dispatch: Some(Dispatch::Pipelined), ..LoadOptions::default() };
        assert!(only.load(&program, &pipelined).is_err());

        let mut inline = load(Some(Dispatch::Inline)).unwrap();
        let batch = || Batch::from_packets(&[[0u8; 20], [1; 20]]).unwrap();
        assert_eq!((inline.depth(), inline.in_flight()), (1, 0));
        assert!(inline.complete().unwrap().is_none());
        inline.submit(batch()).unwrap();
        assert_eq!(inline.in_flight(), 1);
        let refused = inline.submit(batch()).unwrap_err();
        assert_eq!(refused.batch.len(), 2);
        assert_eq!(inline.complete().unwrap().unwrap().verdicts.len(), 2);
        assert!(inline.complete().unwrap().is_none());
    }

    #[test]
    fn inline_sessions_give_and_take_maps_behind_their_batch() {
        let text = "//! map m: array value=1 entries=2\nfn xdp_filter(pkt: u32) -> u32 { m_add(1u, 0u, 2u); return XDP_PASS; }";
        let program = wgsl::compile(&Source::new("f.wgsl", text), &ProgramOptions::default());
        let program = Arc::new(program.unwrap_or_else(|e| panic!("{}", e.render())));
        let options = LoadOptions { dispatch: Some(Dispatch::Inline), ..LoadOptions::default() };
        let mut session = InterpDevice::new().load(&program, &options).unwrap();
        session.set_map_words(0, HEADER_WORDS as usize, &[7, 8]).unwrap();
        session.submit(Batch::from_packets(&[[0; 60]]).unwrap()).unwrap();
        assert_eq!(session.map_words(0).unwrap()[HEADER_WORDS as usize..], [7, 10]);
        session.set_map_words(0, HEADER_WORDS as usize, &[1]).unwrap();
        session.complete().unwrap().unwrap();
        assert_eq!(session.map_words(0).unwrap()[HEADER_WORDS as usize..], [1, 10]);
    }
}
