//! The report's colours, and the style sheet generated from them.
//!
//! Plots are drawn in the light colours. Style rules replace these by custom properties, so that
//! one drawing serves a light page, a dark page and paper.

use std::fmt::Write;

use plotters::style::RGBColor;

/// A colour, on a light and on a dark background.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Colour {
    name: &'static str,
    light: u32,
    dark: u32,
}

impl Colour {
    /// Returns the light variant for plotters.
    pub fn rgb(self) -> RGBColor {
        let [_, r, g, b] = self.light.to_be_bytes();
        RGBColor(r, g, b)
    }

    /// CSS custom property of the colour, for elements styled on the page itself.
    pub fn var(self) -> String {
        format!("var(--{})", self.name)
    }
}

const fn colour(name: &'static str, light: u32, dark: u32) -> Colour {
    Colour { name, light, dark }
}

/// Text.
pub const INK: Colour = colour("ink", 0x1B2430, 0xE6EBF1);
/// Secondary text, such as labels of axes.
pub const MUTED: Colour = colour("muted", 0x55606E, 0xA3AFBD);
/// Background. No other colour may be white, as rules select by colour.
pub const SURFACE: Colour = colour("surface", 0xFFFFFF, 0x12171D);
/// Lines of the grid.
pub const GRID: Colour = colour("grid", 0xE3E7EC, 0x2A323C);
/// Axes.
pub const AXIS: Colour = colour("axis", 0x9AA4B0, 0x5E6A78);
/// Measured ceilings.
pub const CEILING: Colour = colour("ceiling", 0x6B7684, 0x8E9BAA);
/// Failures.
pub const BAD: Colour = colour("bad", 0xB3261E, 0xFF8A80);
/// Successes.
pub const GOOD: Colour = colour("good", 0x1E7A3C, 0x6FD08C);
/// Background of raised boxes and table heads.
pub const RAISED: Colour = colour("raised", 0xF4F6F8, 0x1A2129);

/// Colours of devices, in order, distinguishable with red-green colour blindness; markers and
/// dashes differ as well.
pub const SERIES: [Colour; 8] = [
    colour("s0", 0x0B63B0, 0x62B2F5),
    colour("s1", 0xC24D08, 0xFF9257),
    colour("s2", 0x007D58, 0x3ECC9A),
    colour("s3", 0xA03B84, 0xEA94D0),
    colour("s4", 0x946600, 0xE6B84A),
    colour("s5", 0x177FA3, 0x7AD8F5),
    colour("s6", 0x4B5763, 0xC6CFD8),
    colour("s7", 0x7B4A2A, 0xD3A783),
];

/// Dash patterns of the devices' lines, in plot units; the first is solid.
const DASHES: [&str; 8] = ["none", "70 35", "20 28", "90 30 20 30", "40 20", "120 40", "60 25 15 25 15 25", "10 22"];

/// Colours of stages, in order; neighbours differ in lightness.
pub const STAGES: [Colour; 6] = [
    colour("t0", 0x2F6DB5, 0x5C9DE6),
    colour("t1", 0x9CC3E8, 0xB9D9F7),
    colour("t2", 0xC9690F, 0xF0954A),
    colour("t3", 0xF2C189, 0xFBDDB5),
    colour("t4", 0x2E7D64, 0x4FB598),
    colour("t5", 0xB4BCC6, 0x7D8896),
];

fn all() -> impl Iterator<Item = Colour> {
    [INK, MUTED, SURFACE, GRID, AXIS, CEILING, BAD, GOOD, RAISED].into_iter().chain(SERIES).chain(STAGES)
}

/// Returns the style sheet.
pub fn sheet() -> String {
    // Print is light whatever the screen is.
    let mut css = scheme("light", |colour| colour.light)
        + "@media screen and (prefers-color-scheme:dark){"
        + &scheme("dark", |colour| colour.dark)
        + "}\n";
    for colour in all() {
        let Colour { name, light, .. } = colour;
        let _ = writeln!(css, ".plot [fill=\"#{light:06X}\"]{{fill:var(--{name})}}");
        let _ = writeln!(css, ".plot [stroke=\"#{light:06X}\"]{{stroke:var(--{name})}}");
    }
    for (colour, dash) in SERIES.iter().zip(DASHES) {
        let _ = writeln!(css, ".plot polyline[stroke=\"#{:06X}\"]{{stroke-dasharray:{dash}}}", colour.light);
    }
    let _ = writeln!(css, ".plot polyline[stroke=\"#{:06X}\"]{{stroke-dasharray:60 40}}", CEILING.light);
    css.push_str(include_str!("report.css"));
    css
}

fn scheme(name: &str, value: fn(Colour) -> u32) -> String {
    let mut css = format!(":root{{color-scheme:{name}");
    for colour in all() {
        let _ = write!(css, ";--{}:#{:06X}", colour.name, value(colour));
    }
    css + "}\n"
}
