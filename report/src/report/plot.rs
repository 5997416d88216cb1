//! Line plots over two logarithmic axes, drawn by plotters as SVG; colours and dashes come from the
//! page's style sheet ([`super::theme`]).

use std::ops::Range;

use maud::{Markup, PreEscaped, html};
use plotters::chart::MeshStyle;
use plotters::coord::Shift;
use plotters::coord::combinators::WithKeyPoints;
use plotters::coord::ranged1d::Ranged;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::ReportError;
use super::theme::{AXIS, BAD, CEILING, Colour, GRID, MUTED, SERIES};
use crate::results::Estimate;

/// Drawing units per pixel of the page. plotters has integer coordinates, so a finer unit places
/// lines and markers precisely.
const SCALE: f64 = 10.0;

/// Ratio of plotters' text size to the font size.
const TEXT_SCALE: f64 = 1.24;

/// Converts pixels of the page to drawing units.
pub fn px(size: f64) -> i32 {
    (size * SCALE).round() as i32
}

/// Drawing area of a plot.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws an SVG of this size, in the page's pixels, with a description for screen readers.
pub fn picture(
    (width, height): (u32, u32),
    description: &str,
    draw: impl FnOnce(&Area<'_>) -> Result<(), ReportError>,
) -> Result<Markup, ReportError> {
    let mut text = String::new();
    {
        let size = (width * SCALE as u32, height * SCALE as u32);
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        draw(&area)?;
        area.present()?;
    }
    // Replace plotters' opening tag: its fixed size and namespace do not suit inline SVG.
    let inner = text.split_once('>').map_or("", |(_, rest)| rest);
    // One line for each drawing: plotters writes one for each element.
    let inner = inner.trim_end().trim_end_matches("</svg>").replace('\n', "");
    let view = format!("0 0 {} {}", px(width.into()), px(height.into()));
    let width = format!("max-width:{}px", width * 3 / 2);
    Ok(html! { svg .plot role="img" aria-label=(description) viewBox=(view) style=(width) { (PreEscaped(inner)) } })
}

/// Returns a text style.
pub fn text_style(size: f64, colour: Colour, h: HPos, v: VPos) -> TextStyle<'static> {
    let size = f64::from(px(size)) * TEXT_SCALE;
    let font = ("sans-serif", size).into_font();
    TextStyle { font, color: colour.rgb().to_backend_color(), pos: Pos::new(h, v) }
}

/// Sets the style of axes and grid.
pub fn style_axes<'m, 'a, 'b, X: Ranged, Y: Ranged, DB: DrawingBackend>(
    mesh: &'m mut MeshStyle<'a, 'b, X, Y, DB>,
) -> &'m mut MeshStyle<'a, 'b, X, Y, DB> {
    let small = || text_style(SMALL, MUTED, HPos::Center, VPos::Center);
    mesh.bold_line_style(GRID.rgb().stroke_width(px(1.0) as u32))
        .light_line_style(TRANSPARENT)
        .axis_style(AXIS.rgb().stroke_width(px(1.0) as u32))
        .set_all_tick_mark_size(px(3.0))
        .label_style(small())
        .axis_desc_style(small())
}

/// Estimates the width of a text, in the page's pixels; generous, as readers have different fonts.
pub fn text_width(text: &str, size: f64) -> f64 {
    text.chars().map(|c| if c.is_ascii_uppercase() || !c.is_ascii() { 0.68 } else { 0.56 }).sum::<f64>() * size
}

/// Index of a device, which selects its colour, dashes and marker in every plot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot(pub usize);

impl Slot {
    /// Colour of the series.
    pub fn colour(self) -> Colour {
        SERIES[self.0 % SERIES.len()]
    }
}

/// A logarithmic axis.
#[derive(Debug, Clone)]
pub struct Axis {
    range: Range<f64>,
    ticks: Vec<f64>,
    format: fn(f64) -> String,
}

