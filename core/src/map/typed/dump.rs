//! Entries of typed maps as text: JSON as bpftool writes it, CSV with a column for each scalar of
//! keys and values.

use std::borrow::Cow;
use std::io::{self, Write};

use super::super::declaration::Declaration;
use super::super::dump::Format;
use super::super::quoting::csv_cell;
use super::super::rows::Row;
use super::{ScalarField, TypeInfo, json, scalar_fields};

impl TypeInfo {
    /// The columns of CSV: those of the key, and those of the value.
    pub fn columns(&self) -> (Vec<ScalarField>, Vec<ScalarField>) {
        (scalar_fields(&self.key, "key"), scalar_fields(&self.value, "value"))
    }

    /// The header line of CSV: the names of the columns.
    pub fn header(&self) -> String {
        let (key, value) = self.columns();
        let names: Vec<Cow<str>> = key.iter().chain(&value).map(|leaf| csv_cell(&leaf.name)).collect();
        names.join(",")
    }

    /// Writes the given entries, in the given order.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn dump(
        &self,
        map: &Declaration,
        rows: impl IntoIterator<Item = Row>,
        format: Format,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let rows = rows.into_iter().map(|row| (map.key_bytes(&row.key), map.value_bytes(&row.value)));
        match format {
            Format::Csv => {
                let (of_key, of_value) = self.columns();
                writeln!(out, "{}", self.header())?;
                for (key, value) in rows {
                    let cells = of_key.iter().map(|leaf| leaf.text(&key));
                    let cells = cells.chain(of_value.iter().map(|leaf| leaf.text(&value)));
                    for (number, text) in cells.enumerate() {
                        write!(out, "{}{}", if number == 0 { "" } else { "," }, csv_cell(&text))?;
                    }
                    writeln!(out)?;
                }
                Ok(())
            }
            Format::Json => {
                let mut between = "[\n";
                for (key, value) in rows {
                    let (key, value) = (json(&self.key, &key), json(&self.value, &value));
                    write!(out, "{between}{{\"key\":{key},\"value\":{value}}}")?;
                    between = ",\n";
                }
                out.write_all(if between == "[\n" { b"[\n]\n" } else { b"\n]\n" })
            }
        }
    }
}
