//! Errors of binding a queue.

use std::io;

use portcullis_core::packet::ArenaError;
use portcullis_core::reason;

use crate::live::OwnerProcess;

/// Why a queue cannot be bound.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NfqueueError {
    /// `EPERM`, and no other socket has bound the queue.
    #[error(
        "netfilter queue {queue}: taking it needs the capability CAP_NET_ADMIN; run as root, or give it to the program"
    )]
    NotPermitted {
        /// The queue's number.
        queue: u16,
    },
    /// Another process has bound the queue.
    #[error(
        "netfilter queue {queue}: another program has it{}; stop that, or choose another number here and in the rule",
        busy_hint(*.port_id, .holder.as_ref())
    )]
    Busy {
        /// The queue's number.
        queue: u16,
        /// Netlink port ID of the socket that has bound the queue, if the kernel reports it.
        port_id: Option<u32>,
        /// The process with that socket, if it can be found.
        holder: Option<OwnerProcess>,
    },
    /// The kernel does not support netfilter queues.
    #[error(
        "netfilter queue {queue}: the kernel has no netfilter queues; load its module with `modprobe nfnetlink_queue`, or \
         use a kernel with CONFIG_NETFILTER_NETLINK_QUEUE"
    )]
    NoSupport {
        /// The queue's number.
        queue: u16,
    },
    /// The kernel is too old for a requested option.
    #[error(
        "netfilter queue {queue}: the kernel does not support an option; packets longer than the MTU (gso) need Linux \
         3.10, fail-open needs 3.6"
    )]
    OldKernel {
        /// The queue's number.
        queue: u16,
    },
    /// An option has an invalid value.
    #[error("netfilter queue {queue}: {what}")]
    Option {
        /// The queue's number.
        queue: u16,
        /// The invalid option, for example `a batch size of 0 packets`.
        what: &'static str,
    },
    /// No memory for packets.
    #[error("netfilter queue {queue}: {error}")]
    Memory {
        /// The queue's number.
        queue: u16,
        /// The cause.
        error: ArenaError,
    },
    /// The system refused an operation.
    #[error("netfilter queue {queue}: {what}: {}", reason(.error))]
    System {
        /// The queue's number.
        queue: u16,
        /// The operation.
        what: &'static str,
        /// The system's error.
        error: io::Error,
    },
}

fn busy_hint(port_id: Option<u32>, holder: Option<&OwnerProcess>) -> String {
    match (holder, port_id) {
        (Some(holder), _) => format!(": {holder}"),
        // The socket may belong to another user or to a container.
        (None, Some(id)) => {
            format!(" (netlink port {id}, usually the process ID; as root, `ss -f netlink -p` shows the process)")
        }
        (None, None) => " (as root, `ss -f netlink -p` shows the processes with netfilter sockets)".into(),
    }
}

/// Queue numbers for a group of `count` threads from number `first` on, one each, as
/// `--queue-balance` in a rule names them.
///
/// # Errors
/// [`NfqueueError::Option`] if the range is empty or exceeds 65535.
pub fn queue_range(first: u16, count: usize) -> Result<std::ops::RangeInclusive<u16>, NfqueueError> {
    let error = |what| Err(NfqueueError::Option { queue: first, what });
    let Some(more) = count.checked_sub(1) else { return error("a range of 0 queues") };
    match u16::try_from(usize::from(first).saturating_add(more)) {
        Ok(last) => Ok(first..=last),
        Err(_) => error("a range of queues beyond number 65535, the highest"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_ranges_end_at_65535() {
        assert_eq!(queue_range(0, 1).unwrap(), 0..=0);
        assert_eq!(queue_range(65_534, 2).unwrap(), 65_534..=65_535);
        for (first, count, what) in [(7, 0, "0 queues"), (65_535, 2, "65535"), (1, usize::MAX, "65535")] {
            // Also checks that `usize::MAX` does not wrap around.
            let error = queue_range(first, count).unwrap_err().to_string();
            assert!(error.starts_with(&format!("netfilter queue {first}: ")) && error.contains(what), "{error}");
        }
    }
}