impl Axis {
    /// Creates an axis over these values with a margin on both sides; `None` if no value can be
    /// placed on a logarithmic axis.
    pub fn over(values: impl IntoIterator<Item = f64>, format: fn(f64) -> String) -> Option<Axis> {
        let (mut low, mut high) = (f64::INFINITY, 0.0f64);
        for value in values.into_iter().filter(|v| placeable(*v)) {
            low = low.min(value);
            high = high.max(value);
        }
        (low <= high).then(|| {
            // Widen a narrow range so that it contains round numbers.
            let wide = (high / low).max(4.0);
            let margin = (wide / (high / low)).sqrt() * wide.powf(0.06).max(1.12);
            let range = (low / margin).max(1e-15)..(high * margin).min(1e18);
            Axis { ticks: ticks(&range), range, format }
        })
    }

    /// Returns the axis for plotters.
    pub fn coordinate(&self) -> WithKeyPoints<LogCoord<f64>> {
        self.range.clone().log_scale().with_key_points(self.ticks.clone())
    }

    /// Smallest value.
    pub fn start(&self) -> f64 {
        self.range.start
    }

    /// Label of a tick.
    pub fn tick(&self, value: f64) -> String {
        (self.format)(value)
    }

    fn has(&self, value: f64) -> bool {
        self.range.contains(&value)
    }
}

/// Whether a value can be placed on a logarithmic axis.
pub fn placeable(value: f64) -> bool {
    value.is_finite() && value > 1e-12 && value < 1e15
}

/// Returns round numbers inside a range: 1, 2 and 5 of few decades, else every decade or every nth.
fn ticks(range: &Range<f64>) -> Vec<f64> {
    let (first, last) = (range.start.log10().floor() as i32, range.end.log10().ceil() as i32);
    let decades = (range.end / range.start).log10();
    let (step, mantissas): (usize, &[f64]) = match decades {
        d if d < 0.9 => (1, &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0]),
        d if d < 2.2 => (1, &[1.0, 2.0, 5.0]),
        d if d < 6.5 => (1, &[1.0]),
        d => ((d / 5.0).ceil() as usize, &[1.0]),
    };
    let tens = (first..=last).step_by(step).map(|exponent| 10f64.powi(exponent));
    let all = tens.flat_map(|ten| mantissas.iter().map(move |mantissa| mantissa * ten));
    all.filter(|value| range.contains(value)).collect()
}

/// A measurement in a plot, with its interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Value on the x axis.
    pub x: f64,
    /// Value on the y axis: the median.
    pub y: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

impl Point {
    /// Returns the point of an estimate.
    pub fn from_estimate(x: f64, Estimate { median, low, high }: Estimate) -> Point {
        Point { x, y: median, low, high }
    }
}

/// The measurements of one device.
#[derive(Debug, Clone)]
pub struct Series {
    /// Colour slot of the device.
    pub slot: Slot,
    /// Short label at the end of the line.
    pub label: String,
    /// Points in the order of the line.
    pub points: Vec<Point>,
    /// X values of measurements with wrong verdicts, which have no rate.
    pub wrong: Vec<f64>,
    /// Whether a line joins the points.
    pub joined: bool,
}

/// A measured bandwidth as a line.
#[derive(Debug, Clone)]
pub struct Ceiling {
    /// Label of the line.
    pub label: String,
    /// Both end points.
    pub ends: [(f64, f64); 2],
}

/// A plot.
#[derive(Debug)]
pub struct Plot<'a> {
    /// Width and height in the page's pixels.
    pub size: (u32, u32),
    /// Description for screen readers.
    pub description: &'a str,
    /// X axis.
    pub x: &'a Axis,
    /// Name of the x axis, with its unit.
    pub x_name: &'a str,
    /// Y axis.
    pub y: &'a Axis,
    /// Name of the y axis, with its unit.
    pub y_name: &'a str,
    /// Space for the labels at the ends of lines, in the page's pixels; equal in plots side by
    /// side.
    pub label_width: f64,
    /// Measured series.
    pub series: &'a [Series],
    /// Bandwidth ceilings.
    pub ceilings: &'a [Ceiling],
}

type Chart<'a, 'b> =
    ChartContext<'a, SVGBackend<'b>, Cartesian2d<WithKeyPoints<LogCoord<f64>>, WithKeyPoints<LogCoord<f64>>>>;

/// Size of the letters at axes and at the ends of lines, in the page's pixels.
pub const SMALL: f64 = 11.0;

