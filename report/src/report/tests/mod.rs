//! Properties that every report has, whatever was measured.

use super::{fixture, html};
use crate::number::{digits, grouped};
use crate::results::*;

fn page(results: &Results) -> String {
    html(results).expect("a report can be made of any results")
}

/// Renders a report and checks the properties of every report.
fn sound(results: &Results) -> String {
    let page = page(results);
    assert!(!page.contains("://"), "an address: {}", around(&page, "://"));
    assert!(!page.contains("www."), "an address: {}", around(&page, "www."));
    for never in ["<script", "<link", "<img", "<iframe", "xmlns", "@import", "url(", " src=", "NaN", ">inf", "Infinity"]
    {
        assert!(!page.contains(never), "{never}: {}", around(&page, never));
    }
    for href in page.split("href=\"").skip(1) {
        assert!(href.starts_with('#'), "a link out of the page: {}", &href[..20]);
        let id = href[1..].split('"').next().expect("split gives one");
        assert!(page.contains(&format!("id=\"{id}\"")), "a link to nowhere: {id}");
    }
    balanced(&page);
    for plot in page.split("<svg").skip(1) {
        let plot = plot.split("</svg>").next().expect("split gives one");
        let odd = plot.split(['"', ' ', ',']).find(|value| value.contains("NaN") || value.contains("inf"));
        assert_eq!(odd, None, "no number in a plot");
        assert!(plot.contains("aria-label="), "a plot without words: {plot:.80}");
    }
    page
}

fn around<'a>(page: &'a str, what: &str) -> &'a str {
    let at = page.find(what).expect("it was found before");
    let start = page.floor_char_boundary(at.saturating_sub(80));
    &page[start..page.ceil_char_boundary((at + 80).min(page.len()))]
}

/// Checks that elements are closed in order.
fn balanced(page: &str) {
    const VOID: [&str; 3] = ["meta", "br", "!DOCTYPE"];
    // The elements around the style sheet.
    let mut open = vec!["html", "head"];
    let markup = page.split_once("</style>").expect("there is a style sheet").1;
    for tag in markup.split('<').skip(1) {
        let inside = tag.split('>').next().expect("split gives one");
        let name = inside.trim_start_matches('/').split([' ', '/']).next().expect("split gives one");
        if inside.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "closed out of order: {tag:.60}");
        } else if !inside.ends_with('/') && !VOID.contains(&name) {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "never closed: {open:?}");
}

#[test]
fn reports_of_anything_are_sound() {
    let full = fixture::full();
    let mut cases = vec![("full", full.clone()), ("empty", fixture::empty())];
    let keep = |keep: &dyn Fn(&Cell) -> bool| Results {
        cells: full.cells.iter().filter(|c| keep(c)).cloned().collect(),
        ..full.clone()
    };
    cases.push(("one cell", Results { cells: vec![fixture::cell(0, 0, 64, 0, "whole packets")], ..fixture::empty() }));
    cases.push(("one device", keep(&|c| c.device == "cpu")));
    cases.push(("all wrong", keep(&|c| matches!(c.outcome, Outcome::Mismatch { .. }))));
    cases.push(("all failed", keep(&|c| matches!(c.outcome, Outcome::Failed { .. }))));
    cases.push(("resident only", keep(&|c| c.is_resident())));
    cases.push(("two batches", keep(&|c| c.batch <= 1_024)));
    for (name, results) in cases {
        println!("{name}");
        sound(&results);
    }
}

#[test]
fn values_without_a_place_are_left_out_of_plots() {
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -1.0, 1e300, f64::MIN_POSITIVE] {
        let mut results = fixture::full();
        for measured in results.cells.iter_mut().step_by(3).filter_map(fixture::measured) {
            measured.mpps = Estimate { median: bad, low: bad, high: bad };
            measured.latency = Latency { p50: bad, p99: bad, p999: bad };
            measured.stages = Some(Stages { gather: bad, upload: bad, kernel: bad, download: bad, verdicts: bad });
            measured.bus_bytes = Some(bad);
            measured.of_ceiling = Some((bad, "memory copy".into()));
        }
        for ceiling in &mut results.ceilings {
            ceiling.bytes_per_second.median = bad;
        }
        sound(&results);
    }
}

