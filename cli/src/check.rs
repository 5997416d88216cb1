//! `portcullis check`: prints the errors of a filter, the facts inferred about it, or its code.

mod object;

use std::io::{self, IsTerminal};
use std::sync::Arc;

use clap::ValueEnum;
use portcullis::diagnostics::{Diagnostic, Diagnostics};
use portcullis::frontend::bpf::disassemble;
use portcullis::frontend::xdp::ObjectReport;
use portcullis::map::Columns;
use portcullis::map::fields::Field;
use portcullis::map::{self, MapKind};
use portcullis::packet::Action;
use portcullis::program::facts::Window;
use portcullis::program::{Facts, Parameter, ParameterValue, Program};
use portcullis_c_writer::{Language, Options, write};
use serde_json::json;

use super::device_choice::DeviceChoice;
use super::failure::{FAILED, Failure, code};
use super::filter::FilterArgs;
use super::{explain, out};

/// Compile a filter and print its errors, or the facts inferred about it
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    filter: FilterArgs,
    /// Print one line of JSON
    #[arg(long, conflicts_with = "emit")]
    json: bool,
    /// Print an intermediate representation or generated code instead of the facts
    #[arg(long, value_enum)]
    emit: Option<Emit>,
    /// Also explain the transfer to a GPU and the choice of `--device auto`
    #[arg(long, conflicts_with_all = ["json", "emit"])]
    explain: bool,
}

/// The stages that `--emit` can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Emit {
    /// The complete WGSL module: prelude and filter, with parameters resolved
    Wgsl,
    /// The compute shader for Vulkan, SPIR-V in binary form
    Spirv,
    /// Cranelift IR of the CPU code, before optimisation
    Clif,
    /// The CPU's vectorised code, as seen by one lane
    Lanes,
    /// The kernel in OpenCL C 1.2
    Opencl,
    /// The kernel in CUDA C++
    Cuda,
    /// The classic BPF source program, as `tcpdump -d` prints it
    Bpf,
}

/// Compiles the filter and prints its facts, its code, or its errors.
pub fn run(args: Args) -> Result<(), Failure> {
    let report = args.inspect()?;
    if let Some(report) = report.as_ref().filter(|it| it.programs.len() > 1 && !args.explain) {
        let text = if args.json {
            let mut line = object::json(report, errors_json);
            line["filter"] = json!(args.filter.name());
            line.to_string() + "\n"
        } else {
            object::text(report)
        };
        out::print(text)?;
        let all = report.programs.iter().all(|it| it.result.is_ok());
        return if all { Ok(()) } else { Err(Failure::Silent(FAILED)) };
    }
    let (program, instructions) = match args.filter.load_with_instructions() {
        Err(Failure::Filter(diagnostics)) => return report_errors(&args, *diagnostics, report.as_ref()),
        other => other?,
    };
    match args.emit {
        Some(Emit::Wgsl) => out::print(wgsl(&program)?),
        Some(Emit::Spirv) => {
            if io::stdout().is_terminal() {
                return Err(Failure::Usage(
                    "SPIR-V is binary: send it to a file (> filter.spv) or to spirv-dis".into(),
                ));
            }
            out::print(spirv(&program)?)
        }
        Some(Emit::Clif) => out::print(render_clif(&program)?),
        Some(Emit::Lanes) => out::print(lanes(&program)?),
        Some(Emit::Opencl) => out::print(c_source(&program, Language::OpenCl)?),
        Some(Emit::Cuda) => out::print(c_source(&program, Language::Cuda)?),
        Some(Emit::Bpf) => match instructions {
            Some(instructions) => out::print(disassemble(&instructions)),
            None => {
                Err(Failure::Error("this filter was not made of classic BPF, as expressions and .bpf files are".into()))
            }
        },
        None if args.json => {
            let mut line = facts_json(&program);
            if let Some(report) = &report {
                object::add_unused_parts(&mut line["object"], report, &program);
            }
            line["filter"] = json!(args.filter.name());
            out::print(line.to_string() + "\n")
        }
        None => {
            let (name, facts) = (args.filter.name(), facts_text(&program, report.as_ref()));
            let mut text = format!("{}: no errors\n{facts}", out::printable(&name));
            if args.explain {
                text += &explain::text(&[explain::transfer_of_filter(&program)]);
                text += &DeviceChoice::describe_prediction(&Arc::new(program));
            }
            out::print(text)
        }
    }
}

