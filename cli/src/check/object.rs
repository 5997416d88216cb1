//! Report of `check` on an XDP object: its programs, maps, variables and helpers.

use std::collections::BTreeSet;

use portcullis::diagnostics::Diagnostics;
use portcullis::frontend::xdp::events::{EventRing, RecordKind};
use portcullis::frontend::xdp::object::MapType;
use portcullis::frontend::xdp::{
    GlobalVariable, MapDefinition, MapReport, ObjectInfo, ObjectReport, PrivatizedValue, ProgramReport, ProgramSite,
};
use portcullis::map::typed::{CKind, CType, ScalarField};
use portcullis::map::{self, TypeInfo};
use portcullis::program::Program;
use serde_json::{Value, json};

use crate::out;
use crate::run::traps::Place;

/// Maximum characters of a value to print.
const MAX_VALUE_CHARS: usize = 60;

/// Maximum program sites to list, one per line and all on one line.
const MAX_SITES: usize = 10;
const MAX_SITES_IN_LINE: usize = 6;

/// How the host reads a ring.
const READ_BY: &str = "read by `run --events`";

/// Maximum programs to describe in more than one line each.
const MAX_IN_FULL: usize = 12;

/// Maximum columns to list.
const MAX_COLUMNS: usize = 12;

/// Describes an object as text.
pub fn text(report: &ObjectReport) -> String {
    let accepted = report.programs.iter().filter(|it| it.result.is_ok()).count();
    let count = report.programs.len();
    let programs = match count {
        0 => "no XDP programs".to_owned(),
        1 => format!("1 XDP program, {accepted} accepted"),
        _ => format!("{count} XDP programs, {accepted} accepted"),
    };
    let head = format!("{}: {programs}\n", out::printable(&report.name));
    let mut rows: Vec<(&str, Vec<String>)> = Vec::new();
    match count {
        0 => {}
        1..=MAX_IN_FULL => rows.push(("programs", report.programs.iter().map(program).collect())),
        // One line each, and the helpers of all together.
        _ => {
            rows.push(("programs", report.programs.iter().map(program_in_line).collect()));
            let helpers: BTreeSet<&str> =
                report.programs.iter().flat_map(|it| &it.helpers).map(String::as_str).collect();
            rows.push(("helpers", vec![helpers.into_iter().collect::<Vec<_>>().join(", ")]));
        }
    }
    if !report.other_sections.is_empty() {
        rows.push(("other hooks", vec![report.other_sections.join(", ")]));
    }
    rows.push((
        "maps",
        report.maps.iter().map(|it| format_map(&it.definition, &it.typed, it.refused.as_deref())).collect(),
    ));
    rows.push(("variables", report.globals.iter().map(global).collect()));
    let first = report.programs.iter().find(|it| it.result.is_ok()).or(report.programs.first());
    let first = first.map_or("NAME", |it| it.name.as_str());
    let tail = match report.programs.len() {
        0 | 1 => String::new(),
        _ => format!("`portcullis check {}:{first}` shows one program in detail.\n", report.name),
    };
    head + &table(rows) + &out::printable(&tail)
}

/// Formats rows that have a name and one or more lines.
fn table(rows: Vec<(&str, Vec<String>)>) -> String {
    let lines = rows.into_iter().flat_map(|(name, lines)| {
        let lines = if lines.is_empty() { vec!["no".to_owned()] } else { lines };
        let names = std::iter::once(name).chain(std::iter::repeat(""));
        names.zip(lines).map(|(name, line)| vec![format!("  {name}"), out::printable(&line)]).collect::<Vec<_>>()
    });
    out::table(lines.collect(), &[])
}

/// One program on one line: whether it can run, or why not.
fn program_in_line(program: &ProgramReport) -> String {
    let checked = match traps_of(program) {
        [] => String::new(),
        traps => format!(", checked at {} at run time", places(traps.len())),
    };
    let lossy = match losses_of(program) {
        [] => String::new(),
        lost_updates => format!(", may lose updates at {}", places(lost_updates.len())),
    };
    state(program) + &checked + &lossy
}

