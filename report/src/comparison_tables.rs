//! Tables of the XDP-on-GPU comparison, for the terminal, JSON and the report.

use serde::{Deserialize, Serialize};

use crate::number::{digits, grouped};

/// A comparison: a row per side, a column per value of one dimension.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Title of the table.
    pub title: String,
    /// Notes on the method, a sentence or two.
    pub note: String,
    /// Dimension of the columns: `packets`, `packets at a time`, `calls`.
    pub across: String,
    /// Value of that dimension for each column.
    pub columns: Vec<u64>,
    /// Rows to compare.
    pub rows: Vec<Row>,
}

/// One side of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Workload of the row, if the table has several.
    pub of: String,
    /// The side: a device and how it runs, such as `opencl:0, pinned`, or `one thread`.
    pub side: String,
    /// Where the figures are from.
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
    /// Portcullis on raw packets, measured here.
    #[serde(rename = "ours")]
    Portcullis,
    /// Published by its authors, on another machine.
    Published,
}

impl Source {
    /// Short description for tables.
    pub fn name(self) -> &'static str {
        match self {
            Source::LikeForLike => "its method, here",
            Source::Loop => "its loop, here",
            Source::Portcullis => "Portcullis, here",
            Source::Published => "published",
        }
    }
}

/// A figure of a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cell {
    /// Measured here.
    Measured {
        /// Packets, or records, that were filtered in that time.
        packets: u64,
        /// Median, in nanoseconds.
        median_ns: f64,
        /// Lower end of the confidence interval, in nanoseconds.
        low_ns: f64,
        /// Upper end of the interval, in nanoseconds.
        high_ns: f64,
        /// Number of samples.
        samples: u64,
    },
    /// Published by XDP-on-GPU.
    Published {
        /// Packets, or records, that were filtered in that time.
        packets: u64,
        /// Mean, in nanoseconds.
        mean_ns: f64,
    },
    /// The verdicts were wrong, so there is no figure.
    #[serde(rename = "wrong")]
    Mismatch {
        /// The first wrong packet.
        reason: String,
    },
    /// Neither measured nor published.
    None {
        /// Why, if it was to be measured.
        reason: Option<String>,
    },
}

impl Cell {
    /// Rate in Mpps.
    pub fn mpps(&self) -> Option<f64> {
        match *self {
            Cell::Measured { packets, median_ns: nanos, .. } | Cell::Published { packets, mean_ns: nanos } => {
                Some(packets as f64 / nanos * 1e3)
            }
            Cell::Mismatch { .. } | Cell::None { .. } => None,
        }
    }
}

/// A table formatted for readers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormattedTable {
    /// Title, as [`Table::title`].
    pub title: String,
    /// Notes, as [`Table::note`].
    pub note: String,
    /// Columns; the first holds the names of rows.
    pub columns: Vec<Column>,
    /// Rows; `None` was neither measured nor published.
    pub rows: Vec<Vec<Option<String>>>,
}

/// A column of a formatted table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Name of the column, with its unit.
    pub name: String,
    /// Whether its values are published ones, not measured here.
    pub published: bool,
}

impl Table {
    /// Whether any side's verdicts were wrong.
    pub fn is_wrong(&self) -> bool {
        self.rows.iter().flat_map(|row| &row.cells).any(|cell| matches!(cell, Cell::Mismatch { .. }))
    }

    /// Formats the table transposed: a row for each number of packets, a column for each side, in
    /// Mpps.
    pub fn formatted(&self) -> FormattedTable {
        let mut columns = vec![Column { name: self.across.clone(), published: false }];
        columns.extend(self.rows.iter().map(|row| {
            let of = if row.of.is_empty() || row.of == self.title { String::new() } else { format!("{}, ", row.of) };
            let published = row.source == Source::Published;
            // The column is marked as published anyway.
            let whose = if published { String::new() } else { format!("{}: ", row.source.name()) };
            Column { name: format!("{whose}{of}{} (Mpps)", row.side), published }
        }));
        let rows = self.columns.iter().enumerate().map(|(at, &column)| {
            let cells = self.rows.iter().map(|row| match &row.cells[at] {
                Cell::Mismatch { .. } => Some("WRONG".to_owned()),
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
            row("a", Source::Portcullis, Cell::Mismatch { reason: "so".into() }),
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
