//! The control socket: what is asked of a run that goes on, and what it answers. `docs/operating.md` is the specification.
//!
//! A request is a line of JSON, and so is its answer. [`answer`] makes the one of the other for a [`Service`], which is a run, and
//! keeps nothing in between.

mod maps;

use portcullis_core::map::{Declaration, Format};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

pub use maps::{remove_map_entry, set_map_entry};

/// The version of all this: a request of another is refused.
pub const VERSION: u32 = 1;

/// Bytes of a request, at most, the end of its line not counted.
pub const MAX_REQUEST_BYTES: usize = 64 << 10;

/// A request's line.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestLine<T> {
    version: u32,
    request: T,
}

/// An answer's line.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AnswerLine<T> {
    version: u32,
    answer: T,
}

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// How things stand.
    Stats,
    /// Another filter is to take over.
    Reload(Reload),
    /// All entries of a map, or one of them.
    MapGet {
        /// The map.
        map: String,
        /// The cells of the entry's key.
        #[serde(default)]
        key: Option<Vec<String>>,
        /// How entries are to be written.
        #[serde(default)]
        format: RowFormat,
    },
    /// An entry is to have this value, and is made where it is not there.
    MapSet {
        /// The map.
        map: String,
        /// The cells of its key.
        key: Vec<String>,
        /// The cells of its value.
        #[serde(default)]
        value: Vec<String>,
    },
    /// An entry is to go. One by number is zeros then.
    MapDel {
        /// The map.
        map: String,
        /// The cells of its key.
        key: Vec<String>,
    },
}

/// A filter that is to take over: a file, or an expression.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reload {
    /// Its file; an absolute path, since the run may have been started elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// An expression of tcpdump's, in place of a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expr: Option<String>,
    /// What it is written in, `wgsl`, `opencl-c` or `bpf`, where the file's name does not say.
    #[serde(default)]
    pub language: Option<String>,
    /// Its parameters.
    #[serde(default)]
    pub set: Vec<(String, String)>,
    /// Loop iterations for a packet; as many as a run has by itself where nothing is said.
    #[serde(default)]
    pub fuel: Option<u32>,
}

impl Reload {
    /// What it is called: the file's name, or the expression.
    pub fn name(&self) -> &str {
        self.filter.as_deref().or(self.expr.as_deref()).unwrap_or_default()
    }

    /// Refuses what is neither a file nor an expression, or both.
    fn check(&self) -> Result<(), Refusal> {
        match (&self.filter, &self.expr) {
            (Some(file), None) if !file.starts_with('/') => {
                Err(Refusal::usage(format!("{file}: the filter's path is to be absolute")))
            }
            (Some(_), None) | (None, Some(_)) => Ok(()),
            _ => Err(Refusal::usage("a filter is `filter`, a file, or `expr`, an expression, and not both")),
        }
    }
}

/// How entries are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RowFormat {
    /// As rows of CSV, the names of the columns before them.
    #[default]
    Csv,
    /// As an array of JSON.
    Json,
}

impl From<RowFormat> for Format {
    fn from(rows: RowFormat) -> Format {
        match rows {
            RowFormat::Csv => Format::Csv,
            RowFormat::Json => Format::Json,
        }
    }
}

/// What is answered.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Answer {
    /// It is done.
    Done,
    /// The filter has taken over.
    Reloaded(ReloadReport),
    /// A text, as it is to be printed.
    Text(String),
    /// How things stand: a run's summary, as `run --json` prints it.
    Stats(Box<RawValue>),
    /// It is not done, and nothing is changed.
    Refused(Refusal),
}

/// What became of the maps when a filter took over.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReloadReport {
    /// The filter's name.
    pub filter: String,
    /// Maps that have what the old filter's had.
    pub carried: Vec<String>,
    /// Maps that begin empty: the old filter had none of the same name and shape.
    pub empty: Vec<String>,
    /// Maps of the old filter whose entries are gone.
    pub gone: Vec<String>,
}

/// Why something is not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refusal {
    /// Why.
    pub error: String,
    /// Whether `error` is a compiler's: several lines, with the places in the filter's text.
    #[serde(default)]
    pub is_rendered: bool,
    /// Whether what was asked makes no sense, rather than what it is about being wrong.
    #[serde(default)]
    pub is_usage: bool,
}

impl Refusal {
    /// What is wrong.
    pub fn failed(error: impl Into<String>) -> Refusal {
        Refusal { error: error.into(), is_rendered: false, is_usage: false }
    }

