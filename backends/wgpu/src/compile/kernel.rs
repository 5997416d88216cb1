//! The kernel of a program in naga IR: a compute entry point that filters one packet in each
//! invocation.
//!
//! ```wgsl
//! @group(0) @binding(3) var<storage, read_write> pc_verdicts: array<u32>;
//! struct pc_launch {
//!     base: u32, count: u32, row: u32, pad: u32,
//!     format: u32, first: u32, stride: u32, length: u32,    // `DescriptorRule`
//! }
//! @group(0) @binding(4) var<uniform> pc_launched: pc_launch;
//!
//! @compute @workgroup_size(WORKGROUP_SIZE)
//! fn main(@builtin(global_invocation_id) id: vec3<u32>) {
//!     let lane = id.x + id.y * pc_launched.row;
//!     if lane >= pc_launched.count { return; }
//!     let packet = pc_launched.base + lane;
//!     pc_verdicts[packet] = ...;    // `Lowered::emit_packet`
//! }
//! ```
//!
//! With flows, an invocation filters a run of packets, described by a descriptor after those of the
//! packets:
//!
//! ```wgsl
//!     let run = pc_descriptors[pc_launched.base + lane];
//!     var at = run.x;
//!     loop {
//!         if at - run.x >= run.y { break; }
//!         // Private variables are reset. The packets' numbers are behind the descriptors.
//!         packet = pc_descriptors[at >> 1u][at & 1u];
//!         pc_verdicts[packet] = ...;
//!         at = at + 1u;
//!     }
//! ```
//!
//! Otherwise, and unless the kernel writes them back, descriptors are found by the rule in the last
//! four words of `pc_launched` (`docs/reference/abi.md`, "Descriptor formats"), in `pc_enter`:
//!
//! ```wgsl
//! @group(0) @binding(1) var<storage> pc_descriptors: array<u32>;
//! ```
//!
//! Bindings 0 to 2 are the prelude's (`docs/reference/abi.md`); a kernel has those that its filter
//! uses. The grid has two dimensions because one is limited to 65,535 groups.

use naga::compact::{KeepUnused, compact};
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::{Capabilities, GlobalUse, ModuleInfo, ValidationFlags, Validator};
use naga::{
    AddressSpace, ArraySize, BinaryOperator, Binding, Block, BuiltIn, EntryPoint, Expression, Function,
    FunctionArgument, GlobalVariable, Handle, Literal, LocalVariable, Module, Range, ResourceBinding, Scalar,
    ShaderStage, Span, Statement, StorageAccess, StructMember, Type, TypeInner, VectorSize,
};
use portcullis_core::device::DeviceError;
use portcullis_core::device::descriptor_format::{DescriptorFormat, DescriptorRule, GROUP_PACKETS};
use portcullis_core::map::BIND_GROUP;
use portcullis_core::packet::RESIZE_ROOM;
use portcullis_core::program::Program;
use portcullis_core::program::passes::{Lowered, Lowering, inlined_nesting, inlined_size, lower};

/// Name of the entry point.
pub(crate) const ENTRY: &str = "main";

/// Default number of invocations in a work group: a multiple of every GPU's SIMD width, and
/// supported by every device.
pub(crate) const WORKGROUP_SIZE: u32 = 64;

/// Bindings in group 0.
pub(crate) const ARENA: u32 = 0;
pub(crate) const DESCRIPTORS: u32 = 1;
pub(crate) const METADATA: u32 = 2;
pub(crate) const VERDICTS: u32 = 3;
pub(crate) const LAUNCH: u32 = 4;

/// Parameters of one launch, as the kernel reads them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Launch {
    /// Index of the first packet, or of the first run's descriptor.
    pub base: u32,
    /// Number of packets, or of runs.
    pub count: u32,
    /// Invocations in a row of the grid.
    pub row: u32,
    /// How the kernel finds descriptors, if it takes a rule.
    pub rule: DescriptorRule,
}

