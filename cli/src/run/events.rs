//! `--events`: events that an XDP program sends to user space, written as JSON lines during the
//! run.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use portcullis::device::{CancelToken, DeviceError, Session};
use portcullis::frontend::xdp::events::{Event, EventCounts, EventPayload, EventReader, MAX_PACKET_BYTES};
use portcullis::packet_io::SinkError;
use portcullis::program::Program;
use serde::Serialize;

use crate::failure::Failure;
use crate::out;

/// Maximum time before an event is read.
const MAX_EVENT_DELAY: Duration = Duration::from_millis(100);

/// Writer of the event file.
pub struct EventLog {
    name: String,
    out: BufWriter<CountingFile>,
    /// Ends, as offsets in the file, of the lines that may still be in the buffer.
    ends: VecDeque<u64>,
    /// Events that could not be written.
    unwritten: u64,
    /// The error after which nothing is written.
    failed: Option<io::Error>,
    /// Stops the run after a write error.
    stop: CancelToken,
}

/// A file and the number of bytes written to it.
struct CountingFile {
    file: Box<dyn Write + Send>,
    bytes: u64,
}

impl Write for CountingFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// A line of the event file.
#[derive(Serialize)]
struct Line<'a> {
    map: &'a str,
    /// Reception time of the packet, in nanoseconds since 1970.
    time_ns: u64,
    /// Text of a `bpf_printk`.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    /// Data of the event, in hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Hex<'a>>,
    /// Bytes of the packet that the event carries, in hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    packet: Option<Hex<'a>>,
    /// Requested number of packet bytes, if it exceeds the maximum.
    #[serde(skip_serializing_if = "Option::is_none")]
    packet_cut_from: Option<u32>,
}

/// Bytes that are formatted in hexadecimal while they are written, without an intermediate string.
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

impl EventLog {
    /// Creates or truncates the file; `-` is standard output. A later write error cancels `stop`.
    pub fn create(path: &Path, stop: &CancelToken) -> Result<EventLog, SinkError> {
        let name = path.display().to_string();
        let file: Box<dyn Write + Send> = match name.as_str() {
            "-" => Box::new(io::stdout()),
            _ => Box::new(File::create(path).map_err(|error| SinkError::Create { name: name.clone(), error })?),
        };
        let out = BufWriter::with_capacity(1 << 16, CountingFile { file, bytes: 0 });
        Ok(EventLog { name, out, ends: VecDeque::new(), unwritten: 0, failed: None, stop: stop.clone() })
    }

    fn write(&mut self, event: Event<'_>) {
        if self.failed.is_some() {
            self.unwritten += 1;
            return;
        }
        let written = self.line(event);
        let written_bytes = self.out.get_ref().bytes;
        while self.ends.front().is_some_and(|end| *end <= written_bytes) {
            self.ends.pop_front();
        }
        // A line that failed halfway never ends in the file.
        self.ends.push_back(if written.is_ok() { written_bytes + self.out.buffer().len() as u64 } else { u64::MAX });
        self.record_result(written);
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
            self.record_result(written);
        }
    }

    /// Counts the lines that are lost and stops the run if a write failed.
    fn record_result(&mut self, written: io::Result<()>) {
        if let Err(error) = written {
            let written_bytes = self.out.get_ref().bytes;
            self.unwritten += self.ends.drain(..).filter(|end| *end > written_bytes).count() as u64;
            self.failed = Some(error);
            self.stop.cancel();
        }
    }

    /// Flushes the file and returns the first error.
    fn finish(&mut self) -> Result<(), Failure> {
        self.flush();
        match self.failed.take() {
            None => Ok(()),
            Some(error) if self.name == "-" => Err(out::stdout_failed(&error)),
            Some(error) => Err(SinkError::Write { name: self.name.clone(), error }.into()),
        }
    }
}

