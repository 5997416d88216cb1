//! The source file as a whole: which types, helpers and functions it needs, and the kernel around
//! them.

use portcullis_core::program::prelude::Intrinsic;
use std::collections::{HashMap, HashSet};

use naga::{AddressSpace, Expression, Function, Handle, Statement, TypeInner};
use portcullis_core::device::descriptor_format::{DescriptorFormat, GROUP_PACKETS};
use portcullis_core::device::metadata_format::ColumnFormat;
use portcullis_core::map::BIND_GROUP;
use portcullis_core::map::layout::{HEADER_WORDS, Layout};
use portcullis_core::packet::{Action, Metadata, MetadataFields, RESIZE_ROOM};
use portcullis_core::program::Lowered;
use portcullis_core::program::passes::inlined_size;

use crate::dialect::CombinedAdd;
use crate::function::{FissionLoop, FunctionWriter, LOADED};
use crate::prelude::{FAR_SUFFIX, LOADS_SUFFIX, PACKET_TYPE, intrinsic_name};
use crate::scope::Scope;
use crate::{Argument, EntryKind, FISSION_PACKETS, Kernel, PacketAccess, Result, WriteError, Writer};

/// Members of the packet struct that hold metadata, in the order of [`Metadata`]'s words.
const METADATA_MEMBERS: [&str; 5] = ["wire_length", "port", "time_low", "time_high", "time_ms"];

/// How a function is called.
#[derive(Debug, Clone)]
pub(crate) struct FunctionSignature {
    pub name: String,
    /// Indices of the parameters that are the packet.
    packets: HashSet<u32>,
    /// Whether the invocation's state is passed before the parameters, because none of them is the
    /// packet.
    pub extra_state: bool,
    /// Whether the function has no side effects.
    is_pure: bool,
    /// Name of the variant for calls whose result nobody takes, if there is one: additions of a
    /// warp's threads to one word become one.
    pub combined: Option<String>,
    /// Name of the variant for the first loop, if it loads from packets and loops are split.
    pub loads: Option<String>,
}

/// A form in which a function is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    Plain,
    /// Additions to a word of a map are combined with those of other threads; the result has no
    /// meaning.
    Combined,
    /// What the function loads from packets is stored in an array.
    Loads,
}

impl Variant {
    /// Name of the variant, unless it is the function's own or the function lacks the variant.
    fn name(self, signature: &FunctionSignature) -> Option<&String> {
        match self {
            Variant::Plain => None,
            Variant::Combined => signature.combined.as_ref(),
            Variant::Loads => signature.loads.as_ref(),
        }
    }
}

/// Results of analysing the call graph.
struct CallAnalysis {
    /// Reachable functions, callees first, which is the order in which they are written.
    order: Vec<Handle<Function>>,
    packets: HashMap<Handle<Function>, HashSet<u32>>,
    state: HashSet<Handle<Function>>,
    pure: HashSet<Handle<Function>>,
}

