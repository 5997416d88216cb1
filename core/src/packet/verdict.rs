//! Verdicts: the decisions of filters about packets.

use std::fmt;
use std::ops::AddAssign;

use super::Column;

/// Maximum redirect target: targets are 24 bits wide.
pub const MAX_REDIRECT_TARGET: u32 = (1 << 24) - 1;

/// A verdict without its target, numbered like `enum xdp_action` in `linux/bpf.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Action {
    /// The filter failed: it ran out of fuel, or returned an invalid verdict.
    Aborted = 0,
    /// Drop the packet.
    Drop = 1,
    /// Pass the packet on.
    Pass = 2,
    /// Send the packet out of its ingress port.
    Tx = 3,
    /// Send the packet out of another port, the target.
    Redirect = 4,
}

impl Action {
    /// All actions, in numerical order.
    pub const ALL: [Action; 5] = [Action::Aborted, Action::Drop, Action::Pass, Action::Tx, Action::Redirect];

    /// The action with this number, if there is one.
    pub fn from_byte(byte: u8) -> Option<Action> {
        Action::ALL.get(usize::from(byte)).copied()
    }

    /// The lower-case name, as reports print it.
    pub fn name(self) -> &'static str {
        match self {
            Action::Aborted => "aborted",
            Action::Drop => "drop",
            Action::Pass => "pass",
            Action::Tx => "tx",
            Action::Redirect => "redirect",
        }
    }
}

/// The decision about one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// See [`Action::Aborted`].
    Aborted,
    /// See [`Action::Drop`].
    Drop,
    /// See [`Action::Pass`].
    Pass,
    /// See [`Action::Tx`].
    Tx,
    /// See [`Action::Redirect`]; the target is at most [`MAX_REDIRECT_TARGET`].
    Redirect(u32),
}

impl Verdict {
    /// Decodes a filter's return value: the action is in the low byte; bits 8–31 are the target of
    /// a redirect and zero otherwise. Any other value is [`Verdict::Aborted`].
    pub fn from_return(value: u32) -> Verdict {
        match (value & 0xff, value >> 8) {
            (1, 0) => Verdict::Drop,
            (2, 0) => Verdict::Pass,
            (3, 0) => Verdict::Tx,
            (4, target) => Verdict::Redirect(target),
            _ => Verdict::Aborted,
        }
    }

    /// Encodes the verdict as a return value.
    pub fn to_return(self) -> u32 {
        match self {
            Verdict::Redirect(target) => target << 8 | Action::Redirect as u32,
            other => other.action() as u32,
        }
    }

    /// The verdict without its target.
    pub fn action(self) -> Action {
        match self {
            Verdict::Aborted => Action::Aborted,
            Verdict::Drop => Action::Drop,
            Verdict::Pass => Action::Pass,
            Verdict::Tx => Action::Tx,
            Verdict::Redirect(_) => Action::Redirect,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Redirect(target) => write!(f, "redirect({target})"),
            other => f.write_str(other.action().name()),
        }
    }
}

/// Number of packets per action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VerdictCounts {
    /// Packets on which the filter failed ([`Action::Aborted`]).
    pub aborted: u64,
    /// Packets to drop.
    pub drop: u64,
    /// Packets to pass on.
    pub pass: u64,
    /// Packets to send out of their ingress port.
    pub tx: u64,
    /// Packets to send out of another port.
    pub redirect: u64,
}

impl VerdictCounts {
    /// Calls `count` for each action, in the order of [`Action::ALL`].
    pub fn from_fn(count: impl FnMut(Action) -> u64) -> VerdictCounts {
        let [aborted, drop, pass, tx, redirect] = Action::ALL.map(count);
        VerdictCounts { aborted, drop, pass, tx, redirect }
    }

    /// Number of packets with this action.
    pub fn of(&self, action: Action) -> u64 {
        match action {
            Action::Aborted => self.aborted,
            Action::Drop => self.drop,
            Action::Pass => self.pass,
            Action::Tx => self.tx,
            Action::Redirect => self.redirect,
        }
    }

    /// Mutable number of packets with this action.
    pub fn of_mut(&mut self, action: Action) -> &mut u64 {
        match action {
            Action::Aborted => &mut self.aborted,
            Action::Drop => &mut self.drop,
            Action::Pass => &mut self.pass,
            Action::Tx => &mut self.tx,
            Action::Redirect => &mut self.redirect,
        }
    }

    /// Number of packets with any action.
    pub fn total(&self) -> u64 {
        Action::ALL.map(|action| self.of(action)).iter().sum()
    }
}