impl Launch {
    /// Size in a buffer, in bytes.
    pub const SIZE: u64 = 32;

    pub fn bytes(self) -> [u8; Launch::SIZE as usize] {
        let DescriptorRule { format, first, stride, length } = self.rule;
        let words = [self.base, self.count, self.row, 0, format, first, stride, length];
        let mut bytes = [0; Launch::SIZE as usize];
        for (to, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        bytes
    }
}

/// A module with its entry point, and what that accesses.
pub(crate) struct Kernel {
    pub module: Module,
    pub info: ModuleInfo,
    /// How the kernel accesses the arena; `None` if the filter does not read packets.
    pub arena: Option<StorageAccess>,
    /// How the kernel accesses the descriptors.
    pub descriptors: Option<StorageAccess>,
    /// Whether the kernel reads metadata.
    pub metadata: bool,
    /// The maps that the kernel uses, by their numbers.
    pub maps: Vec<u32>,
    /// Whether the kernel filters packets in the order of their flows.
    pub flows: bool,
    /// Whether the kernel finds descriptors by a rule; else they are a table.
    pub takes_descriptor_rule: bool,
}

impl Kernel {
    /// Whether the kernel may change packets.
    pub fn writes_packets(&self) -> bool {
        self.arena.is_some_and(|access| access.contains(StorageAccess::STORE))
    }

    /// Whether the kernel may move the ends of packets.
    pub fn resizes_packets(&self) -> bool {
        self.descriptors.is_some_and(|access| access.contains(StorageAccess::STORE))
    }

    /// Number of storage buffers, including maps and verdicts.
    pub fn storage_buffers(&self) -> usize {
        let optional = [self.arena.is_some(), self.descriptors.is_some(), self.metadata];
        1 + optional.into_iter().filter(|&is_there| is_there).count() + self.maps.len()
    }

    /// Number of expressions with all calls inlined, which is what drivers compile. The verifier's
    /// limit applies to the filter as written, where a call of a prelude function and a 64-bit
    /// operation count as one expression each.
    pub fn inlined_size(&self) -> u64 {
        inlined_size(&self.module, &self.module.entry_points[0].function)
    }