impl Writer<'_> {
    /// Whether a call has no side effects, so that it may be moved to where its result is used.
    pub(crate) fn is_pure(&self, function: Handle<Function>) -> bool {
        match self.lowered.intrinsics.get(&function) {
            Some(intrinsic) => is_pure(*intrinsic),
            None => self.signatures.get(&function).is_some_and(|signature| signature.is_pure),
        }
    }

    /// Whether the filter may change packets.
    pub(crate) fn writes_packets(&self) -> bool {
        self.program.facts().rewrites()
    }

    /// Whether offsets from the packet's first byte have the same alignment as addresses.
    pub(crate) fn is_word_aligned(&self) -> bool {
        self.options.packet_access == PacketAccess::AlignedWords && !self.program.facts().changes_length
    }

    /// Writes the file.
    pub(crate) fn write(mut self) -> Result<Kernel> {
        let analysis = self.analyze_calls();
        let mut names = Scope::file_scope(self.dialect);
        for (_, intrinsic) in portcullis_core::program::prelude::FUNCTIONS {
            names.reserve(intrinsic_name(*intrinsic));
            if let Intrinsic::Load { .. } = intrinsic {
                let name = intrinsic_name(*intrinsic);
                for suffix in [FAR_SUFFIX, LOADS_SUFFIX, &format!("{FAR_SUFFIX}{LOADS_SUFFIX}")] {
                    names.reserve(&format!("{name}{suffix}"));
                }
            }
        }
        names.reserve(&self.options.entry);
        if self.splits_loops() {
            names.reserve(LOADED);
            self.load_counts = load_counts(self.lowered);
        }
        self.names = names;
        self.name_types();
        let combined = self.combined_adders(&analysis.order);
        for &function in &analysis.order {
            let wanted = self.module.functions[function].name.as_deref().unwrap_or("helper");
            let packets = analysis.packets.get(&function).cloned().unwrap_or_default();
            let name = self.names.unique_name(wanted);
            let (is_combined, loads) = (combined.contains(&function), self.load_counts.contains_key(&function));
            let signature = FunctionSignature {
                combined: is_combined.then(|| self.names.unique_name(&format!("{name}_combined"))),
                loads: loads.then(|| self.names.unique_name(&format!("{name}{LOADS_SUFFIX}"))),
                name,
                extra_state: packets.is_empty() && analysis.state.contains(&function),
                packets,
                is_pure: analysis.pure.contains(&function),
            };
            self.signatures.insert(function, signature);
        }
        for (handle, constant) in self.module.constants.iter() {
            let scalar = matches!(self.module.types[constant.ty].inner, TypeInner::Scalar(_));
            if constant.name.is_some() || !scalar {
                let name = self.names.unique_name(constant.name.as_deref().unwrap_or("table"));
                self.constant_names.insert(handle, name);
            }
        }
        let file = std::mem::replace(&mut self.names, Scope::within(&self.words)).into_outer_names(self.dialect);

        // Private variables become members of the packet struct, after its own.
        let mut members = Scope::within(&self.words);
        for own in ["bytes", "words", "metadata", "offset", "length", "first", "last"] {
            members.reserve(own);
        }
        if self.takes_metadata_rule() {
            METADATA_MEMBERS.iter().for_each(|member| members.reserve(member));
        }
        let internals = &self.lowered.internals;
        for (global, member) in [
            (internals.offset, "offset"),
            (internals.length, "length"),
            (internals.first, "first"),
            (internals.last, "last"),
        ] {
            self.globals.insert(global, member.into());
        }
        for (number, map) in self.program.maps().iter().enumerate() {
            let is_words = |global: &naga::GlobalVariable| {
                global.binding.is_some_and(|b| b.group == BIND_GROUP && b.binding as usize == number)
            };
            let words = self.module.global_variables.iter().find(|(_, global)| is_words(global));
            let (words, _) = words.ok_or_else(|| WriteError::internal("a map without its words"))?;
            self.globals.insert(words, members.unique_name(&map.name));
            self.maps.push(words);
        }
        let mut private = Vec::new();
        for (handle, global) in self.module.global_variables.iter() {
            if global.space == AddressSpace::Private && !self.globals.contains_key(&handle) {
                let wanted = global.name.as_deref().unwrap_or("private");
                let member = members.unique_name(wanted.strip_prefix("pc_").unwrap_or(wanted));
                self.globals.insert(handle, member);
                private.push(handle);
            }
        }

        let mut functions = String::new();
        for &function in &analysis.order {
            functions += &self.write_function(function, Scope::within(&file))?;
            functions.push('\n');
        }
        let (kernel, arguments) = self.write_kernel(&private, Scope::within(&file))?;
        let packet = self.packet_type(&private)?;

        let mut source = self.title_comment();
        source += &self.dialect.header(self.program.facts().uses_float);
        source += &format!("\n{} {{ uint offset; uint length; }} pc_descriptor;\n", self.dialect.aligned_struct(8));
        if self.takes_descriptor_rule() {
            source += "\n";
            source += &self.descriptor_finder();
        }
        if self.takes_metadata_rule() && !self.metadata_fields.is_empty() {
            source += "\n";
            source += &self.metadata_finder();
        }
        for part in [&self.types, &packet, &self.constants, &self.helpers, &functions, &kernel] {
            if !part.is_empty() {
                source += "\n";
                source += part.trim_end();
                source += "\n";
            }
        }
        let size = inlined_size(self.module, &self.module.functions[self.lowered.filter]);
        let packets_per_item = if self.filter_loads().is_some() { FISSION_PACKETS } else { 1 };
        Ok(Kernel { source, entry: self.options.entry.clone(), arguments, packets_per_item, size })
    }

    /// Whether the kernel has a loop for loads from packets, if there are any.
    pub(crate) fn splits_loops(&self) -> bool {
        self.options.packet_access == PacketAccess::LoopFission && self.options.entry_kind == EntryKind::Kernel
    }

    /// Number of loads from packets by the filter, if the kernel has a loop for them.
    fn filter_loads(&self) -> Option<u32> {
        self.load_counts.get(&self.lowered.filter).copied()
    }

    /// Whether the kernel finds descriptors by a rule: those that it neither writes back nor takes
    /// in flow order.
    fn takes_descriptor_rule(&self) -> bool {
        self.options.descriptor_rules
            && self.options.entry_kind == EntryKind::Kernel
            && !self.program.facts().changes_length
            && !self.program.has_flows()
    }

    /// The rule and the function that applies it (`docs/reference/abi.md`, "Descriptor formats").
    fn descriptor_finder(&self) -> String {
        let (function, buffer) = (self.dialect.function(), self.dialect.buffer());
        let [table, grouped, lengths] =
            [DescriptorFormat::Table, DescriptorFormat::Grouped, DescriptorFormat::Lengths].map(|format| format as u32);
        format!(
            "typedef struct {{ uint format; uint first; uint stride; uint length; }} pc_descriptor_rule;

{function}pc_descriptor pc_find({buffer}const pc_descriptor *table, pc_descriptor_rule rule, uint packet)
{{
    if (rule.format == {table}u) return table[packet];
    {buffer}const uint *words = ({buffer}const uint *)table;
    pc_descriptor found;
    if (rule.format == {grouped}u) {{
        uint word = words[rule.stride + packet];
        found.offset = (words[packet / {GROUP_PACKETS}u] + (word & 0xffffu)) * 4u;
        found.length = word >> 16;
        return found;
    }}
    found.offset = rule.first + packet * rule.stride;
    found.length = rule.length;
    if (rule.format == {lengths}u) found.length = words[packet / 2u] >> (packet % 2u * 16u) & 0xffffu;
    return found;
}}
"
        )
    }

    /// Whether the kernel finds metadata by a rule, if it reads any.
    pub(crate) fn takes_metadata_rule(&self) -> bool {
        self.options.metadata_rules && self.options.entry_kind == EntryKind::Kernel
    }

    /// The rule and the functions that apply it (`docs/reference/abi.md`, "Metadata formats").
    fn metadata_finder(&self) -> String {
        let (function, buffer) = (self.dialect.function(), self.dialect.buffer());
        let [table, uniform] = [ColumnFormat::Table, ColumnFormat::Uniform].map(|format| format as u32);
        let MetadataFields { wire_length, port, time, time_ms } = self.metadata_fields;
        let mut text = String::from(
            "typedef struct { uint format; uint table; uint distances; uint low; uint high; } pc_column;

typedef struct { pc_column wire_length; pc_column port; pc_column time; pc_column time_ms; } pc_metadata_rule;
",
        );
        if wire_length || port || time_ms {
            text += &format!(
                "
{function}uint pc_find_word({buffer}const uint *tables, pc_column column, uint packet)
{{
    if (column.format == {uniform}u) return column.low;
    {buffer}const uint *table = tables + column.table;
    if (column.format == {table}u) return table[packet];
    uint distance = tables[column.distances + packet / 2u] >> (packet % 2u * 16u) & 0xffffu;
    return table[packet / {GROUP_PACKETS}u] + distance;
}}
"
            );
        }
        if time {
            text += &format!(
                "
{function}void pc_find_time({buffer}const uint *tables, pc_column column, uint packet, uint *low, uint *high)
{{
    if (column.format == {uniform}u) {{
        *low = column.low;
        *high = column.high;
        return;
    }}
    bool grouped = column.format != {table}u;
    {buffer}const uint *value = tables + column.table + (grouped ? packet / {GROUP_PACKETS}u : packet) * 2u;
    uint distance = grouped ? tables[column.distances + packet] : 0u;
    *low = value[0] + distance;
    *high = value[1] + (*low < distance ? 1u : 0u);
}}
"
            );
        }
        text
    }

    /// Statements that read the fields of a packet's metadata into the struct `pkt`.
    fn metadata_statements(&self, pkt: &str, descriptor: &str, tables: &str, rule: &str, packet: &str) -> Vec<String> {
        let MetadataFields { wire_length, port, time, time_ms } = self.metadata_fields;
        let word = |member: &str| format!("pc_find_word({tables}, {rule}.{member}, {packet})");
        let mut lines = Vec::new();
        if wire_length {
            let is_captured = format!("{rule}.wire_length.format == {}u", ColumnFormat::CapturedLength as u32);
            let value = word("wire_length");
            lines.push(format!("{pkt}.wire_length = {is_captured} ? {descriptor}.length : {value};"));
        }
        for (is_read, member) in [(port, "port"), (time_ms, "time_ms")] {
            if is_read {
                lines.push(format!("{pkt}.{member} = {};", word(member)));
            }
        }
        if time {
            lines.push(format!("pc_find_time({tables}, {rule}.time, {packet}, &{pkt}.time_low, &{pkt}.time_high);"));
        }
        lines
    }

    /// The first line, a comment with language, file name and parameters.
    fn title_comment(&self) -> String {
        let printable = |text: &str| -> String {
            // Neither the comment's end nor a line continuation gets through.
            let keep = |c: char| if c.is_ascii_graphic() && !"\\*?".contains(c) || c == ' ' { c } else { '_' };
            text.chars().map(keep).collect()
        };
        let mut text = format!("// {}, from {}", self.dialect.name(), printable(&self.program.source().name));
        for (i, parameter) in self.program.parameters().iter().enumerate() {
            let with = if i == 0 { " with " } else { ", " };
            text += &printable(&format!("{with}{}={}", parameter.name, parameter.value));
        }
        text + "\n"
    }

    /// Finds the functions that the filter reaches, and what they need.
    fn analyze_calls(&self) -> CallAnalysis {
        let lowered = self.lowered;
        let mut packets: HashMap<Handle<Function>, HashSet<u32>> =
            HashMap::from([(lowered.filter, HashSet::from([0]))]);
        let mut reached = HashSet::from([lowered.filter]);
        let all: Vec<_> = self.module.functions.iter().collect();
        // Functions come after those that they call.
        for &(handle, function) in all.iter().rev().filter(|(handle, _)| !lowered.intrinsics.contains_key(handle)) {
            if !reached.contains(&handle) {
                continue;
            }
            let own = packets.get(&handle).cloned().unwrap_or_default();
            for_each_statement(&function.body, &mut |statement| {
                let Statement::Call { function: callee, arguments, .. } = statement else { return };
                reached.insert(*callee);
                for (index, &argument) in arguments.iter().enumerate() {
                    if let Expression::FunctionArgument(number) = function.expressions[argument]
                        && own.contains(&number)
                    {
                        packets.entry(*callee).or_default().insert(index as u32);
                    }
                }
            });
        }
        let (mut order, mut state, mut pure) = (Vec::new(), HashSet::new(), HashSet::new());
        for &(handle, function) in &all {
            if lowered.intrinsics.contains_key(&handle) || !reached.contains(&handle) {
                continue;
            }
            order.push(handle);
            let globals = function.expressions.iter().filter_map(|(_, expression)| match *expression {
                Expression::GlobalVariable(global) => Some(self.module.global_variables[global].space),
                _ => None,
            });
            let globals: HashSet<AddressSpace> = globals.collect();
            let mut needs = !globals.is_empty() || packets.contains_key(&handle);
            // Maps may change at any time.
            let mut changes = globals.iter().any(|space| *space != AddressSpace::Private);
            for_each_statement(&function.body, &mut |statement| match *statement {
                Statement::Call { function: callee, .. } => match lowered.intrinsics.get(&callee) {
                    Some(intrinsic) => {
                        needs |= intrinsic.takes_packet();
                        changes |= !is_pure(*intrinsic);
                    }
                    None => {
                        needs |= state.contains(&callee);
                        changes |= !pure.contains(&callee);
                    }
                },
                Statement::Store { pointer, .. } => changes |= !is_local(function, pointer),
                _ => {}
            });
            if needs {
                state.insert(handle);
            }
            if !changes {
                pure.insert(handle);
            }
        }
        CallAnalysis { order, packets, state, pure }
    }

    /// The functions that add to a word of a map and have calls whose result nobody takes, if the
    /// language can combine these.
    fn combined_adders(&self, functions: &[Handle<Function>]) -> HashSet<Handle<Function>> {
        let mut combined = HashSet::new();
        if self.dialect.combined_add().is_none() {
            return combined;
        }
        for &caller in functions {
            let info = &self.lowered.info[caller];
            for_each_statement(&self.module.functions[caller].body, &mut |statement| match *statement {
                Statement::Call { function, result, .. }
                    if self.adders.words.contains(&function)
                        && result.is_none_or(|result| info[result].ref_count == 0) =>
                {
                    combined.insert(function);
                }
                _ => {}
            });
        }
        combined
    }

    /// Writes a function, and its variant for calls whose result nobody takes if it has one.
    fn write_function(&mut self, handle: Handle<Function>, names: Scope) -> Result<String> {
        let mut text = self.write_variant(handle, names.clone(), Variant::Plain)?;
        for variant in [Variant::Combined, Variant::Loads] {
            if variant.name(&self.signatures[&handle]).is_some() {
                text += "\n";
                text += &self.write_variant(handle, names.clone(), variant)?;
            }
        }
        Ok(text)
    }

    fn write_variant(&mut self, handle: Handle<Function>, mut names: Scope, variant: Variant) -> Result<String> {
        let function = &self.module.functions[handle];
        let signature = self.signatures[&handle].clone();
        let mut parameters = Vec::new();
        let mut state = None;
        if signature.extra_state {
            let name = names.unique_name("pkt");
            parameters.push(format!("{PACKET_TYPE} *{name}"));
            state = Some(name);
        }
        let mut arguments = Vec::new();
        for (index, argument) in (0..).zip(&function.arguments) {
            let name = names.unique_name(argument.name.as_deref().unwrap_or("a"));
            if signature.packets.contains(&index) {
                parameters.push(format!("{PACKET_TYPE} *{name}"));
                state.get_or_insert(name.clone());
            } else {
                let ty = self.type_name(argument.ty)?;
                let space = if ty.ends_with('*') { "" } else { " " };
                parameters.push(format!("{ty}{space}{name}"));
            }
            arguments.push(name);
        }
        let fission = match variant {
            _ if !self.load_counts.contains_key(&handle) => None,
            Variant::Loads => Some(FissionLoop::Loads),
            _ => Some(FissionLoop::Verdicts),
        };
        match fission {
            None => {}
            Some(FissionLoop::Loads) => parameters.push(format!("uint *{LOADED}")),
            Some(FissionLoop::Verdicts) => parameters.push(format!("const uint *{LOADED}")),
        }
        let result = match &function.result {
            Some(result) => self.type_name(result.ty)?,
            None => "void".into(),
        };
        let parameters = if parameters.is_empty() { "void".into() } else { parameters.join(", ") };
        let body = match self.write_counter_add(handle, &arguments, state.as_deref()) {
            Some(body) => body,
            None => {
                let mut writer = FunctionWriter::new(self, handle, names, arguments, state);
                writer.combines_adds = variant == Variant::Combined;
                writer.fission = fission;
                writer.write()?
            }
        };
        let (start, name) = (self.dialect.function(), variant.name(&signature).unwrap_or(&signature.name));
        Ok(format!("{start}{result} {name}({parameters})\n{{\n{body}}}\n"))
    }

    /// The body of the function that adds to a counter, if the language can add to 64 bits at once:
    /// the prelude's waits for the low word to know whether to carry.
    fn write_counter_add(
        &mut self,
        function: Handle<Function>,
        arguments: &[String],
        state: Option<&str>,
    ) -> Option<String> {
        let number = *self.adders.counters.get(&function)? as usize;
        let (map, words) = (&self.program.maps()[number], &self.globals[&self.maps[number]]);
        let ([index, amount], state) = (arguments, state?) else { return None };
        let Layout { slots, stride, .. } = Layout::of(map);
        let place = format!("&{state}->{words}[{HEADER_WORDS}u + {index} * {stride}u]");
        let add = self.dialect.atomic_add_wide(&place, amount)?;
        let add = match self.dialect.combined_add() {
            None => add,
            Some(CombinedAdd { wide, wide_text, .. }) => {
                self.define_helper(wide, wide_text);
                format!("{wide}((ulonglong *){place}, {amount})")
            }
        };
        Some(format!("    if ({index} >= {slots}u) {{\n        return;\n    }}\n    {add};\n"))
    }

    /// Whether the packet struct records the bounds of head- and tailroom.
    fn has_ends(&self) -> bool {
        self.program.facts().changes_length || self.lowered.fuel.is_some()
    }

    fn has_offset(&self) -> bool {
        self.has_ends() || (self.uses_words && !self.is_word_aligned())
    }

    /// Qualifier of the words of the map with index `number`: `const` if nothing changes them
    /// during a launch, so that GPUs read them through their caches. A kernel that calls the
    /// function may be resident while the host changes maps.
    fn map_qualifier(&self, number: u32) -> &'static str {
        let is_constant = self.options.entry_kind == EntryKind::Kernel && !self.program.changes_map(number);
        if is_constant { "const" } else { "volatile" }
    }

    /// The struct of an invocation's state.
    fn packet_type(&mut self, private: &[Handle<naga::GlobalVariable>]) -> Result<String> {
        let buffer = self.dialect.buffer();
        let constant = if self.writes_packets() { "" } else { "const " };
        let mut text = String::from("typedef struct {\n");
        if self.uses_bytes {
            text += &format!("    {buffer}{constant}uchar *bytes;\n");
        }
        if self.uses_words {
            text += &format!("    {buffer}const uint *words;\n");
        }
        if self.takes_metadata_rule() {
            let MetadataFields { wire_length, port, time, time_ms } = self.metadata_fields;
            for (member, is_read) in METADATA_MEMBERS.iter().zip([wire_length, port, time, time, time_ms]) {
                if is_read {
                    text += &format!("    uint {member};\n");
                }
            }
        } else if self.program.facts().uses_metadata {
            text += &format!("    {buffer}const uint *metadata;\n");
        }
        if self.has_offset() {
            text += "    uint offset;\n";
        }
        text += "    uint length;\n";
        if self.has_ends() {
            text += "    uint first;\n    uint last;\n";
        }
        for (number, handle) in (0..).zip(&self.maps) {
            text += &format!("    {buffer}{} uint *{};\n", self.map_qualifier(number), self.globals[handle]);
        }
        for &handle in private {
            let ty = self.type_name(self.module.global_variables[handle].ty)?;
            text += &format!("    {ty} {};\n", self.globals[&handle]);
        }
        Ok(format!("{text}}} {PACKET_TYPE};\n"))
    }

    /// Writes the kernel, or the function to be called by other kernels; returns its arguments too.
    fn write_kernel(
        &mut self,
        private: &[Handle<naga::GlobalVariable>],
        mut names: Scope,
    ) -> Result<(String, Vec<Argument>)> {
        let facts = self.program.facts();
        let (buffer, restrict) = (self.dialect.buffer(), self.dialect.restrict());
        let mut names_of = |name: &str| names.unique_name(name);
        let [arena, descriptors, metadata, verdicts, targets, base, count] =
            ["arena", "descriptors", "metadata", "verdicts", "targets", "base", "count"].map(&mut names_of);
        let [packet, descriptor, rule, metadata_rule, pkt, verdict, lane] =
            ["packet", "descriptor", "rule", "metadata_rule", "pkt", "verdict", "lane"].map(&mut names_of);
        let [turn, first, packets, lengths] = ["turn", "first", "packets", "lengths"].map(&mut names_of);
        let touches = self.uses_bytes || self.uses_words;
        let writes = self.writes_packets();
        let moves = facts.changes_length;
        let constant = |constant: bool| if constant { "const " } else { "" };

        let mut arguments = Vec::new();
        let mut parameters = Vec::new();
        let mut add = |argument, text: String| {
            arguments.push(argument);
            parameters.push(text);
        };
        if touches {
            add(Argument::Arena { writes }, format!("{buffer}{}uchar *{restrict}{arena}", constant(!writes)));
        }
        add(
            Argument::Descriptors { writes: moves },
            format!("{buffer}{}pc_descriptor *{restrict}{descriptors}", constant(!moves)),
        );
        let (takes_rule, takes_metadata_rule) = (self.takes_descriptor_rule(), self.takes_metadata_rule());
        if takes_rule {
            add(Argument::DescriptorRule, format!("pc_descriptor_rule {rule}"));
        }
        let reads_metadata = if takes_metadata_rule { !self.metadata_fields.is_empty() } else { facts.uses_metadata };
        if reads_metadata {
            add(Argument::Metadata, format!("{buffer}const uint *{restrict}{metadata}"));
        }
        if reads_metadata && takes_metadata_rule {
            let fields = self.metadata_fields;
            add(Argument::MetadataRule(fields), format!("pc_metadata_rule {metadata_rule}"));
        }
        add(Argument::Verdicts, format!("{buffer}uchar *{restrict}{verdicts}"));
        if facts.redirects {
            add(Argument::Targets, format!("{buffer}uint *{restrict}{targets}"));
        }
        let all_maps = names.unique_name("maps");
        let maps: Vec<String> = self.program.maps().iter().map(|map| names.unique_name(&map.name)).collect();
        for (number, map) in (0..).zip(&maps) {
            let qualifier = self.map_qualifier(number);
            let restrict = if qualifier == "const" { restrict } else { "" };
            add(Argument::Map(number), format!("{buffer}{qualifier} uint *{restrict}{map}"));
        }
        add(Argument::Base, format!("uint {base}"));
        add(Argument::Count, format!("uint {count}"));

        let flows = self.program.has_flows();
        if flows && self.options.entry_kind == EntryKind::Function {
            return Err(WriteError::Unsupported("flows in a function for kernels of others".into()));
        }
        let found = if takes_rule {
            format!("pc_find({descriptors}, {rule}, {packet})")
        } else {
            format!("{descriptors}[{packet}]")
        };
        let mut lines = vec![format!("pc_descriptor {descriptor} = {found};"), format!("{PACKET_TYPE} {pkt};")];
        // The descriptor of an empty packet may hold any offset. Branch-free loads read there
        // before they check the length, by words if packets are word-aligned.
        let start = match self.options.packet_access {
            access if access.is_branch_free() => format!("({descriptor}.length == 0u ? 0u : {descriptor}.offset)"),
            _ if self.is_word_aligned() => format!("({descriptor}.offset & ~3u)"),
            _ => format!("{descriptor}.offset"),
        };
        if self.uses_bytes {
            let bytes = format!("{arena} + {start}");
            // Lets the compiler merge adjacent stores.
            let aligned = (writes && self.is_word_aligned()).then(|| self.dialect.assume_aligned(&bytes, 4)).flatten();
            lines.push(format!("{pkt}.bytes = {};", aligned.unwrap_or(bytes)));
        }
        if self.uses_words {
            let from = if self.is_word_aligned() { format!("({arena} + {start})") } else { arena.clone() };
            lines.push(format!("{pkt}.words = ({buffer}const uint *){from};"));
        }
        if takes_metadata_rule {
            lines.extend(self.metadata_statements(&pkt, &descriptor, &metadata, &metadata_rule, &packet));
        } else if facts.uses_metadata {
            let words = size_of::<Metadata>() / 4;
            let wide = self.dialect.scalar(naga::Scalar::U64);
            lines.push(format!("{pkt}.metadata = {metadata} + {words} * ({wide}){packet};"));
        }
        if self.has_offset() {
            lines.push(format!("{pkt}.offset = {descriptor}.offset;"));
        }
        lines.push(format!("{pkt}.length = {descriptor}.length;"));
        if self.has_ends() {
            lines.push(format!("{pkt}.first = {descriptor}.offset - {RESIZE_ROOM}u;"));
            lines.push(format!("{pkt}.last = {descriptor}.offset + {descriptor}.length + {RESIZE_ROOM}u;"));
        }
        for (number, (handle, map)) in self.maps.iter().zip(&maps).enumerate() {
            let words = if self.options.entry_kind == EntryKind::Function {
                format!("{all_maps}[{number}]")
            } else {
                map.clone()
            };
            lines.push(format!("{pkt}.{} = {words};", self.globals[handle]));
        }
        for &handle in private {
            let global = &self.module.global_variables[handle];
            let init = match global.init {
                Some(init) => self.constant_value(init)?,
                None => self.zero(global.ty)?,
            };
            lines.push(format!("{pkt}.{} = {init};", self.globals[&handle]));
        }
        let signature = &self.signatures[&self.lowered.filter];
        let filter = &signature.name;
        let mut load_lines = None;
        match &signature.loads {
            None => lines.push(format!("uint {verdict} = {filter}(&{pkt});")),
            Some(loads) => {
                let ends = [
                    format!("{loads}(&{pkt}, {LOADED} + {turn});"),
                    format!("{lengths}[{turn}] = {descriptor}.length;"),
                ];
                load_lines = Some([&lines[..], &ends].concat());
                lines[0] = format!("pc_descriptor {descriptor} = {{ 0u, {lengths}[{turn}] }};");
                lines.push(format!("uint {verdict} = {filter}(&{pkt}, {LOADED} + {turn});"));
            }
        }
        lines.extend(self.options.epilogue.clone());
        // docs/reference/semantics.md, "Verdicts": 1, 2, 3, and what ends in 4; all else is
        // ABORTED.
        if facts.verdicts.contains(Action::Aborted) {
            lines.push(format!("if (({verdict} & 0xffu) != 4u && {verdict} > 3u) {verdict} = 0u;"));
        }
        if let Some(fuel) = self.lowered.fuel {
            let member = |global| &self.globals[&global];
            lines.push(format!("if ({pkt}.{}) {{", member(fuel.aborted)));
            lines.push(format!("    {verdict} = 0u;"));
            lines.push(format!("    {pkt}.length = {pkt}.{};", member(fuel.saved_length)));
            lines.push("}".into());
        }
        if moves {
            lines.push(format!("{descriptors}[{packet}].offset = {pkt}.offset;"));
            lines.push(format!("{descriptors}[{packet}].length = {pkt}.length;"));
        }
        lines.push(format!("{verdicts}[{packet}] = (uchar){verdict};"));
        if facts.redirects {
            lines.push(format!("{targets}[{packet}] = {verdict} >> 8;"));
        }

        if self.options.entry_kind == EntryKind::Function {
            let lines: String = lines.iter().map(|line| format!("    {line}\n")).collect();
            let (start, entry) = (self.dialect.function(), &self.options.entry);
            // All filters have the same parameters, maps excepted, and none is `restrict`, since
            // the calling kernel writes to what the function reads.
            let mut parameters = vec![
                format!("{buffer}uchar *{arena}"),
                format!("{buffer}pc_descriptor *{descriptors}"),
                format!("{buffer}const uint *{metadata}"),
                format!("{buffer}uchar *{verdicts}"),
                format!("{buffer}uint *{targets}"),
                format!("uint {packet}"),
            ];
            if !maps.is_empty() {
                parameters.push(format!("{buffer}uint *const *{all_maps}"));
            }
            let parameters = parameters.join(",\n    ");
            return Ok((format!("{start}void {entry}(\n    {parameters})\n{{\n{lines}}}\n"), arguments));
        }
        let (this, all) = self.dialect.grid();
        let parameters = parameters.join(",\n    ");
        let start = self.dialect.kernel(self.options.group_size);
        let entry = &self.options.entry;
        if let Some((load_lines, loads)) = load_lines.zip(self.filter_loads()) {
            let for_each_packet = |lines: &[String]| {
                let lines: String = lines.iter().map(|line| format!("        {line}\n")).collect();
                format!(
                    "    for (uint {turn} = 0u; {turn} < {packets}; ++{turn}) {{\n        uint {packet} = {base} + {first} + \
                     {turn};\n{lines}    }}\n"
                )
            };
            let (load_loop, verdict_loop) = (for_each_packet(&load_lines), for_each_packet(&lines));
            let text = format!(
                "{start} {entry}(
    {parameters})
{{
    uint {lane} = {this};
    if ({lane} >= ({count} + {}u) / {FISSION_PACKETS}u) return;
    uint {first} = {lane} * {FISSION_PACKETS}u;
    uint {packets} = {count} - {first} < {FISSION_PACKETS}u ? {count} - {first} : {FISSION_PACKETS}u;
    uint {lengths}[{FISSION_PACKETS}];
    uint {LOADED}[{}];
#pragma clang loop vectorize(disable) interleave(disable)
{load_loop}{verdict_loop}}}
",
                FISSION_PACKETS - 1,
                loads * FISSION_PACKETS,
            );
            return Ok((text, arguments));
        }
        if flows {
            // A work item filters the packets of a run, one after the other. The next one's
            // descriptor, and the number after that, are loaded meanwhile.
            let [run, numbers, next, later, ahead] =
                ["run", "numbers", "next", "later", "ahead"].map(|name| names.unique_name(name));
            lines[0] = format!("pc_descriptor {descriptor} = {ahead};");
            lines = lines.iter().map(|line| format!("    {line}")).collect();
            let begin = [
                format!("pc_descriptor {run} = {descriptors}[{base} + {lane}];"),
                format!("{buffer}const uint *{numbers} = ({buffer}const uint *){descriptors} + {run}.offset;"),
                format!("uint {next} = {numbers}[0];"),
                format!("uint {later} = {run}.length > 1u ? {numbers}[1] : {next};"),
                format!("pc_descriptor {ahead} = {descriptors}[{next}];"),
                format!("for (uint {turn} = 0u; {turn} < {run}.length; ++{turn}) {{"),
                format!("    uint {packet} = {next};"),
            ];
            let load_ahead = [
                format!("    {next} = {later};"),
                format!("    {ahead} = {descriptors}[{next}];"),
                format!("    if ({turn} + 2u < {run}.length) {later} = {numbers}[{turn} + 2u];"),
            ];
            lines.splice(1..1, load_ahead);
            lines.splice(0..0, begin);
            lines.push("}".into());
        } else {
            lines.insert(0, format!("uint {packet} = {base} + {lane};"));
        }
        let (head, tail, indent) = match self.options.grid_stride {
            false => (format!("    uint {lane} = {this};\n    if ({lane} >= {count}) return;\n"), "", 4),
            // Avoids overflow of the lane number: stops if fewer than a grid of packets are left.
            true => (
                format!(
                    "    for (uint {lane} = {this}; {lane} < {count}; {lane} = {count} - {lane} > {all} ? {lane} + {all} : \
                     {count}) {{\n"
                ),
                "    }\n",
                8,
            ),
        };
        let lines: String = lines.iter().map(|line| format!("{:indent$}{line}\n", "")).collect();
        Ok((format!("{start} {entry}(\n    {parameters})\n{{\n{head}{lines}{tail}}}\n"), arguments))
    }
}