/// Reports why a filter does not compile; for an object, also what it holds.
fn report_errors(args: &Args, diagnostics: Diagnostics, report: Option<&ObjectReport>) -> Result<(), Failure> {
    if args.json {
        let mut line = json!({"ok": false, "errors": errors_json(&diagnostics)});
        if let Some(report) = report {
            line["object"] = object::json(report, errors_json);
        }
        line["filter"] = json!(args.filter.name());
        out::print(line.to_string() + "\n")?;
        return Err(Failure::Silent(code(&diagnostics)));
    }
    if let Some(report) = report {
        out::print(object::text(report))?;
    }
    Err(Failure::Filter(Box::new(diagnostics)))
}

impl Args {
    /// Inspects the whole object if the filter is an object and no program is named.
    fn inspect(&self) -> Result<Option<ObjectReport>, Failure> {
        if self.emit.is_some() {
            return Ok(None);
        }
        match self.filter.inspect() {
            // Loading the filter reports errors of the object as a whole.
            Err(Failure::Filter(_)) => Ok(None),
            report => report,
        }
    }
}

/// Diagnostics as JSON values.
fn errors_json(diagnostics: &Diagnostics) -> Vec<serde_json::Value> {
    let error = |error: &Diagnostic| {
        let source = &diagnostics.source;
        let start = error.labels.first().map(|label| label.range.start);
        let place = start.map(|start| source.location(start));
        json!({
            "file": start.map(|start| source.file_at(start).name),
            "line": place.map(|p| p.0), "column": place.map(|p| p.1),
            "message": error.message, "notes": error.notes,
        })
    };
    diagnostics.errors.iter().map(error).collect()
}

fn wgsl(program: &Program) -> Result<String, Failure> {
    use portcullis::naga::back::wgsl::{WriterFlags, write_string};
    write_string(program.module(), program.info(), WriterFlags::empty())
        .map_err(|error| Failure::Error(format!("this filter cannot be written as WGSL: {error}")))
}

#[cfg(feature = "wgpu")]
fn spirv(program: &Program) -> Result<Vec<u8>, Failure> {
    let words = portcullis::backend::wgpu::spirv(program)?;
    Ok(words.iter().flat_map(|word| word.to_le_bytes()).collect())
}

#[cfg(not(feature = "wgpu"))]
fn spirv(_: &Program) -> Result<Vec<u8>, Failure> {
    Err(Failure::Error("this build has no wgpu backend, which generates SPIR-V".into()))
}

#[cfg(feature = "cpu")]
fn render_clif(program: &Program) -> Result<String, Failure> {
    Ok(portcullis::backend::cpu::render_clif(program)?)
}

#[cfg(not(feature = "cpu"))]
fn render_clif(_: &Program) -> Result<String, Failure> {
    Err(Failure::Error("this build has no cpu backend, which generates Cranelift IR".into()))
}

#[cfg(feature = "cpu")]
fn lanes(program: &Program) -> Result<String, Failure> {
    let traced = portcullis::backend::cpu::vector::LaneProgram::trace(program);
    let traced = traced.map_err(|reason| Failure::Error(format!("this filter is not vectorised: {reason}")))?;
    Ok(traced.dump())
}

#[cfg(not(feature = "cpu"))]
fn lanes(_: &Program) -> Result<String, Failure> {
    Err(Failure::Error("this build has no cpu backend, which vectorises filters".into()))
}

/// Returns the kernel's source in OpenCL C or CUDA C++.
fn c_source(program: &Program, language: Language) -> Result<String, Failure> {
    Ok(write(program, &Options::new(language)).map_err(|error| Failure::Error(error.to_string()))?.source)
}

/// Describes which bytes of a packet a filter reads or writes.
fn window(window: Window) -> String {
    match window {
        Window::Nothing => "nothing".into(),
        Window::Bytes(n) => format!("the first {n} bytes"),
        Window::WholePacket => "any byte of the packet".into(),
    }
}

/// The metadata that a filter reads.
fn metadata(facts: &Facts) -> impl Iterator<Item = &'static str> {
    let all = [(facts.uses_wire_length, "length on the wire"), (facts.uses_port, "port"), (facts.uses_time, "time")];
    all.into_iter().filter(|(used, _)| *used).map(|(_, name)| name)
}

