//! Golden tests of lowering: each `golden/NAME.wgsl`, lowered with all passes, must match
//! `golden/NAME.lowered.wgsl`, and stock filters in OpenCL C, before any pass,
//! `golden/opencl_c/NAME.wgsl`.
//!
//! Functions of the prelude are left out of the golden files; the test checks that no pass changes
//! them. An entry point is added to lowered modules, as a backend does. `UPDATE_GOLDEN=1` writes
//! the files instead; review the diff before committing.

use std::fs;
use std::path::{Path, PathBuf};

use naga::valid::{Capabilities, ValidationFlags, Validator};
use naga::{
    Binding, Block, BuiltIn, EntryPoint, Expression, Function, FunctionArgument, Range, Scalar, ShaderStage, Span,
    Statement, Type, TypeInner, VectorSize,
};
use portcullis_core::diagnostics::Source;
use portcullis_core::program::{Lowered, Lowering, Program, ProgramOptions, lower};
use portcullis_opencl_c::{self as opencl_c, files::NoIncludes};
use portcullis_wgsl as wgsl;

const ALL: Lowering = Lowering::SPIRV;

/// Prefixes of the declarations of the prelude's types, constants and buffers.
const PRELUDE_DATA: [&str; 10] = [
    "struct pc_metadata",
    "const XDP_",
    "const ETH_P_",
    "const IPPROTO_",
    "@group",
    "var<storage",
    "var<private> pc_offset",
    "var<private> pc_length",
    "var<private> pc_first",
    "var<private> pc_last",
];

/// Maximum length in lines of OpenCL C filters with golden files, which a reviewer reads whole.
/// Longer ones run beside their WGSL forms in `stock_filters.rs` and `stateful_filters.rs`.
const MAX_LINES: usize = 100;

fn sources() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden");
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "wgsl") && !path.to_string_lossy().contains(".lowered."))
        .collect();
    paths.sort();
    assert!(paths.len() >= 3, "golden files are missing");
    paths
}

fn program(path: &Path) -> Program {
    let source = Source::new(path.to_string_lossy(), fs::read_to_string(path).unwrap());
    wgsl::compile(&source, &ProgramOptions::default()).unwrap_or_else(|e| panic!("{}", e.render()))
}

/// Returns the module with an entry point that filters the packet of the invocation's number and
/// writes the verdict to the arena.
fn with_entry(lowered: &Lowered) -> naga::Module {
    let mut module = lowered.module.clone();
    let mut ty = |inner| module.types.insert(Type { name: None, inner }, Span::UNDEFINED);
    let vec3 = ty(TypeInner::Vector { size: VectorSize::Tri, scalar: Scalar::U32 });
    let mut entry = Function::default();
    entry.arguments.push(FunctionArgument {
        name: Some("invocation".into()),
        ty: vec3,
        binding: Some(Binding::BuiltIn(BuiltIn::GlobalInvocationId)),
    });
    let mut add = |e| entry.expressions.append(e, Span::UNDEFINED);
    let invocation = add(Expression::FunctionArgument(0));
    let arena = add(Expression::GlobalVariable(lowered.internals.arena));
    let packet = add(Expression::AccessIndex { base: invocation, index: 0 });
    let place = add(Expression::Access { base: arena, index: packet });
    let mut body = Block::from_vec(vec![Statement::Emit(Range::new_from_bounds(packet, place))]);
    let verdict = lowered.emit_packet(&mut entry, &mut body, packet);
    body.push(Statement::Store { pointer: place, value: verdict }, Span::UNDEFINED);
    body.push(Statement::Return { value: None }, Span::UNDEFINED);
    entry.body = body;
    module.entry_points.push(EntryPoint {
        name: "main".into(),
        stage: ShaderStage::Compute,
        early_depth_test: None,
        workgroup_size: [64, 1, 1],
        workgroup_size_overrides: None,
        function: entry,
        mesh_info: None,
        task_payload: None,
        incoming_ray_payload: None,
    });
    module
}

fn text(module: &naga::Module, capabilities: Capabilities) -> String {
    let info = Validator::new(ValidationFlags::all(), capabilities)
        .validate(module)
        .unwrap_or_else(|e| panic!("{}", e.emit_to_string("")));
    naga::back::wgsl::write_string(module, &info, naga::back::wgsl::WriterFlags::empty()).unwrap()
}

fn spirv(module: &naga::Module, capabilities: Capabilities) {
    let info = Validator::new(ValidationFlags::all(), capabilities).validate(module).unwrap();
    naga::back::spv::write_vec(module, &info, &naga::back::spv::Options::default(), None).unwrap();
}

/// Splits a module's source into declarations, which begin in the first column.
fn declarations(text: &str) -> Vec<String> {
    let mut declarations: Vec<String> = Vec::new();
    for line in text.lines() {
        let continues = line.is_empty() || line.starts_with([' ', '}']);
        match declarations.last_mut() {
            Some(item) if continues => *item = format!("{item}\n{line}"),
            _ => declarations.push(line.to_owned()),
        }
    }
    declarations.iter().map(|item| item.trim_end().to_owned()).collect()
}

