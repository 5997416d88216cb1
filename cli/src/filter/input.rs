//! Resolves the words that name a filter: a file, a stock filter, or a tcpdump expression.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::builder::{OsStringValueParser, PossibleValue, TypedValueParser};
use portcullis::spelling::nearest;
use portcullis::stock::{self, StockFilter};

use super::{Language, STDIN_FILE, object};
use crate::out;

/// A filter to compile.
#[derive(Debug, Clone)]
pub enum Input {
    /// A file; `-` is standard input.
    File(PathBuf),
    /// A filter that ships with the program.
    Stock(StockFilter),
    /// A tcpdump expression.
    Expression(Expression),
}

/// A tcpdump expression.
#[derive(Debug, Clone)]
pub struct Expression {
    pub text: String,
    /// Set if the words came without `--expr`, as tcpdump takes them.
    pub is_bare: bool,
}

/// Protocols and properties that are a whole expression by themselves, or if an index or a
/// comparison follows (pcap-filter(7)). libpcap takes any other single word as a host name.
const PRIMITIVES: &str = "aarp ah arp atalk broadcast carp esp ether geneve icmp icmp6 igmp igrp inbound ip ip6 ipx \
    iso len mpls multicast netbeui outbound pim pppoed pppoes rarp sctp stp tcp udp vlan";

impl Input {
    /// Resolves a filter's name: a file if one exists or the name has a filter's extension, else a
    /// stock filter. The error names the most similar stock filter.
    pub fn from_name(name: &OsStr, language: Option<Language>) -> Result<Input, String> {
        if let Some(input) = Input::known(name, language)? {
            return Ok(input);
        }
        match name.to_str() {
            Some(text) if !text.contains(['/', '.', ':']) && !Path::new(name).exists() => {
                Err(unknown(text, Some(" and no such file")))
            }
            _ => Ok(Input::File(name.into())),
        }
    }

    /// Resolves the words of a command line. Words that name neither a file nor a stock filter are
    /// a tcpdump expression if they can be one.
    pub fn from_words(words: &[OsString], language: Option<Language>) -> Result<Input, String> {
        let [name, more @ ..] = words else { return Ok(Input::File(PathBuf::new())) };
        let text = words.iter().map(|word| word.to_str()).collect::<Option<Vec<_>>>().map(|words| words.join(" "));
        let expression = text.filter(|text| language.is_none() && is_expression(text));
        if more.is_empty() {
            return match (Input::known(name, language)?, expression) {
                (Some(input), _) => Ok(input),
                (None, Some(text)) => Ok(Input::Expression(Expression { text, is_bare: true })),
                (None, None) => Input::from_name(name, language),
            };
        }
        // A file that happens to be called `udp` does not matter to `udp port 53`.
        let is_filter =
            has_ending_of_filters(name, language) || name.to_str().is_some_and(|it| stock::find(it).is_some());
        match expression.filter(|_| !is_filter) {
            Some(text) => Ok(Input::Expression(Expression { text, is_bare: true })),
            None => {
                let shown = |word: &OsStr| out::printable(&word.to_string_lossy());
                Err(format!("unexpected argument `{}`: the filter is {}", shown(&more[0]), shown(name)))
            }
        }
    }

    /// Looks up a stock filter by name, even if a file of that name exists. The error lists the
    /// languages that it is written in.
    pub fn of_stock(name: &str, language: Option<Language>) -> Result<Option<Input>, String> {
        let Some(stock) = stock::find(name) else { return Ok(None) };
        match language {
            None | Some(Language::Wgsl | Language::OpenclC) => Ok(Some(Input::Stock(stock))),
            Some(_) => Err(format!("the stock filter `{name}` is written in wgsl and opencl-c")),
        }
    }

    fn known(name: &OsStr, language: Option<Language>) -> Result<Option<Input>, String> {
        let is_file = |path: &Path| path.metadata().is_ok_and(|it| !it.is_dir());
        if has_ending_of_filters(name, language) || is_file(Path::new(name)) {
            return Ok(Some(Input::File(name.into())));
        }
        if let Some(input) = name.to_str().map_or(Ok(None), |name| Input::of_stock(name, language))? {
            return Ok(Some(input));
        }
        Ok(matches!(language, Some(Language::Bpf | Language::Xdp)).then(|| Input::File(name.into())))
    }
}

