//! Redirect targets that stand for several ports.

/// What such targets stand for, as long as nobody changes it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RedirectGroups {
    /// Target, whether the port where a packet came in is left out, ports.
    lists: Vec<(u32, bool, Vec<u32>)>,
}

impl RedirectGroups {
    /// That a target stands for these ports; with `exclude_ingress` for the others of them.
    pub fn push(&mut self, target: u32, exclude_ingress: bool, ports: Vec<u32>) {
        self.lists.push((target, exclude_ingress, ports));
    }

    /// Where a packet goes that came in by a port and has this target; `None` where it stands for itself.
    pub fn ports(&self, target: u32, ingress: u32) -> Option<impl Iterator<Item = u32>> {
        let (_, exclude, ports) = self.lists.iter().find(|(it, ..)| *it == target)?;
        Some(ports.iter().copied().filter(move |port| !exclude || *port != ingress))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_may_not_go_where_it_came_in() {
        let mut several = RedirectGroups::default();
        several.push(100, false, vec![3, 1, 3]);
        several.push(101, true, vec![3, 1, 3]);
        let to = |target, ingress| several.ports(target, ingress).map(Iterator::collect::<Vec<_>>);
        assert_eq!(to(100, 3), Some(vec![3, 1, 3]));
        assert_eq!(to(101, 3), Some(vec![1]));
        assert_eq!(to(101, 2), Some(vec![3, 1, 3]));
        assert_eq!(to(102, 2), None);
    }
}