#[test]
fn only_wrong_cells_are_marked() {
    let mut results = fixture::full();
    let wrong = results.cells.iter().filter(|c| matches!(c.outcome, Outcome::Mismatch { .. })).count();
    assert_eq!(wrong, 1);
    assert_eq!(sound(&results).matches("WRONG").count(), wrong);
    for cell in results.cells.iter_mut().take(5) {
        cell.outcome = Outcome::Mismatch { detail: "packet 0: DROP instead of PASS".into() };
    }
    let wrong = results.cells.iter().filter(|c| matches!(c.outcome, Outcome::Mismatch { .. })).count();
    assert_eq!(sound(&results).matches("WRONG").count(), wrong);
    results.cells.retain(|c| !matches!(c.outcome, Outcome::Mismatch { .. }));
    let page = sound(&results);
    assert!(!page.contains("WRONG"), "{}", around(&page, "WRONG"));
    assert!(!page.contains("Verdicts differ"), "nothing differs");
}

#[test]
fn a_wrong_cell_has_no_rate() {
    let mut results = Results { cells: vec![fixture::cell(0, 0, 64, 0, "whole packets")], ..fixture::empty() };
    assert!(sound(&results).contains(" Mpps in batches of 64."));
    results.cells[0].outcome = Outcome::Mismatch { detail: "packet 3: PASS instead of DROP".into() };
    let page = sound(&results);
    assert!(!page.contains(" Mpps in batches of "), "a wrong device is not recommended");
    assert!(page.contains("packet 3: PASS instead of DROP"));
}

/// Replaces every text of the results.
fn strings(value: &mut serde_json::Value, text: &str) {
    // These are part of the format, not texts.
    const KEPT: [&str; 3] = ["outcome", "source", "ended"];
    match value {
        serde_json::Value::String(old) => *old = text.into(),
        serde_json::Value::Array(values) => values.iter_mut().for_each(|v| strings(v, text)),
        serde_json::Value::Object(map) => {
            for (key, value) in map.iter_mut() {
                if !(KEPT.contains(&key.as_str()) && value.is_string()) {
                    strings(value, text);
                }
            }
        }
        _ => {}
    }
}

#[test]
fn all_texts_are_escaped() {
    let evil = r#"</title></style><script>alert("1")</script><b onload='x'>&amp; http://www.example.org/"#;
    let mut value = serde_json::to_value(fixture::full()).expect("results can be written");
    strings(&mut value, evil);
    let results: Results = serde_json::from_value(value).expect("and read");
    let page = sound(&results);
    assert!(!page.contains("<b "), "{}", around(&page, "<b "));
    assert!(page.contains("&lt;script&gt;alert("));
    // It is escaped in the page and in the plots.
    assert!(page.contains("&amp;amp; http:&#47;/www&#46;example"));
}

#[test]
fn every_measurement_is_in_a_table() {
    let results = fixture::full();
    let page = sound(&results);
    let section = page.split("<section id=\"measurements\">").nth(1).and_then(|s| s.split("</section>").next());
    let section = section.expect("there is a section of all measurements");
    let mut rows = section.split("<tr>").skip(1).filter(|row| row.contains("<th scope=\"row\">"));
    let mut filters: Vec<&str> = Vec::new();
    results.cells.iter().for_each(|c| {
        if !filters.contains(&c.filter.as_str()) {
            filters.push(&c.filter)
        }
    });
    for filter in filters {
        for cell in results.cells.iter().filter(|c| c.filter == filter) {
            let row = rows.next().unwrap_or_else(|| panic!("no row for {cell:?}"));
            let mut said =
                vec![cell.device.clone(), cell.packets.clone(), cell.transfer.clone(), cell.dispatch.clone()];
            said.push(grouped(cell.batch as i64));
            match &cell.outcome {
                Outcome::Measured(m) => {
                    said.extend([digits(m.mpps.median), digits(m.mpps.low), digits(m.mpps.high), digits(m.gbps)]);
                    said.push(grouped(m.repetitions as i64));
                }
                Outcome::Mismatch { detail } => said.push(detail.clone()),
                Outcome::Failed { reason } => said.push(reason.clone()),
            }
            for said in said {
                assert!(row.contains(&said), "{said} is not in {row}");
            }
        }
    }
    assert_eq!(rows.next(), None, "a row of nothing");
}

