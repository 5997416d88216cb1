//! Generates random valid filters, to compare devices with the reference.
//!
//! A seed and a [`Config`] always give the same source. The choices are biased towards what filters
//! do: loads use the offsets of header fields, and many paths return early, so that verdicts differ
//! from packet to packet.
//!
//! naga evaluates constant expressions at compile time and rejects those that overflow, divide by
//! zero or shift too far. So every operator has at least one operand that is known only at run
//! time, and divisors, shift counts and indices are either such operands or small literals.

mod expressions;
pub(crate) mod maps;
mod packets;
mod statements;

use std::fmt::Write;
use std::sync::Arc;

use portcullis_core::program::{Program, ProgramOptions};
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

pub use packets::packets;

use crate::texts;

/// Features that a random filter may use.
#[derive(Debug, Clone)]
pub struct Config {
    /// The types `u64` and `i64`.
    pub int64: bool,
    /// Stores into the packet.
    pub stores: bool,
    /// Loads and stores at arbitrary offsets. Otherwise offsets are constants, masked, or constants
    /// added to a header length, so that the analysis can bound the filter's accesses.
    pub wild_offsets: bool,
    /// `adjust_head` and `adjust_tail`.
    pub length_changes: bool,
    /// Wire length, port and timestamp.
    pub metadata: bool,
    /// Loops.
    pub loops: bool,
    /// Redirect verdicts.
    pub redirects: bool,
    /// Parameters set by the host.
    pub overrides: bool,
    /// Use of maps of every kind, if any.
    pub maps: Option<Maps>,
    /// Maximum number of helper functions.
    pub helpers: u32,
    /// Approximate number of statements per function.
    pub statements: u32,
}

impl Default for Config {
    /// Enables everything except 64-bit integers.
    fn default() -> Self {
        Config {
            int64: false,
            stores: true,
            wild_offsets: true,
            length_changes: true,
            metadata: true,
            loops: true,
            redirects: true,
            overrides: true,
            maps: None,
            helpers: 3,
            statements: 16,
        }
    }
}

impl Config {
    /// Returns a different mix of features for each seed. Some filters lack a feature, so that
    /// optimisations for simple filters are tested too.
    pub fn varied(seed: u64) -> Config {
        let mut random = Pcg64::seed_from_u64(seed ^ 0x5eed_c0f1);
        let mut mostly = || random.random_bool(0.7);
        Config {
            int64: !mostly(),
            stores: mostly(),
            wild_offsets: mostly(),
            length_changes: !mostly(),
            metadata: mostly(),
            loops: mostly(),
            redirects: mostly(),

            overrides: mostly(),
            maps: None,
            helpers: random.random_range(0..4),
            statements: random.random_range(4..24),
        }
    }
}

/// Fuel limit of random filters, low enough for some to exhaust it.
pub const FUEL: u32 = 300;

/// Compiles the filter of a seed, with varied features.
///
/// # Panics
/// If it does not compile.
pub fn program(seed: u64, maps: Option<Maps>) -> Arc<Program> {
    let filter = filter(seed, &Config { maps, ..Config::varied(seed) });
    let options = ProgramOptions::default().with_parameters(filter.parameters).with_fuel(FUEL);
    texts::in_wgsl_with(&format!("random filter {seed}"), &filter.text, &options)
}

/// Order of packets that a filter with maps relies on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Maps {
    /// Packets are processed one after the other.
    OneByOne,
    /// Packets of the same flow, which the filter names, are processed in order.
    Flows,
}

/// A random filter and the values of its parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// WGSL source.
    pub text: String,
    /// Values for some of its `override`s.
    pub parameters: Vec<(String, String)>,
}

/// A scalar type of WGSL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scalar {
    Bool,
    U32,
    I32,
    U64,
    I64,
}

