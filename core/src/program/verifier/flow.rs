//! That asking for a packet's flow changes nothing. The device asks before the packet's turn has come, and while the
//! packets before it are filtered: what the answer looks at has to be the packet as it arrived.

use std::collections::HashSet;

use naga::{Function, Handle, Statement};

use super::statements::visit_statements;
use super::{Errors, VerifierInput, text_range};
use crate::program::FLOW_FUNCTION;
use crate::program::prelude::Intrinsic;

pub(super) fn check(parts: &VerifierInput, errors: &mut Errors) {
    let Some(flow) = parts.flow else { return };
    let mut reached = HashSet::from([flow]);
    // A function stands behind those that it calls.
    let all: Vec<(Handle<Function>, &Function)> = parts.own_functions().collect();
    for &(handle, function) in all.iter().rev() {
        let of_flow = reached.contains(&handle);
        visit_statements(&function.body, &mut |statement, span| {
            let Statement::Call { function: callee, .. } = *statement else { return };
            let at = text_range(parts.source, span);
            if callee == flow {
                let note = format!(
                    "`{FLOW_FUNCTION}` is called before the filter, by the device: a helper can be called from both"
                );
                errors.add(at.clone(), "a packet's flow is not for the filter to ask", "", &note);
            }
            if !of_flow {
                return;
            }
            reached.insert(callee);
            if let Some(what) = parts.intrinsics.get(&callee).and_then(|intrinsic| refused(*intrinsic)) {
                let note = "it is asked before the packet's turn comes, and may look at the packet alone";
                errors.add(at, format!("`{FLOW_FUNCTION}` {what}"), "it is reached from there", note);
            }
        });
    }
}

fn refused(intrinsic: Intrinsic) -> Option<&'static str> {
    match intrinsic {
        Intrinsic::Store { .. } | Intrinsic::AdjustHead | Intrinsic::AdjustTail => Some("changes no packet"),
        Intrinsic::Map { .. } | Intrinsic::MapIsNew => Some("has no maps"),
        _ => None,
    }
}