/// One program with the helpers it calls and its run-time checks.
fn program(program: &ProgramReport) -> String {
    let helpers = match &program.helpers[..] {
        [] => String::new(),
        helpers => format!("\n  helpers  {}", helpers.join(", ")),
    };
    let checked = match traps_of(program) {
        [] => String::new(),
        traps => format!("\n  checked  {} at run time{}", places(traps.len()), format_lines(traps)),
    };
    let lossy = match losses_of(program) {
        [] => String::new(),
        lost_updates => format!("\n  lossy    {}{}", places(lost_updates.len()), format_lines(lost_updates)),
    };
    state(program) + &helpers + &checked + &lossy
}

fn state(ProgramReport { name, section, result, .. }: &ProgramReport) -> String {
    match result {
        Ok(_) => format!("{name} ({section}): accepted"),
        Err(diagnostics) => format!("{name} ({section}): rejected: {}", format_first_error(diagnostics)),
    }
}

fn origin_of(program: &ProgramReport) -> Option<&ObjectInfo> {
    program.result.as_ref().ok().and_then(ObjectInfo::of)
}

fn traps_of(program: &ProgramReport) -> &[ProgramSite] {
    origin_of(program).map_or(&[][..], |origin| &origin.traps)
}

fn losses_of(program: &ProgramReport) -> &[ProgramSite] {
    origin_of(program).map_or(&[][..], |origin| &origin.lost_updates)
}

/// Source lines of sites: `: prog.c:7, prog.c:12`.
fn format_lines(sites: &[ProgramSite]) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in sites
        .iter()
        .filter_map(|site| site.line.as_ref())
        .map(|(file, line)| format!("{}:{line}", without_folder(file)))
    {
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    let more = lines.len().saturating_sub(MAX_SITES_IN_LINE);
    lines.truncate(MAX_SITES_IN_LINE);
    if more > 0 {
        lines.push(format!("{more} more"));
    }
    if lines.is_empty() { String::new() } else { format!(": {}", lines.join(", ")) }
}

fn places(count: usize) -> String {
    if count == 1 { "1 place".into() } else { format!("{} places", out::grouped(count as u64)) }
}

/// Formats the sites that are checked at run time, one per line, up to [`MAX_SITES`].
fn format_sites(traps: &[ProgramSite]) -> Vec<String> {
    if traps.is_empty() {
        return vec!["nothing: every operation is proved valid".into()];
    }
    list_sites("where a packet is ABORTED and counted in the map `traps`", traps)
}

fn list_sites(what: &str, sites: &[ProgramSite]) -> Vec<String> {
    let mut lines = vec![format!("{}, {what}", places(sites.len()))];
    lines.extend(sites.iter().take(MAX_SITES).map(|site| format!("  {}", Place::from(site).text())));
    let more = sites.len().saturating_sub(MAX_SITES);
    if more > 0 {
        lines.push(format!("  and {} more; --json lists them", out::grouped(more as u64)));
    }
    lines
}

/// All sites as JSON; traps are in the order of the map that counts them.
pub fn sites_json(sites: &[ProgramSite]) -> Value {
    sites.iter().map(|site| json!(Place::from(site))).collect()
}

/// The first error on one line: `prog.c:32: bpf_timer_start is called; missing feature: timers
/// (bpf_timer_start)`.
fn format_first_error(diagnostics: &Diagnostics) -> String {
    let Some(error) = diagnostics.errors.first() else { return "reason unknown".into() };
    let place = error.labels.first().map(|label| {
        let start = label.range.start;
        format!("{}:{}: ", without_folder(diagnostics.source.file_at(start).name), diagnostics.source.location(start).0)
    });
    let missing = error.notes.iter().find(|note| note.starts_with("missing feature"));
    let missing = missing.map(|note| format!("; {note}"));
    format!("{}{}{}", place.unwrap_or_default(), error.message, missing.unwrap_or_default())
}