/// Size of the letters of ceilings' names, in the page's pixels.
const CEILING_NAME: f64 = 10.0;

/// The ends of a straight line, in the drawing's coordinates.
type Segment = [(i32, i32); 2];

/// A rectangle in the drawing's coordinates.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    left: i32,
    right: i32,
    top: i32,
    bottom: i32,
}

impl Bounds {
    fn overlaps(&self, other: &Bounds) -> bool {
        self.left < other.right && other.left < self.right && self.top < other.bottom && other.top < self.bottom
    }

    /// Returns the rectangle with a margin around it.
    fn grown(self, margin: i32) -> Bounds {
        Bounds {
            left: self.left - margin,
            right: self.right + margin,
            top: self.top - margin,
            bottom: self.bottom + margin,
        }
    }

    /// Whether part of the segment is inside (Liang–Barsky clipping).
    fn is_crossed_by(&self, [from, to]: Segment) -> bool {
        let (mut enter, mut leave) = (0.0f64, 1.0f64);
        for (start, delta, low, high) in
            [(from.0, to.0 - from.0, self.left, self.right), (from.1, to.1 - from.1, self.top, self.bottom)]
        {
            if delta == 0 {
                if start < low || start > high {
                    return false;
                }
                continue;
            }
            let at = |edge: i32| f64::from(edge - start) / f64::from(delta);
            enter = enter.max(at(low).min(at(high)));
            leave = leave.min(at(low).max(at(high)));
        }
        enter <= leave
    }
}

/// Size of a plot of this width, in the page's pixels.
pub fn plot_size(width: u32) -> (u32, u32) {
    (width, if width > 600 { 360 } else { width * 2 / 3 + 10 })
}