#[test]
fn interrupted_runs_say_so() {
    let mut results = fixture::full();
    assert!(!sound(&results).contains("Interrupted"));
    results.run.interrupted = true;
    assert!(sound(&results).contains("Interrupted"));
}

#[test]
fn missed_targets_are_shown() {
    let page = sound(&fixture::full());
    assert!(page.contains("1 met, 2 missed, 1 not measured here."));
    for text in [">met<", ">missed<", ">not measured<", "0.96 (0.93 to 0.98)", "no GPU on this machine"] {
        assert!(page.contains(text), "{text}");
    }
}

#[test]
fn latencies_under_load_are_shown_where_there_are_any() {
    let mut results = fixture::full();
    assert!(sound(&results).contains("At a steady rate"));
    for measured in results.cells.iter_mut().filter_map(fixture::measured) {
        measured.loads.clear();
    }
    let page = sound(&results);
    assert!(!page.contains("At a steady rate") && page.contains("As batches grow"));
}

#[test]
fn unconverged_cells_say_so() {
    let mut results = Results { cells: vec![fixture::cell(0, 0, 64, 0, "whole packets")], ..fixture::empty() };
    let mut with = |ended, latencies| {
        let measured = fixture::measured(&mut results.cells[0]).expect("the fixture measures it");
        (measured.ended, measured.latencies) = (ended, latencies);
        measured.latency.p999 = 5e-3;
        sound(&results).replace('\u{a0}', " ")
    };
    let whole = with(StopReason::Narrow, 1_000);
    assert!(whole.contains(">5.00 ms<") && !whole.contains("time was up"));
    let cut = with(StopReason::Time, 999);
    assert!(cut.contains(">5.00 ms of 999<") && !cut.contains(">5.00 ms<") && cut.contains(", time was up"));
    assert!(with(StopReason::Interrupted, 1_000).contains(", interrupted<"));
}

#[test]
fn published_figures_are_marked() {
    let page = sound(&fixture::full());
    assert!(page.contains("its GPU, pinned (Mpps)<br><span class=\"published\">published</span>"));
    // On a narrow screen a row's figures are stacked, so each has a label with its source.
    let of_cell = |value: &str| {
        let cells = page.split("<td ").filter_map(|cell| cell.split_once("</td>")).map(|(cell, _)| cell);
        cells.filter(|cell| cell.contains("data-label") && cell.ends_with(&format!(">{value}"))).collect::<Vec<_>>()
    };
    let published = "class=\"n published\" data-label=\"its GPU, pinned (Mpps), published\">1,070";
    assert!(of_cell("1,070").contains(&published), "{}", around(&page, "1,070"));
    let ours = of_cell("312");
    assert!(!ours.is_empty() && ours.iter().all(|cell| cell.starts_with("class=\"n\"") && !cell.contains("published")));
}

#[test]
fn a_device_keeps_its_colour() {
    let page = sound(&fixture::full());
    // cuda:0 is the fourth device.
    let colour = super::theme::SERIES[3].rgb();
    let literal = format!("#{:02X}{:02X}{:02X}", colour.0, colour.1, colour.2);
    let labels = page.split("<text ").filter_map(|t| t.split_once("</text>")).map(|(label, _)| label);
    let labels: Vec<_> = labels.filter(|label| label.ends_with(">cuda:0")).collect();
    assert!(labels.len() > 10, "{}", labels.len());
    // In the summary's bars the label is on the device's colour.
    let surface = super::theme::SURFACE.rgb();
    let ground = format!("#{:02X}{:02X}{:02X}", surface.0, surface.1, surface.2);
    assert!(labels.iter().all(|t| t.contains(&literal) || t.contains(&ground)));
}