/// File name of a source file's path.
fn without_folder(file: &str) -> &str {
    file.rsplit('/').next().unwrap_or(file)
}

fn format_map(definition: &MapDefinition, typed: &TypeInfo, refused: Option<&str>) -> String {
    let kind = typed.map_type.as_str();
    // Rings take records and have neither keys nor values.
    match definition.ty {
        MapType::RINGBUF if definition.max_entries == 0 => {
            return format!("{}: {kind}, no max_entries: --set {0}.max_entries=BYTES", definition.name);
        }
        MapType::RINGBUF => {
            let bytes = out::grouped(definition.max_entries.into());
            return format!("{}: {kind} of {bytes} bytes, {READ_BY}", definition.name);
        }
        MapType::PERF_EVENT_ARRAY => return format!("{}: {kind}, {READ_BY}", definition.name),
        _ => {}
    }
    let entries = match definition.max_entries {
        0 => format!("no max_entries: --set {}.max_entries=N", definition.name),
        1 => "1 entry".into(),
        entries => format!("{} entries", out::grouped(entries.into())),
    };
    let flags = if definition.flags == 0 { String::new() } else { format!(", flags {:#x}", definition.flags) };
    let refused = refused.filter(|_| definition.max_entries > 0).map(|why| {
        let named = format!("the map `{}` ", definition.name);
        let feature = if definition.ty.is_supported() { String::new() } else { definition.ty.missing_feature() };
        let feature = if feature.is_empty() { feature } else { format!("; missing feature: {feature}") };
        format!("\n  cannot be used: it {}{feature}", why.strip_prefix(&named).unwrap_or(why))
    });
    format!("{}: {kind}, {}, {entries}{flags}{}", definition.name, sizes(typed), refused.unwrap_or_default())
}

/// Types of keys and values: `keys struct flow (12 bytes), values __u64 (8 bytes)`.
pub fn sizes(typed: &TypeInfo) -> String {
    let of = |ty: &CType| match &ty.kind {
        CKind::Section(_) => format!("the variables of {} ({} bytes)", ty.name, ty.size),
        _ => format!("{} ({} bytes)", ty.name, ty.size),
    };
    format!("keys {}, values {}", of(&typed.key), of(&typed.value))
}

/// Columns of a map's rows, on lines of their own.
pub fn columns(typed: &TypeInfo) -> String {
    let (key, value) = typed.columns();
    let list = |scalar_fields: &[ScalarField]| match scalar_fields {
        [] => "nothing".into(),
        [first, .., last] if scalar_fields.len() > MAX_COLUMNS => {
            format!(
                "{} ({}) to {} ({}), {} in all",
                first.name,
                first.ty.name,
                last.name,
                last.ty.name,
                scalar_fields.len()
            )
        }
        _ => scalar_fields.iter().map(|it| format!("{} ({})", it.name, it.ty.name)).collect::<Vec<_>>().join(", "),
    };
    format!("\n  key    {}\n  value  {}", list(&key), list(&value))
}

fn global(global: &GlobalVariable) -> String {
    let mut value: String = global.value.chars().take(MAX_VALUE_CHARS).collect();
    if value.len() < global.value.len() {
        value.push('…');
    }
    let set = if global.is_set { ", set" } else { "" };
    format!("{}: {} = {value} ({}{set})", global.name, global.ty, global.section)
}