impl Plot<'_> {
    /// Draws the plot.
    pub fn draw(&self) -> Result<Markup, ReportError> {
        picture(self.size, self.description, |area| self.draw_on(area))
    }

    fn draw_on(&self, area: &Area<'_>) -> Result<(), ReportError> {
        let labels = self.y.ticks.iter().map(|t| text_width(&(self.y.format)(*t), SMALL)).fold(0.0, f64::max);
        let mut chart = ChartBuilder::on(area)
            .margin_top(px(22.0))
            .margin_right(px(self.label_width))
            .margin_bottom(px(2.0))
            .x_label_area_size(px(36.0))
            .y_label_area_size(px(labels + 12.0))
            .build_cartesian_2d(self.x.coordinate(), self.y.coordinate())?;
        let mut mesh = chart.configure_mesh();
        style_axes(&mut mesh)
            .x_desc(self.x_name)
            .x_label_formatter(&|value| (self.x.format)(*value))
            .y_label_formatter(&|value| (self.y.format)(*value))
            .draw()?;
        area.draw_text(self.y_name, &text_style(SMALL, MUTED, HPos::Left, VPos::Top), (px(2.0), px(3.0)))?;
        let ceilings = self.ceilings.iter().map(|ceiling| self.draw_ceiling(&mut chart, ceiling));
        let ceilings = ceilings.collect::<Result<Vec<_>, _>>()?;
        // Draw all bands first, so that none covers a line.
        for series in self.series {
            self.draw_band(&mut chart, series)?;
        }
        for series in self.series {
            self.draw_line(&mut chart, area, series)?;
        }
        self.draw_end_labels(&chart, area)?;
        self.draw_ceiling_names(&chart, area, &ceilings)
    }

    /// Draws a ceiling's line, and returns its ends in the drawing's coordinates.
    fn draw_ceiling(&self, chart: &mut Chart<'_, '_>, ceiling: &Ceiling) -> Result<Option<Segment>, ReportError> {
        let Some([from, to]) = clipped(ceiling.ends, self.x, self.y) else { return Ok(None) };
        let style = CEILING.rgb().stroke_width(px(1.2) as u32);
        chart.draw_series(LineSeries::new([from, to], style))?;
        Ok(Some([chart.backend_coord(&from), chart.backend_coord(&to)]))
    }

    /// Writes the ceilings' names at their lines, where they cover no other name and, if possible,
    /// no marker and no line. A name without any free place is left out; the plot's description
    /// and the table below have it.
    fn draw_ceiling_names(
        &self,
        chart: &Chart<'_, '_>,
        area: &Area<'_>,
        lines: &[Option<Segment>],
    ) -> Result<(), ReportError> {
        let at = |point: &Point| chart.backend_coord(&(point.x, point.y));
        let markers: Vec<Segment> = self
            .series
            .iter()
            .flat_map(|series| self.points_inside(series))
            .map(|point| [at(point), at(point)])
            .collect();
        let joined = self.series.iter().filter(|series| series.joined);
        let between = joined.flat_map(|series| {
            let points: Vec<_> = self.points_inside(series).map(at).collect();
            points.windows(2).map(|ends| [ends[0], ends[1]]).collect::<Vec<_>>()
        });
        let drawn: Vec<Segment> = between.chain(lines.iter().flatten().copied()).collect();
        let (left, top) = chart.backend_coord(&(self.x.range.start, self.y.range.end));
        let (right, bottom) = chart.backend_coord(&(self.x.range.end, self.y.range.start));
        let mut taken: Vec<Bounds> = Vec::new();
        for (ceiling, line) in self.ceilings.iter().zip(lines) {
            let Some([from, to]) = *line else { continue };
            let width = px(text_width(&ceiling.label, CEILING_NAME));
            let along = (0..=40).map(|step| {
                let part = |from: i32, to: i32| from + (to - from) * step / 40;
                (part(from.0, to.0), part(from.1, to.1))
            });
            // Lines are level or fall: right of a point above the line and left of it below are
            // free of the line itself.
            let places = along.flat_map(|(x, y)| {
                let height = px(CEILING_NAME);
                let (above, below) = (y - px(3.0) - height, y + px(3.0));
                [(x + px(4.0), above), (x - px(4.0) - width, below)].map(|(left, top)| Bounds {
                    left,
                    right: left + width,
                    top,
                    bottom: top + height,
                })
            });
            let is_free = |name: &Bounds| {
                let inside = name.left >= left && name.right <= right && name.top >= top && name.bottom <= bottom;
                inside && !taken.iter().any(|other| name.overlaps(other))
            };
            let covered = |name: &Bounds| {
                let markers = markers.iter().filter(|marker| name.grown(px(5.0)).is_crossed_by(**marker)).count();
                100 * markers + drawn.iter().filter(|line| name.is_crossed_by(**line)).count()
            };
            let Some(name) = places.filter(is_free).min_by_key(covered) else { continue };
            let style = text_style(CEILING_NAME, CEILING, HPos::Left, VPos::Top);
            area.draw_text(&ceiling.label, &style, (name.left, name.top))?;
            taken.push(name.grown(px(1.0)));
        }
        Ok(())
    }

    /// Returns the points inside both axes.
    fn points_inside<'s>(&self, series: &'s Series) -> impl Iterator<Item = &'s Point> + use<'s, '_> {
        let (x, y) = (self.x.range.clone(), self.y.range.clone());
        series.points.iter().filter(move |p| x.contains(&p.x) && y.contains(&p.y))
    }

    /// Fills the area between the intervals' ends; error bars if no line joins the points.
    fn draw_band(&self, chart: &mut Chart<'_, '_>, series: &Series) -> Result<(), ReportError> {
        let colour = series.slot.colour().rgb();
        let inside = |value: f64| value.clamp(self.y.range.start, self.y.range.end);
        let ends: Vec<_> = self
            .points_inside(series)
            .filter(|p| placeable(p.low) && placeable(p.high))
            .map(|p| (p, inside(p.low), inside(p.high)))
            .collect();
        if series.joined && ends.len() > 1 {
            let above = ends.iter().map(|(p, _, high)| (p.x, *high));
            let below = ends.iter().rev().map(|(p, low, _)| (p.x, *low));
            let band: Vec<_> = above.chain(below).collect();
            chart.draw_series([Polygon::new(band, colour.mix(0.16).filled())])?;
        } else {
            let bars = ends.iter().map(|(p, low, high)| {
                let style = colour.stroke_width(px(1.2) as u32);
                ErrorBar::new_vertical(p.x, *low, p.y, *high, style, px(5.0) as u32)
            });
            chart.draw_series(bars)?;
        }
        Ok(())
    }

    /// Draws the line, its markers, and a cross for each measurement with wrong verdicts.
    fn draw_line(&self, chart: &mut Chart<'_, '_>, area: &Area<'_>, series: &Series) -> Result<(), ReportError> {
        let colour = series.slot.colour();
        if series.joined {
            let line = self.points_inside(series).map(|p| (p.x, p.y));
            chart.draw_series(LineSeries::new(line, colour.rgb().stroke_width(px(1.8) as u32)))?;
        }
        for point in self.points_inside(series) {
            let at = chart.backend_coord(&(point.x, point.y));
            draw_marker(area, series.slot, at)?;
        }
        for x in series.wrong.iter().filter(|x| self.x.has(**x)) {
            let (x, y) = chart.backend_coord(&(*x, self.y.range.start));
            let at = (x, y - px(7.0));
            area.draw(&Cross::new(at, px(4.0), BAD.rgb().stroke_width(px(2.0) as u32)))?;
        }
        Ok(())
    }

    /// Draws the labels at the ends of lines, moved apart if they are close.
    fn draw_end_labels(&self, chart: &Chart<'_, '_>, area: &Area<'_>) -> Result<(), ReportError> {
        let (right, bottom) = chart.backend_coord(&(self.x.range.end, self.y.range.start));
        let (_, top) = chart.backend_coord(&(self.x.range.end, self.y.range.end));
        let ends = self.series.iter().filter(|series| !series.label.is_empty()).filter_map(|series| {
            let last = self.points_inside(series).last()?;
            Some((chart.backend_coord(&(last.x, last.y)).1, series))
        });
        let mut ends: Vec<_> = ends.collect();
        ends.sort_by_key(|(y, _)| *y);
        let wanted: Vec<_> = ends.iter().map(|(y, _)| *y).collect();
        for (y, (_, series)) in spread_labels(&wanted, px(12.0), top..bottom).into_iter().zip(&ends) {
            let style = text_style(SMALL, series.slot.colour(), HPos::Left, VPos::Center);
            area.draw_text(&series.label, &style, (right + px(6.0), y))?;
        }
        Ok(())
    }
}

