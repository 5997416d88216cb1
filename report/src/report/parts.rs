//! Building blocks of the report's sections: tables, grids of drawings, legends.

use maud::{Markup, html};

use super::ReportError;
use super::plot::{Slot, draw_sample};

/// A column of a table.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    name: &'static str,
    class: Option<&'static str>,
}

/// Creates a column of text.
pub const fn words(name: &'static str) -> Column {
    Column { name, class: None }
}

/// Creates a column of right-aligned numbers.
pub const fn numbers(name: &'static str) -> Column {
    Column { name, class: Some("n") }
}

/// Creates a column of short text that does not wrap.
pub const fn tight(name: &'static str) -> Column {
    Column { name, class: Some("t") }
}

/// A table cell.
#[derive(Debug, Clone)]
pub enum Cell {
    /// Text.
    Text(String),
    /// The device computed wrong results.
    Mismatch,
    /// Text that spans this many columns.
    Over(usize, String),
    /// Markup.
    Markup(Markup),
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell::Text(text)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        Cell::Text(text.into())
    }
}

/// Renders a table whose first column names its rows.
pub fn table(caption: &str, columns: &[Column], rows: &[Vec<Cell>]) -> Markup {
    render_table(caption, columns, rows, false)
}

/// Renders a table of sentences; narrow screens stack the cells of a row.
pub fn stacked(caption: &str, columns: &[Column], rows: &[Vec<Cell>]) -> Markup {
    render_table(caption, columns, rows, true)
}

fn render_table(caption: &str, columns: &[Column], rows: &[Vec<Cell>], stacked: bool) -> Markup {
    let label = |place: usize| columns.get(place).filter(|_| stacked).map(|column| column.name);
    let class = |place: usize| columns.get(place).and_then(|column| column.class);
    html! {
        div.table tabindex="0" role="region" aria-label=(caption) {
            table.stacked[stacked] {
                caption { (caption) }
                thead { tr { @for column in columns { th class=[column.class] scope="col" { (column.name) } } } }
                tbody { @for row in rows { tr {
                    @for (place, cell) in with_columns(row) {
                        @match cell {
                            Cell::Text(text) if place == 0 => th scope="row" { (text) },
                            Cell::Text(text) => td class=[class(place)] data-label=[label(place)] { (text) },
                            Cell::Markup(markup) if place == 0 => th scope="row" { (markup) },
                            Cell::Markup(markup) => td class=[class(place)] data-label=[label(place)] { (markup) },
                            Cell::Mismatch => td.n.wrong { "WRONG" },
                            Cell::Over(columns, text) => td colspan=(columns) { (text) },
                        }
                    }
                } } }
            }
        }
    }
}

/// Pairs cells with the columns in which they start.
fn with_columns(row: &[Cell]) -> impl Iterator<Item = (usize, &Cell)> {
    row.iter().scan(0, |next, cell| {
        let place = *next;
        *next += if let Cell::Over(columns, _) = cell { *columns } else { 1 };
        Some((place, cell))
    })
}

/// Formats a count with its noun: `1 measurement`, `2 measurements`.
pub fn count(number: usize, what: &str) -> String {
    format!("{} {what}{}", crate::number::grouped(number as i64), if number == 1 { "" } else { "s" })
}

/// Renders a table of names and values.
pub fn facts(caption: &str, rows: &[(&str, String)]) -> Markup {
    html! {
        div.table.fits tabindex="0" role="region" aria-label=(caption) {
            table.facts {
                caption { (caption) }
                tbody { @for (name, value) in rows { tr { th scope="row" { (name) } td { (value) } } } }
            }
        }
    }
}

/// Renders a section per packet size; all but the first are collapsed.
pub fn packet_size_sections(kinds: &[(String, Markup)]) -> Markup {
    html! {
        @for (place, (name, kind)) in kinds.iter().enumerate() {
            @if place == 0 { h3 { (name) } (kind) } @else { (details(name, kind)) }
        }
    }
}

/// Renders a collapsed section.
pub fn details(summary: &str, inner: &Markup) -> Markup {
    html! { details { summary { (summary) } (inner) } }
}

/// Widths of drawings, in the page's pixels: alone in the column, alone on a narrow screen, and
/// two side by side, which scales to either screen.
const WIDTHS: (u32, u32, u32) = (1080, 360, 440);

/// Drawings under their captions, two side by side; the last of an odd number has the whole column.
/// `draw` is given the place of a drawing and its width in the page's pixels.
pub fn grid(
    captions: &[&str],
    draw: impl Fn(usize, u32) -> Result<Markup, ReportError>,
) -> Result<Markup, ReportError> {
    let (alone, narrow, half) = WIDTHS;
    let figures = captions.iter().enumerate().map(|(place, caption)| {
        if captions.len() % 2 == 1 && place + 1 == captions.len() {
            let (wide, narrow) = (draw(place, alone)?, draw(place, narrow)?);
            return Ok(html! {
                figure.full { figcaption { (caption) } div.wide { (wide) } div.narrow { (narrow) } }
            });
        }
        let drawing = draw(place, half)?;
        Ok(html! { figure { figcaption { (caption) } (drawing) } })
    });
    let figures = figures.collect::<Result<Vec<_>, ReportError>>()?;
    Ok(html! { div.grid { @for figure in &figures { (figure) } } })
}

/// Renders the legend of devices.
pub fn legend(devices: &[(Slot, String, String)]) -> Result<Markup, ReportError> {
    let samples = devices.iter().map(|(slot, ..)| draw_sample(*slot)).collect::<Result<Vec<_>, _>>()?;
    Ok(html! {
        ul.legend {
            @for ((_, id, name), sample) in devices.iter().zip(&samples) {
                li { (sample) span { span.id { (id) } @if id != name { " " span.what { (name) } } } }
            }
        }
    })
}

/// Renders a legend of colours.
pub fn chips(parts: &[(String, &str)]) -> Markup {
    html! {
        ul.legend { @for (colour, name) in parts { li { span.chip style={ "background:" (colour) } {} (name) } } }
    }
}
