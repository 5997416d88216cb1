//! Dispatch methods, how batches are handed to a device, and the inline method that works for any.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::{
    Completion, Device, DeviceError, DeviceInfo, Imported, Instrumented, LoadOptions, Session, Stages, SubmitError,
    TransferPlan,
};
use crate::packet::{Batch, DeviceView, Span};
use crate::program::Program;

/// How batches reach a device and verdicts come back. All backends share these names;
/// [`DeviceInfo::dispatch`] lists the methods that a device supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dispatch {
    /// Submit one batch and wait for it; nothing overlaps.
    Inline,
    /// Several batches in flight: copying in, filtering and copying out overlap.
    Pipelined,
    /// A persistent kernel polls a ring of batch slots; no launch per batch.
    Persistent,
    /// Kernels are queued ahead of their batches, each behind a stream wait on a value in memory.
    WaitValue,
    /// One graph of copies and kernel per slot, recorded once and launched as a unit.
    Graph,
}

impl Dispatch {
    /// All methods.
    pub const ALL: [Dispatch; 5] =
        [Dispatch::Inline, Dispatch::Pipelined, Dispatch::Persistent, Dispatch::WaitValue, Dispatch::Graph];

    /// The methods that every device can support, the default first.
    pub const COMMON: &[Dispatch] = &[Dispatch::Pipelined, Dispatch::Inline];

    /// A slice of this method only.
    fn as_single_slice(self) -> &'static [Dispatch] {
        match self {
            Dispatch::Inline => &[Dispatch::Inline],
            Dispatch::Pipelined => &[Dispatch::Pipelined],
            Dispatch::Persistent => &[Dispatch::Persistent],
            Dispatch::WaitValue => &[Dispatch::WaitValue],
            Dispatch::Graph => &[Dispatch::Graph],
        }
    }

    /// The argument of `--dispatch`.
    pub fn name(self) -> &'static str {
        match self {
            Dispatch::Inline => "inline",
            Dispatch::Pipelined => "pipelined",
            Dispatch::Persistent => "persistent",
            Dispatch::WaitValue => "waitvalue",
            Dispatch::Graph => "graph",
        }
    }

    /// Selects the method for a device: the requested one, or the device's default.
    ///
    /// # Errors
    /// [`DeviceError::NoDispatch`] if the device does not support it.
    pub fn select(info: &DeviceInfo, options: &LoadOptions) -> Result<Dispatch, DeviceError> {
        let first = info.dispatch.first().copied().unwrap_or(Dispatch::Pipelined);
        match options.dispatch {
            None => Ok(first),
            Some(requested) if info.dispatch.contains(&requested) => Ok(requested),
            Some(requested) => Err(DeviceError::NoDispatch {
                device: info.id.clone(),
                requested,
                supported: join_names(info.dispatch.iter()),
            }),
        }
    }

    /// Wraps a pipelined session so that it dispatches inline if this is [`Dispatch::Inline`];
    /// returns it unchanged otherwise.
    pub fn wrap(self, session: impl Session + 'static) -> Box<dyn Session> {
        if self == Dispatch::Inline { Box::new(InlineSession { session, completion: None }) } else { Box::new(session) }
    }
}

impl fmt::Display for Dispatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Error of parsing a [`Dispatch`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown dispatch method `{name}`; known are {}", join_names(Dispatch::ALL.iter()))]
pub struct UnknownDispatch {
    /// The unknown name, escaped.
    pub name: String,
}

impl FromStr for Dispatch {
    type Err = UnknownDispatch;

    fn from_str(text: &str) -> Result<Dispatch, UnknownDispatch> {
        let method = Dispatch::ALL.into_iter().find(|method| method.name() == text);
        method.ok_or_else(|| UnknownDispatch { name: text.escape_debug().to_string() })
    }
}

/// Joins names as `a, b and c`.
fn join_names<'a>(methods: impl Iterator<Item = &'a Dispatch>) -> String {
    let names: Vec<&str> = methods.map(|method| method.name()).collect();
    match names.as_slice() {
        [] => "none".into(),
        [one] => (*one).into(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

/// A device restricted to one dispatch method, for testing and measuring each by itself.
pub struct SingleDispatch {
    device: Arc<dyn Device>,
    info: DeviceInfo,
    dispatch: Dispatch,
}

impl SingleDispatch {
    /// Restricts a device to `dispatch`; the id becomes `ID METHOD`.
    ///
    /// # Errors
    /// [`DeviceError::NoDispatch`] if the device does not support it.
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

    /// The id of the device that an id names, which may be restricted to a method.
    pub fn base_id(id: &str) -> &str {
        id.split_once(' ').map_or(id, |(base, _)| base)
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

/// Runs each batch to completion inside [`Session::submit`].
struct InlineSession<S> {
    session: S,
    completion: Option<Result<Completion, DeviceError>>,
}

impl<S: Session> Session for InlineSession<S> {
    fn import(&mut self, span: &Arc<Span>) -> Result<Imported, DeviceError> {
        self.session.import(span)
    }

    fn submit(&mut self, batch: Batch) -> Result<(), SubmitError> {
        if self.completion.is_some() {
            let error = DeviceError::Refused("one batch is in flight already, complete it first".into());
            return Err(SubmitError { batch: Box::new(batch), error });
        }
        self.session.submit(batch)?;
        self.completion = self.session.complete().transpose();
        Ok(())
    }

    fn complete(&mut self) -> Result<Option<Completion>, DeviceError> {
        self.completion.take().transpose()
    }

    fn map_words(&mut self, map: usize) -> Result<Vec<u32>, DeviceError> {
        self.session.map_words(map)
    }

    fn map_words_at(&mut self, map: usize, at: usize, words: usize) -> Result<Vec<u32>, DeviceError> {
        self.session.map_words_at(map, at, words)
    }

    fn map_device_view(&mut self, map: usize) -> Result<Option<DeviceView>, DeviceError> {
        self.session.map_device_view(map)
    }

    fn set_map_words(&mut self, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        self.session.set_map_words(map, at, words)
    }

    fn in_flight(&self) -> usize {
        usize::from(self.completion.is_some())
    }

    fn depth(&self) -> usize {
        1
    }
}

impl<S: Session> Instrumented for InlineSession<S> {
    fn finish_background_work(&mut self) {
        self.session.finish_background_work();
    }

    fn stages(&self) -> Option<Stages> {
        self.session.stages()
    }

    fn transfer_plan(&self) -> Option<TransferPlan> {
        self.session.transfer_plan()
    }

    fn take_warnings(&mut self) -> Vec<String> {
        self.session.take_warnings()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::noop::NoopDevice;
    use crate::interp::InterpDevice;
    use crate::map::layout::HEADER_WORDS;
    use crate::testing::program;

    #[test]
    fn names_parse_to_the_method_that_prints_them() {
        for method in Dispatch::ALL {
            assert_eq!(method.to_string().parse(), Ok(method));
        }
        let error = "Inline\n".parse::<Dispatch>().unwrap_err().to_string();
        assert_eq!(
            error,
            "unknown dispatch method `Inline\\n`; known are inline, pipelined, persistent, waitvalue and graph"
        );
    }

    #[test]
    fn an_unsupported_method_is_refused_with_a_list_of_supported_ones() {
        let text = "fn xdp_filter(pkt: u32) -> u32 { return XDP_PASS; }";
        let program = program(text);
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
    fn inline_sessions_access_maps_after_the_batch() {
        let text = "//! map m: array value=1 entries=2\nfn xdp_filter(pkt: u32) -> u32 { m_add(1u, 0u, 2u); return XDP_PASS; }";
        let program = program(text);
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
