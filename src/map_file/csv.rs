//! Rows of CSV: a row a line, its key's cells and then its value's.

use csv::{ReaderBuilder, StringRecord, Trim};

use super::text::{Reader, shown};

/// What people may put between cells that is not a comma.
const OTHERS: [char; 4] = [';', '\t', ' ', '|'];

/// Reads all rows. Empty lines, lines that begin with `#`, and a first line of names are none.
pub fn read(text: &str, rows: &mut Reader) {
    let mut builder = ReaderBuilder::new();
    let mut reader =
        builder.has_headers(false).flexible(true).trim(Trim::All).comment(Some(b'#')).from_reader(text.as_bytes());
    let (mut record, mut lines) = (StringRecord::new(), Lines { text, at: 0, line: 1 });
    let mut names: Option<Vec<String>> = None;
    let mut is_first = true;
    loop {
        // Where it begins to look for a row.
        let at = reader.position().byte() as usize;
        match reader.read_record(&mut record) {
            Ok(true) => {}
            Ok(false) => return,
            // All of the text is there, and it is UTF-8.
            Err(error) => return rows.wrong(lines.of_row(at), error.to_string()),
        }
        let line = lines.of_row(at);
        if record.len() == 1 && record[0].is_empty() {
            continue;
        }
        if std::mem::take(&mut is_first) && is_header(&record, rows) {
            if let Err(what) = check_names(&record, rows) {
                rows.wrong(line, what);
            }
            names = Some(record.iter().map(str::to_owned).collect());
            continue;
        }
        if let Err(what) = row(&record, line, names.as_deref(), rows) {
            rows.wrong(line, what);
        }
    }
}

fn row(record: &StringRecord, line: usize, names: Option<&[String]>, rows: &mut Reader) -> Result<(), String> {
    let several = rows.names.len() > 1;
    // What `dump` says of entries besides is passed over, where all of it is there.
    let own = match rows.notes() {
        notes if !notes.is_empty() && record.len() == rows.names.len() + notes.len() => rows.names.len(),
        _ => record.len(),
    };
    for (index, text) in record.iter().take(own).enumerate() {
        let part = rows.part();
        rows.cell(text, part).map_err(|what| {
            let what = if index == 0 && text.starts_with(['[', '{']) {
                "this is JSON, and CSV is expected; files of JSON have names that end in .json".into()
            } else if record.len() == 1 && several && text.contains(OTHERS) {
                format!("`{}` is one cell; commas stand between cells", shown(text))
            } else {
                what
            };
            let name = names.and_then(|names| names.get(index)).map_or(String::new(), |name| format!(" ({name})"));
            format!("column {}{name}: {what}", index + 1)
        })?;
    }
    rows.end(line)
}

/// Whether these are columns' names. Where cells may be texts, which look like names, they are those that there are.
fn is_header(record: &StringRecord, rows: &Reader) -> bool {
    match rows.bytes {
        Some(_) => record.iter().all(|cell| rows.names.iter().any(|name| name == cell)),
        None => record.iter().all(is_name),
    }
}

/// Whether a cell may be a column's name: nothing that is a number, an address or a MAC, or nearly one.
fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic()) && text.chars().all(|c| c.is_alphanumeric() || "_- ".contains(c))
}

/// Refuses names of a dump's columns in another order: the order counts, and not the names.
fn check_names(record: &StringRecord, rows: &Reader) -> Result<(), String> {
    let known = record.iter().filter_map(|name| rows.names.iter().position(|known| known == name));
    if known.is_sorted() {
        return Ok(());
    }
    Err(format!("the columns are in another order; expected `{}`", rows.names.join(",")))
}

/// Lines of a text, of which one after another is asked for.
struct Lines<'a> {
    text: &'a str,
    at: usize,
    line: usize,
}

impl Lines<'_> {
    /// The line of the row that is met at a byte or behind it, where lines that are none are passed over.
    fn of_row(&mut self, at: usize) -> usize {
        self.line += self.text.as_bytes()[self.at..at].iter().filter(|byte| **byte == b'\n').count();
        self.at = at;
        while let Some((line, _)) = self.text[self.at..].split_once('\n') {
            if !line.starts_with('#') && !line.trim_end_matches('\r').is_empty() {
                break;
            }
            self.line += 1;
            self.at += line.len() + 1;
        }
        self.line
    }
}