impl AddAssign for VerdictCounts {
    fn add_assign(&mut self, other: VerdictCounts) {
        for action in Action::ALL {
            *self.of_mut(action) += other.of(action);
        }
    }
}

/// The verdicts of a batch, one per packet, in the batch's order.
///
/// They may be in memory lent by the device's session, which reuses it once they are dropped.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verdicts {
    actions: Column<u8>,
    targets: Column<u32>,
}

impl Verdicts {
    /// Creates verdicts from a column of action bytes and a column of redirect targets, which is
    /// empty for a filter that never redirects. An invalid action byte becomes [`Action::Aborted`].
    ///
    /// # Panics
    /// If there are targets, but not one per action: a bug in the device's code.
    pub fn new(mut actions: Vec<u8>, targets: Vec<u32>) -> Verdicts {
        assert!(targets.is_empty() || targets.len() == actions.len(), "one target per packet");
        for byte in &mut actions {
            // Branch-free, so that the loop is vectorised.
            *byte = if *byte > Action::Redirect as u8 { 0 } else { *byte };
        }
        Verdicts { actions: actions.into(), targets: targets.into() }
    }

    /// Like [`Verdicts::new`], without the pass over the column that replaces invalid action bytes,
    /// for devices whose kernels write none. They count as [`Action::Aborted`] all the same.
    ///
    /// # Panics
    /// As [`Verdicts::new`].
    pub fn from_columns(actions: impl Into<Column<u8>>, targets: impl Into<Column<u32>>) -> Verdicts {
        let (actions, targets) = (actions.into(), targets.into());
        assert!(targets.is_empty() || targets.len() == actions.len(), "one target per packet");
        Verdicts { actions, targets }
    }

    /// Creates verdicts from a column of normalised return values (see [`Verdict::from_return`]).
    pub fn from_returns(values: &[u32], can_redirect: bool) -> Verdicts {
        let actions = values.iter().map(|&v| v as u8).collect();
        let targets = if can_redirect { values.iter().map(|&v| v >> 8).collect() } else { Vec::new() };
        Verdicts::new(actions, targets)
    }

    /// Appends the verdicts of the packets that follow.
    pub fn append(&mut self, next: Verdicts) {
        let packets = self.actions.len() + next.actions.len();
        // One device may produce a target column when the other found that none is needed.
        if !(self.targets.is_empty() && next.targets.is_empty()) {
            let mut targets = std::mem::take(&mut self.targets).into_vec();
            targets.resize(self.actions.len(), 0);
            targets.extend_from_slice(&next.targets);
            targets.resize(packets, 0);
            self.targets = targets.into();
        }
        let mut actions = std::mem::take(&mut self.actions).into_vec();
        actions.extend_from_slice(&next.actions);
        self.actions = actions.into();
    }

    /// Number of packets.
    pub fn len(&self) -> usize {
        self.actions.len()
    }

    /// Whether there are no packets.
    pub fn is_empty(&self) -> bool {
        self.actions.is_empty()
    }

    /// The verdict on packet `index`.
    ///
    /// # Panics
    /// If `index` is out of range.
    pub fn get(&self, index: usize) -> Verdict {
        match Action::from_byte(self.actions[index]) {
            Some(Action::Drop) => Verdict::Drop,
            Some(Action::Pass) => Verdict::Pass,
            Some(Action::Tx) => Verdict::Tx,
            Some(Action::Redirect) => Verdict::Redirect(self.targets.get(index).copied().unwrap_or(0)),
            Some(Action::Aborted) | None => Verdict::Aborted,
        }
    }