/// Rows of the table of facts that describe a program's object.
pub fn rows(origin: &ObjectInfo) -> Vec<(&'static str, String)> {
    let mut rows = vec![("program", format!("`{}` of {}", origin.program, origin.object))];
    rows.push(("helpers", if origin.helpers.is_empty() { "no".into() } else { origin.helpers.join(", ") }));
    let mut globals = origin.globals.iter().map(global);
    rows.push(("variables", globals.next().unwrap_or_else(|| "no".into())));
    rows.extend(globals.map(|line| ("", line)));
    rows.extend(std::iter::once("checked").chain(std::iter::repeat("")).zip(format_sites(&origin.traps)));
    if !origin.lost_updates.is_empty() {
        let lossy = list_sites("where an addition to a map value is not atomic and may be lost", &origin.lost_updates);
        rows.extend(std::iter::once("lossy").chain(std::iter::repeat("")).zip(lossy));
    }
    let copies = origin.copies.iter().map(|PrivatizedValue { map, words, filled }| {
        let filled = match 4 * filled {
            0 => String::new(),
            bytes => format!(", {bytes} of them copied from the map at its start"),
        };
        format!("{} bytes of the value of `{map}` are private to each packet{filled}", 4 * words)
    });
    rows.extend(std::iter::once("private copies").chain(std::iter::repeat("")).zip(copies));
    rows.into_iter().map(|(name, line)| (name, out::printable(&line))).collect()
}

/// Maps of an object that its only program does not use.
fn unused<'s>(report: &'s ObjectReport, program: &Program) -> impl Iterator<Item = &'s MapReport> {
    let used = portcullis::frontend::xdp::ObjectInfo::of(program).into_iter().flat_map(|it| &it.maps).flatten();
    let used: Vec<String> = used.map(|it| it.name.clone()).collect();
    report.maps.iter().filter(move |it| !used.contains(&it.definition.name))
}

/// Rows of the table of facts for an object's unused maps and programs of other hooks; empty if it
/// has neither.
pub fn unused_parts(report: &ObjectReport, program: &Program) -> Vec<(&'static str, String)> {
    let unused = unused(report, program).map(|it| format_map(&it.definition, &it.typed, it.refused.as_deref()));
    let mut rows: Vec<_> = std::iter::once("unused maps").chain(std::iter::repeat("")).zip(unused).collect();
    if !report.other_sections.is_empty() {
        rows.push(("other hooks", report.other_sections.join(", ")));
    }
    rows.into_iter().map(|(name, line)| (name, out::printable(&line))).collect()
}

/// Adds what [`unused_parts`] reports to the JSON of a program's object.
pub fn add_unused_parts(of: &mut Value, report: &ObjectReport, program: &Program) {
    of["other_sections"] = json!(report.other_sections);
    of["unused_maps"] = unused(report, program).map(map_json).collect();
}

/// Private copies of map values per packet, as JSON.
pub fn copies_json(all: &[PrivatizedValue]) -> Vec<Value> {
    let one = |PrivatizedValue { map, words, filled }: &PrivatizedValue| json!({"map": map, "bytes": 4 * words, "filled": 4 * filled});
    all.iter().map(one).collect()
}

/// Describes an object as JSON.
pub fn json(report: &ObjectReport, failed: impl Fn(&Diagnostics) -> Vec<Value>) -> Value {
    let program = |it: &ProgramReport| {
        json!({
            "name": it.name, "section": it.section, "helpers": it.helpers, "ok": it.result.is_ok(),
            "errors": it.result.as_ref().err().map(&failed).unwrap_or_default(),
            "traps": sites_json(traps_of(it)),
            "losses": sites_json(losses_of(it)),
            "copies": copies_json(origin_of(it).map_or(&[], |origin| &origin.copies)),
        })
    };
    let maps = report.maps.iter().map(map_json);
    json!({
        "ok": report.programs.iter().all(|it| it.result.is_ok()),
        "programs": report.programs.iter().map(program).collect::<Vec<_>>(),
        "other_sections": report.other_sections,
        "maps": maps.collect::<Vec<_>>(),
        "variables": variables(&report.globals),
    })
}

fn map_json(map: &MapReport) -> Value {
    let mut description = definition(&map.definition, &map.typed);
    description["refused"] = json!(map.refused);
    description
}

fn definition(map: &MapDefinition, typed: &TypeInfo) -> Value {
    let MapDefinition { name, ty: MapType(number), max_entries, flags, .. } = map;
    let mut description = of_types(typed);
    for (key, value) in [
        ("name", json!(name)),
        ("type_number", json!(number)),
        ("max_entries", json!(max_entries)),
        ("flags", json!(flags)),
    ] {
        description[key] = value;
    }
    description
}

