//! Plots: lines over two logarithmic axes, drawn by plotters as SVG that takes its colours and its
//! dashes from the page ([`super::theme`]).

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

/// The library places by whole pixels; ten of them to each of the page's let lines and markers
/// stand where they belong.
const SCALE: f64 = 10.0;

/// What the library's size of a text is to the size of the letters.
const LETTERS: f64 = 1.24;

/// The library's pixels for those of the page.
pub fn px(size: f64) -> i32 {
    (size * SCALE).round() as i32
}

/// Drawing area of a plot.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws a picture of this size, in the page's pixels, for which `says` stands where it cannot be
/// seen.
pub fn picture(
    (width, height): (u32, u32),
    says: &str,
    draw: impl FnOnce(&Area<'_>) -> Result<(), ReportError>,
) -> Result<Markup, ReportError> {
    let mut text = String::new();
    {
        let size = (width * SCALE as u32, height * SCALE as u32);
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        draw(&area)?;
        area.present()?;
    }
    // Its own opening tag has a fixed size and the name of a namespace, neither of which a picture
    // inside a page wants.
    let inner = text.split_once('>').map_or("", |(_, rest)| rest);
    // One line for each picture: the library writes one for each element.
    let inner = inner.trim_end().trim_end_matches("</svg>").replace('\n', "");
    let view = format!("0 0 {} {}", px(width.into()), px(height.into()));
    let width = format!("max-width:{}px", width * 3 / 2);
    Ok(html! { svg .plot role="img" aria-label=(says) viewBox=(view) style=(width) { (PreEscaped(inner)) } })
}

/// A text's looks.
pub fn letters(size: f64, colour: Colour, h: HPos, v: VPos) -> TextStyle<'static> {
    let size = f64::from(px(size)) * LETTERS;
    let font = ("sans-serif", size).into_font();
    TextStyle { font, color: colour.rgb().to_backend_color(), pos: Pos::new(h, v) }
}

/// How axes and the lines behind a plot look.
pub fn looks<'m, 'a, 'b, X: Ranged, Y: Ranged, DB: DrawingBackend>(
    mesh: &'m mut MeshStyle<'a, 'b, X, Y, DB>,
) -> &'m mut MeshStyle<'a, 'b, X, Y, DB> {
    let small = || letters(SMALL, MUTED, HPos::Center, VPos::Center);
    mesh.bold_line_style(GRID.rgb().stroke_width(px(1.0) as u32))
        .light_line_style(TRANSPARENT)
        .axis_style(AXIS.rgb().stroke_width(px(1.0) as u32))
        .set_all_tick_mark_size(px(3.0))
        .label_style(small())
        .axis_desc_style(small())
}

/// How wide a text will be about, in the page's pixels. Fonts are the reader's, so this has to be
/// generous.
pub fn text_width(text: &str, size: f64) -> f64 {
    text.chars().map(|c| if c.is_ascii_uppercase() || !c.is_ascii() { 0.68 } else { 0.56 }).sum::<f64>() * size
}

/// A device's, by its place in the order of devices: its colour, its dashes and its marker go
/// together everywhere.
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
    /// Over these values, with room on both sides, and on whole 1, 2 or 5 where there is more than
    /// one decade. Nothing where no value can be placed.
    pub fn over(values: impl IntoIterator<Item = f64>, format: fn(f64) -> String) -> Option<Axis> {
        let (mut low, mut high) = (f64::INFINITY, 0.0f64);
        for value in values.into_iter().filter(|v| placeable(*v)) {
            low = low.min(value);
            high = high.max(value);
        }
        (low <= high).then(|| {
            // Of values near each other, wide enough that the axis has round numbers.
            let wide = (high / low).max(4.0);
            let room = (wide / (high / low)).sqrt() * wide.powf(0.06).max(1.12);
            let range = (low / room).max(1e-15)..(high * room).min(1e18);
            Axis { ticks: ticks(&range), range, format }
        })
    }

    /// For the plots' library.
    pub fn coordinate(&self) -> WithKeyPoints<LogCoord<f64>> {
        self.range.clone().log_scale().with_key_points(self.ticks.clone())
    }

    /// Where it begins.
    pub fn start(&self) -> f64 {
        self.range.start
    }

    /// What stands at a tick.
    pub fn tick(&self, value: f64) -> String {
        (self.format)(value)
    }

    fn has(&self, value: f64) -> bool {
        self.range.contains(&value)
    }
}

/// Whether a logarithmic axis has a place for it.
pub fn placeable(value: f64) -> bool {
    value.is_finite() && value > 1e-12 && value < 1e15
}