/// Whether a prelude function has no side effects.
fn is_pure(intrinsic: Intrinsic) -> bool {
    !matches!(intrinsic, Intrinsic::Store { .. } | Intrinsic::AdjustHead | Intrinsic::AdjustTail)
}

/// Whether a pointer refers to a local variable.
fn is_local(function: &Function, mut pointer: Handle<Expression>) -> bool {
    loop {
        pointer = match function.expressions[pointer] {
            Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => base,
            Expression::LocalVariable(_) => return true,
            _ => return false,
        };
    }
}

/// Visits the statements of a block, nested ones included.
fn for_each_statement(block: &naga::Block, visit: &mut impl FnMut(&Statement)) {
    for statement in block.iter() {
        visit(statement);
        match statement {
            Statement::Block(block) => for_each_statement(block, visit),
            Statement::If { accept, reject, .. } => {
                for_each_statement(accept, visit);
                for_each_statement(reject, visit);
            }
            Statement::Switch { cases, .. } => cases.iter().for_each(|case| for_each_statement(&case.body, visit)),
            Statement::Loop { body, continuing, .. } => {
                for_each_statement(body, visit);
                for_each_statement(continuing, visit);
            }
            _ => {}
        }
    }
}

/// Number of loads from packets by each function that has any, those of its callees included, or
/// `u32::MAX` if there are more.
pub(crate) fn load_counts(lowered: &Lowered) -> HashMap<Handle<Function>, u32> {
    let mut counts: HashMap<_, u32> = HashMap::new();
    // Functions come after those that they call.
    for (handle, function) in lowered.module.functions.iter() {
        let mut loads = 0_u32;
        match lowered.intrinsics.get(&handle) {
            Some(Intrinsic::Load { .. }) => loads = 1,
            Some(_) => {}
            None => for_each_statement(&function.body, &mut |statement| {
                if let Statement::Call { function: callee, .. } = statement {
                    loads = loads.saturating_add(counts.get(callee).copied().unwrap_or(0));
                }
            }),
        }
        if loads > 0 {
            counts.insert(handle, loads);
        }
    }
    counts
}

