//! That asking for a packet's flow changes nothing. The device asks before the packet's turn has come, and while the
//! packets before it are filtered: what the answer looks at has to be the packet as it arrived.

use std::collections::HashSet;

use naga::{Function, Handle, Statement};

use super::statements::each;
use super::{Errors, Parts, place};
use crate::program::FLOW;
use crate::program::prelude::Intrinsic;

pub(super) fn check(parts: &Parts, errors: &mut Errors) {
    let Some(flow) = parts.flow else { return };
    let mut reached = HashSet::from([flow]);
    // A function stands behind those that it calls.
    let all: Vec<(Handle<Function>, &Function)> = parts.own_functions().collect();
    for &(handle, function) in all.iter().rev() {
        let of_flow = reached.contains(&handle);
        each(&function.body, &mut |statement, span| {
            let Statement::Call { function: callee, .. } = *statement else { return };
            let at = place(parts.source, span);
            if callee == flow {
                let note =
                    format!("`{FLOW}` is called before the filter, by the device: a helper can be called from both");
                errors.add(at.clone(), "a packet's flow is not for the filter to ask", "", &note);
            }
            if !of_flow {
                return;
            }
            reached.insert(callee);
            if let Some(what) = parts.intrinsics.get(&callee).and_then(|intrinsic| refused(*intrinsic)) {
                let note = "it is asked before the packet's turn comes, and may look at the packet alone";
                errors.add(at, format!("`{FLOW}` {what}"), "it is reached from there", note);
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