/// Event reader, event file and counters of a run.
pub struct Events {
    reader: Option<EventReader>,
    /// Counts of programs that a reload has replaced.
    before: EventCounts,
    /// Whether any program of the run, including replaced ones, has events.
    has_any: bool,
    log: Option<EventLog>,
    /// Packets submitted since events were last read.
    packets: u64,
    /// Records per packet in the fullest ring, as of the last read; rounded up, at least 1.
    rate: u64,
    /// Time of the last read.
    last: Instant,
}

impl Events {
    /// Starts to read events of the session.
    pub fn begin(program: &Program, session: &mut dyn Session) -> Result<Events, DeviceError> {
        let reader = EventReader::begin(program, session)?;
        let has_any = reader.is_some();
        Ok(Events {
            reader,
            before: EventCounts::default(),
            has_any,
            log: None,
            packets: 0,
            rate: 1,
            last: Instant::now(),
        })
    }

    /// Sets the file for events; without one they are only counted.
    pub fn log_to(&mut self, log: EventLog) {
        self.log = Some(log);
    }

    /// Whether a write error of the event file has stopped the run.
    pub fn failed(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.failed.is_some())
    }

    /// Counts of events, if the program has any. Those that could not be written count as lost.
    pub fn counts(&self) -> Option<EventCounts> {
        let mut all = self.before;
        all += self.reader.as_ref().map(EventReader::counts).unwrap_or_default();
        let unwritten = self.log.as_ref().map_or(0, |log| log.unwritten);
        let all = EventCounts { events: all.events.saturating_sub(unwritten), lost: all.lost + unwritten };
        self.has_any.then_some(all)
    }

    /// Reads events if the next batch, of `coming` packets, might find no room for its own, or if
    /// [`MAX_EVENT_DELAY`] has elapsed. To be called before a batch is submitted and, with 0, while
    /// no packets arrive.
    pub fn on_batch_boundary(&mut self, session: &mut dyn Session, coming: usize) -> Result<(), DeviceError> {
        let Some(reader) = &self.reader else { return Ok(()) };
        let room = u64::from(reader.packet_capacity());
        let coming = coming as u64;
        let is_idle = coming == 0;
        let is_full = (self.packets + coming).saturating_mul(self.rate) > room;
        if self.packets > 0 && (is_idle || is_full || self.last.elapsed() >= MAX_EVENT_DELAY) {
            self.read(session)?;
        }
        self.packets += coming;
        Ok(())
    }

    /// Reads all pending events.
    pub fn read(&mut self, session: &mut dyn Session) -> Result<(), DeviceError> {
        let Some(reader) = &mut self.reader else { return Ok(()) };
        let most = match &mut self.log {
            Some(log) => {
                let most = reader.read(session, Some(&mut |event| log.write(event)))?;
                log.flush();
                most
            }
            None => reader.read(session, None)?,
        };
        self.rate = u64::from(most).div_ceil(self.packets.max(1)).max(1);
        (self.packets, self.last) = (0, Instant::now());
        Ok(())
    }

    /// Continues with another program in another session, which has no events yet.
    #[cfg(all(target_os = "linux", feature = "live"))]
    pub fn take_over(
        &mut self,
        program: &Program,
        old: &mut dyn Session,
        new: &mut dyn Session,
    ) -> Result<(), DeviceError> {
        self.read(old)?;
        let next = EventReader::begin(program, new)?;
        self.before += self.reader.as_ref().map(EventReader::counts).unwrap_or_default();
        self.has_any |= next.is_some();
        (self.reader, self.packets, self.rate) = (next, 0, 1);
        Ok(())
    }

    /// Reads the last events and finishes the file. Without a session, only what was read before is
    /// written.
    pub fn finish(&mut self, session: Option<&mut dyn Session>) -> Result<(), Failure> {
        let read = session.map_or(Ok(()), |session| self.read(session));
        let written = self.log.as_mut().map_or(Ok(()), EventLog::finish);
        read?;
        written
    }
}