/// Returns the page's body up to the first section.
fn header(page: &str) -> &str {
    page.split_once("<section").expect("there is a section").0.split_once("<body>").expect("there is a body").1
}

#[test]
fn the_top_says_what_the_figures_are_worth() {
    let mut results = fixture::full();
    for (place, measured) in results.cells.iter_mut().filter_map(fixture::measured).enumerate() {
        measured.ended = if place % 7 == 0 { StopReason::Time } else { StopReason::Narrow };
    }
    let measured: Vec<_> = results.cells.iter().filter_map(Cell::measured).collect();
    let wide = measured.iter().filter(|measured| measured.ended == StopReason::Time).count();
    let unconverged = format!("{wide} of {} confidence intervals did not converge", measured.len());
    results.method.filters.push("forgotten_filter".into());
    results.run.load = Some(SystemLoad { average_at_start: 7.25, busy_elsewhere: 1.5 });
    let page = sound(&results);
    for text in [unconverged.as_str(), "forgotten_filter", "kept 1.5 of 2 logical processors busy", "7.25"] {
        assert!(header(&page).contains(text), "{text}: {}", header(&page));
    }
}

#[test]
fn the_top_explains_the_terms() {
    let page = sound(&fixture::full());
    for term in ["Portcullis runs", "A filter is", "<code>cpu@1</code>"] {
        assert!(header(&page).contains(term), "{term}");
    }
}

#[test]
fn a_rate_beyond_memory_is_no_share_of_its_bandwidth() {
    let mut results = Results { cells: vec![fixture::cell(0, 0, 64, 0, "in place")], ..fixture::empty() };
    let mut page_of = |share, name: &str| {
        let measured = fixture::measured(&mut results.cells[0]).expect("the fixture measures it");
        measured.of_ceiling = Some((share, name.into()));
        sound(&results)
    };
    let cached = page_of(7.53, "memory copy");
    assert!(!cached.contains("753 %") && cached.contains(">cached<"), "{}", around(&cached, "cached"));
    assert!(page_of(0.753, "memory copy").contains(">75.3 % of memory copy<"));
    assert!(
        page_of(1.2, "bus copy to the device")
            .contains("> 100 % of bus copy to the device<".replacen('>', "&gt;", 1).as_str())
    );
    assert!(!page_of(0.5, "memory copy").contains("nothing can pass"));
}

/// Returns the drawing's `max-width`, in the page's pixels.
fn max_width(svg: &str) -> f64 {
    let style = svg.split_once("max-width:").expect("a drawing has a max-width").1;
    style.split("px").next().expect("split gives one").parse().expect("a number of pixels")
}

/// On a wide screen, drawings of a grid fill the column: 1,080 pixels, two side by side with 28
/// between them, and one that is left over alone.
#[test]
fn drawings_fill_the_column() {
    let full = fixture::full();
    for filters in 1..=3 {
        let of_filters = |cell: &&Cell| fixture::FILTERS[..filters].iter().any(|(name, ..)| *name == cell.filter);
        let cells = full.cells.iter().filter(of_filters).cloned().collect();
        let page = sound(&Results { cells, ..full.clone() });
        let grids: Vec<_> = page.split("<div class=\"grid\">").skip(1).collect();
        assert!(!grids.is_empty());
        for grid in grids {
            let mut figures: Vec<&str> = grid.split("<figure").skip(1).collect();
            figures.truncate(filters);
            for (place, figure) in figures.iter().enumerate() {
                let is_alone = place + 1 == filters && filters % 2 == 1;
                let wanted = if is_alone { 1080.0 } else { (1080.0 - 28.0) / 2.0 };
                let shown = figure.split("<svg").nth(1).expect("a drawing");
                assert!(max_width(shown) >= wanted, "{filters}, {place}: {shown:.200}");
                assert_eq!(figure.starts_with(" class=\"full\""), is_alone, "{filters}, {place}: {figure:.80}");
            }
        }
    }
}