    /// The verdicts, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Verdict> + '_ {
        (0..self.len()).map(|i| self.get(i))
    }

    /// The action bytes, one per packet, each the number of an [`Action`]. Any other byte, which
    /// only a broken driver leaves, counts as [`Action::Aborted`].
    pub fn actions(&self) -> &[u8] {
        &self.actions
    }

    /// The redirect targets, one per packet and meaningful for redirects only; empty for a filter
    /// that never redirects.
    pub fn targets(&self) -> &[u32] {
        &self.targets
    }

    /// Counts the packets per action.
    pub fn counts(&self) -> VerdictCounts {
        // One pass per action over bytes is vectorised; a table of counters is not.
        let count = |action| {
            let parts = self.actions.chunks(255);
            parts.map(|c| u64::from(c.iter().map(|&b| u8::from(b == action as u8)).sum::<u8>())).sum()
        };
        let counts = VerdictCounts::from_fn(|action| if action == Action::Aborted { 0 } else { count(action) });
        VerdictCounts { aborted: self.len() as u64 - counts.total(), ..counts }
    }

    /// Appends the indices of the packets with this action to `into`, in order.
    pub fn indices(&self, action: Action, into: &mut Vec<u32>) {
        let is_wanted = |byte: u8| match action {
            Action::Aborted => byte == 0 || byte > Action::Redirect as u8,
            _ => byte == action as u8,
        };
        into.extend(self.actions.iter().enumerate().filter(|&(_, &b)| is_wanted(b)).map(|(i, _)| i as u32));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn return_values_map_to_verdicts_and_back() {
        for (value, verdict) in [
            (0, Verdict::Aborted),
            (1, Verdict::Drop),
            (2, Verdict::Pass),
            (3, Verdict::Tx),
            (4, Verdict::Redirect(0)),
            (0x0000_0304, Verdict::Redirect(3)),
            (0xffff_ff04, Verdict::Redirect(MAX_REDIRECT_TARGET)),
        ] {
            assert_eq!(Verdict::from_return(value), verdict);
            assert_eq!(verdict.to_return(), value);
        }
        for value in [5, 0xff, 0x100, 0x101, 0x102, 0x103, 0xffff_ffff, 0x8000_0002] {
            assert_eq!(Verdict::from_return(value), Verdict::Aborted, "{value:#x}");
        }
    }

    #[test]
    fn appended_verdicts_keep_their_targets() {
        let verdicts = [Verdict::Redirect(7), Verdict::Drop, Verdict::Pass, Verdict::Redirect(9), Verdict::Tx];
        for (at, first, second) in
            [(0, true, true), (2, true, true), (5, true, true), (1, true, false), (4, false, true)]
        {
            let part = |verdicts: &[Verdict], targets| {
                let values: Vec<u32> = verdicts.iter().map(|verdict| verdict.to_return()).collect();
                Verdicts::from_returns(&values, targets)
            };
            let mut all = part(&verdicts[..at], first);
            all.append(part(&verdicts[at..], second));
            // Without a target column a redirect's target is 0.
            let expected = verdicts.iter().enumerate().map(|(index, verdict)| match verdict {
                Verdict::Redirect(_) if !(if index < at { first } else { second }) => Verdict::Redirect(0),
                other => *other,
            });
            assert!(all.iter().eq(expected), "{at}: {all:?}");
            assert_eq!(all.targets().len(), 5);
        }
        let mut none = Verdicts::from_returns(&[1, 2], false);
        none.append(Verdicts::from_returns(&[3], false));
        assert_eq!((none.actions(), none.targets()), (&[1, 2, 3][..], &[][..]));
    }

    #[test]
    fn invalid_bytes_count_as_aborted() {
        for verdicts in
            [Verdicts::from_columns(vec![5, 2, 255, 0], Vec::new()), Verdicts::new(vec![5, 2, 255, 0], Vec::new())]
        {
            assert_eq!(verdicts.counts(), VerdictCounts { aborted: 3, pass: 1, ..VerdictCounts::default() });
            assert!(verdicts.iter().eq([Verdict::Aborted, Verdict::Pass, Verdict::Aborted, Verdict::Aborted]));
            let mut aborted = Vec::new();
            verdicts.indices(Action::Aborted, &mut aborted);
            assert_eq!(aborted, [0, 2, 3]);
        }
    }

    #[test]
    fn counts_and_indices_agree_with_the_verdicts() {
        let values: Vec<u32> = (0..1000u32).map(|i| if i % 5 == 4 { i << 8 | 4 } else { i % 5 }).collect();
        let verdicts = Verdicts::from_returns(&values, true);
        let counts = VerdictCounts { aborted: 200, drop: 200, pass: 200, tx: 200, redirect: 200 };
        assert_eq!((verdicts.counts(), counts.total()), (counts, 1000));
        let values = [vec![0; 1], vec![1; 300], vec![2; 3], vec![3; 4], vec![0x704; 5]].concat();
        let mut counts = Verdicts::from_returns(&values, true).counts();
        let expected = VerdictCounts { aborted: 1, drop: 300, pass: 3, tx: 4, redirect: 5 };
        assert_eq!(counts, expected);
        assert_eq!(Action::ALL.map(|action| counts.of(action)), [1, 300, 3, 4, 5]);
        counts += VerdictCounts { drop: 1, redirect: 2, ..expected };
        assert_eq!(counts, VerdictCounts { aborted: 2, drop: 301, pass: 6, tx: 8, redirect: 7 });
        let mut redirected = Vec::new();
        verdicts.indices(Action::Redirect, &mut redirected);
        assert!(redirected.iter().all(|&i| verdicts.get(i as usize) == Verdict::Redirect(i)));
        assert_eq!(redirected.len(), 200);
    }
}