impl Scalar {
    fn name(self) -> &'static str {
        match self {
            Scalar::Bool => "bool",
            Scalar::U32 => "u32",
            Scalar::I32 => "i32",
            Scalar::U64 => "u64",
            Scalar::I64 => "i64",
        }
    }

    fn width(self) -> u32 {
        match self {
            Scalar::Bool => 1,
            Scalar::U32 | Scalar::I32 => 32,
            Scalar::U64 | Scalar::I64 => 64,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Type {
    Scalar(Scalar),
    Vector(u32, Scalar),
    Array(u32, Scalar),
    /// The structure `State`, which every filter defines.
    State,
    /// An array of this many `State` structures.
    States(u32),
}

impl Type {
    fn name(self) -> String {
        match self {
            Type::Scalar(scalar) => scalar.name().into(),
            Type::Vector(size, scalar) => format!("vec{size}<{}>", scalar.name()),
            Type::Array(size, scalar) => format!("array<{}, {size}>", scalar.name()),
            Type::State => "State".into(),
            Type::States(size) => format!("array<State, {size}>"),
        }
    }
}

/// Members of `State`.
const MEMBERS: &[(&str, Type)] = &[
    ("count", Type::Scalar(Scalar::U32)),
    ("mark", Type::Scalar(Scalar::I32)),
    ("seen", Type::Scalar(Scalar::Bool)),
    ("pair", Type::Vector(2, Scalar::U32)),
    ("table", Type::Array(5, Scalar::U32)),
];

#[derive(Debug, Clone)]
struct Variable {
    /// Source of the place: a name or a member of a structure.
    place: String,
    ty: Type,
    writable: bool,
    /// Set if the value is known at compile time.
    constant: bool,
}

#[derive(Debug, Clone)]
struct Helper {
    name: String,
    arguments: Vec<Argument>,
    result: Option<Type>,
}

#[derive(Debug, Clone, Copy)]
enum Argument {
    Packet,
    Value(Type),
    /// A pointer to a local `u32`.
    Pointer,
}

/// Context of the statement being generated.
#[derive(Debug, Clone, Copy, Default)]
struct Surroundings {
    depth: u32,
    in_loop: bool,
    /// Set in a switch, where `break` leaves the switch and not the loop.
    in_switch: bool,
    /// Set in a `continuing` block, which no statement may leave.
    in_continuing: bool,
}

struct Generator<'c> {
    config: &'c Config,
    random: Pcg64,
    text: String,
    indent: usize,
    variables: Vec<Variable>,
    helpers: Vec<Helper>,
    /// Set if the current function has the packet as a parameter.
    has_packet: bool,
    /// Set if the filter has a constant array `TABLE`.
    has_table: bool,
    /// Result type of the current function; `None` in the filter itself.
    result: Option<Option<Type>>,
    names: u32,
    /// Number of statements that may still be added to the current function.
    budget: u32,
}

/// Generates the filter of a seed.
pub fn filter(seed: u64, config: &Config) -> Filter {
    let mut generator = Generator {
        config,
        random: Pcg64::seed_from_u64(seed),
        text: String::new(),
        indent: 0,
        variables: Vec::new(),
        helpers: Vec::new(),
        has_packet: true,
        has_table: false,
        result: None,
        names: 0,
        budget: 0,
    };
    if let Some(maps) = config.maps {
        generator.map_globals(maps == Maps::Flows);
    }
    let parameters = generator.globals();
    let helpers = generator.below(config.helpers + 1);
    for _ in 0..helpers {
        generator.helper();
    }
    generator.result = None;
    generator.budget = config.statements;
    generator.line("fn xdp_filter(pkt: u32) -> u32 {");
    generator.indent += 1;
    if config.maps.is_some() {
        generator.map_prologue();
    }
    generator.prologue();
    generator.body(Surroundings::default());
    generator.epilogue();
    generator.indent -= 1;
    generator.line("}");
    Filter { text: generator.text, parameters }
}

impl Generator<'_> {
    fn below(&mut self, bound: u32) -> u32 {
        self.random.random_range(0..bound)
    }

    /// Returns true with probability 1/`n`.
    fn once_in(&mut self, n: u32) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        *of.choose(&mut self.random).expect("the list is not empty")
    }

    fn name(&mut self, prefix: &str) -> String {
        self.names += 1;
        format!("{prefix}{}", self.names)
    }

    fn line(&mut self, text: &str) {
        let indent = self.indent * 4;
        writeln!(self.text, "{:indent$}{text}", "").expect("a string takes everything");
    }

    /// Picks a scalar type for a variable.
    fn scalar_type(&mut self) -> Scalar {
        let wide = self.config.int64 && self.once_in(3);
        match self.below(8) {
            0 if wide => Scalar::I64,
            _ if wide => Scalar::U64,
            0 => Scalar::Bool,
            1 | 2 => Scalar::I32,
            _ => Scalar::U32,
        }
    }

    fn any_type(&mut self) -> Type {
        let number = if self.once_in(4) { Scalar::I32 } else { Scalar::U32 };
        match self.below(12) {
            0 | 1 => {
                let size = self.below(3) + 2;
                let scalar = if self.once_in(6) { Scalar::Bool } else { number };
                Type::Vector(size, scalar)
            }
            2 | 3 => {
                let size = self.pick(&[1, 2, 3, 4, 7, 16]);
                let scalar = if self.config.int64 && self.once_in(4) { Scalar::U64 } else { number };
                Type::Array(size, scalar)
            }
            4 => Type::State,
            5 if self.once_in(2) => Type::States(3),
            _ => Type::Scalar(self.scalar_type()),
        }
    }

    fn declare(&mut self, place: &str, ty: Type, writable: bool) {
        if ty == Type::State {
            for (member, ty) in MEMBERS {
                self.declare(&format!("{place}.{member}"), *ty, writable);
            }
        }
        self.variables.push(Variable { place: place.into(), ty, writable, constant: false });
    }

    /// Generates structures, constants, parameters and private variables.
    fn globals(&mut self) -> Vec<(String, String)> {
        self.line("struct State {");
        for (member, ty) in MEMBERS {
            self.line(&format!("    {member}: {},", ty.name()));
        }
        self.line("}");
        let mut parameters = Vec::new();
        if self.config.overrides {
            for index in 0..self.below(3) {
                let scalar = self.pick(&[Scalar::U32, Scalar::U32, Scalar::I32, Scalar::Bool]);
                let name = format!("P{index}");
                let value = self.literal(scalar);
                self.line(&format!("override {name}: {} = {value};", scalar.name()));
                if self.once_in(2) {
                    let set = match scalar {
                        Scalar::Bool => self.once_in(2).to_string(),
                        _ => self.below(200).to_string(),
                    };
                    parameters.push((name.clone(), set));
                }
                let ty = Type::Scalar(scalar);
                self.variables.push(Variable { place: name, ty, writable: false, constant: true });
            }
        }
        if self.once_in(2) {
            let values: Vec<String> = (0..6).map(|_| self.literal(Scalar::U32)).collect();
            self.line(&format!("const TABLE = array<u32, 6>({});", values.join(", ")));
            self.has_table = true;
        }
        for _ in 0..self.below(4) {
            let ty = self.any_type();
            let name = self.name("g");
            let start = match ty {
                Type::Scalar(scalar) if self.once_in(2) => format!(" = {}", self.literal(scalar)),
                _ => String::new(),
            };
            self.line(&format!("var<private> {name}: {}{start};", ty.name()));
            self.declare(&name, ty, true);
        }
        parameters
    }

    /// Generates a function that the filter and later helpers may call.
    fn helper(&mut self) {
        let outside = self.variables.len();
        let name = self.name("h");
        let mut arguments = Vec::new();
        let mut written = Vec::new();
        for _ in 0..self.below(4) {
            let (argument, text) = match self.below(6) {
                0 | 1 if !written.iter().any(|w: &String| w == "pkt: u32") => (Argument::Packet, "pkt: u32".into()),
                2 => (Argument::Pointer, format!("{}: ptr<function, u32>", self.name("p"))),
                _ => {
                    let ty = match self.below(6) {
                        0 => Type::Vector(2, Scalar::U32),
                        1 => Type::Array(3, Scalar::U32),
                        _ => Type::Scalar(self.scalar_type()),
                    };
                    (Argument::Value(ty), format!("{}: {}", self.name("a"), ty.name()))
                }
            };
            let argument_name = text.split(':').next().unwrap_or_default().to_string();
            match argument {
                Argument::Packet => {}
                Argument::Value(ty) => self.declare(&argument_name, ty, false),
                Argument::Pointer => self.declare(&format!("(*{argument_name})"), Type::Scalar(Scalar::U32), true),
            }
            arguments.push(argument);
            written.push(text);
        }
        let result = match self.below(7) {
            0 => None,
            1 => Some(Type::Vector(2, Scalar::U32)),
            _ => Some(Type::Scalar(self.scalar_type())),
        };
        let arrow = result.map(|ty| format!(" -> {}", ty.name())).unwrap_or_default();
        self.line(&format!("fn {name}({}){arrow} {{", written.join(", ")));
        self.indent += 1;
        self.result = Some(result);
        self.budget = self.config.statements / 2 + 1;
        self.has_packet = arguments.iter().any(|a| matches!(a, Argument::Packet));
        self.body(Surroundings::default());
        if let Some(ty) = result {
            let value = self.expression(ty, 2);
            self.line(&format!("return {value};"));
        }
        self.indent -= 1;
        self.line("}");
        self.variables.truncate(outside);
        self.has_packet = true;
        self.helpers.push(Helper { name, arguments, result });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use portcullis_core::interp::Interpreter;
    use portcullis_core::packet::Metadata;

    #[test]
    fn every_filter_compiles_and_verdicts_vary() {
        let mut counts = [0; 5];
        for seed in 0..500 {
            let program = program(seed, None);
            let interpreter = Interpreter::new(&program).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            let mut seen = [false; 5];
            for packet in packets(seed, 12) {
                let outcome = interpreter.run(&packet, &Metadata::default());
                let outcome = outcome.unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", program.source().text));
                seen[outcome.verdict.action() as usize] = true;
            }
            counts[seen.iter().filter(|&&s| s).count() - 1] += 1;
        }
        // Filters that give every packet the same verdict are poor tests.
        assert!(counts[1..].iter().sum::<u32>() > 250, "filters by the number of different verdicts: {counts:?}");
    }

    #[test]
    fn a_seed_always_gives_the_same_filter() {
        assert_eq!(filter(7, &Config::default()), filter(7, &Config::default()));
        assert_ne!(filter(7, &Config::default()), filter(8, &Config::default()));
        assert_eq!(packets(3, 5), packets(3, 5));
    }
}
