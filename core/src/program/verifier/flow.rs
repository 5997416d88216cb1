//! Checks that computing a packet's flow has no side effects. The device computes the flow before
//! it is the packet's turn, while earlier packets are being filtered, so it must depend on nothing
//! but the packet as it arrived.

use std::collections::HashSet;

use naga::{Function, Handle, Statement};

use super::statements::visit_statements;
use super::{Errors, VerifierInput, text_range};
use crate::program::FLOW_FUNCTION;
use crate::program::prelude::Intrinsic;

pub(super) fn check(input: &VerifierInput, errors: &mut Errors) {
    let Some(flow) = input.flow else { return };
    let mut reached = HashSet::from([flow]);
    // A function follows those that it calls.
    let all: Vec<(Handle<Function>, &Function)> = input.own_functions().collect();
    for &(handle, function) in all.iter().rev() {
        let is_reached = reached.contains(&handle);
        visit_statements(&function.body, &mut |statement, span| {
            let Statement::Call { function: callee, .. } = *statement else { return };
            let at = text_range(input.source, span);
            if callee == flow {
                let note = format!(
                    "`{FLOW_FUNCTION}` is called before the filter, by the device: a helper can be called from both"
                );
                errors.add(at.clone(), format!("the filter may not call `{FLOW_FUNCTION}`"), "", &note);
            }
            if !is_reached {
                return;
            }
            reached.insert(callee);
            if let Some(what) = input.intrinsics.get(&callee).and_then(|intrinsic| reason_for_rejection(*intrinsic)) {
                let note = "the device computes a packet's flow before its turn comes, from the packet alone";
                errors.add(at, format!("`{FLOW_FUNCTION}` {what}"), "reached from there", note);
            }
        });
    }
}

fn reason_for_rejection(intrinsic: Intrinsic) -> Option<&'static str> {
    match intrinsic {
        Intrinsic::Store { .. } | Intrinsic::AdjustHead | Intrinsic::AdjustTail => Some("may not change the packet"),
        Intrinsic::Map { .. } | Intrinsic::MapIsNew => Some("may not use maps"),
        _ => None,
    }
}
