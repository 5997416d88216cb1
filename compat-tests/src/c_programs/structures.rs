//! Structures in random C: packed and naturally aligned, nested and with arrays; used as values, in
//! the packet and through pointers.

use rand::RngExt;

use super::{TYPES, Writer};

/// Offset of the structures in the packet, aligned for every type, with room for three.
const PLACE: usize = 104;

/// Maximum size of a structure in bytes.
const MAX_SIZE: usize = 48;

/// The scalar members of a structure, each as it is written after the structure's name and a dot.
#[derive(Debug, Clone, Default)]
pub(super) struct Structure {
    members: Vec<String>,
}

impl Writer {
    /// Declares `struct inner`, `struct outer` that contains one, and a function that takes and
    /// returns it.
    pub(super) fn structures(&mut self) {
        let mut members = Vec::new();
        let mut size = 0;
        let inner = self.members("", 3, &mut members, &mut size);
        let packed = |this: &mut Self| if this.random.random_bool(0.5) { "__attribute__((packed)) " } else { "" };
        let attribute = packed(self);
        self.line(&format!("struct {attribute}inner {{ {inner}}};"));
        let inside = std::mem::take(&mut members);
        let own = self.members("o", 4, &mut members, &mut size);
        members.extend(inside.iter().map(|member| format!("i.{member}")));
        let attribute = packed(self);
        self.line(&format!("struct {attribute}outer {{ {own}struct inner i; }};"));
        let names: Vec<String> = members.iter().map(|member| format!("q.{member}")).chain(["by".into()]).collect();
        self.outer = Structure { members };
        self.line("struct outer turned(struct outer q, long by)\n{");
        self.depth += 1;
        for _ in 0..2 {
            let (place, value) = (names[self.random.random_range(0..names.len())].clone(), self.value(&names, 2));
            self.assign(&place, &value);
        }
        self.depth -= 1;
        self.line("    return q;\n}");
    }

    /// Generates member declarations and adds the members' names to `names`.
    fn members(&mut self, prefix: &str, most: usize, names: &mut Vec<String>, size: &mut usize) -> String {
        let mut text = String::new();
        for number in 0..self.random.random_range(1..=most) {
            let ty = self.pick(&TYPES[..8]);
            let name = format!("{prefix}m{number}");
            let count = self.random.random_range(1..4);
            // An upper bound that aligns every member to 8 bytes, the maximum alignment.
            *size += 8 * count;
            if *size > MAX_SIZE - 8 {
                break;
            }
            if count == 1 {
                text += &format!("{ty} {name}; ");
                names.push(name);
            } else {
                text += &format!("{ty} {name}[{count}]; ");
                names.extend((0..count).map(|index| format!("{name}[{index}]")));
            }
        }
        if text.is_empty() {
            let name = format!("{prefix}m9");
            text = format!("uint {name}; ");
            names.push(name);
        }
        text
    }

    /// Declares a variable and an array of the type, and adds their members to the names.
    pub(super) fn structure_variables(&mut self, names: &mut Vec<String>) {
        self.line(&format!("struct outer q = *(__global struct outer *)(pkt + {PLACE}), list[2] = {{{{0}}, q}};"));
        self.line(&format!("__global struct outer *z = (__global struct outer *)(pkt + {PLACE});"));
        let members = self.outer.members.clone();
        for base in ["q.", "list[0].", "list[v1 & 1].", "z->", "z[1].", "(z + 1)->"] {
            names.push(format!("{base}{}", members[self.random.random_range(0..members.len())]));
        }
    }

    /// Emits a statement that uses whole structures.
    pub(super) fn structure_statement(&mut self, names: &[String]) {
        let from = ["q", "list[0]", "list[v4 & 1]", "*z", "z[1]", "*(z + 1)"];
        let (from, by) = (self.pick(&from), self.value(names, 1));
        let member = self.outer.members[self.random.random_range(0..self.outer.members.len())].clone();
        let text = match self.random.random_range(0..5) {
            0 => format!("q = turned({from}, {by});"),
            1 => format!("list[1] = {from};"),
            // An array member of a structure returned by value is not addressable.
            2 if !member.contains('[') => format!("v6 += turned({from}, {by}).{member};"),
            3 => format!("{{ __global struct outer *y = z + ({by} & 1); y->{member} ^= 5; n += y - z; }}"),
            _ => format!("{{ struct outer *y = list + ({by} & 1); y->{member} += 3; q.{member} = (*y).{member}; }}"),
        };
        self.line(&text);
    }

    /// Folds every member into a number that is stored in the packet. Padding is left out, as its
    /// contents are unspecified.
    pub(super) fn structure_results(&mut self) {
        for member in self.outer.members.clone() {
            self.line(&format!("v6 = v6 * 31 + q.{member} + 7 * list[1].{member} + list[0].{member};"));
        }
    }
}
