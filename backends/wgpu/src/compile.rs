//! From a program to the kernel that runs it: one compute entry point, an invocation a packet.
//!
//! ```wgsl
//! @group(0) @binding(3) var<storage, read_write> pc_verdicts: array<u32>;
//! struct pc_launch { base: u32, count: u32, row: u32, pad: u32 }
//! @group(0) @binding(4) var<uniform> pc_launched: pc_launch;
//!
//! @compute @workgroup_size(WORKGROUP)
//! fn main(@builtin(global_invocation_id) id: vec3<u32>) {
//!     let lane = id.x + id.y * pc_launched.row;
//!     if lane >= pc_launched.count { return; }
//!     let packet = pc_launched.base + lane;
//!     pc_verdicts[packet] = ...;    // `Lowered::packet`
//! }
//! ```
//!
//! Of a filter with flows an invocation takes a run of packets, which a descriptor behind the packets' tells of:
//!
//! ```wgsl
//!     let run = pc_descriptors[pc_launched.base + lane];
//!     packet = run.x;
//!     loop {
//!         if packet - run.x >= run.y { break; }
//!         // Private variables are set back.
//!         pc_verdicts[packet] = ...;
//!         packet = packet + 1u;
//!     }
//! ```
//!
//! Bindings 0 to 2 are the prelude's, as `docs/abi.md` lays them out; a kernel has those of them
//! that its filter uses. The grid has two dimensions because one is at most 65,535 groups long.

use naga::compact::{KeepUnused, compact};
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::{Capabilities, GlobalUse, ModuleInfo, ValidationFlags, Validator};
use naga::{
    AddressSpace, ArraySize, BinaryOperator, Binding, Block, BuiltIn, EntryPoint, Expression, Function,
    FunctionArgument, GlobalVariable, Handle, Literal, LocalVariable, Module, Range, ResourceBinding, Scalar,
    ShaderStage, Span, Statement, StorageAccess, StructMember, Type, TypeInner, VectorSize,
};
use portcullis_core::device::DeviceError;
use portcullis_core::map::BIND_GROUP;
use portcullis_core::program::Program;
use portcullis_core::program::passes::{Lowered, Lowering, inlined_nesting, inlined_size, lower};

/// The entry point's name.
pub(crate) const ENTRY: &str = "main";

/// Invocations in a work group where nobody has said how many: a multiple of every GPU's lane count, and no
/// more than any device takes.
pub(crate) const WORKGROUP: u32 = 64;

/// Bindings in group 0.
pub(crate) const ARENA: u32 = 0;
pub(crate) const DESCRIPTORS: u32 = 1;
pub(crate) const METADATA: u32 = 2;
pub(crate) const VERDICTS: u32 = 3;
pub(crate) const LAUNCH: u32 = 4;

/// What one launch of the kernel covers, as the kernel reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Launch {
    /// The index of the first packet, or of the first run's descriptor.
    pub base: u32,
    /// Number of packets, or of runs.
    pub count: u32,
    /// Invocations in a row of the grid.
    pub row: u32,
}

impl Launch {
    /// Bytes of it in a buffer.
    pub const SIZE: u64 = 16;