    /// Depth of nested branches as a compiler without jumps sees it.
    pub fn inlined_nesting(&self) -> u64 {
        inlined_nesting(&self.module, &self.module.entry_points[0].function)
    }
}

/// Lowers a program for any device, with `group_size` invocations in a work group. With
/// `accepts_rule` it finds descriptors by a rule if it can.
///
/// 64-bit integers always become pairs of words, even if the device supports them: naga's SPIR-V
/// writer sign-extends `i64(u32)` and zero-extends `u64(i32)`, unlike our semantics, and has no
/// 64-bit bit counting. GPUs emulate them by pairs anyway.
///
/// # Errors
/// The reason if a pass fails, which is a bug in Portcullis.
pub(crate) fn lower_kernel(program: &Program, group_size: u32, accepts_rule: bool) -> Result<Kernel, String> {
    let lowered = lower(program, Lowering::SPIRV).map_err(|error| error.to_string())?;
    let mut module = lowered.module.clone();
    let launched = add_launch(&mut module);
    let takes_descriptor_rule = accepts_rule && !program.has_flows() && !program.facts().changes_length;
    if takes_descriptor_rule {
        find_by_rule(&mut module, &lowered, launched);
    }
    let entry = build_entry(&mut module, &lowered, launched, group_size, program.has_flows())?;
    module.entry_points.push(entry);
    compact(&mut module, KeepUnused::No);

    // Declare read-only what is only read, so that no driver has to assume writes.
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
    Ok(Kernel {
        module,
        info,
        arena,
        descriptors,
        metadata: metadata.is_some(),
        maps,
        flows: program.has_flows(),
        takes_descriptor_rule,
    })
}

/// Compiles the program to SPIR-V 1.3, as a Vulkan device gets it.
///
/// # Errors
/// [`DeviceError::Failed`] if it cannot be lowered, which is a bug in Portcullis.
pub fn spirv(program: &Program) -> Result<Vec<u32>, DeviceError> {
    use naga::back::spv;
    let failed = |reason: String| DeviceError::Failed { device: "wgpu".into(), reason };
    let kernel = lower_kernel(program, WORKGROUP_SIZE, true).map_err(failed)?;
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
    Validator::new(ValidationFlags::all(), Capabilities::empty())
        .validate(module)
        .map_err(|error| format!("the kernel is not valid, which is a bug in Portcullis: {}", error.emit_to_string("")))
}

/// Inserts a type.
fn add_type(module: &mut Module, name: Option<&str>, inner: TypeInner) -> Handle<Type> {
    module.types.insert(Type { name: name.map(String::from), inner }, Span::UNDEFINED)
}

/// Inserts the type of a buffer of words.
fn add_words_type(module: &mut Module) -> Handle<Type> {
    let base = add_type(module, None, TypeInner::Scalar(Scalar::U32));
    add_type(module, None, TypeInner::Array { base, size: ArraySize::Dynamic, stride: 4 })
}

/// Appends a variable of bind group 0.
fn add_global(
    module: &mut Module,
    name: &str,
    space: AddressSpace,
    binding: u32,
    ty: Handle<Type>,
) -> Handle<GlobalVariable> {
    let variable = GlobalVariable {
        name: Some(name.into()),
        space,
        binding: Some(ResourceBinding { group: 0, binding }),
        ty,
        init: None,
        memory_decorations: Default::default(),
    };
    module.global_variables.append(variable, Span::UNDEFINED)
}

/// Appends the parameters of a launch.
fn add_launch(module: &mut Module) -> Handle<GlobalVariable> {
    let word = add_type(module, None, TypeInner::Scalar(Scalar::U32));
    let names = ["base", "count", "row", "pad", "format", "first", "stride", "length"];
    let member =
        |(name, offset): (&str, u32)| StructMember { name: Some(name.into()), ty: word, binding: None, offset };
    let members = names.into_iter().zip((0..).step_by(4)).map(member).collect();
    let launch = add_type(module, Some("pc_launch"), TypeInner::Struct { members, span: Launch::SIZE as u32 });
    add_global(module, "pc_launched", AddressSpace::Uniform, LAUNCH, launch)
}

/// Replaces the body of `pc_enter` by one that finds the descriptor by the launch's rule. It has no
/// branches: a format without a table reads word 0.
fn find_by_rule(module: &mut Module, lowered: &Lowered, launched: Handle<GlobalVariable>) {
    use BinaryOperator as Op;
    let internals = &lowered.internals;
    module.global_variables.get_mut(internals.descriptors).ty = add_words_type(module);
    // Descriptors are not written back, and the function that would no longer fits their type.
    let leave = module.functions.get_mut(internals.leave);
    (leave.body, leave.expressions) = (Block::new(), naga::Arena::new());

    let mut expressions = naga::Arena::new();
    let mut add = |e| expressions.append(e, Span::UNDEFINED);
    let packet = add(Expression::FunctionArgument(0));
    let launch = add(Expression::GlobalVariable(launched));
    let table = add(Expression::GlobalVariable(internals.descriptors));
    let variables = [internals.offset, internals.length, internals.first, internals.last]
        .map(|variable| add(Expression::GlobalVariable(variable)));
    let [zero, one, four, sixteen, mask, group_bits, room] =
        [0, 1, 4, 16, 0xffff, GROUP_PACKETS.ilog2(), RESIZE_ROOM].map(|n| add(Expression::Literal(Literal::U32(n))));
    let formats = [DescriptorFormat::Table, DescriptorFormat::Grouped, DescriptorFormat::Lengths]
        .map(|format| add(Expression::Literal(Literal::U32(format as u32))));

    // From here on, expressions that have to be emitted.
    let start = expressions.len();
    let mut add = |e| expressions.append(e, Span::UNDEFINED);
    let [format, first, stride, common_length] = [4, 5, 6, 7].map(|index| {
        let pointer = add(Expression::AccessIndex { base: launch, index });
        add(Expression::Load { pointer })
    });
    let mut binary = |op, left, right| add(Expression::Binary { op, left, right });
    let is_format = formats.map(|number| binary(Op::Equal, format, number));
    let twice = binary(Op::ShiftLeft, packet, one);
    let grouped_word = binary(Op::Add, stride, packet);
    let lengths_word = binary(Op::ShiftRight, packet, one);
    let table_length_word = binary(Op::Add, twice, one);
    let group = binary(Op::ShiftRight, packet, group_bits);
    // The value whose format it is, or else the last.
    let choose = |add: &mut dyn FnMut(Expression) -> Handle<Expression>, values: [Handle<Expression>; 4]| {
        let choices = is_format.into_iter().zip(values).rev();
        choices.fold(values[3], |reject, (condition, accept)| add(Expression::Select { condition, accept, reject }))
    };
    let indices = [[twice, grouped_word, lengths_word, zero], [table_length_word, group, zero, zero]]
        .map(|values| choose(&mut add, values));
    let [word, other_word] = indices.map(|index| {
        let pointer = add(Expression::Access { base: table, index });
        add(Expression::Load { pointer })
    });
    let mut binary = |op, left, right| add(Expression::Binary { op, left, right });
    let distance = binary(Op::And, word, mask);
    let grouped_length = binary(Op::ShiftRight, word, sixteen);
    let distance = binary(Op::Add, other_word, distance);
    let grouped_offset = binary(Op::Multiply, distance, four);
    let distance = binary(Op::Multiply, packet, stride);
    let strided_offset = binary(Op::Add, first, distance);
    let is_odd = binary(Op::And, packet, one);
    let shift = binary(Op::Multiply, is_odd, sixteen);
    let shifted = binary(Op::ShiftRight, word, shift);
    let short_length = binary(Op::And, shifted, mask);
    let offset = choose(&mut add, [word, grouped_offset, strided_offset, strided_offset]);
    let length = choose(&mut add, [other_word, grouped_length, short_length, common_length]);
    let mut binary = |op, left, right| add(Expression::Binary { op, left, right });
    let lowest = binary(Op::Subtract, offset, room);
    let end = binary(Op::Add, offset, length);
    let highest = binary(Op::Add, end, room);

    let mut body = Block::new();
    body.push(Statement::Emit(expressions.range_from(start)), Span::UNDEFINED);
    for (pointer, value) in variables.into_iter().zip([offset, length, lowest, highest]) {
        body.push(Statement::Store { pointer, value }, Span::UNDEFINED);
    }
    body.push(Statement::Return { value: None }, Span::UNDEFINED);
    let enter = module.functions.get_mut(internals.enter);
    (enter.body, enter.expressions) = (body, expressions);
    enter.local_variables.clear();
    enter.named_expressions.clear();
}

/// Builds the entry point. With `flows` it filters packets in the order of their flows.
fn build_entry(
    module: &mut Module,
    lowered: &Lowered,
    launched: Handle<GlobalVariable>,
    group_size: u32,
    flows: bool,
) -> Result<EntryPoint, String> {
    let id = add_type(module, None, TypeInner::Vector { size: VectorSize::Tri, scalar: Scalar::U32 });
    let words = add_words_type(module);
    let write = AddressSpace::Storage { access: StorageAccess::LOAD | StorageAccess::STORE };
    let verdicts = add_global(module, "pc_verdicts", write, VERDICTS, words);

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
    let is_past_end = add(binary(BinaryOperator::GreaterEqual, lane, count));
    let index = add(binary(BinaryOperator::Add, base, lane));
    let mut body = Block::from_vec(vec![
        Statement::Emit(Range::new_from_bounds(x, is_past_end)),
        Statement::If {
            condition: is_past_end,
            accept: Block::from_vec(vec![Statement::Return { value: None }]),
            reject: Block::new(),
        },
        Statement::Emit(Range::new_from_bounds(index, index)),
    ]);
    match flows {
        true => emit_run(module, &mut function, &mut body, lowered, verdicts, index)?,
        false => emit_packet(&mut function, &mut body, lowered, verdicts, index),
    }
    body.push(Statement::Return { value: None }, Span::UNDEFINED);
    function.body = body;
    Ok(EntryPoint {
        name: ENTRY.into(),
        stage: ShaderStage::Compute,
        early_depth_test: None,
        workgroup_size: [group_size, 1, 1],
        workgroup_size_overrides: None,
        function,
        mesh_info: None,
        task_payload: None,
        incoming_ray_payload: None,
    })
}

/// Emits filtering one packet and storing its verdict.
fn emit_packet(
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

/// Emits a loop over the packets of a run, whose descriptor has the index `index`. It says where
/// the packets' numbers are, in words of the descriptors.
fn emit_run(
    module: &Module,
    function: &mut Function,
    body: &mut Block,
    lowered: &Lowered,
    verdicts: Handle<Expression>,
    index: Handle<Expression>,
) -> Result<(), String> {
    let word = module.types.iter().find(|(_, ty)| ty.inner == TypeInner::Scalar(Scalar::U32));
    let (word, _) = word.ok_or("a kernel without words")?;
    let variable = LocalVariable { name: Some("at".into()), ty: word, init: None };
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
    let processed = add(binary(BinaryOperator::Subtract, at, first));
    let is_done = add(binary(BinaryOperator::GreaterEqual, processed, packets));
    let mut iteration = Block::from_vec(vec![
        Statement::Emit(Range::new_from_bounds(at, is_done)),
        Statement::If { condition: is_done, accept: Block::from_vec(vec![Statement::Break]), reject: Block::new() },
    ]);
    for (global, init) in lowered.private_variables() {
        let pointer = function.expressions.append(Expression::GlobalVariable(global), Span::UNDEFINED);
        let value = match init {
            Some(init) => emit_constant(module, function, &mut iteration, init)?,
            None => {
                let zero = Expression::ZeroValue(module.global_variables[global].ty);
                function.expressions.append(zero, Span::UNDEFINED)
            }
        };
        iteration.push(Statement::Store { pointer, value }, Span::UNDEFINED);
    }
    // The descriptors are vectors of two words.
    let mut add = |e| function.expressions.append(e, Span::UNDEFINED);
    let index = add(binary(BinaryOperator::ShiftRight, at, one));
    let pair = add(Expression::Access { base: descriptors, index });
    let half = add(binary(BinaryOperator::And, at, one));
    let pointer = add(Expression::Access { base: pair, index: half });
    let packet = add(Expression::Load { pointer });
    iteration.push(Statement::Emit(Range::new_from_bounds(index, packet)), Span::UNDEFINED);
    emit_packet(function, &mut iteration, lowered, verdicts, packet);
    let next = function.expressions.append(binary(BinaryOperator::Add, at, one), Span::UNDEFINED);
    iteration.push(Statement::Emit(Range::new_from_bounds(next, next)), Span::UNDEFINED);
    iteration.push(Statement::Store { pointer: variable, value: next }, Span::UNDEFINED);
    let iterations = Statement::Loop { body: iteration, continuing: Block::new(), break_if: None };
    body.push(iterations, Span::UNDEFINED);
    Ok(())
}

/// Copies a constant expression of the module into a function, emitting it where needed.
fn emit_constant(
    module: &Module,
    function: &mut Function,
    body: &mut Block,
    init: Handle<Expression>,
) -> Result<Handle<Expression>, String> {
    let mut inner = |part| emit_constant(module, function, body, part);
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
        lower_kernel(&program.unwrap_or_else(|e| panic!("{}", e.render())), WORKGROUP_SIZE, true).unwrap()
    }

    #[test]
    fn a_kernel_binds_only_what_its_filter_uses() {
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
