//! `--events`: what a program of an object tells the host, as lines of JSON while packets flow.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use portcullis::device::{CancelToken, DeviceError, Session};
use portcullis::frontend::xdp::events::{Event, EventCounts, EventPayload, EventReader, MAX_PACKET_BYTES};
use portcullis::io::SinkError;
use portcullis::program::Program;
use serde::Serialize;

use crate::failure::Failure;
use crate::out;

/// How long an event may wait to be read, at most.
const LATEST: Duration = Duration::from_millis(100);

/// Where events go.
pub struct Log {
    name: String,
    out: BufWriter<Counted>,
    /// Where lines end, in bytes from the beginning, that may not have been written yet.
    ends: VecDeque<u64>,
    /// Events that were not written.
    unwritten: u64,
    /// Why nothing is written any more.
    failed: Option<io::Error>,
    /// What ends the run then.
    stop: CancelToken,
}

/// A file, and how much of what was given to it is in there.
struct Counted {
    file: Box<dyn Write + Send>,
    bytes: u64,
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// A line.
#[derive(Serialize)]
struct Line<'a> {
    map: &'a str,
    /// When the packet came, in nanoseconds since 1970.
    time_ns: u64,
    /// A print's text.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    /// Bytes as hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Hex<'a>>,
    /// And of the packet behind them.
    #[serde(skip_serializing_if = "Option::is_none")]
    packet: Option<Hex<'a>>,
    /// How many bytes of the packet were asked for, where there are fewer.
    #[serde(skip_serializing_if = "Option::is_none")]
    packet_cut_from: Option<u32>,
}

/// Bytes that are written as digits where they go: there may be millions.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Serialize for Hex<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Log {
    /// Makes the file, over one that may be there; `-` is standard output. Where it cannot be
    /// written any more, the run is to stop.
    pub fn create(path: &Path, stop: &CancelToken) -> Result<Log, SinkError> {
        let name = path.display().to_string();
        let file: Box<dyn Write + Send> = match name.as_str() {
            "-" => Box::new(io::stdout()),
            _ => Box::new(File::create(path).map_err(|error| SinkError::Create { name: name.clone(), error })?),
        };
        let out = BufWriter::with_capacity(1 << 16, Counted { file, bytes: 0 });
        Ok(Log { name, out, ends: VecDeque::new(), unwritten: 0, failed: None, stop: stop.clone() })
    }

    fn write(&mut self, event: Event<'_>) {
        if self.failed.is_some() {
            self.unwritten += 1;
            return;
        }
        let written = self.line(event);
        let there = self.out.get_ref().bytes;
        while self.ends.front().is_some_and(|end| *end <= there) {
            self.ends.pop_front();
        }
        // Of one that breaks off the end is not there, wherever that would be.
        self.ends.push_back(if written.is_ok() { there + self.out.buffer().len() as u64 } else { u64::MAX });
        self.note(written);
    }

    fn line(&mut self, Event { ring, time, payload }: Event<'_>) -> io::Result<()> {
        let mut line =
            Line { map: &ring.name, time_ns: time, text: None, data: None, packet: None, packet_cut_from: None };
        match &payload {
            EventPayload::Text(text) => line.text = Some(text),
            EventPayload::Data(data) => line.data = Some(Hex(data)),
            EventPayload::WithPacket { data, packet, asked } => {
                (line.data, line.packet) = (Some(Hex(data)), Some(Hex(packet)));
                line.packet_cut_from = (*asked > MAX_PACKET_BYTES).then_some(*asked);
            }
        }
        serde_json::to_writer(&mut self.out, &line)?;
        self.out.write_all(b"\n")
    }

    fn flush(&mut self) {
        if self.failed.is_none() {
            let written = self.out.flush();
            self.note(written);
        }
    }

    fn note(&mut self, written: io::Result<()>) {
        if let Err(error) = written {
            let there = self.out.get_ref().bytes;
            self.unwritten += self.ends.drain(..).filter(|end| *end > there).count() as u64;
            self.failed = Some(error);
            self.stop.cancel();
        }
    }

    /// What went wrong, if something did.
    fn finish(&mut self) -> Result<(), Failure> {
        self.flush();
        match self.failed.take() {
            None => Ok(()),
            Some(error) if self.name == "-" => Err(out::stdout_failed(&error)),
            Some(error) => Err(SinkError::Write { name: self.name.clone(), error }.into()),
        }
    }
}

