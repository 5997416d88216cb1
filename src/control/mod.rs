//! Protocol of the control socket of a running instance. `docs/guide/operating.md` is its
//! specification.
//!
//! A request is a line of JSON, and so is the answer. [`answer`] handles one request for a
//! [`Service`], the running instance, and keeps no state between requests.

mod maps;

use std::path::PathBuf;

use portcullis_core::map::{Declaration, Format};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::stock;

pub use maps::{remove_map_entry, set_map_entry};

/// Protocol version; requests of another version are rejected.
pub const VERSION: u32 = 1;

/// Maximum length of a request in bytes, without the newline.
pub const MAX_REQUEST_BYTES: usize = 64 << 10;

/// A line with a request.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestLine<T> {
    version: u32,
    request: T,
}

/// A line with an answer.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AnswerLine<T> {
    version: u32,
    answer: T,
}

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Request {
    /// Print statistics.
    Stats,
    /// Replace the filter.
    Reload(Reload),
    /// Get all entries of a map, or one of them.
    MapGet {
        /// Name of the map.
        map: String,
        /// Cells of the entry's key; `None` for all entries.
        #[serde(default)]
        key: Option<Vec<String>>,
        /// Format of the entries.
        #[serde(default)]
        format: RowFormat,
    },
    /// Set the value of an entry, creating it if necessary.
    MapSet {
        /// Name of the map.
        map: String,
        /// Cells of the key.
        key: Vec<String>,
        /// Cells of the value.
        #[serde(default)]
        value: Vec<String>,
    },
    /// Remove an entry. An entry of an array becomes zero.
    MapDel {
        /// Name of the map.
        map: String,
        /// Cells of the key.
        key: Vec<String>,
    },
}

/// A filter to load: a file or an expression.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reload {
    /// Absolute path of the file, since the run may have another working directory; or the name of
    /// a stock filter. Text, or a list of bytes if it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "path")]
    pub filter: Option<PathBuf>,
    /// A tcpdump expression, instead of a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expr: Option<String>,
    /// Language, `wgsl`, `opencl-c` or `bpf`, if the file name does not imply it.
    #[serde(default)]
    pub language: Option<String>,
    /// Parameters: names and values.
    #[serde(default)]
    pub set: Vec<(String, String)>,
    /// Loop iterations per packet; `None` for the default.
    #[serde(default)]
    pub fuel: Option<u32>,
}

impl Reload {
    /// Name of the filter: the file name, or the expression.
    pub fn name(&self) -> String {
        let file = self.filter.as_ref().map(|file| file.display().to_string());
        file.or_else(|| self.expr.clone()).unwrap_or_default()
    }

    /// Checks that exactly one of file and expression is given.
    fn check(&self) -> Result<(), Refusal> {
        match (&self.filter, &self.expr) {
            (Some(file), None) if !file.has_root() && file.to_str().and_then(stock::find).is_none() => {
                let what = "the path of the filter must be absolute, and no stock filter is called so";
                Err(Refusal::usage(format!("{}: {what}", file.display())))
            }
            (Some(_), None) | (None, Some(_)) => Ok(()),
            _ => Err(Refusal::usage("give either `filter`, a file, or `expr`, an expression, but not both")),
        }
    }
}

/// A path in JSON: text if it is UTF-8, else, on Unix, a list of its bytes.
mod path {
    use std::path::PathBuf;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Json {
        Text(String),
        Bytes(Vec<u8>),
    }

    pub fn serialize<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
        let json = path.as_ref().map(|path| match path.to_str() {
            Some(text) => Json::Text(text.to_owned()),
            None => Json::Bytes(path.as_os_str().as_encoded_bytes().to_owned()),
        });
        json.serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
        Ok(match Option::<Json>::deserialize(deserializer)? {
            None => None,
            Some(Json::Text(text)) => Some(text.into()),
            #[cfg(unix)]
            Some(Json::Bytes(bytes)) => {
                use std::os::unix::ffi::OsStringExt;
                Some(std::ffi::OsString::from_vec(bytes).into())
            }
            #[cfg(not(unix))]
            Some(Json::Bytes(_)) => return Err(serde::de::Error::custom("paths are text on this system")),
        })
    }
}

/// Format of map entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RowFormat {
    /// CSV with a header line.
    #[default]
    Csv,
    /// A JSON array.
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

/// Answer to a request.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Answer {
    /// The request was executed.
    Done,
    /// The filter was replaced.
    Reloaded(ReloadReport),
    /// Text to print as it is.
    Text(String),
    /// Statistics: the run's summary, as `run --json` prints it.
    Stats(Box<RawValue>),
    /// The request was not executed and changed nothing.
    Refused(Refusal),
}

/// Result of replacing a filter: what became of the maps.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReloadReport {
    /// Name of the filter.
    pub filter: String,
    /// Maps that took over the entries of the old filter's map.
    pub carried: Vec<String>,
    /// Maps that start empty, because the old filter had none of this name and shape.
    pub empty: Vec<String>,
    /// Maps of the old filter whose entries are lost.
    pub gone: Vec<String>,
}

/// Why a request was not executed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refusal {
    /// The error message.
    pub error: String,
    /// Whether `error` is rendered by a compiler: several lines, with locations in the filter's
    /// source.
    #[serde(default)]
    pub is_rendered: bool,
    /// Whether the request itself is invalid, rather than impossible to execute.
    #[serde(default)]
    pub is_usage: bool,
}

impl Refusal {
    /// A valid request that could not be executed.
    pub fn failed(error: impl Into<String>) -> Refusal {
        Refusal { error: error.into(), is_rendered: false, is_usage: false }
    }