/// Removes the numbers by which the writer makes names unique (`_e12`, `low_1`), because passes may
/// change them.
fn without_numbers(item: &str) -> String {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    item.split_inclusive(|c| !is_name(c))
        .map(|word| {
            let name = word.trim_end_matches(|c| !is_name(c));
            let short = name.trim_end_matches(|c: char| c.is_ascii_digit());
            let numbered = short.len() < name.len() && (short == "_e" || short.ends_with('_'));
            let kept = if numbered { short.trim_end_matches('_') } else { name };
            format!("{kept}{}", &word[name.len()..])
        })
        .collect()
}

/// Returns the forms in which the writer begins a function.
fn heads(function: &Function) -> [String; 2] {
    let name = function.name.as_deref().unwrap();
    // The writer appends an underscore to names that end in a digit.
    [format!("fn {name}("), format!("fn {name}_(")]
}

/// Compares with a golden file, or writes it with `UPDATE_GOLDEN=1`.
fn check_golden(path: &Path, got: &str) {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        return fs::write(path, got).unwrap();
    }
    let want = fs::read_to_string(path).unwrap_or_default();
    assert_eq!(got, want, "{} differs; UPDATE_GOLDEN=1 rewrites it", path.display());
}

#[test]
fn opencl_c_filters_match_their_golden_files() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut count = 0;
    for entry in fs::read_dir(folder.join("../shaders")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "cl") {
            continue;
        }
        let filter = fs::read_to_string(&path).unwrap();
        if filter.lines().count() > MAX_LINES {
            continue;
        }
        let source = Source::new(path.to_string_lossy(), filter);
        let program = opencl_c::compile(&source, &ProgramOptions::default(), &mut NoIncludes);
        let program = program.unwrap_or_else(|e| panic!("{}", e.render()));
        let functions = program.module().functions.iter().filter(|(f, _)| program.is_prelude(*f));
        let prelude: Vec<String> = functions.flat_map(|(_, f)| heads(f)).collect();
        let is_own = |item: &&String| {
            !PRELUDE_DATA.iter().any(|h| item.starts_with(h)) && !prelude.iter().any(|h| item.starts_with(h))
        };
        let all = declarations(&text(program.module(), Capabilities::SHADER_INT64));
        let own: Vec<&str> = all.iter().filter(is_own).map(String::as_str).collect();
        let name = Path::new(path.file_stem().unwrap()).with_extension("wgsl");
        check_golden(&folder.join("golden/opencl_c").join(name), &(own.join("\n\n") + "\n"));
        count += 1;
    }
    assert!(count >= 9, "stock filters are missing");
}

#[test]
fn lowered_filters_match_their_golden_files() {
    for path in sources() {
        let program = program(&path);
        let lowered = lower(&program, ALL).unwrap();
        let functions = program.module().functions.iter();
        let own: Vec<_> = functions.filter(|(f, _)| !program.is_prelude(*f)).flat_map(|(_, f)| heads(f)).collect();
        // Specialisations of a function have its name with a number appended.
        let is_own = |item: &&String| {
            let plain = without_numbers(item);
            own.iter().any(|head| item.starts_with(head) || plain.starts_with(head))
        };
        // Functions added by passes belong to the prelude, but the original module does not have
        // them.
        let functions = program.module().functions.iter();
        let prelude: Vec<_> = functions.filter(|(f, _)| program.is_prelude(*f)).flat_map(|(_, f)| heads(f)).collect();
        let is_prelude = |item: &&String| prelude.iter().any(|head| item.starts_with(head));
        // Lowering must remove 64-bit integers, so the capability is not granted.
        let after = declarations(&text(&with_entry(&lowered), Capabilities::empty()));
        let before = declarations(&text(program.module(), Capabilities::SHADER_INT64));
        let old: Vec<String> = before.iter().filter(is_prelude).map(|item| without_numbers(item)).collect();
        let new: Vec<String> = after.iter().filter(is_prelude).map(|item| without_numbers(item)).collect();
        assert_eq!(old, new, "{}: a pass changed the prelude", path.display());

        let is_data = |item: &&String| PRELUDE_DATA.iter().any(|head| item.starts_with(head));
        let got: Vec<String> =
            after
                .iter()
                .filter(|item| {
                    if item.starts_with("fn ") { is_own(item) || item.starts_with("fn main(") } else { !is_data(item) }
                })
                .cloned()
                .collect();
        let got = got.join("\n") + "\n";
        check_golden(&path.with_extension("lowered.wgsl"), &got);
    }
}

/// Every combination of passes produces a valid module.
#[test]
fn every_combination_of_passes_validates() {
    for path in sources() {
        let program = program(&path);
        for passes in 0..128 {
            let lowering = Lowering {
                fuel: passes & 1 != 0,
                clamp_indices: passes & 2 != 0,
                int64: passes & 4 != 0,
                mask_shifts: passes & 8 != 0,
                whole_pointers: passes & 16 != 0,
                if_convert: passes & 32 != 0,
                if_convert_all: passes & 64 != 0,
            };
            let lowered = lower(&program, lowering).unwrap_or_else(|e| panic!("{} {lowering:?}: {e}", path.display()));
            let capabilities = if lowering.int64 { Capabilities::empty() } else { Capabilities::SHADER_INT64 };
            text(&with_entry(&lowered), capabilities);
            if lowering.whole_pointers {
                spirv(&with_entry(&lowered), capabilities);
            }
        }
    }
}
