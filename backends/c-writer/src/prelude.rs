//! The prelude's functions in C; `core/src/program/prelude.wgsl` defines what they do.

use portcullis_core::packet::{MIN_PACKET_LENGTH, READABLE_PAST_END};
use portcullis_core::program::prelude::{ByteOrder, FUNCTIONS, Intrinsic};

use crate::function::LOADED;
use crate::{PacketAccess, Writer};

/// Name of the struct of an invocation's state.
pub(crate) const PACKET_TYPE: &str = "pc_packet";

/// Suffix of functions that also store the words that they load; with loop fission, others take
/// them from where they were stored.
pub(crate) const LOADS_SUFFIX: &str = "_loads";

/// Suffix of a load that checks bounds before it reads. A load from a small offset reads first.
pub(crate) const FAR_SUFFIX: &str = "_far";

/// The function's name, which is the same in every language.
pub(crate) fn intrinsic_name(intrinsic: Intrinsic) -> &'static str {
    FUNCTIONS.iter().find(|(_, other)| *other == intrinsic).map_or("pc_unknown", |(name, _)| name)
}

impl Writer<'_> {
    /// Returns the name of a prelude function, and defines it if it is new.
    ///
    /// `end`: the end of the range that a load can reach, in bytes from the packet's first, if
    /// known.
    pub(crate) fn intrinsic(&mut self, intrinsic: Intrinsic, end: Option<u64>) -> String {
        let mut name = intrinsic_name(intrinsic).to_owned();
        let near = end.is_some_and(|end| end <= READABLE_PAST_END as u64);
        if matches!(intrinsic, Intrinsic::Load { .. }) && !near {
            name += FAR_SUFFIX;
        }
        if self.defined_helpers.insert(name.clone()) {
            let text = self.intrinsic_definition(intrinsic, &name, near);
            self.helpers += &text;
            self.helpers.push('\n');
        }
        name
    }

    fn intrinsic_definition(&mut self, intrinsic: Intrinsic, name: &str, near: bool) -> String {
        let function = self.dialect.function();
        let plain = |signature: &str, lines: &[&str]| definition(function, signature, lines);
        match intrinsic {
            Intrinsic::PktLen => plain("uint pkt_len(const pc_packet *pkt)", &["return pkt->length;"]),
            Intrinsic::PktWireLen => {
                self.metadata_fields.wire_length = true;
                let value = self.metadata_word("wire_length", 0);
                plain("uint pkt_wire_len(const pc_packet *pkt)", &[&format!("return {value};")])
            }
            Intrinsic::PktPort => {
                self.metadata_fields.port = true;
                let value = self.metadata_word("port", 1);
                plain("uint pkt_port(const pc_packet *pkt)", &[&format!("return {value};")])
            }
            Intrinsic::PktTime => {
                self.metadata_fields.time = true;
                let ty = self.vector_name(naga::Scalar::U32, 2);
                let words = [self.metadata_word("time_low", 2), self.metadata_word("time_high", 3)];
                let value = self.dialect.vector(&ty, &words);
                plain(&format!("{ty} pkt_time(const pc_packet *pkt)"), &[&format!("return {value};")])
            }
            Intrinsic::PktTimeMs => {
                self.metadata_fields.time_ms = true;
                let value = self.metadata_word("time_ms", 4);
                plain("uint pkt_time_ms(const pc_packet *pkt)", &[&format!("return {value};")])
            }
            // Written like functions of the filter (`write`).
            Intrinsic::MapIsNew | Intrinsic::Map { .. } => String::new(),
            Intrinsic::Load { size, order } => self.load(name, size, order, near),
            Intrinsic::Store { size, order } => self.store(name, size, order),
            Intrinsic::AdjustHead => {
                self.define_clear();
                plain(
                    "bool adjust_head(pc_packet *pkt, int delta)",
                    &[
                        "if (delta >= 0) {",
                        "    uint cut = (uint)delta;",
                        &format!(
                            "    if (pkt->length < {MIN_PACKET_LENGTH}u || cut > pkt->length - {MIN_PACKET_LENGTH}u) return false;"
                        ),
                        "    pkt->bytes += cut;",
                        "    pkt->offset += cut;",
                        "    pkt->length -= cut;",
                        "    return true;",
                        "}",
                        "uint add = 0u - (uint)delta;",
                        &format!(
                            "if (add > pkt->offset - pkt->first || pkt->length + add < {MIN_PACKET_LENGTH}u) return false;"
                        ),
                        "pkt->bytes -= add;",
                        "pkt->offset -= add;",
                        "pkt->length += add;",
                        "pc_clear(pkt->bytes, add);",
                        "return true;",
                    ],
                )
            }
            Intrinsic::AdjustTail => {
                self.define_clear();
                plain(
                    "bool adjust_tail(pc_packet *pkt, int delta)",
                    &[
                        "if (delta < 0) {",
                        "    uint cut = 0u - (uint)delta;",
                        &format!(
                            "    if (pkt->length < {MIN_PACKET_LENGTH}u || cut > pkt->length - {MIN_PACKET_LENGTH}u) return false;"
                        ),
                        "    pkt->length -= cut;",
                        "    return true;",
                        "}",
                        "uint add = (uint)delta;",
                        "uint end = pkt->offset + pkt->length;",
                        &format!(
                            "if (add > pkt->last - end || pkt->length + add < {MIN_PACKET_LENGTH}u) return false;"
                        ),
                        "pc_clear(pkt->bytes + pkt->length, add);",
                        "pkt->length += add;",
                        "return true;",
                    ],
                )
            }
            Intrinsic::Redirect => {
                plain("uint redirect(uint port)", &["return port < 0x1000000u ? port << 8 | 4u : 0u;"])
            }
            Intrinsic::CsumAdd => {
                plain("uint csum_add(uint a, uint b)", &["uint sum = a + b;", "return sum + (sum < a ? 1u : 0u);"])
            }
            Intrinsic::CsumFold => plain(
                "uint csum_fold(uint sum)",
                &["uint once = (sum & 0xffffu) + (sum >> 16);", "return (once & 0xffffu) + (once >> 16);"],
            ),
            Intrinsic::CsumReplace16 => {
                self.intrinsic(Intrinsic::CsumFold, None);
                plain(
                    "uint csum_replace16(uint check, uint from, uint to)",
                    &[
                        "uint sum = (~check & 0xffffu) + (~from & 0xffffu) + (to & 0xffffu);",
                        "return ~csum_fold(sum) & 0xffffu;",
                    ],
                )
            }
            Intrinsic::CsumReplace32 => {
                self.intrinsic(Intrinsic::CsumFold, None);
                self.intrinsic(Intrinsic::CsumAdd, None);
                plain(
                    "uint csum_replace32(uint check, uint from, uint to)",
                    &[
                        "uint sum = csum_add(csum_add(~check & 0xffffu, ~from), to);",
                        "return ~csum_fold(sum) & 0xffffu;",
                    ],
                )
            }
        }
    }

    /// A word of a packet's metadata: a member, or a word of the table.
    fn metadata_word(&self, member: &str, number: u32) -> String {
        if self.takes_metadata_rule() { format!("pkt->{member}") } else { format!("pkt->metadata[{number}]") }
    }

    /// Writes the load function `name`, which checks bounds.
    ///
    /// Memory safety: the bytes lie in the packet, or, for a near load, at most
    /// [`READABLE_PAST_END`] after its first byte, which is never past the arena's end.
    fn load(&mut self, name: &str, size: u32, order: ByteOrder, near: bool) -> String {
        if self.options.packet_access.is_branch_free() {
            return self.vectorizable_load(name, size, order, near);
        }
        let (function, buffer) = (self.dialect.function(), self.dialect.buffer());
        let constant = if self.writes_packets() { "" } else { "const " };
        let mut text = format!("{function}uint {name}(const pc_packet *pkt, uint off)\n{{\n");
        let outside = format!("pkt->length < {size}u || off > pkt->length - {size}u");
        if !near {
            text += &format!("    if ({outside}) return 0u;\n");
        }
        let value = if self.options.packet_access == PacketAccess::Bytes || size == 1 {
            self.uses_bytes = true;
            text += &format!("    {buffer}{constant}uchar *at = pkt->bytes + off;\n");
            let byte = |i: u32| {
                let shift = 8 * if order == ByteOrder::Big { size - 1 - i } else { i };
                if shift == 0 { format!("(uint)at[{i}]") } else { format!("(uint)at[{i}] << {shift}") }
            };
            (0..size).map(byte).collect::<Vec<_>>().join(" | ")
        } else {
            let word = self.word_loader(size == 4);
            match (size, order) {
                (4, ByteOrder::Little) => format!("{word}(pkt, off)"),
                (4, ByteOrder::Big) => {
                    let swap = self.swap();
                    swap.replace('@', &format!("{word}(pkt, off)"))
                }
                (_, ByteOrder::Little) => format!("{word}(pkt, off) & 0xffffu"),
                (_, ByteOrder::Big) => {
                    text += &format!("    uint both = {word}(pkt, off);\n");
                    "(both & 0xffu) << 8 | (both >> 8 & 0xffu)".into()
                }
            }
        };
        if near {
            text += &format!("    uint value = {value};\n    return {outside} ? 0u : value;\n}}\n");
        } else {
            text += &format!("    return {value};\n}}\n");
        }
        text
    }

    /// Writes the load function `name`, which checks bounds: it loads a whole word for any size,
    /// without a branch. With loop fission it takes the word from memory, and a second function
    /// loads it.
    ///
    /// Memory safety: the word of a near load ends at most [`READABLE_PAST_END`], a multiple of 4,
    /// after the packet's first byte. Another's starts in the packet, or at its first byte.
    fn vectorizable_load(&mut self, name: &str, size: u32, order: ByteOrder, near: bool) -> String {
        self.uses_bytes = true;
        let (function, buffer) = (self.dialect.function(), self.dialect.buffer());
        // A packed struct may start at any byte (the OpenCL specification, section 6.11.1).
        self.define_helper(
            "pc_any_word",
            &format!(
                "typedef struct __attribute__((packed)) {{ uint value; }} pc_any;\n\n{function}uint pc_any_word({buffer}const \
                 uchar *at)\n{{\n    return (({buffer}const pc_any *)at)->value;\n}}\n"
            ),
        );
        // Neighbouring loads from known offsets share a word, from which the bytes are shifted
        // down.
        let from = match (near, size) {
            (false, _) => "outside ? 0u : off",
            (true, 1) => "off & ~3u",
            (true, 2) => "(off & 3u) == 3u ? off - 2u : off & ~3u",
            (true, _) => "off",
        };
        let outside = format!("bool outside = (pkt->length < {size}u) | (off > pkt->length - {size}u);");
        let from = format!("uint from = {from};");
        let load = "pc_any_word(pkt->bytes + from)";
        let down = if near && size < 4 { " >> (off - from) * 8u" } else { "" };
        let value = match (size, order) {
            (1, _) => "word & 0xffu".to_owned(),
            (2, ByteOrder::Big) => "(word & 0xffu) << 8 | (word >> 8 & 0xffu)".to_owned(),
            (2, ByteOrder::Little) => "word & 0xffffu".to_owned(),
            (_, ByteOrder::Big) => self.swap().replace('@', "word"),
            (_, ByteOrder::Little) => "word".to_owned(),
        };
        let result = format!("return outside ? 0u : {value};");
        if !self.splits_loops() {
            let word = format!("uint word = {load}{down};");
            let signature = format!("uint {name}(const pc_packet *pkt, uint off)");
            return definition(function, &signature, &[&outside, &from, &word, &result]);
        }
        // What only the address needs is not in the loop that is vectorised, and the reverse.
        let word = format!("uint word = *{LOADED}{down};");
        let mut lines = vec![outside.as_str(), &from, &word, &result];
        lines.retain(|line| *line != from || !down.is_empty());
        let of_word =
            definition(function, &format!("uint {name}(const pc_packet *pkt, uint off, const uint *{LOADED})"), &lines);
        let (store, returned) = (format!("*{LOADED} = {load};"), format!("return {name}(pkt, off, {LOADED});"));
        let mut lines = vec![outside.as_str(), &from, &store, &returned];
        lines.retain(|line| *line != outside || !near);
        let signature = format!("uint {name}{LOADS_SUFFIX}(const pc_packet *pkt, uint off, uint *{LOADED})");
        of_word + "\n" + &definition(function, &signature, &lines)
    }

    /// An expression that swaps the bytes of a `uint`, with `@` for the value.
    fn swap(&mut self) -> String {
        if let Some(text) = self.dialect.swap("@") {
            return text;
        }
        let function = self.dialect.function();
        self.define_helper(
            "pc_swap",
            &format!(
                "{function}uint pc_swap(uint x)\n{{\n    return x << 24 | (x & 0xff00u) << 8 | (x >> 8 & 0xff00u) | x >> \
                 24;\n}}\n"
            ),
        );
        "pc_swap(@)".into()
    }

    /// The offset of the packet's byte `off` from a multiple of 4 bytes.
    fn aligned_offset(&mut self) -> &'static str {
        if self.is_word_aligned() {
            return "off";
        }
        // `offset` is a member if `words` is.
        self.uses_words = true;
        "pkt->offset + off"
    }

    /// Defines a function that loads the four bytes at an offset, or two into the lower half, and
    /// returns its name.
    fn word_loader(&mut self, whole: bool) -> &'static str {
        self.uses_words = true;
        let name = if whole { "pc_word" } else { "pc_half" };
        let (function, buffer, at) = (self.dialect.function(), self.dialect.buffer(), self.aligned_offset());
        // `word[1] << (32 - shift)`, and 0 for shift 0. The arena is readable past its end.
        let high = if whole { "word[1] << 1 << (31u - shift)" } else { "(shift == 24u ? word[1] << 8 : 0u)" };
        self.define_helper(
            name,
            &format!(
                "{function}uint {name}(const pc_packet *pkt, uint off)\n{{\n    uint at = {at};\n    uint shift = (at & 3u) \
                 * 8u;\n    {buffer}const uint *word = pkt->words + (at >> 2);\n    return word[0] >> shift | {high};\n}}\n"
            ),
        );
        name
    }

    fn store(&mut self, name: &str, size: u32, order: ByteOrder) -> String {
        self.uses_bytes = true;
        let (function, buffer) = (self.dialect.function(), self.dialect.buffer());
        let mut text = format!("{function}void {name}(pc_packet *pkt, uint off, uint value)\n{{\n");
        text += &format!("    if (pkt->length < {size}u || off > pkt->length - {size}u) return;\n");
        if self.options.packet_access == PacketAccess::Bytes || size == 1 {
            text += &format!("    {buffer}uchar *at = pkt->bytes + off;\n");
            for i in 0..size {
                let shift = 8 * if order == ByteOrder::Big { size - 1 - i } else { i };
                let byte = if shift == 0 { "value".into() } else { format!("(value >> {shift})") };
                text += &format!("    at[{i}] = (uchar){byte};\n");
            }
        } else {
            let set = self.word_storer(size == 4);
            let value = match (size, order) {
                (_, ByteOrder::Little) => "value".into(),
                (4, ByteOrder::Big) => self.swap().replace('@', "value"),
                (_, ByteOrder::Big) => "value << 8 | (value >> 8 & 0xffu)".into(),
            };
            text += &format!("    {set}(pkt, off, {value});\n");
        }
        text + "}\n"
    }

    /// Defines a function that stores four bytes at an offset, or two, and returns its name. It
    /// uses as few stores as the address allows, since on a GPU each is a separate write to the
    /// cache; no other byte is written.
    fn word_storer(&mut self, whole: bool) -> &'static str {
        self.define_pair_store();
        let name = if whole { "pc_set_word" } else { "pc_set_half" };
        let (function, buffer, at) = (self.dialect.function(), self.dialect.buffer(), self.aligned_offset());
        let (at, byte) = (format!("uint at = {at};"), format!("{buffer}uchar *byte = pkt->bytes + off;"));
        let word = format!("    *({buffer}uint *)byte = value;");
        let lines: &[&str] = match whole {
            true => &[
                &at,
                &byte,
                "if ((at & 3u) == 0u) {",
                &word,
                "} else if ((at & 1u) == 0u) {",
                "    pc_set_pair(byte, value);",
                "    pc_set_pair(byte + 2, value >> 16);",
                "} else {",
                "    byte[0] = (uchar)value;",
                "    pc_set_pair(byte + 1, value >> 8);",
                "    byte[3] = (uchar)(value >> 24);",
                "}",
            ],
            false => &[
                &at,
                &byte,
                "if ((at & 1u) == 0u) {",
                "    pc_set_pair(byte, value);",
                "} else {",
                "    byte[0] = (uchar)value;",
                "    byte[1] = (uchar)(value >> 8);",
                "}",
            ],
        };
        let signature = format!("void {name}(pc_packet *pkt, uint off, uint value)");
        self.define_helper(name, &definition(function, &signature, lines));
        name
    }

    /// Defines `pc_set_pair`, which stores two bytes at an even address.
    ///
    /// Only `uchar` lvalues are written: the bytes are read as part of a `uint`, which compilers
    /// may assume not to alias a 16-bit integer or a struct of two `uchar` (C99, section 6.5).
    fn define_pair_store(&mut self) {
        let (function, buffer) = (self.dialect.function(), self.dialect.buffer());
        let signature = format!("void pc_set_pair({buffer}uchar *even, uint value)");
        let lines = self.dialect.store_pair("even", ["(uchar)value", "(uchar)(value >> 8)"]);
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        self.define_helper("pc_set_pair", &definition(function, &signature, &lines));
    }

    fn define_clear(&mut self) {
        self.uses_bytes = true;
        let (function, buffer) = (self.dialect.function(), self.dialect.buffer());
        self.define_helper(
            "pc_clear",
            &format!(
                "{function}void pc_clear({buffer}uchar *at, uint count)\n{{\n    for (uint i = 0u; i < count; i++) at[i] = \
                 0;\n}}\n"
            ),
        );
    }
}

/// A function definition with these lines.
fn definition(start: &str, signature: &str, lines: &[&str]) -> String {
    let lines: String = lines.iter().map(|line| format!("    {line}\n")).collect();
    format!("{start}{signature}\n{{\n{lines}}}\n")
}