    pub fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        for (at, word) in [self.base, self.count, self.row, 0].into_iter().enumerate() {
            bytes[at * 4..][..4].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// A module with its entry point, and what it touches.
pub(crate) struct Kernel {
    pub module: Module,
    pub info: ModuleInfo,
    /// How the kernel uses the arena; `None` for a filter that looks at no packet.
    pub arena: Option<StorageAccess>,
    /// How it uses the descriptors.
    pub descriptors: Option<StorageAccess>,
    /// Whether it reads metadata.
    pub metadata: bool,
    /// The filter's maps that it uses, by their numbers.
    pub maps: Vec<u32>,
    /// Whether it takes packets in the order of their flows.
    pub flows: bool,
}

impl Kernel {
    /// Whether packets may come back with other bytes.
    pub fn writes_packets(&self) -> bool {
        self.arena.is_some_and(|access| access.contains(StorageAccess::STORE))
    }

    /// Whether packets may come back with other ends.
    pub fn resizes_packets(&self) -> bool {
        self.descriptors.is_some_and(|access| access.contains(StorageAccess::STORE))
    }

    /// Number of storage buffers, those of maps and the verdicts' included.
    pub fn buffers(&self) -> usize {
        let optional = [self.arena.is_some(), self.descriptors.is_some(), self.metadata];
        1 + optional.into_iter().filter(|&is_there| is_there).count() + self.maps.len()
    }

    /// Number of expressions with every function inlined where it is called, which is what drivers
    /// compile and devices run. The verifier's limit is about the filter as it was written: it takes
    /// a prelude function and a 64-bit operation for one expression each.
    pub fn inlined(&self) -> u64 {
        inlined_size(&self.module, &self.module.entry_points[0].function)
    }

    /// Levels of branches in each other that a compiler without jumps makes of it.
    pub fn nested(&self) -> u64 {
        inlined_nesting(&self.module, &self.module.entry_points[0].function)
    }
}

/// Lowers a program for any device, with `group` invocations in a work group.
///
/// 64-bit integers always become pairs of words, also for a device that has them: naga's SPIR-V
/// writer extends `i64(u32)` with the sign and `u64(i32)` with zeros, against our semantics, and
/// has no 64-bit bit counting at all. GPUs make pairs of them anyway.
///
/// # Errors
/// A reason, where a pass went wrong; that is a fault of Portcullis.
pub(crate) fn kernel(program: &Program, group: u32) -> Result<Kernel, String> {
    let lowered = lower(program, Lowering::SPIRV).map_err(|error| error.to_string())?;
    let mut module = lowered.module.clone();
    let entry = entry(&mut module, &lowered, group, program.has_flows())?;
    module.entry_points.push(entry);
    compact(&mut module, KeepUnused::No);

    // What is only read is declared so: then no device keeps writes in mind.
    let info = validate(&module)?;
    let entry = info.get_entry_point(0);
    let mut used = [None; 3];
    for (handle, global) in module.global_variables.iter() {
        if let Some(binding) = global.binding.filter(|binding| binding.group == 0 && binding.binding <= METADATA) {
            let access = match entry[handle].contains(GlobalUse::WRITE) {
                true => StorageAccess::LOAD | StorageAccess::STORE,
                false => StorageAccess::LOAD,
            };
            used[binding.binding as usize] = Some((handle, access));
        }
    }
    for (handle, access) in used.into_iter().flatten() {
        module.global_variables.get_mut(handle).space = AddressSpace::Storage { access };
    }
    let info = validate(&module)?;
    let [arena, descriptors, metadata] = used.map(|used| used.map(|(_, access)| access));
    let bindings = module.global_variables.iter().filter_map(|(_, global)| global.binding);
    let maps = bindings.filter(|binding| binding.group == BIND_GROUP).map(|binding| binding.binding).collect();
    Ok(Kernel { module, info, arena, descriptors, metadata: metadata.is_some(), maps, flows: program.has_flows() })
}

/// The program as SPIR-V 1.3 words, as a Vulkan device gets it.
///
/// # Errors
/// [`DeviceError::Failed`] where it cannot be lowered, which is a fault of Portcullis.
pub fn spirv(program: &Program) -> Result<Vec<u32>, DeviceError> {
    use naga::back::spv;
    let failed = |reason: String| DeviceError::Failed { device: "wgpu".into(), reason };
    let kernel = kernel(program, WORKGROUP).map_err(failed)?;
    let options = spv::Options {
        lang_version: (1, 3),
        flags: spv::WriterFlags::DEBUG,
        bounds_check_policies: BoundsCheckPolicies {
            index: BoundsCheckPolicy::Unchecked,
            buffer: BoundsCheckPolicy::Unchecked,
            image_load: BoundsCheckPolicy::Unchecked,
            binding_array: BoundsCheckPolicy::Unchecked,
        },
        ..spv::Options::default()
    };
    spv::write_vec(&kernel.module, &kernel.info, &options, None).map_err(|error| failed(error.to_string()))
}

fn validate(module: &Module) -> Result<ModuleInfo, String> {
    Validator::new(ValidationFlags::all(), Capabilities::empty()).validate(module).map_err(|error| {
        format!("the kernel is not valid, which is a fault of Portcullis: {}", error.emit_to_string(""))
    })
}

/// Builds the entry point. With `flows` it takes packets in the order of their flows.
fn entry(module: &mut Module, lowered: &Lowered, group: u32, flows: bool) -> Result<EntryPoint, String> {
    let mut ty =
        |name: Option<&str>, inner| module.types.insert(Type { name: name.map(String::from), inner }, Span::UNDEFINED);
    let word = ty(None, TypeInner::Scalar(Scalar::U32));
    let id = ty(None, TypeInner::Vector { size: VectorSize::Tri, scalar: Scalar::U32 });
    let words = ty(None, TypeInner::Array { base: word, size: ArraySize::Dynamic, stride: 4 });
    let members = ["base", "count", "row", "pad"].into_iter().zip((0..).step_by(4));
    let members =
        members.map(|(name, offset)| StructMember { name: Some(name.into()), ty: word, binding: None, offset });
    let launch = ty(Some("pc_launch"), TypeInner::Struct { members: members.collect(), span: Launch::SIZE as u32 });
    let mut global = |name: &str, space, binding, ty| {
        let variable = GlobalVariable {
            name: Some(name.into()),
            space,
            binding: Some(ResourceBinding { group: 0, binding }),
            ty,
            init: None,
            memory_decorations: Default::default(),
        };
        module.global_variables.append(variable, Span::UNDEFINED)
    };
    let write = AddressSpace::Storage { access: StorageAccess::LOAD | StorageAccess::STORE };
    let verdicts = global("pc_verdicts", write, VERDICTS, words);
    let launched = global("pc_launched", AddressSpace::Uniform, LAUNCH, launch);

    let mut function = Function {
        name: Some(ENTRY.into()),
        arguments: vec![FunctionArgument {
            name: Some("id".into()),
            ty: id,
            binding: Some(Binding::BuiltIn(BuiltIn::GlobalInvocationId)),
        }],
        ..Function::default()
    };
    let mut add = |e| function.expressions.append(e, Span::UNDEFINED);
    let binary = |op, left, right| Expression::Binary { op, left, right };
    let id = add(Expression::FunctionArgument(0));
    let launch = add(Expression::GlobalVariable(launched));
    let verdicts = add(Expression::GlobalVariable(verdicts));
    let x = add(Expression::AccessIndex { base: id, index: 0 });
    let y = add(Expression::AccessIndex { base: id, index: 1 });
    let [base, count, row] = [0, 1, 2].map(|index| {
        let pointer = add(Expression::AccessIndex { base: launch, index });
        add(Expression::Load { pointer })
    });
    let rows = add(binary(BinaryOperator::Multiply, y, row));
    let lane = add(binary(BinaryOperator::Add, x, rows));
    let beyond = add(binary(BinaryOperator::GreaterEqual, lane, count));
    let index = add(binary(BinaryOperator::Add, base, lane));
    let mut body = Block::from_vec(vec![
        Statement::Emit(Range::new_from_bounds(x, beyond)),
        Statement::If {
            condition: beyond,
            accept: Block::from_vec(vec![Statement::Return { value: None }]),
            reject: Block::new(),
        },
        Statement::Emit(Range::new_from_bounds(index, index)),
    ]);
    match flows {
        true => run(module, &mut function, &mut body, lowered, verdicts, index)?,
        false => packet(&mut function, &mut body, lowered, verdicts, index),
    }
    body.push(Statement::Return { value: None }, Span::UNDEFINED);
    function.body = body;
    Ok(EntryPoint {
        name: ENTRY.into(),
        stage: ShaderStage::Compute,
        early_depth_test: None,
        workgroup_size: [group, 1, 1],
        workgroup_size_overrides: None,
        function,
        mesh_info: None,
        task_payload: None,
        incoming_ray_payload: None,
    })
}

/// Filters a packet, and writes its verdict.
fn packet(
    function: &mut Function,
    body: &mut Block,
    lowered: &Lowered,
    verdicts: Handle<Expression>,
    packet: Handle<Expression>,
) {
    let value = lowered.emit_packet(function, body, packet);
    let pointer = Expression::Access { base: verdicts, index: packet };
    let pointer = function.expressions.append(pointer, Span::UNDEFINED);
    body.push(Statement::Emit(Range::new_from_bounds(pointer, pointer)), Span::UNDEFINED);
    body.push(Statement::Store { pointer, value }, Span::UNDEFINED);
}

/// Filters the packets of a run, one after the other. `index` is the number of its descriptor.
fn run(
    module: &Module,
    function: &mut Function,
    body: &mut Block,
    lowered: &Lowered,
    verdicts: Handle<Expression>,
    index: Handle<Expression>,
) -> Result<(), String> {
    let word = module.types.iter().find(|(_, ty)| ty.inner == TypeInner::Scalar(Scalar::U32));
    let (word, _) = word.ok_or("a kernel without words")?;
    let variable = LocalVariable { name: Some("packet".into()), ty: word, init: None };
    let variable = function.local_variables.append(variable, Span::UNDEFINED);
    let mut add = |e| function.expressions.append(e, Span::UNDEFINED);
    let binary = |op, left, right| Expression::Binary { op, left, right };
    let variable = add(Expression::LocalVariable(variable));
    let one = add(Expression::Literal(Literal::U32(1)));
    let descriptors = add(Expression::GlobalVariable(lowered.internals.descriptors));
    let descriptor = add(Expression::Access { base: descriptors, index });
    let [first, packets] = [0, 1].map(|index| {
        let pointer = add(Expression::AccessIndex { base: descriptor, index });
        add(Expression::Load { pointer })
    });
    body.push(Statement::Emit(Range::new_from_bounds(descriptor, packets)), Span::UNDEFINED);
    body.push(Statement::Store { pointer: variable, value: first }, Span::UNDEFINED);

    let at = add(Expression::Load { pointer: variable });
    let done = add(binary(BinaryOperator::Subtract, at, first));
    let ends = add(binary(BinaryOperator::GreaterEqual, done, packets));
    let mut turn = Block::from_vec(vec![
        Statement::Emit(Range::new_from_bounds(at, ends)),
        Statement::If { condition: ends, accept: Block::from_vec(vec![Statement::Break]), reject: Block::new() },
    ]);
    for (global, init) in lowered.private_variables() {
        let pointer = function.expressions.append(Expression::GlobalVariable(global), Span::UNDEFINED);
        let value = match init {
            Some(init) => constant(module, function, &mut turn, init)?,
            None => {
                let zero = Expression::ZeroValue(module.global_variables[global].ty);
                function.expressions.append(zero, Span::UNDEFINED)
            }
        };
        turn.push(Statement::Store { pointer, value }, Span::UNDEFINED);
    }
    packet(function, &mut turn, lowered, verdicts, at);
    let next = function.expressions.append(binary(BinaryOperator::Add, at, one), Span::UNDEFINED);
    turn.push(Statement::Emit(Range::new_from_bounds(next, next)), Span::UNDEFINED);
    turn.push(Statement::Store { pointer: variable, value: next }, Span::UNDEFINED);
    let turns = Statement::Loop { body: turn, continuing: Block::new(), break_if: None };
    body.push(turns, Span::UNDEFINED);
    Ok(())
}

/// A constant of the module as an expression of a function; what of it has to be emitted is.
fn constant(
    module: &Module,
    function: &mut Function,
    body: &mut Block,
    init: Handle<Expression>,
) -> Result<Handle<Expression>, String> {
    let mut inner = |part| constant(module, function, body, part);
    let (expression, emits) = match module.global_expressions[init] {
        ref plain @ (Expression::Literal(_) | Expression::Constant(_) | Expression::ZeroValue(_)) => {
            (plain.clone(), false)
        }
        Expression::Compose { ty, ref components } => {
            let components = components.iter().map(|part| inner(*part)).collect::<Result<_, _>>()?;
            (Expression::Compose { ty, components }, true)
        }
        Expression::Splat { size, value } => (Expression::Splat { size, value: inner(value)? }, true),
        ref other => return Err(format!("a private variable begins with {other:?}")),
    };
    let handle = function.expressions.append(expression, Span::UNDEFINED);
    if emits {
        body.push(Statement::Emit(Range::new_from_bounds(handle, handle)), Span::UNDEFINED);
    }
    Ok(handle)
}

#[cfg(test)]
mod tests {
    use super::*;
    use portcullis_core::diagnostics::Source;
    use portcullis_core::program::ProgramOptions;
    use portcullis_wgsl as wgsl;

    fn kernel_of(body: &str) -> Kernel {
        let text = format!("fn xdp_filter(pkt: u32) -> u32 {{ {body} return XDP_PASS; }}");
        let program = wgsl::compile(&Source::new("f.wgsl", text), &ProgramOptions::default());
        kernel(&program.unwrap_or_else(|e| panic!("{}", e.render())), WORKGROUP).unwrap()
    }

    #[test]
    fn a_kernel_binds_what_its_filter_uses_and_no_more() {
        let (read, write) = (Some(StorageAccess::LOAD), Some(StorageAccess::LOAD | StorageAccess::STORE));
        for (body, arena, descriptors, metadata) in [
            ("", None, read, false),
            ("if pkt_port(pkt) == 1u { return XDP_DROP; }", None, read, true),
            ("if load_u8(pkt, 0u) == 1u { return XDP_DROP; }", read, read, false),
            ("store_u8(pkt, 0u, 1u);", write, read, false),
            ("if !adjust_head(pkt, 4) { return XDP_DROP; }", write, write, false),
        ] {
            let kernel = kernel_of(body);
            assert_eq!((kernel.arena, kernel.descriptors, kernel.metadata), (arena, descriptors, metadata), "{body}");
            let bindings = 3 + usize::from(arena.is_some()) + usize::from(metadata);
            let bound = kernel.module.global_variables.iter().filter(|(_, global)| global.binding.is_some());
            assert_eq!(bound.count(), bindings, "{body}");
        }
    }
}
