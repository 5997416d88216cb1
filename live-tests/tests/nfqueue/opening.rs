//! Queues that cannot be opened, or that are lost.

use portcullis_core::packet::Action;
use portcullis_io::live::{Executor, LiveError, Receiver};
use portcullis_io::nfqueue::{NfqueueError, QueueOptions, open};
use portcullis_live_tests::drop_capabilities;

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

#[test]
fn opening_a_queue_without_cap_net_admin_is_refused() {
    let Some(_suite) = begin("nfqueue: no capability") else { return };
    let link = Link::new();
    let error = link.left.run(|| {
        drop_capabilities();
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
        drop_capabilities();
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
