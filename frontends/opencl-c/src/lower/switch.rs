//! `switch`, whose cases fall through in C and do not on every device.
//!
//! Cases that fall into one another become one case of naga's: in it each part is done if its own label
//! or one before it was met. So no code is doubled, and `break` is naga's.

use naga::{BinaryOperator, Block, Literal, Statement as Naga, SwitchCase, SwitchValue};

use super::functions::Scope;
use super::{Result, literal};
use crate::tree::{Segment, Statement, StatementKind, Switch};
use crate::types::Scalar;
use portcullis_core::ir::builder::Value;
use portcullis_core::program::MAX_EXPRESSIONS;

/// What makes a filter too large that is small.
const CAUSE: &str = "cases that fall through: each compares all the labels that lead to it; end some with `break`";

impl Scope<'_, '_> {
    pub(super) fn switch(&mut self, switch: &Switch) -> Result<()> {
        let span = self.b.span;
        let scalar = switch.value.ty.scalar().unwrap_or(Scalar::Int);
        let mut value = self.value(&switch.value)?;
        let mut groups: Vec<&[Segment]> = Vec::new();
        let mut rest = &switch.segments[..];
        while !rest.is_empty() {
            let ends = rest.iter().position(|segment| ends(&segment.body)).map_or(rest.len(), |at| at + 1);
            let (group, behind) = rest.split_at(ends);
            groups.push(group);
            rest = behind;
        }
        // Devices have no `switch` over 64 bits: each label gets a number in its place.
        let wide = scalar.size() == 8;
        let mut number = 0u32;
        let mut numbered = None;
        if wide {
            let mut chosen = self.b.u32(0);
            for label in switch.segments.iter().flat_map(|segment| &segment.labels) {
                number += 1;
                let label = self.b.literal(literal(scalar, *label));
                let met = self.b.binary(BinaryOperator::Equal, value, label);
                let this = self.b.u32(number);
                chosen = self.b.select(met, this, chosen);
            }
            value = chosen;
            numbered = Some(0u32);
        }
        let mut cases = Vec::new();
        let mut has_default = false;
        for group in groups {
            let mut labels = Vec::new();
            let mut parts = Vec::new();
            for segment in group {
                let own: Vec<Literal> = segment
                    .labels
                    .iter()
                    .map(|label| match &mut numbered {
                        Some(number) => {
                            *number += 1;
                            Literal::U32(*number)
                        }
                        None => literal(scalar, *label),
                    })
                    .collect();
                labels.extend(own.iter().map(|label| match *label {
                    Literal::U32(label) => SwitchValue::U32(label),
                    Literal::I32(label) => SwitchValue::I32(label),
                    _ => SwitchValue::Default,
                }));
                if segment.default {
                    labels.push(SwitchValue::Default);
                    has_default = true;
                }
                parts.push((segment, own));
            }
            let body = self.block(|this| this.group(value, &parts))?;
            let Some(last) = labels.pop() else { continue };
            let empty = |value| SwitchCase { value, body: Block::new(), fall_through: true };
            cases.extend(labels.into_iter().map(empty));
            cases.push(SwitchCase { value: last, body, fall_through: false });
        }
        if !has_default {
            cases.push(SwitchCase { value: SwitchValue::Default, body: Block::new(), fall_through: false });
        }
        self.b.span = span;
        self.b.push(Naga::Switch { selector: value, cases });
        Ok(())
    }

    /// Segments that fall into one another, with their labels.
    fn group(&mut self, value: Value, parts: &[(&Segment, Vec<Literal>)]) -> Result<()> {
        let mut compared = 0;
        let default = parts.iter().position(|(segment, _)| segment.default);
        for (i, (segment, _)) in parts.iter().enumerate() {
            if i + 1 == parts.len() {
                // Whatever was met leads here.
                return self.statements(&segment.body);
            }
            if segment.body.is_empty() {
                continue;
            }
            // Come to by the labels so far; from `default` on, by all but those to come.
            let by_default = default.is_some_and(|at| at <= i);
            let labels = if by_default { &parts[i + 1..] } else { &parts[..=i] };
            let count = labels.iter().map(|(_, labels)| labels.len()).sum();
            let at = segment.body[0].span;
            self.spend_on(count, at, CAUSE)?;
            // Each is a comparison, and what joins it to the others.
            compared += 2 * count as u64;
            if compared > MAX_EXPRESSIONS {
                return self.l.fail(at, "the filter is too large", CAUSE);
            }
            let mut met = None;
            for label in labels.iter().flat_map(|(_, labels)| labels) {
                let label = self.b.literal(*label);
                let op = if by_default { BinaryOperator::NotEqual } else { BinaryOperator::Equal };
                let this = self.b.binary(op, value, label);
                let join = if by_default { BinaryOperator::LogicalAnd } else { BinaryOperator::LogicalOr };
                met = Some(match met {
                    Some(so_far) => self.b.binary(join, so_far, this),
                    None => this,
                });
            }
            match met {
                Some(condition) => {
                    let accept = self.block(|this| this.statements(&segment.body))?;
                    self.b.push(Naga::If { condition, accept, reject: Block::new() });
                }
                None if by_default => self.statements(&segment.body)?,
                None => {}
            }
            if self.b.left {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Whether control does not come to the end of these statements.
fn ends(list: &[Statement]) -> bool {
    list.iter().any(|statement| match &statement.kind {
        StatementKind::Break | StatementKind::Continue | StatementKind::Return(_) => true,
        StatementKind::Block(list) => ends(list),
        StatementKind::If(_, accept, Some(reject)) => {
            ends(std::slice::from_ref(accept)) && ends(std::slice::from_ref(reject))
        }
        _ => false,
    })
}
