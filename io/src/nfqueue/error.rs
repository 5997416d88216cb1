//! Why a queue could not be taken, and what to do then.

use std::io;

use portcullis_core::packet::ArenaError;
use portcullis_core::reason;

use crate::live::OwnerProcess;

/// Why a queue could not be taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NfqueueError {
    /// `EPERM`, and nobody has the queue.
    #[error(
        "netfilter queue {queue}: taking it needs the capability CAP_NET_ADMIN; run as root, or give it to the program"
    )]
    NotPermitted {
        /// The queue's number.
        queue: u16,
    },
    /// Another program has it.
    #[error(
        "netfilter queue {queue}: another program has it{}; end that, or choose another number here and in the rule",
        busy_hint(*.port_id, .holder.as_ref())
    )]
    Busy {
        /// The queue's number.
        queue: u16,
        /// The netlink port of the socket that has it, where the kernel tells.
        port_id: Option<u32>,
        /// The process that has it, where it can be found.
        holder: Option<OwnerProcess>,
    },
    /// The kernel has no netfilter queues.
    #[error(
        "netfilter queue {queue}: the kernel has no netfilter queues; load its module with `modprobe nfnetlink_queue`, or \
         use a kernel with CONFIG_NETFILTER_NETLINK_QUEUE"
    )]
    NoSupport {
        /// The queue's number.
        queue: u16,
    },
    /// The kernel is too old for something that was asked for.
    #[error(
        "netfilter queue {queue}: the kernel does not know an option of it; passing on what is longer than a link takes \
         came with Linux 3.10, accepting what there is no room for with 3.6"
    )]
    OldKernel {
        /// The queue's number.
        queue: u16,
    },
    /// An option makes no sense.
    #[error("netfilter queue {queue}: {what}")]
    Option {
        /// The queue's number.
        queue: u16,
        /// What is wrong with which: `a batch of 0 packets`.
        what: &'static str,
    },
    /// There is no memory for packets.
    #[error("netfilter queue {queue}: {error}")]
    Memory {
        /// The queue's number.
        queue: u16,
        /// Why not.
        error: ArenaError,
    },
    /// The system refused something else.
    #[error("netfilter queue {queue}: {what}: {}", reason(.error))]
    System {
        /// The queue's number.
        queue: u16,
        /// What was to be done.
        what: &'static str,
        /// The system's.
        error: io::Error,
    },
}

fn busy_hint(port_id: Option<u32>, holder: Option<&OwnerProcess>) -> String {
    match (holder, port_id) {
        (Some(holder), _) => format!(": {holder}"),
        // It may be another user's, or in a container.
        (None, Some(id)) => format!(
            " (netlink port {id}, which as a rule is its process number; as root, `ss -f netlink -p` tells the process)"
        ),
        (None, None) => " (as root, `ss -f netlink -p` tells who speaks to netfilter)".into(),
    }
}

/// Which queues there are for a group of `count` threads from number `first` on, one each: what `--queue-balance` of a rule
/// names.
///
/// # Errors
/// [`NfqueueError::Option`] where there are none, or numbers of more than 16 bits among them.
pub fn queue_range(first: u16, count: usize) -> Result<std::ops::RangeInclusive<u16>, NfqueueError> {
    let error = |what| Err(NfqueueError::Option { queue: first, what });
    let Some(more) = count.checked_sub(1) else { return error("a range of 0 queues") };
    match u16::try_from(usize::from(first).saturating_add(more)) {
        Ok(last) => Ok(first..=last),
        Err(_) => error("a range of queues that ends behind 65535, which is the last number"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_end_with_the_last_number() {
        assert_eq!(queue_range(0, 1).unwrap(), 0..=0);
        assert_eq!(queue_range(65_534, 2).unwrap(), 65_534..=65_535);
        for (first, count, what) in [(7, 0, "0 queues"), (65_535, 2, "65535"), (1, usize::MAX, "65535")] {
            // `usize::MAX` must not wrap around either.
            let error = queue_range(first, count).unwrap_err().to_string();
            assert!(error.starts_with(&format!("netfilter queue {first}: ")) && error.contains(what), "{error}");
        }
    }
}