fn names(names: impl Iterator<Item = &'static str>) -> String {
    let names: Vec<&str> = names.collect();
    if names.is_empty() { "no".into() } else { names.join(", ") }
}

/// Size of a map on a device, in bytes.
fn bytes(map: &map::Declaration) -> u64 {
    4 * map::layout::Layout::of(map).words() as u64
}

/// Describes a map, its key and value columns, and the header of its CSV file.
fn map_text(program: &Program, map: &map::Declaration) -> String {
    if let Some(typed) = &map.typed {
        return object::map_text(map, typed, bytes(map));
    }
    if let Some((ring, definition)) = object::ring(program, map) {
        return object::ring_text(ring, definition, bytes(map));
    }
    let words = |n: u32| if n == 1 { "1 word".into() } else { format!("{n} words") };
    let sizes = match map.kind {
        MapKind::Array => format!("values of {}", words(map.value)),
        MapKind::Counter => "sums of 64 bits".into(),
        MapKind::Lpm => {
            let family = if map.key == 1 { "IPv4" } else { "IPv6" };
            format!("prefixes of {family}, values of {}", words(map.value))
        }
        MapKind::Hash | MapKind::LruHash => format!("keys of {}, values of {}", words(map.key), words(map.value)),
    };
    let entries = if map.entries == 1 { "entry" } else { "entries" };
    let (count, bytes) = (out::grouped(map.entries.into()), out::grouped(bytes(map)));
    let first = format!("{}: {}, {sizes}, {count} {entries}, {bytes} bytes of memory", map.name, map.kind);
    let columns = Columns::of(map);
    let list = |columns: &[Field]| match columns {
        [] => "nothing".into(),
        [first, .., last] if is_long(map, columns) => format!("{} to {} ({})", first.name, last.name, first.ty),
        _ => columns.iter().map(|it| format!("{} ({})", it.name, it.ty)).collect::<Vec<_>>().join(", "),
    };
    let names = |columns: &[Field]| match columns {
        [first, .., last] if is_long(map, columns) => format!("{},…,{}", first.name, last.name),
        _ => columns.iter().map(|it| it.name.as_str()).collect::<Vec<_>>().join(","),
    };
    let (key, value) = (list(&columns.key), list(&columns.value));
    let header: Vec<String> = [&columns.key, &columns.value].into_iter().map(|it| names(it)).collect();
    let notes = map.annotations.iter().flat_map(|annotations| &annotations.columns).copied();
    let header = header.iter().map(String::as_str).filter(|it| !it.is_empty()).chain(notes);
    let header = header.collect::<Vec<_>>().join(",");
    format!("{first}\n  key    {key}\n  value  {value}\n  CSV    {header}")
}

/// Whether unnamed columns are too many to list; the first and the last then stand for all.
fn is_long(map: &map::Declaration, columns: &[Field]) -> bool {
    map.fields.is_empty() && columns.len() > 8
}

fn facts_text(program: &Program, report: Option<&ObjectReport>) -> String {
    let facts = program.facts();
    let yes_no = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
    let iterations = match facts.max_iterations {
        Some(0) => "no loops".into(),
        Some(n) => format!("at most {n} iterations a packet (fuel: {})", program.fuel()),
        None => format!("no known bound; the fuel ends them after {} iterations", program.fuel()),
    };
    let parameter = |parameter: &Parameter| {
        let default = if parameter.is_default { "" } else { " (set)" };
        format!("{}={}{default}", parameter.name, out::printable(&parameter.value.to_string()))
    };
    let parameters: Vec<String> = program.parameters().iter().map(parameter).collect();
    let parameters = if parameters.is_empty() { "no".into() } else { parameters.join(", ") };
    // One map per line.
    let mut maps: Vec<_> = program.maps().iter().map(|map| ("", map_text(program, map))).collect();
    match maps.first_mut() {
        Some(first) => first.0 = "maps",
        None => maps.push(("maps", "no".into())),
    }
    out::table(
        [
            ("parameters", parameters),
            ("reads", window(facts.reads)),
            ("writes", window(facts.writes)),
            ("changes lengths", yes_no(facts.changes_length)),
            ("verdicts", names(facts.verdicts.iter().map(Action::name))),
            ("reads metadata", names(metadata(facts))),
            ("loops", iterations),
            ("flows", flows_text(program)),
            ("64-bit integers", yes_no(facts.uses_int64)),
            (
                "floating point",
                if facts.uses_float { "yes: results may differ between devices".into() } else { yes_no(false) },
            ),
        ]
        .into_iter()
        .chain(portcullis::frontend::xdp::ObjectInfo::of(program).map(object::rows).unwrap_or_default())
        .chain(maps)
        .chain(report.map(|report| object::unused_parts(report, program)).unwrap_or_default())
        .map(|(name, value)| vec![format!("  {name}"), value])
        .collect(),
        &[],
    )
}

