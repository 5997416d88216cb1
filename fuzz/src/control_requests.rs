//! Fuzz target: arbitrary bytes as requests to the control socket, one per line. Each must get an
//! answer of one line that parses, and a rejected request must change nothing.

use std::path::Path;

use portcullis::control::{self, Answer, Refusal, Reload, ReloadReport, Request, Service};
use portcullis::map::layout::Layout;
use portcullis::map::{Declaration, Table};
use serde_json::value::RawValue;

use crate::map_files::maps;

/// A running instance with maps but no traffic.
struct Run {
    maps: Vec<Declaration>,
    words: Vec<Vec<u32>>,
}

impl Run {
    fn new() -> Run {
        // Small enough to fill up.
        let maps = maps(5);
        let words = maps.iter().map(|map| vec![0; Layout::of(map).words()]).collect();
        Run { maps, words }
    }

    fn change<T>(&mut self, map: usize, change: impl FnOnce(&mut Table) -> T) -> T {
        let mut table = Table::new(&self.maps[map], self.words[map].clone());
        let result = change(&mut table);
        let (at, words) = table.changes();
        self.words[map][at..at + words.len()].copy_from_slice(words);
        result
    }
}

impl Service for Run {
    fn stats(&mut self) -> Result<Box<RawValue>, Refusal> {
        RawValue::from_string("{}".into()).map_err(|error| Refusal::failed(error.to_string()))
    }

    fn reload(&mut self, filter: &Reload) -> Result<ReloadReport, Refusal> {
        let is_stock = |path: &Path| path.to_str().is_some_and(|name| portcullis::stock::find(name).is_some());
        assert!(filter.filter.as_deref().is_none_or(|path| path.has_root() || is_stock(path)), "{filter:?}");
        Err(Refusal::failed("there is no other filter"))
    }

    fn maps(&mut self) -> Vec<Declaration> {
        self.maps.clone()
    }

    fn map_words(&mut self, map: usize) -> Result<Vec<u32>, Refusal> {
        Ok(self.words[map].clone())
    }

    fn get_entry(&mut self, map: usize, key: Vec<u32>) -> Result<Option<Vec<u32>>, Refusal> {
        assert_eq!(key.len(), self.maps[map].key_words() as usize);
        Ok(self.change(map, |table| table.get(&key).map(<[u32]>::to_vec)))
    }

    fn set_entry(&mut self, map: usize, key: Vec<u32>, value: Vec<u32>) -> Result<bool, Refusal> {
        assert_eq!((key.len(), value.len()), (self.maps[map].key_words() as usize, self.maps[map].value as usize));
        Ok(self.change(map, |table| table.set(&key, &value).is_ok()))
    }

    fn remove_entry(&mut self, map: usize, key: Vec<u32>) -> Result<bool, Refusal> {
        assert_eq!(key.len(), self.maps[map].key_words() as usize);
        Ok(self.change(map, |table| table.remove(&key)))
    }
}

/// Answers the requests, and checks each answer.
///
/// # Panics
/// If an answer does not parse, or a rejected request changes a map.
pub fn run(data: &[u8]) {
    let mut service = Run::new();
    for request in data.split(|byte| *byte == b'\n').take(64) {
        let before = service.words.clone();
        let mut line = control::answer(request, &mut service);
        assert_eq!(line.pop(), Some(b'\n'));
        assert!(!line.contains(&b'\n'), "an answer is one line");
        let decoded = control::decode(request);
        match control::decode_answer(&line).unwrap_or_else(|wrong| panic!("{}", wrong.error)) {
            Answer::Refused(Refusal { error, is_rendered, .. }) => {
                assert!(!error.is_empty() && (is_rendered || !error.chars().any(char::is_control)), "{error:?}");
                assert_eq!(service.words, before, "a refused request changes no map");
            }
            Answer::Done => assert!(matches!(decoded, Ok(Request::MapSet { .. } | Request::MapDel { .. }))),
            Answer::Text(text) => {
                assert!(matches!(decoded, Ok(Request::MapGet { .. })) && text.ends_with('\n'), "{text}");
            }
            Answer::Stats(_) => assert_eq!(decoded, Ok(Request::Stats)),
            Answer::Reloaded(_) => panic!("there is no other filter"),
        }
        if let Ok(decoded) = decoded {
            let again = control::encode(&decoded);
            if again.len() <= control::MAX_REQUEST_BYTES {
                assert_eq!(control::decode(&again), Ok(decoded), "encoding and decoding round-trip");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutate::{A_SECOND, Corpus, run_for};

    const SEEDS: [&[u8]; 9] = [
        br#"{"version":1,"request":"stats"}"#,
        br#"{"version":1,"request":{"reload":{"filter":"/a.wgsl","language":"wgsl","set":[["a","1"]],"fuel":7}}}"#,
        br#"{"version":1,"request":{"map-get":{"map":"sums","key":["1"],"format":"json"}}}"#,
        br#"{"version":1,"request":{"map-set":{"map":"flows","key":["10.0.0.1","80"],"value":["1","2","0x3"]}}}
{"version":1,"request":{"map-get":{"map":"flows"}}}"#,
        br#"{"version":1,"request":{"map-set":{"map":"named","key":["::1","10.0.0.1"],"value":["5000000000","6"]}}}
{"version":1,"request":{"map-get":{"map":"named","key":["::1","10.0.0.1"]}}}"#,
        br#"{"version":1,"request":{"map-set":{"map":"recent","key":["7"]}}}
{"version":1,"request":{"map-del":{"map":"recent","key":["7"]}}}"#,
        br#"{"version":1,"request":{"map-set":{"map":"routes","key":["10.0.0.0/8"],"value":["1"]}}}
{"version":1,"request":{"map-del":{"map":"routes","key":["10.0.0.0/8"]}}}"#,
        br#"{"version":1,"request":{"map-set":{"map":"hosts","key":["2001:db8::/32"],"value":["1","2"]}}}
{"version":1,"request":{"map-get":{"map":"hosts","format":"json"}}}"#,
        br#"{"version":1,"request":{"map-set":{"map":"settings","key":["4"],"value":["02:00:00:00:00:01"]}}}
{"version":1,"request":{"map-set":{"map":"sums","key":["0"],"value":["18446744073709551615"]}}}"#,
    ];

    /// Valid requests are accepted, except a reload, for which there is no other filter.
    #[test]
    fn seeds_are_valid_requests() {
        for seed in SEEDS {
            let mut service = Run::new();
            for request in seed.split(|byte| *byte == b'\n') {
                let answer = String::from_utf8(control::answer(request, &mut service)).unwrap();
                assert!(!answer.contains("refused") || answer.contains("no other filter"), "{answer}");
            }
        }
    }

    #[test]
    fn mutated_seeds_never_panic() {
        let tokens = r#"␤ " [ ] { } , null [] ["1"] "value":["1","2"] \u0000 map-del map-get 1e9"#;
        let corpus = Corpus { seeds: &SEEDS, tokens, pieces: &[b"\xff"] };
        println!("{} inputs", run_for(A_SECOND, "control_requests", corpus, 0, run));
    }
}