/// A text or a marker of a drawing: left, right, top and bottom.
type Extent = (f64, f64, f64, f64);

fn attribute(element: &str, name: &str) -> Option<f64> {
    element.split_once(&format!(" {name}=\""))?.1.split('"').next()?.parse().ok()
}

/// Returns the texts of a drawing and their extents. Letters count as half as wide as high, which
/// is narrower than in most fonts.
fn texts(svg: &str) -> Vec<(String, Extent)> {
    let elements = svg.split("<text ").skip(1).filter_map(|text| text.split_once("</text>"));
    elements
        .map(|(element, _)| {
            let element = format!(" {element}");
            let (tag, text) = element.split_once('>').expect("a tag ends");
            let text = text.replace("&apos;", "'");
            let of = |name| attribute(tag, name).expect("a text has a place and a size");
            let (x, y, size) = (of("x"), of("y"), of("font-size"));
            let width = text.chars().count() as f64 * size * 0.5;
            let left = match () {
                () if tag.contains("text-anchor=\"end\"") => x - width,
                () if tag.contains("text-anchor=\"middle\"") => x - width / 2.0,
                () => x,
            };
            let top = match () {
                () if tag.contains("dy=\"0.76em\"") => y,
                () if tag.contains("dy=\"0.5ex\"") => y - size / 2.0,
                () => y - size,
            };
            (text, (left, left + width, top, top + size))
        })
        .collect()
}

fn overlap(one: Extent, other: Extent) -> bool {
    one.0 < other.1 && other.0 < one.1 && one.2 < other.3 && other.2 < one.3
}

/// No text of a drawing lies over another one, and no name of a bandwidth limit over a marker.
#[test]
fn labels_do_not_overlap() {
    let mut results = fixture::full();
    // Limits near each other, of which one has a long name.
    let limit = |name: &str, device: Option<&str>, factor: f64| Ceiling {
        name: name.into(),
        device: device.map(Into::into),
        bytes_per_second: Estimate { median: 28e9 * factor, low: 27e9 * factor, high: 29e9 * factor },
    };
    results.ceilings.push(limit("memory copy, 1 thread", None, 0.93));
    results.ceilings.push(limit("copy in the device's memory", Some("cuda:0"), 1.1));
    for (place, cell) in results.cells.iter_mut().enumerate() {
        if cell.device == "cpu"
            && let Some(measured) = fixture::measured(cell)
        {
            let name = ["memory copy", "memory copy, 1 thread", "copy in the device's memory"][place % 3];
            measured.of_ceiling = Some((0.5 + 0.02 * (place % 3) as f64, name.into()));
        }
    }
    let page = sound(&results);
    let mut limits = 0;
    for svg in page.split("<svg").skip(1).filter_map(|svg| svg.split_once("</svg>")).map(|(svg, _)| svg) {
        let texts = texts(svg);
        for (place, (one, extent)) in texts.iter().enumerate() {
            for (other, beside) in &texts[..place] {
                assert!(!overlap(*extent, *beside), "`{one}` {extent:?} and `{other}` {beside:?}: {svg:.300}");
            }
        }
        let names = texts.iter().filter(|(text, _)| text.contains("copy"));
        let markers = svg.split("<circle").skip(1);
        let markers: Vec<Extent> = markers
            .map(|circle| {
                let of = |name| attribute(circle, name).expect("a circle has a place");
                (of("cx") - 30.0, of("cx") + 30.0, of("cy") - 30.0, of("cy") + 30.0)
            })
            .collect();
        for (name, extent) in names {
            limits += 1;
            let hit = markers.iter().find(|marker| overlap(*extent, **marker));
            assert_eq!(hit, None, "`{name}` {extent:?} over a marker: {svg:.300}");
        }
    }
    assert!(limits > 10, "{limits} names of limits");
}