    /// An invalid request.
    pub fn usage(error: impl Into<String>) -> Refusal {
        Refusal { is_usage: true, ..Refusal::failed(error) }
    }
}

/// The running instance that executes requests.
pub trait Service {
    /// Returns statistics in JSON.
    ///
    /// # Errors
    /// If there are none.
    fn stats(&mut self) -> Result<Box<RawValue>, Refusal>;

    /// Replaces the filter.
    ///
    /// # Errors
    /// If that fails; the old filter remains active.
    fn reload(&mut self, filter: &Reload) -> Result<ReloadReport, Refusal>;

    /// Declarations of the active filter's maps.
    fn maps(&mut self) -> Vec<Declaration>;

    /// Reads the memory of a map, given by its index.
    ///
    /// # Errors
    /// If the session cannot read it.
    fn map_words(&mut self, map: usize) -> Result<Vec<u32>, Refusal>;

    /// Reads the value of a key, or `None` if it does not exist.
    ///
    /// # Errors
    /// If the session cannot read it.
    fn get_entry(&mut self, map: usize, key: Vec<u32>) -> Result<Option<Vec<u32>>, Refusal>;

    /// Sets the value of a key. Returns whether there was capacity for it.
    ///
    /// # Errors
    /// If the session cannot write it.
    fn set_entry(&mut self, map: usize, key: Vec<u32>, value: Vec<u32>) -> Result<bool, Refusal>;

    /// Removes a key. Returns whether it existed.
    ///
    /// # Errors
    /// If the session cannot write it.
    fn remove_entry(&mut self, map: usize, key: Vec<u32>) -> Result<bool, Refusal>;
}

/// Encodes a request as a line, including the newline.
pub fn encode(request: &Request) -> Vec<u8> {
    line(&RequestLine { version: VERSION, request })
}

fn line(content: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(content).expect("serialising strings and numbers cannot fail");
    line.push(b'\n');
    line
}

/// Decodes a request from a line without its newline.
///
/// # Errors
/// If the request is invalid.
pub fn decode(bytes: &[u8]) -> Result<Request, Refusal> {
    if bytes.len() > MAX_REQUEST_BYTES {
        return Err(Refusal::usage(format!("the request has more than {MAX_REQUEST_BYTES} bytes")));
    }
    let line: RequestLine<&RawValue> =
        serde_json::from_slice(bytes).map_err(|error| invalid_line(&error, "a request"))?;
    if line.version != VERSION {
        let version = line.version;
        let what = format!("the request has version {version}, but this run supports version {VERSION}");
        return Err(Refusal::usage(what + "; use the `portcullis ctl` of the same release"));
    }
    serde_json::from_str(line.request.get()).map_err(|error| invalid_line(&error, "a request"))
}

/// Decodes an answer from a line without its newline.
///
/// # Errors
/// If the answer is invalid.
pub fn decode_answer(bytes: &[u8]) -> Result<Answer, Refusal> {
    let line: AnswerLine<Answer> = serde_json::from_slice(bytes).map_err(|error| invalid_line(&error, "an answer"))?;
    Ok(line.answer)
}

fn invalid_line(error: &serde_json::Error, what: &str) -> Refusal {
    // The message may quote control characters from the line.
    let error: String =
        error.to_string().chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect();
    Refusal::usage(format!("not a line of JSON with {what}: {error}"))
}

/// Executes a request, given without its newline, and returns the answer as a line with newline.
/// Any input gets an answer.
pub fn answer(request: &[u8], service: &mut dyn Service) -> Vec<u8> {
    let answered = decode(request).and_then(|request| dispatch(request, service));
    line(&AnswerLine { version: VERSION, answer: answered.unwrap_or_else(Answer::Refused) })
}

/// Executes a request by calling the service.
fn dispatch(request: Request, service: &mut dyn Service) -> Result<Answer, Refusal> {
    match request {
        Request::Stats => service.stats().map(Answer::Stats),
        Request::Reload(filter) => {
            filter.check()?;
            service.reload(&filter).map(Answer::Reloaded)
        }
        Request::MapGet { map, key, format } => {
            maps::get_entries(service, &map, key.as_deref(), format.into()).map(Answer::Text)
        }
        Request::MapSet { map, key, value } => maps::set_entry(service, &map, &key, &value).map(|()| Answer::Done),
        Request::MapDel { map, key } => maps::remove_entry(service, &map, &key).map(|()| Answer::Done),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_an_absolute_path_or_a_stock_name() {
        let check = |filter: &str| Reload { filter: Some(filter.into()), ..Reload::default() }.check().is_ok();
        assert!(check("/f.wgsl") && check("http_only"));
        assert!(!check("f.wgsl") && !check("./http_only") && !check(""));
    }

    #[cfg(unix)]
    #[test]
    fn paths_of_any_bytes_are_sent() {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt;
        for (bytes, json) in [(&b"/a.wgsl"[..], r#""/a.wgsl""#), (b"/\xe9", "[47,233]")] {
            let reload = Reload { filter: Some(OsStr::from_bytes(bytes).into()), ..Reload::default() };
            let line = serde_json::to_string(&reload).unwrap();
            assert!(line.starts_with(&format!(r#"{{"filter":{json},"#)), "{line}");
            assert_eq!(serde_json::from_str::<Reload>(&line).unwrap(), reload);
        }
        assert_eq!(serde_json::from_str::<Reload>(r#"{"expr":"tcp"}"#).unwrap().filter, None);
    }
}
