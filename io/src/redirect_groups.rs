//! Redirect targets that stand for several ports, such as the devmaps of an XDP program that
//! broadcasts.

/// The redirect targets that stand for groups of ports, and the ports of each.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RedirectGroups {
    /// Target number, whether the packet's ingress port is excluded, and the ports.
    lists: Vec<(u32, bool, Vec<u32>)>,
}

impl RedirectGroups {
    /// Adds a group: `target` stands for `ports`. With `exclude_ingress`, a packet is not sent back
    /// to the port it came from.
    pub fn push(&mut self, target: u32, exclude_ingress: bool, ports: Vec<u32>) {
        self.lists.push((target, exclude_ingress, ports));
    }

    /// Returns the ports that a packet with this target and ingress port goes to, or `None` if
    /// `target` is not a group.
    pub fn ports(&self, target: u32, ingress: u32) -> Option<impl Iterator<Item = u32>> {
        let (_, exclude, ports) = self.lists.iter().find(|(it, ..)| *it == target)?;
        Some(ports.iter().copied().filter(move |port| !exclude || *port != ingress))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ingress_port_is_left_out_if_the_group_excludes_it() {
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
