//! `portcullis filters`: lists the stock filters, or prints the source of one.

use clap::ValueEnum;
use portcullis::diagnostics::Source;
use portcullis::frontend::wgsl;
use portcullis::program::{Program, ProgramOptions};
use portcullis::stock::{self, StockFilter};
use serde_json::{Value, json};

use super::check::{maps_json, parameters_json};
use super::failure::Failure;
use super::filter::{NameParser, unknown};
use super::out;

/// List the stock filters, or print one
///
/// Stock filters are named without a path: `portcullis run http_only --read FILE`. Each is written
/// in WGSL and once more in OpenCL C, where parameters have capital letters.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print the source of this filter
    #[arg(value_parser = NameParser, hide_possible_values = true)]
    name: Option<std::ffi::OsString>,
    /// Language of the source
    #[arg(long, value_enum, value_name = "LANGUAGE", default_value = "wgsl", requires = "name")]
    language: Language,
    /// Print one line of JSON instead of text
    #[arg(long)]
    json: bool,
}

/// The languages of stock filters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Language {
    /// The WebGPU shading language
    Wgsl,
    /// OpenCL C 1.2
    OpenclC,
}

/// Lists the filters, or prints the one that is named.
pub fn run(args: &Args) -> Result<(), Failure> {
    let Some(name) = &args.name else {
        let filters = stock::filters().map(|filter| Ok((filter, compile(&filter)?)));
        let filters = filters.collect::<Result<Vec<_>, Failure>>()?;
        if args.json {
            let filters: Vec<Value> = filters.iter().map(|(filter, program)| as_json(filter, program)).collect();
            return out::print(json!({ "filters": filters }).to_string() + "\n");
        }
        return out::print(as_text(&filters));
    };
    let name = name.to_string_lossy();
    let filter = stock::find(&name).ok_or_else(|| Failure::Usage(unknown(&name, None)))?;
    let source = match args.language {
        Language::Wgsl => filter.wgsl,
        Language::OpenclC => filter.opencl_c,
    };
    if !args.json {
        return out::print(source);
    }
    let mut line = as_json(&filter, &compile(&filter)?);
    line["language"] = json!(args.language.to_possible_value().map(|it| it.get_name().to_owned()));
    line["source"] = json!(source);
    out::print(line.to_string() + "\n")
}

fn compile(filter: &StockFilter) -> Result<Program, Failure> {
    let source = Source::new(format!("{}.wgsl", filter.name), filter.wgsl);
    Ok(wgsl::compile(&source, &ProgramOptions::default())?)
}

fn as_text(filters: &[(StockFilter, Program)]) -> String {
    let mut rows = Vec::new();
    for (filter, program) in filters {
        rows.push(vec![filter.name.to_owned(), filter.description()]);
        let parameters = program.parameters().iter().map(|it| format!("{}={}", it.name, it.value));
        let maps = program.maps().iter().map(|map| map.name.clone());
        for (what, names) in [("parameters", parameters.collect::<Vec<_>>()), ("maps", maps.collect())] {
            if !names.is_empty() {
                rows.push(vec![String::new(), format!("{what}: {}", names.join(", "))]);
            }
        }
    }
    format!("In WGSL and in OpenCL C (--language opencl-c):\n\n{}", out::wrapped_table(rows, &[]))
}

fn as_json(filter: &StockFilter, program: &Program) -> Value {
    let languages = Language::value_variants().iter().filter_map(Language::to_possible_value);
    json!({
        "name": filter.name, "description": filter.description(),
        "languages": languages.map(|it| it.get_name().to_owned()).collect::<Vec<_>>(),
        "parameters": parameters_json(program), "maps": maps_json(program),
    })
}