/// C types of a map's keys and values, as JSON.
pub fn of_types(typed: &TypeInfo) -> Value {
    json!({
        "type": typed.map_type, "key_type": typed.key.name, "key_bytes": typed.key.size,
        "value_type": typed.value.name, "value_bytes": typed.value.size,
    })
}

/// Key and value fields of a map's rows, as JSON.
pub fn fields(typed: &TypeInfo) -> [Vec<Value>; 2] {
    let (key, value) = typed.columns();
    let fields = |scalar_fields: &[ScalarField]| {
        scalar_fields.iter().map(|it| json!({"name": it.name, "form": it.ty.name})).collect()
    };
    [fields(&key), fields(&value)]
}

/// Global variables, as JSON.
pub fn variables(globals: &[GlobalVariable]) -> Value {
    let one = |it: &GlobalVariable| {
        let value: Value = serde_json::from_str(&it.json).unwrap_or_else(|_| json!(it.value));
        json!({
            "name": it.name, "section": it.section, "type": it.ty, "value": value, "constant": it.constant,
            "default": !it.is_set,
        })
    };
    globals.iter().map(one).collect()
}

/// Describes a map: its definition in the object and its size on a device.
pub fn map_text(map: &map::Declaration, typed: &TypeInfo, bytes: u64) -> String {
    let count = out::grouped(map.entries.into());
    let entries = if map.entries == 1 { "entry" } else { "entries" };
    let other = if map.name == typed.name { String::new() } else { format!(" (`{}` here)", map.name) };
    let (kind, bytes) = (&typed.map_type, out::grouped(bytes));
    let first = format!("{}{other}: {kind}, {}, {count} {entries}, {bytes} bytes of memory", typed.name, sizes(typed));
    out::printable(&(first + &columns(typed)))
}

/// Returns the event ring that a map implements, and its definition if the object declares it.
pub fn ring<'p>(program: &'p Program, map: &map::Declaration) -> Option<(&'p EventRing, Option<&'p MapDefinition>)> {
    let origin = portcullis::frontend::xdp::ObjectInfo::of(program).filter(|_| map.is_ring)?;
    let ring = origin.rings.iter().find(|ring| ring.name == map.name)?;
    Some((ring, origin.maps.get(ring.map)?.as_ref()))
}

/// Describes an event ring: its definition in the object and its size on a device.
pub fn ring_text(ring: &EventRing, definition: Option<&MapDefinition>, bytes: u64) -> String {
    let grouped = |number: u32| out::grouped(number.into());
    let kind = match (ring.records, definition) {
        (RecordKind::RingBuffer, Some(it)) => format!("{} of {} bytes", it.ty.name(), grouped(it.max_entries)),
        (_, Some(it)) => it.ty.name(),
        (_, None) => "prints".into(),
    };
    let packet = if ring.packet > 0 { format!(", with {} of the packet", grouped(ring.packet)) } else { String::new() };
    let records = match ring.records {
        RecordKind::Prints => "lines".to_owned(),
        _ => format!("records of at most {} bytes{packet}", grouped(ring.bytes)),
    };
    let text = format!(
        "{}: {kind}, {READ_BY}, room for {} {records}, {} bytes of memory",
        definition.map_or(&ring.name, |it| &it.name),
        grouped(ring.slots),
        out::grouped(bytes),
    );
    out::printable(&text)
}

/// Describes an event ring as JSON.
pub fn ring_json(ring: &EventRing, definition: Option<&MapDefinition>, bytes: u64) -> Value {
    let object = definition.map(|it| json!({"type": it.ty.name(), "max_entries": it.max_entries}));
    json!({
        "name": ring.name, "kind": "ring", "records": ring.slots, "record_bytes": ring.bytes,
        "packet_bytes": ring.packet, "bytes": bytes, "object": object,
    })
}
