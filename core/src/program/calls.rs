//! Bounds on the number of times that a filter calls functions of the prelude.

use naga::Statement;

use super::{Program, child_blocks};
use crate::map::compactor::MapCompactor;
use crate::map::{Declaration, MapFunction, MapKind};
use crate::program::prelude::Intrinsic;

/// Number of calls that a function makes: outside of loops, and in one iteration of all its loops.
#[derive(Debug, Clone, Copy, Default)]
struct CallCount {
    once: u64,
    looped: u64,
}

impl Program {
    /// Maximum number of calls of the prelude functions that `is_counted` selects, for one packet,
    /// calls in helpers and loops included.
    pub fn max_calls(&self, is_counted: impl Fn(Intrinsic) -> bool) -> u64 {
        let rounds = self.facts().max_iterations.unwrap_or(self.fuel()).min(self.fuel());
        // A function follows those that it calls.
        let mut all = vec![CallCount::default(); self.module().functions.len()];
        for (handle, function) in self.module().functions.iter() {
            let mut calls = CallCount::default();
            if let Some(intrinsic) = self.intrinsic(handle) {
                calls.once = u64::from(is_counted(intrinsic));
            } else if !self.is_prelude(handle) {
                let mut work = vec![(&function.body, false)];
                while let Some((block, looped)) = work.pop() {
                    for statement in block {
                        if let Statement::Call { function: callee, .. } = *statement {
                            let callee = all[callee.index()];
                            let to = if looped { &mut calls.looped } else { &mut calls.once };
                            *to = to.saturating_add(callee.once);
                            calls.looped = calls.looped.saturating_add(callee.looped);
                        }
                        let looped = looped || matches!(statement, Statement::Loop { .. });
                        work.extend(child_blocks(statement).into_iter().map(|block| (block, looped)));
                    }
                }
            }
            all[handle.index()] = calls;
        }
        let CallCount { once, looped } = all[self.filter().index()];
        once.saturating_add(looped.saturating_mul(rounds.into()))
    }

    /// A compactor for the filter's maps; `None` if it inserts into no hash map.
    pub fn map_compactor(&self) -> Option<MapCompactor> {
        MapCompactor::new(self.maps(), |number| {
            let insert = Intrinsic::Map { map: number as u32, call: MapFunction::Insert };
            self.max_calls(|intrinsic| intrinsic == insert)
        })
    }

    /// Whether packets may be filtered in any order, and two that search for one key at the same
    /// time would wait for each other: the filter changes a map with keys, and has no flows.
    pub fn can_be_partitioned_by_search(&self) -> bool {
        let has_keys = |map: &Declaration| matches!(map.kind, MapKind::Hash | MapKind::LruHash);
        !self.has_flows() && (0..).zip(self.maps()).any(|(number, map)| has_keys(map) && self.changes_map(number))
    }

    /// Whether the filter may change anything in the memory of the map with index `number`. A
    /// search in an `lru_hash` stamps the entry that it finds.
    pub fn changes_map(&self, number: u32) -> bool {
        let stamps = self.maps().get(number as usize).is_some_and(|map| map.kind == MapKind::LruHash);
        let changes = |call| match call {
            MapFunction::Read => false,
            MapFunction::Find => stamps,
            _ => true,
        };
        self.max_calls(|it| matches!(it, Intrinsic::Map { map, call } if map == number && changes(call))) > 0
    }

    /// Whether the filter may write to values of the map with index `number`.
    pub(super) fn writes_values(&self, number: u32) -> bool {
        let writes = |call| !matches!(call, MapFunction::Find | MapFunction::Read);
        self.max_calls(|it| matches!(it, Intrinsic::Map { map, call } if map == number && writes(call))) > 0
    }
}

#[cfg(test)]
mod tests {
    use crate::map::MapFunction;
    use crate::program::prelude::Intrinsic;
    use crate::testing::program;

    #[test]
    fn maps_are_read_only_unless_the_filter_writes_to_them() {
        let read_only = |body: &str| {
            let text = format!(
                "//! map m: lpm key=1 value=1 entries=9
                 //! map other: array value=1 entries=9
                 fn write(entry: u32) {{ m_write(entry, 0u, 7u); }}
                 fn xdp_filter(pkt: u32) -> u32 {{
                     let entry = m_find(1u);
                     other_write(0u, 0u, m_read(entry, 0u));
                     {body}
                     return XDP_PASS;
                 }}"
            );
            let program = program(&text);
            program.maps().iter().map(|map| map.read_only).collect::<Vec<_>>()
        };
        assert_eq!(read_only(""), [true, false]);
        let changes = [
            "write(entry);",
            "m_add(entry, 0u, 1u);",
            "m_max(entry, 0u, 1u);",
            "loop { m_compare_exchange(entry, 0u, 1u, 2u); break; }",
        ];
        for body in changes {
            assert_eq!(read_only(body), [false, false], "{body}");
        }
    }

    #[test]
    fn maps_change_unless_the_filter_only_searches_and_reads() {
        let changes = |kind: &str, body: &str| {
            let text = format!(
                "//! map m: {kind} key=1 value=1 entries=9
                 fn xdp_filter(pkt: u32) -> u32 {{ {body} return XDP_PASS; }}"
            );
            program(&text).changes_map(0)
        };
        let read = "if m_read(m_find(1u), 0u) == 7u { return XDP_DROP; }";
        assert_eq!(["lpm", "hash", "lru_hash"].map(|kind| changes(kind, read)), [false, false, true]);
        for body in [
            "if m_insert(1u) == 0u { return XDP_DROP; }",
            "if m_remove(1u) { return XDP_DROP; }",
            "m_write(0u, 0u, 1u);",
        ] {
            assert!(changes("hash", body), "{body}");
        }
    }

    #[test]
    fn calls_in_loops_and_helpers_count_as_often_as_they_may_run() {
        let inserts = |body: &str| {
            let text = format!(
                "//! map m: hash key=1 value=1 entries=9
                 fn twice(k: u32) {{ _ = m_insert(k); _ = m_insert(k + 1u); }}
                 fn looped(k: u32) {{ for (var i = 0u; i < 10u; i++) {{ twice(i); }} }}
                 fn xdp_filter(pkt: u32) -> u32 {{ {body} return XDP_PASS; }}"
            );
            let program = program(&text);
            let rounds = u64::from(program.facts().max_iterations.unwrap_or(u32::MAX));
            (program.max_calls(|it| it == Intrinsic::Map { map: 0, call: MapFunction::Insert }), rounds)
        };
        assert_eq!(inserts("").0, 0);
        assert_eq!(inserts("_ = m_insert(1u); if pkt_len(pkt) > 5u { twice(3u); twice(4u); }").0, 5);
        // A loop of ten iterations is entered once more, to end it.
        let (calls, rounds) = inserts("looped(1u); twice(1u);");
        assert_eq!((calls, rounds), (2 * 11 + 2, 11));
        let (calls, rounds) = inserts("loop { looped(1u); if pkt_len(pkt) > 9u { break; } }");
        assert!(calls >= 2 * rounds.min(u64::from(crate::program::DEFAULT_FUEL)), "{calls} calls in {rounds} rounds");
    }
}
