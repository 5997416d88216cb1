//! Queues that cannot be opened, or that are lost.
#![allow(unsafe_code)]

use portcullis_core::packet::Action;
use portcullis_io::live::{Executor, LiveError, Receiver};
use portcullis_io::nfqueue::{NfqueueError, QueueOptions, open};

use crate::lane::{Link, Numbered, TIMEOUT, begin, completion, rule, take};

#[test]
fn opening_a_queue_in_use_names_the_process_that_holds_it() {
    let Some(_suite) = begin("nfqueue: a busy queue") else { return };
    let link = Link::new();
    let options = QueueOptions::default().with_queue(12);
    let held = link.left.run(|| open(&options)).unwrap();
    let error = link.left.run(|| open(&options)).unwrap_err();
    assert!(matches!(error, NfqueueError::Busy { queue: 12, port_id: Some(1..), .. }), "{error:?}");
    let text = error.to_string();
    let me = format!("another program has it: process {} (", std::process::id());
    assert!(text.contains("queue 12") && text.contains(&me), "{text}");
    // Other queues are free; so is this one in another namespace, and after it is closed.
    drop(link.left.run(|| open(&options.with_queue(13))).unwrap());
    drop(link.right.run(|| open(&options)).unwrap());
    drop(held);
    drop(link.left.run(|| open(&options)).unwrap());
}

#[test]
fn invalid_options_are_refused() {
    let good = QueueOptions::default().with_queue(5);
    for (options, what) in [
        (good.with_batch(0), "a batch size of 0 packets"),
        (good.with_max_length(0), "0 waiting packets"),
        (good.with_copy_range(0), "0 bytes"),
        (good.with_batch(usize::MAX), "an arena holds at most"),
    ] {
        let error = open(&options).unwrap_err().to_string();
        assert!(error.starts_with("netfilter queue 5: ") && error.contains(what), "{error}");
    }
}

/// CAP_NET_ADMIN of linux/capability.h.
const CAP_NET_ADMIN: u32 = 12;

/// `struct __user_cap_header_struct`, version 3; the data are two of `struct
/// __user_cap_data_struct`: linux/capability.h.
#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

/// Drops the capability from this thread, irrevocably.
fn drop_capability() {
    let header = Header { version: 0x2008_0522, pid: 0 };
    // Effective, permitted, inheritable; the lower half and the upper.
    let mut data = [[0u32; 3]; 2];
    // SAFETY: both have the layout that the call requires, and outlive it.
    assert_eq!(unsafe { libc::syscall(libc::SYS_capget, &raw const header, data.as_mut_ptr()) }, 0);
    for set in &mut data[0] {
        *set &= !(1 << CAP_NET_ADMIN);
    }
    // SAFETY: as above; the call changes this thread only.
    assert_eq!(unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) }, 0);
}

#[test]
fn opening_a_queue_without_cap_net_admin_is_refused() {
    let Some(_suite) = begin("nfqueue: no capability") else { return };
    let link = Link::new();
    let error = link.left.run(|| {
        drop_capability();
        open(&QueueOptions::default().with_queue(2)).unwrap_err()
    });
    assert!(matches!(error, NfqueueError::NotPermitted { queue: 2 }), "{error:?}");
    assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");
}

#[test]
fn losing_cap_net_admin_is_reported_on_every_call() {
    let Some(_suite) = begin("nfqueue: a lost capability") else { return };
    let link = Link::new();
    rule(&link.left, "OUTPUT -p udp -j NFQUEUE --queue-num 2");
    let numbered = Numbered::over(&link);
    let (mut receiver, mut executor) = link.left.run(|| open(&QueueOptions::default().with_queue(2))).unwrap();
    numbered.send(0..10);
    let batch = take(&mut receiver, 10);
    let executor = link.left.run(move || {
        drop_capability();
        // The kernel accepts the message, and reports the error later.
        executor.execute(completion(batch, vec![Action::Pass as u8; 10])).unwrap();
        executor
    });
    receiver.wait(TIMEOUT).unwrap();
    assert_eq!(receiver.receive(10).unwrap(), 0);
    let mut executor = executor;
    for error in [receiver.receive(10).unwrap_err(), receiver.wait(TIMEOUT).unwrap_err(), executor.poll().unwrap_err()]
    {
        assert!(matches!(error, LiveError::System { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.starts_with("netfilter queue 2: ") && text.contains("CAP_NET_ADMIN"), "{text}");
    }
}