/// The events of a run.
pub struct Events {
    drain: Option<EventReader>,
    /// Counts of programs that a reload has replaced.
    before: EventCounts,
    any: bool,
    log: Option<Log>,
    /// Packets submitted since events were read.
    packets: u64,
    /// How often packets record at one place, about, in the fullest ring.
    rate: u64,
    last: Instant,
}

impl Events {
    /// Begins with what comes from now on.
    pub fn begin(program: &Program, session: &mut dyn Session) -> Result<Events, DeviceError> {
        let drain = EventReader::begin(program, session)?;
        let any = drain.is_some();
        Ok(Events { drain, before: EventCounts::default(), any, log: None, packets: 0, rate: 1, last: Instant::now() })
    }

    /// Where they are to go; without it they are counted.
    pub fn log_to(&mut self, log: Log) {
        self.log = Some(log);
    }

    /// Whether the run was ended since they cannot be written any more.
    pub fn failed(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.failed.is_some())
    }

    /// How many there were, where a program has any. Those that were to be written and are not are
    /// lost.
    pub fn counts(&self) -> Option<EventCounts> {
        let mut all = self.before;
        all += self.drain.as_ref().map(EventReader::counts).unwrap_or_default();
        let unwritten = self.log.as_ref().map_or(0, |log| log.unwritten);
        let all = EventCounts { events: all.events.saturating_sub(unwritten), lost: all.lost + unwritten };
        self.any.then_some(all)
    }

    /// Before a batch of so many packets is submitted, or where there is none, while nothing comes:
    /// reads what there is where the batch might not find room, and where it is time. Otherwise
    /// nothing is waited for.
    pub fn boundary(&mut self, session: &mut dyn Session, coming: usize) -> Result<(), DeviceError> {
        let Some(drain) = &self.drain else { return Ok(()) };
        let room = u64::from(drain.packet_capacity());
        let coming = coming as u64;
        let is_idle = coming == 0;
        let is_full = (self.packets + coming).saturating_mul(self.rate) > room;
        if self.packets > 0 && (is_idle || is_full || self.last.elapsed() >= LATEST) {
            self.read(session)?;
        }
        self.packets += coming;
        Ok(())
    }

    /// Reads what there is.
    pub fn read(&mut self, session: &mut dyn Session) -> Result<(), DeviceError> {
        let Some(drain) = &mut self.drain else { return Ok(()) };
        let most = match &mut self.log {
            Some(log) => {
                let most = drain.read(session, Some(&mut |event| log.write(event)))?;
                log.flush();
                most
            }
            None => drain.read(session, None)?,
        };
        self.rate = u64::from(most).div_ceil(self.packets.max(1)).max(1);
        (self.packets, self.last) = (0, Instant::now());
        Ok(())
    }

    /// Goes on with another program in another session, where nothing has come yet.
    #[cfg(all(target_os = "linux", feature = "live"))]
    pub fn take_over(
        &mut self,
        program: &Program,
        old: &mut dyn Session,
        new: &mut dyn Session,
    ) -> Result<(), DeviceError> {
        self.read(old)?;
        let next = EventReader::begin(program, new)?;
        self.before += self.drain.as_ref().map(EventReader::counts).unwrap_or_default();
        self.any |= next.is_some();
        (self.drain, self.packets, self.rate) = (next, 0, 1);
        Ok(())
    }

    /// Reads the last of them, and finishes the file.
    pub fn finish(&mut self, session: Option<&mut dyn Session>) -> Result<(), Failure> {
        let read = session.map_or(Ok(()), |session| self.read(session));
        let written = self.log.as_mut().map_or(Ok(()), Log::finish);
        read?;
        written
    }
}
