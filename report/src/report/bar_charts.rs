//! Bar charts: the fastest device by batch size, and time by stage.

use maud::Markup;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::ReportError;
use super::plot::{Area, Axis, SMALL, Slot, picture, px, style_axes, text_style, text_width};
use super::theme::{INK, MUTED, STAGES, SURFACE};

/// Size of the letters of filters' names, in the page's pixels.
const NAME: f64 = 12.5;

/// A range of batch sizes in which one device is the fastest.
#[derive(Debug, Clone, PartialEq)]
pub struct FastestRange {
    /// Colour slot of the device.
    pub slot: Slot,
    /// Device id.
    pub name: String,
    /// Smallest batch, in packets.
    pub from: f64,
    /// Largest batch, in packets.
    pub to: f64,
    /// Whether the next device's interval overlaps.
    pub close: bool,
}

/// Chart of the fastest device by batch size, a row for each filter.
#[derive(Debug)]
pub struct FastestChart<'a> {
    /// Description for screen readers.
    pub description: &'a str,
    /// Axis of batch sizes, in packets.
    pub x: &'a Axis,
    /// Filters with their ranges.
    pub rows: &'a [(String, Vec<FastestRange>)],
}

impl FastestChart<'_> {
    /// Draws the chart at this width, in the page's pixels. Names are beside the rows if there is
    /// room, else above them.
    pub fn draw(&self, width: u32) -> Result<Markup, ReportError> {
        let names = self.rows.iter().map(|(name, _)| text_width(name, NAME)).fold(0.0, f64::max) + 14.0;
        let beside = names * 3.5 < f64::from(width);
        let row = if beside { 34.0 } else { 48.0 };
        let height = (row * self.rows.len() as f64 + 44.0) as u32;
        picture((width, height), self.description, |area| self.draw_on(area, beside.then_some(names), row))
    }

    fn draw_on(&self, area: &Area<'_>, names: Option<f64>, row: f64) -> Result<(), ReportError> {
        let rows = self.rows.len() as f64;
        let mut chart = ChartBuilder::on(area)
            .margin_right(px(14.0))
            .margin_bottom(px(2.0))
            .x_label_area_size(px(38.0))
            .y_label_area_size(px(names.unwrap_or(2.0)))
            .build_cartesian_2d(self.x.coordinate(), rows..0.0)?;
        let mut mesh = chart.configure_mesh();
        style_axes(&mut mesh)
            .disable_y_mesh()
            .disable_y_axis()
            .x_desc("packets in a batch")
            .x_label_formatter(&|value| self.x.tick(*value))
            .draw()?;
        let thick = if names.is_some() { 22.0 } else { 24.0 };
        for (index, (name, fastest_ranges)) in self.rows.iter().enumerate() {
            let (left, top) = chart.backend_coord(&(self.x.start(), index as f64));
            // The bar is beside its name or below it.
            let bar = top + if names.is_some() { px((row - thick) / 2.0) } else { px(row - thick - 3.0) };
            match names {
                Some(_) => {
                    let style = text_style(NAME, INK, HPos::Right, VPos::Center);
                    area.draw_text(name, &style, (left - px(10.0), bar + px(thick / 2.0)))?;
                }
                None => {
                    area.draw_text(name, &text_style(NAME, INK, HPos::Left, VPos::Bottom), (left, bar - px(3.0)))?
                }
            }
            for fastest in fastest_ranges {
                let x = |batch: f64| chart.backend_coord(&(batch, index as f64)).0;
                let (from, to) = (x(fastest.from), x(fastest.to));
                let strength = if fastest.close { 0.28 } else { 1.0 };
                let colour = fastest.slot.colour();
                let gap = px(1.0);
                area.draw(&Rectangle::new(
                    [(from + gap / 2, bar), (to - gap / 2, bar + px(thick))],
                    colour.rgb().mix(strength).filled(),
                ))?;
                if text_width(&fastest.name, SMALL) + 8.0 < f64::from(to - from) / f64::from(px(1.0)) {
                    let ink = if fastest.close { colour } else { SURFACE };
                    let style = text_style(SMALL, ink, HPos::Center, VPos::Center);
                    area.draw_text(&fastest.name, &style, ((from + to) / 2, bar + px(thick / 2.0)))?;
                }
            }
        }
        Ok(())
    }
}

/// A row of a stacked bar chart: one device's time by stage.
#[derive(Debug, Clone)]
pub struct StackedRow {
    /// Label of the row.
    pub name: String,
    /// Stages in order, in nanoseconds per packet.
    pub parts: Vec<f64>,
    /// Label at the end of the bar.
    pub total: String,
}

/// Stacked bar chart of time by stage, a row for each device.
#[derive(Debug)]
pub struct StackedChart<'a> {
    /// Width in the page's pixels.
    pub width: u32,
    /// Description for screen readers.
    pub description: &'a str,
    /// Name of the x axis, with its unit.
    pub x_name: &'a str,
    /// Rows, one for each device and transfer.
    pub rows: &'a [StackedRow],
}

impl StackedChart<'_> {
    /// Draws the chart.
    pub fn draw(&self) -> Result<Markup, ReportError> {
        let row = 40.0;
        let height = (row * self.rows.len() as f64 + 46.0) as u32;
        picture((self.width, height), self.description, |area| self.draw_on(area))
    }

    fn draw_on(&self, area: &Area<'_>) -> Result<(), ReportError> {
        let total = |row: &StackedRow| row.parts.iter().filter(|p| p.is_finite()).sum::<f64>();
        let longest = self.rows.iter().map(total).fold(0.0, f64::max).max(1e-9);
        let ends = self.rows.iter().map(|r| text_width(&r.total, SMALL)).fold(0.0, f64::max) + 10.0;
        let rows = self.rows.len() as f64;
        let mut chart = ChartBuilder::on(area)
            .margin_right(px(ends))
            .margin_bottom(px(2.0))
            .x_label_area_size(px(36.0))
            .y_label_area_size(px(2.0))
            .build_cartesian_2d(0.0..longest, rows..0.0)?;
        let mut mesh = chart.configure_mesh();
        style_axes(&mut mesh)
            .disable_y_mesh()
            .disable_y_axis()
            .x_labels(5)
            .x_desc(self.x_name)
            .x_label_formatter(&|value| crate::number::trimmed(*value))
            .draw()?;
        for (index, parts) in self.rows.iter().enumerate() {
            let (left, top) = chart.backend_coord(&(0.0, index as f64));
            let (bar, thick) = (top + px(18.0), px(16.0));
            area.draw_text(&parts.name, &text_style(SMALL, INK, HPos::Left, VPos::Bottom), (left, bar - px(1.0)))?;
            let mut sum = 0.0;
            for (part, colour) in parts.parts.iter().zip(STAGES) {
                if !part.is_finite() || *part <= 0.0 {
                    continue;
                }
                let x = |time: f64| chart.backend_coord(&(time, index as f64)).0;
                let (from, to) = (x(sum), x(sum + part));
                sum += part;
                // Separate neighbours by a gap if they are wide enough.
                let gap = if to - from > px(3.0) { px(0.8) } else { 0 };
                area.draw(&Rectangle::new([(from, bar), (to - gap, bar + thick)], colour.rgb().filled()))?;
            }
            let end = chart.backend_coord(&(sum, index as f64)).0;
            let style = text_style(SMALL, MUTED, HPos::Left, VPos::Center);
            area.draw_text(&parts.total, &style, (end + px(5.0), bar + thick / 2))?;
        }
        Ok(())
    }
}