/// Round numbers inside a range: every decade, every second or third where there are many, 1, 2 and
/// 5 where there are few.
fn ticks(range: &Range<f64>) -> Vec<f64> {
    let (first, last) = (range.start.log10().floor() as i32, range.end.log10().ceil() as i32);
    let decades = (range.end / range.start).log10();
    let (step, heads): (usize, &[f64]) = match decades {
        d if d < 0.9 => (1, &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0]),
        d if d < 2.2 => (1, &[1.0, 2.0, 5.0]),
        d if d < 6.5 => (1, &[1.0]),
        d => ((d / 5.0).ceil() as usize, &[1.0]),
    };
    let tens = (first..=last).step_by(step).map(|exponent| 10f64.powi(exponent));
    let all = tens.flat_map(|ten| heads.iter().map(move |head| head * ten));
    all.filter(|value| range.contains(value)).collect()
}

/// A measurement in a plot, with what it is confidently between.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Along the plot.
    pub x: f64,
    /// Up the plot: the median.
    pub y: f64,
    /// The interval's lower end.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// Measurements that belong together.
#[derive(Debug, Clone)]
pub struct Series {
    /// Whose they are.
    pub slot: Slot,
    /// What stands at their end; short.
    pub label: String,
    /// In the order in which the line goes through them.
    pub points: Vec<Point>,
    /// Where measurements were made whose verdicts were wrong: no speed counts there.
    pub wrong: Vec<f64>,
    /// Whether a line joins them.
    pub joined: bool,
}

/// A line that was measured as what cannot be passed.
#[derive(Debug, Clone)]
pub struct Ceiling {
    /// What stands at it.
    pub label: String,
    /// Both end points.
    pub ends: [(f64, f64); 2],
}

/// A plot.
#[derive(Debug)]
pub struct Plot<'a> {
    /// In the page's pixels.
    pub size: (u32, u32),
    /// What stands for it where it cannot be seen.
    pub says: &'a str,
    /// Along.
    pub x: &'a Axis,
    /// Name of the x axis, with its unit.
    pub x_name: &'a str,
    /// Up.
    pub y: &'a Axis,
    /// Name of the y axis, with its unit.
    pub y_name: &'a str,
    /// Room for what stands at the lines' ends, in the page's pixels; one for plots that are looked
    /// at side by side.
    pub room: f64,
    /// Measured series.
    pub series: &'a [Series],
    /// What limits it.
    pub ceilings: &'a [Ceiling],
}

type Chart<'a, 'b> =
    ChartContext<'a, SVGBackend<'b>, Cartesian2d<WithKeyPoints<LogCoord<f64>>, WithKeyPoints<LogCoord<f64>>>>;

pub const SMALL: f64 = 11.0;