/// Whether a call passes a pointer to a component of a vector, which C does not have.
pub(crate) fn passes_vector_components(lowered: &Lowered) -> bool {
    lowered.module.functions.iter().any(|(handle, function)| {
        let mut found = false;
        for_each_statement(&function.body, &mut |statement| {
            if let Statement::Call { arguments, .. } = statement {
                let into = |&argument: &Handle<Expression>| {
                    let inner = lowered.info[handle][argument].ty.inner_with(&lowered.module.types);
                    matches!(inner, TypeInner::ValuePointer { size: None, .. })
                };
                found |= arguments.iter().any(into);
            }
        });
        found
    })
}

/// Whether all packets take the same path through the filter and its functions: no loop, no switch,
/// one return.
pub(crate) fn is_straight_line(lowered: &Lowered) -> bool {
    let own = |handle: &Handle<Function>| !lowered.prelude.contains(handle);
    lowered.fuel.is_none()
        && lowered.module.functions.iter().filter(|(handle, _)| own(handle)).all(|(_, function)| {
            let (mut straight, mut returns) = (true, 0);
            for_each_statement(&function.body, &mut |statement| match statement {
                Statement::Loop { .. } | Statement::Switch { .. } => straight = false,
                Statement::Return { .. } => returns += 1,
                _ => {}
            });
            straight && returns <= 1
        })
}

impl WriteError {
    pub(crate) fn internal(reason: &str) -> WriteError {
        WriteError::Failed(reason.into())
    }
}
