//! Parses map rows from CSV: one row per line, the cells of its key followed by those of its value.

use csv::{ReaderBuilder, StringRecord, Trim};

use super::cells::{CellError, quote_cell};
use super::row_builder::RowBuilder;

/// Separators other than a comma that people may have used.
const OTHER_SEPARATORS: [char; 4] = [';', '\t', ' ', '|'];

/// Parses all rows. Empty lines, lines that begin with `#`, and a header line are skipped.
pub fn parse(text: &str, rows: &mut RowBuilder) {
    let mut builder = ReaderBuilder::new();
    let mut reader =
        builder.has_headers(false).flexible(true).trim(Trim::All).comment(Some(b'#')).from_reader(text.as_bytes());
    let (mut record, mut lines) = (StringRecord::new(), LineCounter { text, at: 0, line: 1 });
    let mut names: Option<Vec<String>> = None;
    let mut is_first = true;
    loop {
        // Where the parser starts to look for the next row.
        let at = reader.position().byte() as usize;
        match reader.read_record(&mut record) {
            Ok(true) => {}
            Ok(false) => return,
            // The text is complete and valid UTF-8, so this is not expected.
            Err(error) => return rows.record_error(lines.line_of_row(at), error.to_string()),
        }
        let line = lines.line_of_row(at);
        if record.len() == 1 && record[0].is_empty() {
            continue;
        }
        if std::mem::take(&mut is_first) && is_header(&record, rows) {
            if let Err(what) = check_names(&record, rows) {
                rows.record_error(line, what.to_string());
            }
            names = Some(record.iter().map(str::to_owned).collect());
            continue;
        }
        if let Err(what) = parse_row(&record, line, names.as_deref(), rows) {
            rows.record_error(line, what.to_string());
        }
    }
}

fn parse_row(
    record: &StringRecord,
    line: usize,
    names: Option<&[String]>,
    rows: &mut RowBuilder,
) -> Result<(), CellError> {
    let has_several_columns = rows.names.len() > 1;
    // Columns that `dump` appends as annotations are ignored if all of them are present.
    let columns = match rows.annotation_columns() {
        annotations if !annotations.is_empty() && record.len() == rows.names.len() + annotations.len() => {
            rows.names.len()
        }
        _ => record.len(),
    };
    for (index, text) in record.iter().take(columns).enumerate() {
        let part = rows.part();
        rows.parse_cell(text, part).map_err(|what| {
            let what = if index == 0 && text.starts_with(['[', '{']) {
                "this is JSON, but CSV is expected; JSON files must have names that end in .json".into()
            } else if record.len() == 1 && has_several_columns && text.contains(OTHER_SEPARATORS) {
                format!("`{}` is one cell; separate cells by commas", quote_cell(text))
            } else {
                what.to_string()
            };
            let name = names.and_then(|names| names.get(index)).map_or(String::new(), |name| format!(" ({name})"));
            CellError::new(format!("column {}{name}: {what}", index + 1))
        })?;
    }
    rows.end_row(line)
}

/// Whether a record is the header. With typed rows, whose cells may look like names, only known
/// column names count.
fn is_header(record: &StringRecord, rows: &RowBuilder) -> bool {
    match rows.bytes {
        Some(_) => record.iter().all(|cell| rows.names.iter().any(|name| name == cell)),
        None => record.iter().all(is_name),
    }
}

/// Whether a cell may be a column name, rather than a number, an address or a MAC, or an attempt at
/// one.
fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic()) && text.chars().all(|c| c.is_alphanumeric() || "_- ".contains(c))
}

/// Rejects a header with known columns in another order: cells are assigned by position.
fn check_names(record: &StringRecord, rows: &RowBuilder) -> Result<(), CellError> {
    let known = record.iter().filter_map(|name| rows.names.iter().position(|known| known == name));
    if known.is_sorted() {
        return Ok(());
    }
    Err(CellError::new(format!("the columns are in another order; expected `{}`", rows.names.join(","))))
}

/// Converts ascending byte offsets to line numbers.
struct LineCounter<'a> {
    text: &'a str,
    at: usize,
    line: usize,
}

impl LineCounter<'_> {
    /// The line of the first row at or after a byte offset, skipping empty lines and comments.
    fn line_of_row(&mut self, at: usize) -> usize {
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
