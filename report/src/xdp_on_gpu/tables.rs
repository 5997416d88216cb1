//! Figures in tables, as they are printed, written to JSON and put into the report.

use serde::{Deserialize, Serialize};

use crate::number::{digits, grouped};

/// Rows of calls, in columns by one thing that differs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Title of the table.
    pub title: String,
    /// How it was measured, in a sentence or two.
    pub note: String,
    /// What differs from column to column: `packets`, `records a chunk`.
    pub across: String,
    /// The columns, by that.
    pub columns: Vec<u64>,
    /// Rows to compare.
    pub rows: Vec<Row>,
}

/// One side of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Workload of the row, if the table has several.
    pub of: String,
    /// Who does it, and how: `records, opencl:0, pinned`.
    pub side: String,
    /// What kind of figure it is.
    pub source: Source,
    /// A figure for each column.
    pub cells: Vec<Cell>,
}

/// Where a row's figures are from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// XDP-on-GPU's method measured here: records of 40 bytes to the device and back.
    LikeForLike,
    /// XDP-on-GPU's loop over records measured here, on one thread.
    Loop,
    /// Ours, from raw packets, measured here.
    Ours,
    /// Published by its authors, on another machine.
    Published,
}

impl Source {
    /// In a few words.
    pub fn name(self) -> &'static str {
        match self {
            Source::LikeForLike => "its way, here",
            Source::Loop => "its loop, here",
            Source::Ours => "ours, here",
            Source::Published => "published",
        }
    }
}

/// What a row has in a column.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cell {
    /// A time that was measured here, in nanoseconds.
    Measured {
        /// Packets, or records, that were filtered in that time.
        packets: u64,
        /// The median.
        median_ns: f64,
        /// Where the median lies, with the confidence that the run's results state: its lower end.
        low_ns: f64,
        /// Upper end of the interval, in nanoseconds.
        high_ns: f64,
        /// How often it was measured.
        samples: u64,
    },
    /// A time that others have published, in nanoseconds.
    Published {
        /// Packets, or records, that were filtered in that time.
        packets: u64,
        /// The mean.
        mean_ns: f64,
    },
    /// The verdicts were not right: what was measured says nothing.
    Wrong {
        /// The first packet that was.
        reason: String,
    },
    /// Nothing was measured, or published.
    None {
        /// Why, where there is more to say than that nobody did.
        reason: Option<String>,
    },
}

impl Cell {
    /// Millions of packets a second.
    pub fn mpps(&self) -> Option<f64> {
        match *self {
            Cell::Measured { packets, median_ns: nanos, .. } | Cell::Published { packets, mean_ns: nanos } => {
                Some(packets as f64 / nanos * 1e3)
            }
            Cell::Wrong { .. } | Cell::None { .. } => None,
        }
    }
}

/// A table as people read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormattedTable {
    /// As [`Table::title`].
    pub title: String,
    /// As [`Table::note`].
    pub note: String,
    /// The first names rows.
    pub columns: Vec<Column>,
    /// The rows; a value that is not there was not measured, or not published.
    pub rows: Vec<Vec<Option<String>>>,
}

/// A column of such a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Name of the column, with its unit.
    pub name: String,
    /// Whether its values were published by others and not measured here.
    pub published: bool,
}

impl Table {
    /// Whether a side's verdicts were not right.
    pub fn is_wrong(&self) -> bool {
        self.rows.iter().flat_map(|row| &row.cells).any(|cell| matches!(cell, Cell::Wrong { .. }))
    }

    /// The table as people read it: a row for each number of packets, a column for each side, in
    /// millions of packets a second.
    pub fn formatted(&self) -> FormattedTable {
        let mut columns = vec![Column { name: self.across.clone(), published: false }];
        columns.extend(self.rows.iter().map(|row| {
            let of = if row.of.is_empty() || row.of == self.title { String::new() } else { format!("{}, ", row.of) };
            let published = row.source == Source::Published;
            // That it is published the column says by itself.
            let whose = if published { String::new() } else { format!("{}: ", row.source.name()) };
            Column { name: format!("{whose}{of}{} (Mpps)", row.side), published }
        }));
        let rows = self.columns.iter().enumerate().map(|(at, &column)| {
            let cells = self.rows.iter().map(|row| match &row.cells[at] {
                Cell::Wrong { .. } => Some("WRONG".to_owned()),
                cell => cell.mpps().map(digits),
            });
            std::iter::once(Some(grouped(column as i64))).chain(cells).collect()
        });
        FormattedTable { title: self.title.clone(), note: self.note.clone(), rows: rows.collect(), columns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_are_columns_and_what_is_wrong_has_no_rate() {
        let row = |side: &str, source, cell| Row { of: String::new(), side: side.into(), source, cells: vec![cell] };
        let rows = vec![
            row("a", Source::Ours, Cell::Wrong { reason: "so".into() }),
            row("b", Source::Published, Cell::Published { packets: 1000, mean_ns: 500.0 }),
            row("c", Source::Loop, Cell::None { reason: None }),
        ];
        let table = Table { title: "t".into(), note: "n".into(), across: "packets".into(), columns: vec![1000], rows };
        let words = table.formatted();
        assert_eq!(words.rows, [[Some("1,000".into()), Some("WRONG".to_owned()), Some("2,000".into()), None]]);
        assert_eq!(
            words.columns.iter().map(|column| column.published).collect::<Vec<_>>(),
            [false, false, true, false]
        );
    }
}
