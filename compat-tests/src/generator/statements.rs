//! Generates random statements.

use super::{Generator, Scalar, Surroundings, Type};

/// Maximum depth of expressions.
const DEPTH: u32 = 3;

/// Maximum nesting of blocks.
const NESTING: u32 = 4;

impl Generator<'_> {
    /// Emits the start of the filter: a check of the header that ends the filter for some packets.
    pub(super) fn prologue(&mut self) {
        if self.once_in(3) {
            let verdict = self.verdict();
            let length = self.pick(&[14, 20, 34, 54, 60]);
            self.line(&format!("if pkt_len(pkt) < {length}u {{ return {verdict}; }}"));
        }
        if self.once_in(3) {
            let verdict = self.verdict();
            let ethertype = self.pick(&["ETH_P_IP", "ETH_P_IPV6", "ETH_P_8021Q"]);
            self.line(&format!("if load_be16(pkt, 12u) != {ethertype} {{ return {verdict}; }}"));
        }
        if self.once_in(2) {
            let name = self.name("v");
            self.line(&format!("let {name} = 14u + (load_u8(pkt, 14u) & 15u) * 4u;"));
            self.declare(&name, Type::Scalar(Scalar::U32), false);
        }
        if self.config.loops && self.once_in(6) {
            self.proven_load();
        }
    }

    /// Emits the end of the filter, which makes variables observable in the packet or the verdict,
    /// so that wrong values are noticed.
    pub(super) fn epilogue(&mut self) {
        self.line("var digest = 17u;");
        let add = |generator: &mut Self, value: &str| {
            generator.line(&format!("digest = ((digest << 5u) | (digest >> 27u)) ^ u32({value});"));
        };
        for variable in self.variables.clone().iter().filter(|v| !v.constant) {
            match variable.ty {
                Type::Scalar(_) => add(self, &variable.place),
                Type::Vector(size, _) => {
                    let component = self.below(size) as usize;
                    add(self, &format!("{}.{}", variable.place, &"xyzw"[component..component + 1]));
                }
                Type::Array(size, _) => {
                    let index = self.below(size);
                    add(self, &format!("{}[{index}]", variable.place));
                }
                // The members of a structure are listed separately.
                Type::State => {}
                Type::States(size) => {
                    let index = self.below(size);
                    add(self, &format!("{}[{index}].count", variable.place));
                }
            }
        }
        if self.config.stores && self.once_in(2) {
            let offset = self.constant_offset();
            self.line(&format!("store_le32(pkt, {offset}, digest);"));
        }
        let verdict = match self.below(6) {
            0 if self.config.redirects => "redirect(digest >> 8u)".into(),
            0 | 1 => "digest & 3u".into(),
            2 | 3 => "select(XDP_PASS, XDP_DROP, (digest & 1u) == 0u)".into(),
            _ => self.verdict(),
        };
        self.line(&format!("return {verdict};"));
    }

    /// Generates statements until the function's budget or chance ends them. Variables declared
    /// here go out of scope afterwards; for a function's outermost block the caller removes them.
    pub(super) fn body(&mut self, around: Surroundings) {
        if around.depth == 0 && !self.has_packet {
            let start = self.literal(Scalar::U32);
            self.line(&format!("var seed: u32 = {start};"));
            self.declare("seed", Type::Scalar(Scalar::U32), true);
        }
        let most = if around.depth == 0 { self.budget } else { self.below(4) + 1 };
        for _ in 0..most {
            if self.budget == 0 {
                break;
            }
            self.budget -= 1;
            self.statement(around);
        }
    }

    /// Generates a block in braces, which may end with a jump out of it.
    fn block(&mut self, around: Surroundings, may_leave: bool) {
        let outside = self.variables.len();
        self.indent += 1;
        let inside = Surroundings { depth: around.depth + 1, ..around };
        self.body(inside);
        if may_leave && !around.in_continuing {
            match self.below(6) {
                0 => self.leave(),
                1 | 2 if around.in_loop && !around.in_switch => {
                    let how = self.pick(&["break;", "continue;"]);
                    self.line(how);
                }
                1 if around.in_loop => self.line("continue;"),
                3 if around.in_switch => self.line("break;"),
                _ => {}
            }
        }
        self.indent -= 1;
        self.variables.truncate(outside);
    }

    /// Emits a return of a suitable value.
    fn leave(&mut self) {
        let text = match self.result {
            None => format!("return {};", self.verdict()),
            Some(None) => "return;".into(),
            Some(Some(ty)) => format!("return {};", self.expression(ty, 1)),
        };
        self.line(&text);
    }

    /// Generates a verdict.
    pub(super) fn verdict(&mut self) -> String {
        let simple = self.pick(&["XDP_DROP", "XDP_PASS", "XDP_PASS", "XDP_TX", "XDP_DROP", "XDP_ABORTED"]);
        match self.below(10) {
            0 | 1 if self.config.redirects => format!("redirect({} & 7u)", self.value(Scalar::U32, 2)),
            2 if self.config.redirects => format!("redirect({})", self.value(Scalar::U32, 1)),
            3 | 4 => {
                let condition = self.value(Scalar::Bool, DEPTH);
                format!("select(XDP_PASS, XDP_DROP, {condition})")
            }
            5 => format!("({} & 3u)", self.value(Scalar::U32, DEPTH)),
            6 if self.config.redirects => self.value(Scalar::U32, 1),
            _ => simple.into(),
        }
    }

    fn statement(&mut self, around: Surroundings) {
        let nested = around.depth < NESTING;
        if self.config.maps.is_some() && self.has_packet && self.once_in(3) {
            return self.map_statement();
        }
        match self.below(25) {
            0..=3 => self.declaration(),
            4..=8 => self.assignment(),
            9..=11 if nested => self.if_else(around),
            12 if nested => self.switch(around),
            13..=15 if nested && self.config.loops => self.a_loop(around),
            16..=18 if self.config.stores && self.has_packet => {
                let offset = self.offset(2);
                let value = self.expression(Type::Scalar(Scalar::U32), DEPTH);
                let size = self.pick(&["u8", "u8", "be16", "be32", "le16", "le32"]);
                self.line(&format!("store_{size}(pkt, {offset}, {value});"));
            }
            19 if self.config.length_changes && self.has_packet => self.length_change(around),
            20 if nested => {
                self.line("{");
                self.block(around, false);
                self.line("}");
            }
            21 if !self.helpers.is_empty() => {
                let helpers = self.helpers.clone();
                let helper = helpers[self.below(helpers.len() as u32) as usize].clone();
                if let Some(call) = self.call_of(&helper, 2) {
                    self.line(&format!("{}{call};", if helper.result.is_some() { "_ = " } else { "" }));
                }
            }
            22 if nested && !around.in_continuing && self.result.is_none() => {
                let (condition, verdict) = (self.value(Scalar::Bool, DEPTH), self.verdict());
                self.line(&format!("if {condition} {{ return {verdict}; }}"));
            }
            23 if self.config.loops && self.has_packet => self.proven_load(),
            _ => self.assignment(),
        }
    }

    fn declaration(&mut self) {
        let ty = self.any_type();
        let name = self.name("v");
        match ty {
            Type::Scalar(scalar) if self.once_in(3) => {
                // Use a run-time value, as naga treats what it can evaluate as a constant.
                let value = self.value(scalar, DEPTH);
                self.line(&format!("let {name} = {value};"));
                self.declare(&name, ty, false);
            }
            _ if self.once_in(3) => {
                self.line(&format!("var {name}: {};", ty.name()));
                self.declare(&name, ty, true);
            }
            _ => {
                let value = self.expression(ty, DEPTH);
                self.line(&format!("var {name}: {} = {value};", ty.name()));
                self.declare(&name, ty, true);
            }
        }
    }

    fn assignment(&mut self) {
        if self.once_in(6) {
            // Assign composites as a whole.
            let whole: Vec<_> = self
                .variables
                .iter()
                .filter(|v| v.writable && !matches!(v.ty, Type::Scalar(_)))
                .map(|v| (v.place.clone(), v.ty))
                .collect();
            if !whole.is_empty() {
                let (place, ty) = whole[self.below(whole.len() as u32) as usize].clone();
                let value = self.expression(ty, 2);
                self.line(&format!("{place} = {value};"));
                return;
            }
        }
        let scalar = self.scalar_type();
        let Some(place) = self.place(scalar, true) else {
            return self.declaration();
        };
        let value = self.expression(Type::Scalar(scalar), DEPTH);
        let text = match scalar {
            Scalar::Bool => format!("{place} = {value};"),
            Scalar::U32 | Scalar::I32 if self.once_in(6) => {
                format!("{place}{};", self.pick(&["++", "--"]))
            }
            _ => match self.below(4) {
                0 => format!("{place} {} {value};", self.pick(&["+=", "-=", "*=", "^=", "|=", "&="])),
                1 => format!("{place} {} {}u;", self.pick(&["<<=", ">>="]), self.below(scalar.width())),
                _ => format!("{place} = {value};"),
            },
        };
        self.line(&text);
    }

    fn if_else(&mut self, around: Surroundings) {
        let condition = self.value(Scalar::Bool, DEPTH);
        self.line(&format!("if {condition} {{"));
        self.block(around, true);
        while self.once_in(4) {
            let condition = self.value(Scalar::Bool, 2);
            self.line(&format!("}} else if {condition} {{"));
            self.block(around, true);
        }
        if self.once_in(2) {
            self.line("} else {");
            self.block(around, true);
        }
        self.line("}");
    }

    fn switch(&mut self, around: Surroundings) {
        let signed = self.once_in(4);
        let (selector, suffix) = if signed {
            (format!("({} & 7i)", self.value(Scalar::I32, 2)), "i")
        } else {
            match self.below(3) {
                0 if self.has_packet => ("load_u8(pkt, 23u)".to_string(), "u"),
                _ => (format!("({} & 7u)", self.value(Scalar::U32, 2)), "u"),
            }
        };
        let inside = Surroundings { in_switch: true, ..around };
        self.line(&format!("switch {selector} {{"));
        self.indent += 1;
        let mut values = vec![0, 1, 2, 3, 4, 5, 6, 7, 17, 58];
        let cases = self.below(4) + 1;
        let default_at = self.below(cases + 1);
        for case in 0..=cases {
            if case == default_at {
                self.line("default: {");
            } else {
                let count = if self.once_in(3) { 2 } else { 1 };
                let mut labels = Vec::new();
                for _ in 0..count {
                    let at = self.below(values.len() as u32) as usize;
                    labels.push(format!("{}{suffix}", values.swap_remove(at)));
                }
                self.line(&format!("case {}: {{", labels.join(", ")));
            }
            self.block(inside, true);
            self.line("}");
        }
        self.indent -= 1;
        self.line("}");
    }

    fn a_loop(&mut self, around: Surroundings) {
        let inside = Surroundings { in_loop: true, in_switch: false, ..around };
        let counter = self.name("n");
        let bound = if self.once_in(2) {
            format!("{}u", self.below(9))
        } else {
            format!("({} & 7u)", self.value(Scalar::U32, 2))
        };
        let outside = self.variables.len();
        match self.below(4) {
            0 | 1 => {
                let step = self.pick(&["++", "++", " += 2u"]);
                self.line(&format!("for (var {counter} = 0u; {counter} < {bound}; {counter}{step}) {{"));
                // The body may change the loop counter, as fuel bounds the loop, but mostly does
                // not.
                let writable = self.once_in(6);
                self.declare(&counter, Type::Scalar(Scalar::U32), writable);
                self.block(inside, true);
                self.line("}");
                self.variables.truncate(outside);
            }
            2 => {
                let start = self.below(4);
                self.line(&format!("var {counter} = {start}u;"));
                self.declare(&counter, Type::Scalar(Scalar::U32), false);
                self.line(&format!("while {counter} < {bound} {{"));
                self.indent += 1;
                self.line(&format!("{counter}++;"));
                self.indent -= 1;
                self.block(inside, true);
                self.line("}");
            }
            _ => {
                self.line(&format!("var {counter} = 0u;"));
                self.declare(&counter, Type::Scalar(Scalar::U32), false);
                self.line("loop {");
                self.block(inside, true);
                self.indent += 1;
                self.line("continuing {");
                self.indent += 1;
                self.line(&format!("{counter}++;"));
                let depth = around.depth + 2;
                let body = Surroundings { depth, in_loop: false, in_switch: false, in_continuing: true };
                let scope = self.variables.len();
                if self.once_in(2) {
                    self.body(body);
                }
                self.line(&format!("break if {counter} >= {bound};"));
                self.variables.truncate(scope);
                self.indent -= 1;
                self.line("}");
                self.indent -= 1;
                self.line("}");
            }
        }
    }

    /// Emits a loop with a load at a large invariant offset that only a branch inside the loop
    /// proves to be in the packet. If a compiler hoisted the load, it would read out of bounds.
    fn proven_load(&mut self) {
        let far =
            self.pick(if self.config.wild_offsets { &[100, 0x2000, 0x4000_0000, 0x4000_0000] } else { &[100, 0x2000] });
        let (load, bytes) = self.pick(&[("u8", 1), ("be16", 2), ("le16", 2), ("be32", 4), ("le32", 4)]);
        let near = self.value(Scalar::U32, 1);
        let (offset, sum, counter) = (self.name("far"), self.name("v"), self.name("n"));
        let rounds = self.below(9) + 1;
        let guard = match self.below(2) {
            0 => format!("{offset} + {bytes}u <= pkt_len(pkt)"),
            _ => format!("pkt_len(pkt) >= {offset} + {bytes}u"),
        };
        let leave = format!("{sum} {} {}u", self.pick(&["==", ">"]), self.pick(&[0, 77, 255, 4000]));
        let counted = self.once_in(2);
        self.line(&format!("let {offset} = ({near} & 63u) | {far}u;"));
        self.line(&format!("var {sum} = 0u;"));
        if counted {
            self.line(&format!("for (var {counter} = 0u; {counter} < {rounds}u; {counter}++) {{"));
        } else {
            self.line(&format!("var {counter} = 0u;"));
            self.line("loop {");
        }
        self.line(&format!("    if {guard} {{"));
        self.line(&format!("        {sum} += load_{load}(pkt, {offset}) + {counter};"));
        self.line(&format!("        if {leave} {{ break; }}"));
        self.line("    }");
        if !counted {
            self.line(&format!("    {counter}++;"));
            self.line(&format!("    if {counter} > {rounds}u {{ break; }}"));
        }
        self.line("}");
        self.declare(&sum, Type::Scalar(Scalar::U32), true);
    }

    fn length_change(&mut self, around: Surroundings) {
        let amount = match self.below(4) {
            0 => self.value(Scalar::I32, 2),
            1 => format!("i32({} & 31u) - 16i", self.value(Scalar::U32, 1)),
            _ => {
                let amount = self.pick(&[-128, -40, -8, -4, -1, 0, 1, 4, 14, 20, 128]);
                format!("i32({amount})")
            }
        };
        let name = self.pick(&["adjust_head", "adjust_tail"]);
        if around.depth < NESTING && self.once_in(2) {
            let not = self.pick(&["", "!"]);
            self.line(&format!("if {not}{name}(pkt, {amount}) {{"));
            self.block(around, true);
            self.line("}");
        } else {
            self.line(&format!("_ = {name}(pkt, {amount});"));
        }
    }
}