/// Whether a name can only be that of a file or of standard input.
fn has_ending_of_filters(name: &OsStr, language: Option<Language>) -> bool {
    let path = Path::new(name);
    let has_ending = |ending: &&str| path.extension().is_some_and(|it| it.eq_ignore_ascii_case(ending));
    name == "-"
        || name == STDIN_FILE
        || ["wgsl", "cl", "bpf"].iter().any(has_ending)
        || object(path, language.filter(|it| *it != Language::Xdp)).is_some()
}

/// Whether a text may be a tcpdump expression: several words, or one that libpcap does not look up
/// as a host's name.
fn is_expression(text: &str) -> bool {
    let first = text.trim_start_matches(['!', '(', ' ']);
    let (word, rest) = first.split_at(first.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(first.len()));
    let is_name = rest.starts_with(['.', '/', '_', '-', ':']);
    !text.contains(char::is_control)
        && (text.trim().contains(' ') || (PRIMITIVES.split(' ').any(|it| it == word) && !is_name))
}

/// Returns the error for an unknown stock filter, with the most similar name. `also` is appended to
/// the sentence.
pub fn unknown(name: &str, also: Option<&str>) -> String {
    let near = nearest(name, stock::filters().map(|filter| filter.name));
    let hint = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
    let (name, also) = (out::printable(name), also.unwrap_or_default());
    format!("there is no stock filter `{name}` (`portcullis filters` lists them){also}{hint}")
}

/// Parser of a filter's name; shells complete the names of stock filters.
#[derive(Debug, Clone, Copy)]
pub struct NameParser;

impl TypedValueParser for NameParser {
    type Value = OsString;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<OsString, clap::Error> {
        OsStringValueParser::new().parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(stock::filters().map(|filter| PossibleValue::new(filter.name))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_distinguished_from_names() {
        for text in
            ["udp port 53", "tcp", "!arp", "not arp", "(ip6 or arp)", "ip[8]&0xff=0xc0", "len>100", "tcp[13]!=0"]
        {
            assert!(is_expression(text), "{text}");
        }
        for text in ["http_only", "tcp_filter", "udp.txt", "ip/filter", "filter", "", " ", "tcp\u{1b}[2J", "host"] {
            assert!(!is_expression(text), "{text:?}");
        }
    }

    #[test]
    fn words_are_a_file_a_stock_filter_or_an_expression() {
        let read = |words: &[&str], language| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            match Input::from_words(&words, language) {
                Ok(Input::File(file)) => format!("file {}", file.display()),
                Ok(Input::Stock(stock)) => format!("stock {}", stock.name),
                Ok(Input::Expression(Expression { text, is_bare: true })) => format!("expression {text}"),
                Ok(Input::Expression(_)) => unreachable!("--expr was not given"),
                Err(error) => error,
            }
        };
        for (words, meant) in [
            (&["-"][..], "file -"),
            (&["a.wgsl"], "file a.wgsl"),
            (&["a.o:drop"], "file a.o:drop"),
            (&["http_only"], "stock http_only"),
            (&["udp", "port", "53"], "expression udp port 53"),
            (&["udp port 53"], "expression udp port 53"),
            (&["tcp"], "expression tcp"),
            (&["a/b"], "file a/b"),
            (&["http_only", "tcp"], "unexpected argument `tcp`: the filter is http_only"),
            (&["a.wgsl", "b"], "unexpected argument `b`: the filter is a.wgsl"),
        ] {
            assert_eq!(read(words, None), meant);
        }
        assert!(read(&["http_onyl"], None).contains("did you mean `http_only`?"));
        assert_eq!(read(&["http_only"], Some(Language::OpenclC)), "stock http_only");
        assert!(read(&["http_only"], Some(Language::Bpf)).contains("wgsl and opencl-c"));
    }
}