impl Plot<'_> {
    /// Draws it.
    pub fn draw(&self) -> Result<Markup, ReportError> {
        picture(self.size, self.says, |area| self.draw_on(area))
    }

    fn draw_on(&self, area: &Area<'_>) -> Result<(), ReportError> {
        let labels = self.y.ticks.iter().map(|t| text_width(&(self.y.format)(*t), SMALL)).fold(0.0, f64::max);
        let mut chart = ChartBuilder::on(area)
            .margin_top(px(22.0))
            .margin_right(px(self.room))
            .margin_bottom(px(2.0))
            .x_label_area_size(px(36.0))
            .y_label_area_size(px(labels + 12.0))
            .build_cartesian_2d(self.x.coordinate(), self.y.coordinate())?;
        let mut mesh = chart.configure_mesh();
        looks(&mut mesh)
            .x_desc(self.x_name)
            .x_label_formatter(&|value| (self.x.format)(*value))
            .y_label_formatter(&|value| (self.y.format)(*value))
            .draw()?;
        area.draw_text(self.y_name, &letters(SMALL, MUTED, HPos::Left, VPos::Top), (px(2.0), px(3.0)))?;
        let mut taken = Vec::new();
        for ceiling in self.ceilings {
            self.ceiling(&mut chart, area, ceiling, &mut taken)?;
        }
        // All bands first: none lies over another's line.
        for series in self.series {
            self.band(&mut chart, series)?;
        }
        for series in self.series {
            self.line(&mut chart, area, series)?;
        }
        self.ends(&chart, area)
    }

    fn ceiling(
        &self,
        chart: &mut Chart<'_, '_>,
        area: &Area<'_>,
        ceiling: &Ceiling,
        taken: &mut Vec<(i32, i32)>,
    ) -> Result<(), ReportError> {
        let Some([from, to]) = clipped(ceiling.ends, self.x, self.y) else { return Ok(()) };
        let style = CEILING.rgb().stroke_width(px(1.2) as u32);
        chart.draw_series(LineSeries::new([from, to], style))?;
        // Above the line where it comes in from the left; below where that is at the top, or where
        // another's stands.
        let (x, y) = chart.backend_coord(&from);
        let (_, top) = chart.backend_coord(&(from.0, self.y.range.end));
        let above = (VPos::Bottom, y - px(2.0), y - px(8.0));
        let below = (VPos::Top, y + px(3.0), y + px(8.0));
        let free = |(_, _, middle): &(VPos, i32, i32)| {
            *middle > top
                && taken.iter().all(|(left, other)| (x - left).abs() > px(90.0) || (middle - other).abs() >= px(11.0))
        };
        let Some((v, at, middle)) = [above, below].into_iter().find(free) else { return Ok(()) };
        taken.push((x, middle));
        // Where it comes in from above it goes on down: beside it, then.
        let x = if from.0 > self.x.range.start * 1.01 { x + px(12.0) } else { x };
        area.draw_text(&ceiling.label, &letters(10.0, CEILING, HPos::Left, v), (x + px(5.0), at))?;
        Ok(())
    }

    fn placed<'s>(&self, series: &'s Series) -> impl Iterator<Item = &'s Point> + use<'s, '_> {
        let (x, y) = (self.x.range.clone(), self.y.range.clone());
        series.points.iter().filter(move |p| x.contains(&p.x) && y.contains(&p.y))
    }

    fn band(&self, chart: &mut Chart<'_, '_>, series: &Series) -> Result<(), ReportError> {
        let colour = series.slot.colour().rgb();
        let inside = |value: f64| value.clamp(self.y.range.start, self.y.range.end);
        let ends: Vec<_> = self
            .placed(series)
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

    fn line(&self, chart: &mut Chart<'_, '_>, area: &Area<'_>, series: &Series) -> Result<(), ReportError> {
        let colour = series.slot.colour();
        if series.joined {
            let line = self.placed(series).map(|p| (p.x, p.y));
            chart.draw_series(LineSeries::new(line, colour.rgb().stroke_width(px(1.8) as u32)))?;
        }
        for point in self.placed(series) {
            let at = chart.backend_coord(&(point.x, point.y));
            marker(area, series.slot, at)?;
        }
        for x in series.wrong.iter().filter(|x| self.x.has(**x)) {
            let (x, y) = chart.backend_coord(&(*x, self.y.range.start));
            let at = (x, y - px(7.0));
            area.draw(&Cross::new(at, px(4.0), BAD.rgb().stroke_width(px(2.0) as u32)))?;
        }
        Ok(())
    }

    /// What stands at the lines' ends, moved apart where they end near each other.
    fn ends(&self, chart: &Chart<'_, '_>, area: &Area<'_>) -> Result<(), ReportError> {
        let (right, bottom) = chart.backend_coord(&(self.x.range.end, self.y.range.start));
        let (_, top) = chart.backend_coord(&(self.x.range.end, self.y.range.end));
        let ends = self.series.iter().filter(|series| !series.label.is_empty()).filter_map(|series| {
            let last = self.placed(series).last()?;
            Some((chart.backend_coord(&(last.x, last.y)).1, series))
        });
        let mut ends: Vec<_> = ends.collect();
        ends.sort_by_key(|(y, _)| *y);
        let wanted: Vec<_> = ends.iter().map(|(y, _)| *y).collect();
        for (y, (_, series)) in apart(&wanted, px(12.0), top..bottom).into_iter().zip(&ends) {
            let style = letters(SMALL, series.slot.colour(), HPos::Left, VPos::Center);
            area.draw_text(&series.label, &style, (right + px(6.0), y))?;
        }
        Ok(())
    }
}

/// Room for these at lines' ends.
pub fn room<'a>(labels: impl IntoIterator<Item = &'a str>) -> f64 {
    labels.into_iter().map(|label| text_width(label, SMALL) + 12.0).fold(8.0, f64::max).min(110.0)
}

/// Places near those that are wanted, which rise, that are this far apart and inside a range as far
/// as there is room.
fn apart(wanted: &[i32], distance: i32, inside: Range<i32>) -> Vec<i32> {
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

/// The part of a line, straight over logarithmic axes, that is inside a plot.
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

/// A device's marker.
pub fn marker(area: &Area<'_>, slot: Slot, at: (i32, i32)) -> Result<(), ReportError> {
    let colour = slot.colour().rgb();
    let filled = colour.filled();
    let thin = colour.stroke_width(px(1.6) as u32);
    let around = |corners: &[(f64, f64)]| {
        let corners = corners.iter().map(|(x, y)| (at.0 + px(*x), at.1 + px(*y))).collect::<Vec<_>>();
        Polygon::new(corners, filled)
    };
    // Where colours come round again, markers have moved on.
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

/// A piece of a device's line with its marker, for what explains plots.
pub fn sample(slot: Slot) -> Result<Markup, ReportError> {
    let drawn = picture((34, 14), "", |area| {
        let line = vec![(px(2.0), px(7.0)), (px(32.0), px(7.0))];
        area.draw(&PathElement::new(line, slot.colour().rgb().stroke_width(px(1.8) as u32)))?;
        marker(area, slot, (px(17.0), px(7.0)))
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
        assert_eq!(apart(&[10, 11, 12], 12, 0..100), [10, 22, 34]);
        assert_eq!(apart(&[90, 95, 99], 12, 0..100), [76, 88, 100]);
        assert_eq!(apart(&[], 12, 0..100), [0; 0]);
        let crowded = apart(&[50; 20], 12, 0..100);
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
