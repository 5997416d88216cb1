//! Generates random expressions.

use super::{Argument, Generator, Helper, MEMBERS, Scalar, Type};

/// Offsets at which headers have fields.
const OFFSETS: &[u32] = &[0, 2, 6, 8, 12, 14, 15, 16, 18, 20, 22, 23, 24, 26, 28, 30, 34, 36, 38, 42, 46, 54];

impl Generator<'_> {
    /// Generates an expression of the type, possibly constant.
    pub(super) fn expression(&mut self, ty: Type, depth: u32) -> String {
        match ty {
            Type::Scalar(scalar) => {
                if self.once_in(6) {
                    return self.constant(scalar);
                }
                self.value(scalar, depth)
            }
            Type::Vector(size, scalar) => self.vector(size, scalar, depth),
            Type::Array(size, scalar) => {
                if self.once_in(2)
                    && let Some(place) = self.variable(|v| v.ty == ty)
                {
                    return place;
                }
                let parts: Vec<String> = (0..size).map(|_| self.expression(Type::Scalar(scalar), 0)).collect();
                format!("{}({})", ty.name(), parts.join(", "))
            }
            Type::State => {
                if let Some(place) = self.variable(|v| v.ty == ty) {
                    return place;
                }
                let parts: Vec<String> = MEMBERS.iter().map(|(_, ty)| self.expression(*ty, 0)).collect();
                format!("State({})", parts.join(", "))
            }
            Type::States(_) => format!("{}()", ty.name()),
        }
    }

    /// Generates a literal of the type.
    pub(super) fn literal(&mut self, scalar: Scalar) -> String {
        let small = self.below(20);
        let large = self.pick(&[0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 0xff00, 0xffff, 0x8100, 255, 256, 1500]);
        let value = if self.once_in(4) { large } else { small };
        match scalar {
            Scalar::Bool => self.once_in(2).to_string(),
            Scalar::U32 => format!("{value}u"),
            Scalar::I32 if value as i32 == i32::MIN => "i32(-2147483648)".into(),
            Scalar::I32 => format!("({}i)", if self.once_in(3) { -(value as i32) } else { value as i32 }),
            Scalar::U64 => {
                let high = self.pick(&[0u64, 0, 0, 1, 0x8000_0000, 0xffff_ffff]);
                format!("{}lu", high << 32 | u64::from(value))
            }
            Scalar::I64 => {
                let high = self.pick(&[0i64, 0, 0, 1, 0x7fff_ffff]);
                let sign = self.pick(&["", "-"]);
                format!("({sign}{}li)", high << 32 | i64::from(value))
            }
        }
    }

    fn constant(&mut self, scalar: Scalar) -> String {
        let wanted = Type::Scalar(scalar);
        if self.once_in(3)
            && let Some(place) = self.any_variable(|v| v.constant && v.ty == wanted)
        {
            return place;
        }
        self.literal(scalar)
    }

    fn any_variable(&mut self, suits: impl Fn(&super::Variable) -> bool) -> Option<String> {
        let places: Vec<String> = self.variables.iter().filter(|v| suits(v)).map(|v| v.place.clone()).collect();
        (!places.is_empty()).then(|| places[self.below(places.len() as u32) as usize].clone())
    }

    /// Picks a variable whose value is known only at run time.
    pub(super) fn variable(&mut self, suits: impl Fn(&super::Variable) -> bool) -> Option<String> {
        self.any_variable(|v| !v.constant && suits(v))
    }

    /// Picks a place that holds a scalar of the type: a variable or a part of one.
    pub(super) fn place(&mut self, scalar: Scalar, writable: bool) -> Option<String> {
        let holds = |ty: Type| match ty {
            Type::Scalar(s) | Type::Vector(_, s) | Type::Array(_, s) => s == scalar,
            Type::States(_) => matches!(scalar, Scalar::U32 | Scalar::I32 | Scalar::Bool),
            Type::State => false,
        };
        let candidates: Vec<_> = self
            .variables
            .iter()
            .filter(|v| !v.constant && (v.writable || !writable) && holds(v.ty))
            .map(|v| (v.place.clone(), v.ty))
            .collect();
        if candidates.is_empty() {
            return None;
        }
        let (place, ty) = candidates[self.below(candidates.len() as u32) as usize].clone();
        Some(match ty {
            Type::Vector(size, _) => {
                if self.once_in(3) {
                    let index = self.index(size);
                    format!("{place}[{index}]")
                } else {
                    let component = self.below(size) as usize;
                    format!("{place}.{}", &"xyzw"[component..component + 1])
                }
            }
            Type::Array(size, _) => {
                let index = self.index(size);
                format!("{place}[{index}]")
            }
            Type::States(size) => {
                let index = self.index(size);
                match scalar {
                    Scalar::U32 if self.once_in(2) => {
                        let inner = self.index(5);
                        format!("{place}[{index}].table[{inner}]")
                    }
                    Scalar::U32 => format!("{place}[{index}].count"),
                    Scalar::I32 => format!("{place}[{index}].mark"),
                    _ => format!("{place}[{index}].seen"),
                }
            }
            _ => place,
        })
    }

    /// Generates an index: a literal in range, or a run-time value that may be out of range.
    fn index(&mut self, size: u32) -> String {
        match self.below(4) {
            0 => format!("{}u", self.below(size)),
            1 => format!("({} % {}u)", self.leaf(Scalar::U32), size + 1),
            2 => self.leaf(Scalar::U32),
            _ => self.leaf(Scalar::I32),
        }
    }

    /// Generates a short expression whose value is known only at run time.
    fn leaf(&mut self, scalar: Scalar) -> String {
        // Not `place`, whose indices are leaves themselves: the recursion might not end.
        let wanted = Type::Scalar(scalar);
        if !self.once_in(3)
            && let Some(place) = self.variable(|v| v.ty == wanted)
        {
            return place;
        }
        let source = self.source();
        match scalar {
            Scalar::U32 if self.has_table && self.once_in(6) => format!("TABLE[{source} & 7u]"),
            Scalar::U32 => source,
            Scalar::Bool => format!("({source} {} {}u)", self.pick(&["<", ">", "==", "!="]), self.below(80)),
            Scalar::U64 => {
                let high = self.source();
                format!("(u64({source}) | (u64({high}) << {}u))", self.pick(&[8, 31, 32, 48]))
            }
            other => format!("{}({source})", other.name()),
        }
    }

    /// Generates a `u32` from the packet or its metadata, or from a variable if the function has no
    /// packet.
    fn source(&mut self) -> String {
        if !self.has_packet {
            let wanted = Type::Scalar(Scalar::U32);
            // Every helper has a variable `seed`.
            return self.variable(|v| v.ty == wanted).unwrap_or_else(|| "seed".into());
        }
        match self.below(12) {
            0 => "pkt_len(pkt)".into(),
            1 if self.config.metadata => self
                .pick(&["pkt_wire_len(pkt)", "pkt_port(pkt)", "pkt_time(pkt).x", "pkt_time(pkt).y", "pkt_time_ms(pkt)"])
                .into(),
            2 | 3 => {
                let offset = self.offset(1);
                self.load(&offset)
            }
            _ => {
                let offset = self.constant_offset();
                self.load(&offset)
            }
        }
    }

    fn load(&mut self, offset: &str) -> String {
        let size = self.pick(&["u8", "u8", "u8", "be16", "be16", "be32", "le16", "le32"]);
        format!("load_{size}(pkt, {offset})")
    }

    pub(super) fn constant_offset(&mut self) -> String {
        match self.below(10) {
            0 => format!("{}u", self.below(210)),
            _ => format!("{}u", self.pick(OFFSETS)),
        }
    }

    /// Generates an offset for a load or store.
    pub(super) fn offset(&mut self, depth: u32) -> String {
        match self.below(8) {
            0 => format!("({}u + ((load_u8(pkt, 14u) & 15u) << 2u))", self.pick(&[14, 16, 18, 0])),
            1 => format!("({} & 63u)", self.value(Scalar::U32, depth.saturating_sub(1))),
            2 if self.config.wild_offsets => format!("(pkt_len(pkt) - {}u)", self.below(6)),
            3 if depth > 0 && self.config.wild_offsets => self.value(Scalar::U32, depth - 1),
            _ => self.constant_offset(),
        }
    }

    /// Generates a scalar expression whose value is known only at run time.
    pub(super) fn value(&mut self, scalar: Scalar, depth: u32) -> String {
        if depth == 0 || self.once_in(5) {
            if self.once_in(2)
                && let Some(place) = self.place(scalar, false)
            {
                return place;
            }
            return self.leaf(scalar);
        }
        if self.once_in(7)
            && let Some(call) = self.call(Type::Scalar(scalar), depth)
        {
            return call;
        }
        let down = depth - 1;
        match scalar {
            Scalar::Bool => self.truth(down),
            number => self.number(number, down),
        }
    }

    fn truth(&mut self, depth: u32) -> String {
        match self.below(8) {
            0 => format!("!{}", self.value(Scalar::Bool, depth)),
            1 | 2 => {
                let (a, b) = (self.value(Scalar::Bool, depth), self.value(Scalar::Bool, depth));
                format!("({a} {} {b})", self.pick(&["&&", "||", "&&", "||", "&", "|", "==", "!="]))
            }
            3 => {
                let size = self.below(3) + 2;
                let (a, b) = (self.vector(size, Scalar::U32, depth), self.runtime_vector(size, Scalar::U32));
                format!("{}({a} {} {b})", self.pick(&["all", "any"]), self.pick(&["<", "==", "!=", ">="]))
            }
            4 => format!("bool({})", self.value(Scalar::U32, depth)),
            _ => {
                let scalar = match self.below(4) {
                    0 => Scalar::I32,
                    1 if self.config.int64 => self.pick(&[Scalar::U64, Scalar::I64]),
                    _ => Scalar::U32,
                };
                let (a, b) = (self.value(scalar, depth), self.expression(Type::Scalar(scalar), depth));
                format!("({a} {} {b})", self.pick(&["<", "<=", ">", ">=", "==", "!="]))
            }
        }
    }

    fn number(&mut self, scalar: Scalar, depth: u32) -> String {
        let ty = Type::Scalar(scalar);
        let a = self.value(scalar, depth);
        match self.below(14) {
            0..=4 => {
                let b = self.expression(ty, depth);
                let operator = self.pick(&["+", "-", "*", "&", "|", "^"]);
                if self.once_in(2) { format!("({a} {operator} {b})") } else { format!("({b} {operator} {a})") }
            }
            5 => {
                let b = if self.once_in(2) { self.divisor(scalar) } else { self.value(scalar, depth) };
                format!("({a} {} {b})", self.pick(&["/", "%"]))
            }
            6 | 7 => {
                let count = if self.once_in(2) {
                    format!("{}u", self.below(scalar.width()))
                } else {
                    self.value(Scalar::U32, depth)
                };
                format!("({a} {} {count})", self.pick(&["<<", ">>"]))
            }
            8 => format!("~{a}"),
            9 if scalar == Scalar::I32 || scalar == Scalar::I64 => format!("(-{a})"),
            9 => {
                let condition = self.value(Scalar::Bool, depth);
                format!("select({}, {a}, {condition})", self.expression(ty, depth))
            }
            10 => {
                let b = self.expression(ty, depth);
                format!("{}({a}, {b})", self.pick(&["min", "max"]))
            }
            11 => self.conversion(scalar, depth),
            12 => self.built_in(scalar, &a, depth),
            _ => {
                let condition = self.value(Scalar::Bool, depth);
                format!("select({a}, {}, {condition})", self.expression(ty, depth))
            }
        }
    }

    /// Generates a literal that is a valid divisor.
    fn divisor(&mut self, scalar: Scalar) -> String {
        let value = self.pick(&[1, 2, 3, 7, 10, 16, 255, 1000]);
        match scalar {
            Scalar::I32 => format!("{value}i"),
            Scalar::U64 => format!("{value}lu"),
            Scalar::I64 => format!("{value}li"),
            _ => format!("{value}u"),
        }
    }

    fn conversion(&mut self, to: Scalar, depth: u32) -> String {
        let mut from = vec![Scalar::Bool, Scalar::U32, Scalar::I32];
        if self.config.int64 {
            from.extend([Scalar::U64, Scalar::I64]);
        }
        let from = self.pick(&from);
        let value = self.value(from, depth);
        let same_width = from.width() == to.width();
        let name = if same_width && self.once_in(2) { format!("bitcast<{}>", to.name()) } else { to.name().into() };
        format!("{name}({value})")
    }

    fn built_in(&mut self, scalar: Scalar, a: &str, depth: u32) -> String {
        let ty = Type::Scalar(scalar);
        match self.below(7) {
            0 => {
                let (low, high) = (self.value(scalar, depth), self.expression(ty, depth));
                format!("clamp({a}, {low}, {high})")
            }
            1 => {
                let (offset, count) = (self.value(Scalar::U32, depth), self.value(Scalar::U32, 0));
                format!("extractBits({a}, {offset}, {count})")
            }
            2 => {
                let (new, offset, count) =
                    (self.value(scalar, 0), self.value(Scalar::U32, 0), self.value(Scalar::U32, 0));
                format!("insertBits({a}, {new}, {offset}, {count})")
            }
            3 if scalar == Scalar::U32 => {
                let b = self.expression(ty, depth);
                let name = self.pick(&["csum_add", "dot4U8Packed"]);
                format!("{name}({a}, {b})")
            }
            4 if scalar == Scalar::U32 => {
                let (old, new) = (self.value(Scalar::U32, 0), self.value(Scalar::U32, 0));
                format!("{}({a}, {old}, {new})", self.pick(&["csum_replace16", "csum_replace32"]))
            }
            5 if scalar == Scalar::U32 => {
                let (v, w) = (self.runtime_vector(3, Scalar::U32), self.vector(3, Scalar::U32, 0));
                format!("dot({v}, {w})")
            }
            _ => {
                let names = [
                    "sign",
                    "abs",
                    "countOneBits",
                    "countLeadingZeros",
                    "countTrailingZeros",
                    "reverseBits",
                    "firstLeadingBit",
                    "firstTrailingBit",
                ];
                // `sign` requires a signed type.
                let signed = matches!(scalar, Scalar::I32 | Scalar::I64);
                format!("{}({a})", self.pick(if signed { &names } else { &names[1..] }))
            }
        }
    }

    /// Generates a vector with a component that is known only at run time.
    fn runtime_vector(&mut self, size: u32, scalar: Scalar) -> String {
        let mut parts: Vec<String> = (1..size).map(|_| self.expression(Type::Scalar(scalar), 0)).collect();
        let at = self.below(size) as usize;
        let part = self.value(scalar, 0);
        parts.insert(at, part);
        format!("vec{size}<{}>({})", scalar.name(), parts.join(", "))
    }

    fn vector(&mut self, size: u32, scalar: Scalar, depth: u32) -> String {
        let ty = Type::Vector(size, scalar);
        let known = self.variable(|v| v.ty == ty);
        match (self.below(6), known) {
            (0 | 1, Some(place)) => place,
            (2, _) if self.variable(|v| matches!(v.ty, Type::Vector(_, s) if s == scalar)).is_some() => {
                let candidates: Vec<_> = self
                    .variables
                    .iter()
                    .filter_map(|v| match v.ty {
                        Type::Vector(n, s) if s == scalar && !v.constant => Some((v.place.clone(), n)),
                        _ => None,
                    })
                    .collect();
                let (place, of) = candidates[self.below(candidates.len() as u32) as usize].clone();
                let letters = "xyzw".as_bytes();
                let swizzle: String = (0..size).map(|_| char::from(letters[self.below(of) as usize])).collect();
                format!("{place}.{swizzle}")
            }
            (3, _) => format!("vec{size}<{}>({})", scalar.name(), self.value(scalar, depth)),
            (4, _) if depth > 0 && scalar != Scalar::Bool => {
                let (a, b) = (self.runtime_vector(size, scalar), self.vector(size, scalar, depth - 1));
                format!("({a} {} {b})", self.pick(&["+", "-", "*", "&", "|", "^"]))
            }
            (5, _) if depth > 0 => {
                let condition = self.value(Scalar::Bool, depth - 1);
                let (a, b) = (self.vector(size, scalar, depth - 1), self.runtime_vector(size, scalar));
                if self.once_in(2) {
                    format!("select({a}, {b}, {condition})")
                } else {
                    let each = self.runtime_vector(size, Scalar::Bool);
                    format!("select({a}, {b}, {each})")
                }
            }
            _ => self.runtime_vector(size, scalar),
        }
    }

    /// Generates a call of a helper that returns the type, if one can be called here.
    pub(super) fn call(&mut self, result: Type, depth: u32) -> Option<String> {
        let helpers: Vec<Helper> = self.helpers.iter().filter(|h| h.result == Some(result)).cloned().collect();
        if helpers.is_empty() {
            return None;
        }
        let helper = helpers[self.below(helpers.len() as u32) as usize].clone();
        self.call_of(&helper, depth)
    }

    pub(super) fn call_of(&mut self, helper: &Helper, depth: u32) -> Option<String> {
        let mut arguments = Vec::new();
        for argument in &helper.arguments {
            arguments.push(match argument {
                Argument::Packet if self.has_packet => "pkt".into(),
                Argument::Packet => return None,
                Argument::Value(ty) => self.expression(*ty, depth.saturating_sub(1)),
                Argument::Pointer => {
                    // A local or a part of one; two pointers into one variable would alias, which
                    // WGSL forbids.
                    let of = |place: &str| place.split(['.', '[']).next().unwrap_or_default().to_string();
                    let taken: Vec<String> = arguments.iter().map(|a: &String| of(a)).collect();
                    let place = self.variable(|v| {
                        v.writable
                            && matches!(v.ty, Type::Scalar(Scalar::U32) | Type::Array(_, Scalar::U32))
                            && v.place.starts_with('v')
                            && !taken.contains(&format!("&{}", of(&v.place)))
                    })?;
                    match self.variables.iter().find(|v| v.place == place).map(|v| v.ty) {
                        Some(Type::Array(size, _)) => {
                            let index = self.index(size);
                            format!("&{place}[{index}]")
                        }
                        _ => format!("&{place}"),
                    }
                }
            });
        }
        Some(format!("{}({})", helper.name, arguments.join(", ")))
    }
}