/// Returns the space for these labels at the ends of lines, in the page's pixels.
pub fn label_width<'a>(labels: impl IntoIterator<Item = &'a str>) -> f64 {
    labels.into_iter().map(|label| text_width(label, SMALL) + 12.0).fold(8.0, f64::max).min(110.0)
}

/// Moves ascending positions so that they are `distance` apart and, if there is space, inside a
/// range.
fn spread_labels(wanted: &[i32], distance: i32, inside: Range<i32>) -> Vec<i32> {
    let mut places: Vec<i32> = Vec::with_capacity(wanted.len());
    for place in wanted {
        let least = places.last().map_or(inside.start, |last| last + distance);
        places.push((*place).max(least));
    }
    let mut most = inside.end;
    for place in places.iter_mut().rev() {
        *place = (*place).min(most);
        most = *place - distance;
    }
    places
}

/// Clips a line, straight over logarithmic axes, to the plot.
fn clipped(ends: [(f64, f64); 2], x: &Axis, y: &Axis) -> Option<[(f64, f64); 2]> {
    let logarithm = |(x, y): (f64, f64)| (x.ln(), y.ln());
    let ((x0, y0), (x1, y1)) = (logarithm(ends[0]), logarithm(ends[1]));
    let (mut from, mut to) = (0.0f64, 1.0f64);
    for (start, delta, range) in [(x0, x1 - x0, &x.range), (y0, y1 - y0, &y.range)] {
        let (low, high) = (range.start.ln(), range.end.ln());
        if delta == 0.0 {
            if !(low..=high).contains(&start) {
                return None;
            }
            continue;
        }
        let (a, b) = ((low - start) / delta, (high - start) / delta);
        from = from.max(a.min(b));
        to = to.min(a.max(b));
    }
    let at = |t: f64| ((x0 + t * (x1 - x0)).exp(), (y0 + t * (y1 - y0)).exp());
    (from < to).then(|| [at(from), at(to)])
}