    /// What makes no sense.
    pub fn usage(error: impl Into<String>) -> Refusal {
        Refusal { is_usage: true, ..Refusal::failed(error) }
    }
}

/// Who answers requests: a run.
pub trait Service {
    /// How it stands, in JSON.
    ///
    /// # Errors
    /// Why that cannot be said.
    fn stats(&mut self) -> Result<Box<RawValue>, Refusal>;

    /// Has another filter take over.
    ///
    /// # Errors
    /// Why it does not; the old one goes on.
    fn reload(&mut self, filter: &Reload) -> Result<ReloadReport, Refusal>;

    /// The maps of the filter that is in force.
    fn maps(&mut self) -> Vec<Declaration>;

    /// The memory of one of them, by its number.
    ///
    /// # Errors
    /// Why it cannot be had.
    fn map_words(&mut self, map: usize) -> Result<Vec<u32>, Refusal>;

    /// The value of a key, as long as the map's are.
    ///
    /// # Errors
    /// Why it cannot be had.
    fn get_entry(&mut self, map: usize, key: Vec<u32>) -> Result<Option<Vec<u32>>, Refusal>;

    /// Gives a key a value; whether there was room for it.
    ///
    /// # Errors
    /// Why that cannot be done.
    fn set_entry(&mut self, map: usize, key: Vec<u32>, value: Vec<u32>) -> Result<bool, Refusal>;

    /// Removes a key; whether it was there.
    ///
    /// # Errors
    /// Why that cannot be done.
    fn remove_entry(&mut self, map: usize, key: Vec<u32>) -> Result<bool, Refusal>;
}

/// A request's line, its end included.
pub fn encode(request: &Request) -> Vec<u8> {
    line(&RequestLine { version: VERSION, request })
}

fn line(content: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(content).expect("numbers and texts, with texts for keys");
    line.push(b'\n');
    line
}

/// Reads a request, without the end of its line.
///
/// # Errors
/// What is wrong with it.
pub fn decode(bytes: &[u8]) -> Result<Request, Refusal> {
    if bytes.len() > MAX_REQUEST_BYTES {
        return Err(Refusal::usage(format!("the request has more than {MAX_REQUEST_BYTES} bytes")));
    }
    let line: RequestLine<&RawValue> = serde_json::from_slice(bytes).map_err(|error| wrong(&error, "a request"))?;
    if line.version != VERSION {
        let version = line.version;
        let what = format!("the request is of version {version}, and this run answers those of version {VERSION}");
        return Err(Refusal::usage(what + "; use the `portcullis ctl` of the same release"));
    }
    serde_json::from_str(line.request.get()).map_err(|error| wrong(&error, "a request"))
}

/// Reads an answer, without the end of its line.
///
/// # Errors
/// What is wrong with it.
pub fn decode_answer(bytes: &[u8]) -> Result<Answer, Refusal> {
    let line: AnswerLine<Answer> = serde_json::from_slice(bytes).map_err(|error| wrong(&error, "an answer"))?;
    Ok(line.answer)
}

fn wrong(error: &serde_json::Error, what: &str) -> Refusal {
    // Names out of the line are in it as they are there.
    let error: String =
        error.to_string().chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect();
    Refusal::usage(format!("this is no line of JSON that is {what}: {error}"))
}

/// The line that answers a request, whatever that is. The request comes without the end of its line, the answer has one.
pub fn answer(request: &[u8], service: &mut dyn Service) -> Vec<u8> {
    let answered = decode(request).and_then(|request| dispatch(request, service));
    line(&AnswerLine { version: VERSION, answer: answered.unwrap_or_else(Answer::Refused) })
}

/// Has a service do what is asked.
fn dispatch(request: Request, service: &mut dyn Service) -> Result<Answer, Refusal> {
    match request {
        Request::Stats => service.stats().map(Answer::Stats),
        Request::Reload(filter) => {
            filter.check()?;
            service.reload(&filter).map(Answer::Reloaded)
        }
        Request::MapGet { map, key, format } => {
            maps::get(service, &map, key.as_deref(), format.into()).map(Answer::Text)
        }
        Request::MapSet { map, key, value } => maps::set(service, &map, &key, &value).map(|()| Answer::Done),
        Request::MapDel { map, key } => maps::remove(service, &map, &key).map(|()| Answer::Done),
    }
}
