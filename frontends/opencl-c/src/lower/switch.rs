//! `switch` statements. C's cases fall through, which not every device supports.
//!
//! Cases that fall through to one another become a single naga case, in which each segment runs if
//! its own label or an earlier one matches. That duplicates no code and keeps `break` as naga's.

use naga::{BinaryOperator, Block, Literal, Statement as Naga, SwitchCase, SwitchValue};

use super::functions::FunctionLowering;
use super::{Result, literal};
use crate::tree::{Segment, Statement, StatementKind, Switch};
use crate::types::Scalar;
use portcullis_core::ir::builder::Value;
use portcullis_core::program::MAX_EXPRESSIONS;

/// Note for a small filter that becomes too large.
const FALL_THROUGH_NOTE: &str = "cases that fall through compare all labels that lead to them; end some with `break`";

impl FunctionLowering<'_, '_> {
    pub(super) fn switch(&mut self, switch: &Switch) -> Result<()> {
        let span = self.builder.span;
        let scalar = switch.value.ty.scalar().unwrap_or(Scalar::Int);
        let mut value = self.value(&switch.value)?;
        let mut groups: Vec<&[Segment]> = Vec::new();
        let mut rest = &switch.segments[..];
        while !rest.is_empty() {
            let never_falls_through =
                rest.iter().position(|segment| never_falls_through(&segment.body)).map_or(rest.len(), |at| at + 1);
            let (group, after) = rest.split_at(never_falls_through);
            groups.push(group);
            rest = after;
        }
        // Devices have no `switch` over 64 bits: number the labels and select the number.
        let wide = scalar.size() == 8;
        let mut number = 0u32;
        let mut numbered = None;
        if wide {
            let mut chosen = self.builder.u32(0);
            for label in switch.segments.iter().flat_map(|segment| &segment.labels) {
                number += 1;
                let label = self.builder.literal(literal(scalar, *label));
                let met = self.builder.binary(BinaryOperator::Equal, value, label);
                let this = self.builder.u32(number);
                chosen = self.builder.select(met, this, chosen);
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
        self.builder.span = span;
        self.builder.push(Naga::Switch { selector: value, cases });
        Ok(())
    }

    /// Lowers segments that fall through to one another, with their labels.
    fn group(&mut self, value: Value, parts: &[(&Segment, Vec<Literal>)]) -> Result<()> {
        let mut compared = 0;
        let default = parts.iter().position(|(segment, _)| segment.default);
        for (i, (segment, _)) in parts.iter().enumerate() {
            if i + 1 == parts.len() {
                // All labels of the group lead to the last segment.
                return self.statements(&segment.body);
            }
            if segment.body.is_empty() {
                continue;
            }
            // Labels so far lead here; after `default`, all values do except the labels still to
            // come.
            let by_default = default.is_some_and(|at| at <= i);
            let labels = if by_default { &parts[i + 1..] } else { &parts[..=i] };
            let count = labels.iter().map(|(_, labels)| labels.len()).sum();
            let at = segment.body[0].span;
            self.charge_with_note(count, at, FALL_THROUGH_NOTE)?;
            // Each label costs a comparison and an operator that combines it.
            compared += 2 * count as u64;
            if compared > MAX_EXPRESSIONS {
                return self.lowering.fail(at, "the filter is too large", FALL_THROUGH_NOTE);
            }
            let mut met = None;
            for label in labels.iter().flat_map(|(_, labels)| labels) {
                let label = self.builder.literal(*label);
                let op = if by_default { BinaryOperator::NotEqual } else { BinaryOperator::Equal };
                let this = self.builder.binary(op, value, label);
                let join = if by_default { BinaryOperator::LogicalAnd } else { BinaryOperator::LogicalOr };
                met = Some(match met {
                    Some(so_far) => self.builder.binary(join, so_far, this),
                    None => this,
                });
            }
            match met {
                Some(condition) => {
                    let accept = self.block(|this| this.statements(&segment.body))?;
                    self.builder.push(Naga::If { condition, accept, reject: Block::new() });
                }
                None if by_default => self.statements(&segment.body)?,
                None => {}
            }
            if self.builder.is_unreachable {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Whether control never reaches the end of these statements.
fn never_falls_through(list: &[Statement]) -> bool {
    list.iter().any(|statement| match &statement.kind {
        StatementKind::Break | StatementKind::Continue | StatementKind::Return(_) => true,
        StatementKind::Block(list) => never_falls_through(list),
        StatementKind::If(_, accept, Some(reject)) => {
            never_falls_through(std::slice::from_ref(accept)) && never_falls_through(std::slice::from_ref(reject))
        }
        _ => false,
    })
}