/// Draws a device's marker.
pub fn draw_marker(area: &Area<'_>, slot: Slot, at: (i32, i32)) -> Result<(), ReportError> {
    let colour = slot.colour().rgb();
    let filled = colour.filled();
    let thin = colour.stroke_width(px(1.6) as u32);
    let around = |corners: &[(f64, f64)]| {
        let corners = corners.iter().map(|(x, y)| (at.0 + px(*x), at.1 + px(*y))).collect::<Vec<_>>();
        Polygon::new(corners, filled)
    };
    // Devices that share a colour have different markers.
    match (slot.0 + slot.0 / SERIES.len()) % 8 {
        0 => area.draw(&Circle::new(at, px(3.0), filled))?,
        1 => area.draw(&around(&[(-2.7, -2.7), (2.7, -2.7), (2.7, 2.7), (-2.7, 2.7)]))?,
        2 => area.draw(&around(&[(0.0, -3.9), (3.5, 2.6), (-3.5, 2.6)]))?,
        3 => area.draw(&around(&[(0.0, -4.0), (4.0, 0.0), (0.0, 4.0), (-4.0, 0.0)]))?,
        4 => area.draw(&Cross::new(at, px(3.0), thin))?,
        5 => area.draw(&Circle::new(at, px(3.0), thin))?,
        6 => area.draw(&around(&[(0.0, 3.9), (3.5, -2.6), (-3.5, -2.6)]))?,
        _ => area.draw(&around(&[(-3.6, -1.3), (3.6, -1.3), (3.6, 1.3), (-3.6, 1.3)]))?,
    }
    Ok(())
}

/// Draws a sample of a device's line and marker, for legends.
pub fn draw_sample(slot: Slot) -> Result<Markup, ReportError> {
    let drawn = picture((34, 14), "", |area| {
        let line = vec![(px(2.0), px(7.0)), (px(32.0), px(7.0))];
        area.draw(&PathElement::new(line, slot.colour().rgb().stroke_width(px(1.8) as u32)))?;
        draw_marker(area, slot, (px(17.0), px(7.0)))
    })?;
    Ok(html! { span .key aria-hidden="true" { (drawn) } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(ticks(&(50.0..2e7)), [100.0, 1e3, 1e4, 1e5, 1e6, 1e7]);
        assert_eq!(ticks(&(0.8..60.0)), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0]);
        assert!(ticks(&(1e-9..1e9)).len() <= 6);
        assert!(!ticks(&(90.0..130.0)).is_empty());
    }

    #[test]
    fn labels_keep_their_distance() {
        assert_eq!(spread_labels(&[10, 11, 12], 12, 0..100), [10, 22, 34]);
        assert_eq!(spread_labels(&[90, 95, 99], 12, 0..100), [76, 88, 100]);
        assert_eq!(spread_labels(&[], 12, 0..100), [0; 0]);
        let crowded = spread_labels(&[50; 20], 12, 0..100);
        assert!(crowded.windows(2).all(|w| w[1] - w[0] == 12), "{crowded:?}");
    }

    #[test]
    fn lines_end_at_the_edge() {
        let axis = Axis { range: 1.0..100.0, ticks: Vec::new(), format: crate::number::digits };
        let [from, to] = clipped([(0.01, 0.01), (1e4, 1e4)], &axis, &axis).expect("it goes through");
        for (value, edge) in [(from.0, 1.0), (from.1, 1.0), (to.0, 100.0), (to.1, 100.0)] {
            assert!((value / edge - 1.0).abs() < 1e-9, "{value} for {edge}");
        }
        assert!(clipped([(0.01, 1e3), (1e4, 1e3)], &axis, &axis).is_none());
        assert!(clipped([(0.01, 10.0), (1e4, 10.0)], &axis, &axis).is_some());
    }

    #[test]
    fn an_axis_needs_something_to_place() {
        let over = |values: &[f64]| Axis::over(values.iter().copied(), crate::number::digits);
        assert!(over(&[]).is_none());
        assert!(over(&[0.0, f64::NAN, f64::INFINITY, -1.0]).is_none());
        let one = over(&[5.0]).expect("one value has a place");
        assert!(one.has(5.0) && !one.ticks.is_empty(), "{one:?}");
    }
}