/// Which packets may be filtered at the same time, as far as that is not all.
fn flows_text(program: &Program) -> String {
    let text = if program.has_flows() {
        "in order, by `xdp_flow`; each thread of a CPU filters some of them"
    } else if program.can_be_partitioned_by_search() {
        "no; each thread of a CPU filters some of the keys, if that is faster"
    } else {
        "no"
    };
    text.into()
}

fn facts_json(program: &Program) -> serde_json::Value {
    let facts = program.facts();
    // Bytes from the start: 0 is nothing, null is no known bound.
    let window = |window| match window {
        Window::Nothing => json!(0),
        Window::Bytes(n) => json!(n),
        Window::WholePacket => json!(null),
    };
    let of_object = portcullis::frontend::xdp::ObjectInfo::of(program).map(|origin| {
        json!({
            "file": origin.object, "program": origin.program, "helpers": origin.helpers,
            "variables": object::variables(&origin.globals), "traps": object::sites_json(&origin.traps),
            "losses": object::sites_json(&origin.lost_updates),
            "copies": object::copies_json(&origin.copies),
        })
    });
    json!({
        "ok": true,
        "parameters": parameters_json(program),
        "maps": maps_json(program),
        "object": of_object,
        "facts": {
            "reads_bytes": window(facts.reads),
            "writes_bytes": window(facts.writes),
            "changes_length": facts.changes_length,
            "redirects": facts.redirects,
            "verdicts": facts.verdicts.iter().map(Action::name).collect::<Vec<_>>(),
            "uses_metadata": facts.uses_metadata,
            "uses_time": facts.uses_time,
            "has_flows": program.has_flows(),
            "max_iterations": facts.max_iterations,
            "fuel": program.fuel(),
            "uses_int64": facts.uses_int64,
            "uses_float": facts.uses_float,
        },
    })
}

/// The parameters of a filter with their values, as JSON.
pub fn parameters_json(program: &Program) -> Vec<serde_json::Value> {
    let parameter = |parameter: &Parameter| {
        let value = match &parameter.value {
            ParameterValue::U32(value) => json!(value),
            ParameterValue::I32(value) => json!(value),
            ParameterValue::Bool(value) => json!(value),
            ParameterValue::F32(value) => json!(value),
            ParameterValue::Text(value) => json!(value),
        };
        json!({"name": parameter.name, "value": value, "default": parameter.is_default})
    };
    program.parameters().iter().map(parameter).collect()
}

/// The maps of a filter with their sizes and columns, as JSON.
pub fn maps_json(program: &Program) -> Vec<serde_json::Value> {
    let fields = |fields: &[Field]| -> Vec<_> {
        fields.iter().map(|field| json!({"name": field.name, "form": field.ty.name()})).collect()
    };
    let map = |declared: &map::Declaration| {
        if let Some((ring, definition)) = object::ring(program, declared) {
            return object::ring_json(ring, definition, bytes(declared));
        }
        let columns = Columns::of(declared);
        let mut map = json!({
            "name": declared.name, "kind": declared.kind.name(), "key_words": declared.key,
            "value_words": declared.value, "entries": declared.entries, "bytes": bytes(declared),
            "key": fields(&columns.key), "value": fields(&columns.value), "csv_header": declared.csv_header(),
        });
        if let Some(typed) = &declared.typed {
            let [key, value] = object::fields(typed);
            (map["key"], map["value"]) = (json!(key), json!(value));
            map["object"] = object::of_types(typed);
        }
        map
    };
    program.maps().iter().map(map).collect()
}
