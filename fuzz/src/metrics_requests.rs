//! Fuzz target: arbitrary bytes as a request to the metrics server. It must answer with well-formed
//! HTTP, and the answer must not depend on how the bytes are split into reads.

use portcullis::pipeline::live::metrics::http::{MAX_HEAD_BYTES, Reply, reply};

const METRICS: &str = "metrics\n";

/// Answers the bytes as a request, and checks the answer.
///
/// # Panics
/// If the answer is malformed, or differs when the request arrives byte by byte.
pub fn run(data: &[u8]) {
    let at_once = reply(data, || METRICS.into());
    match &at_once {
        Reply::Wait => assert!(data.len() < MAX_HEAD_BYTES, "a head of this length gets an answer"),
        Reply::Answer(answer) => check(answer),
    }
    // The server sends the first answer it gets, so find the shortest prefix that has one.
    let mut asked = 0;
    let cut = (1..=data.len().min(MAX_HEAD_BYTES)).find_map(|length| match reply(&data[..length], || METRICS.into()) {
        Reply::Answer(answer) => Some(answer),
        Reply::Wait => {
            asked += 1;
            None
        }
    });
    match (cut, at_once) {
        (Some(cut), Reply::Answer(answer)) => assert_eq!(cut, answer, "byte by byte, after {asked}"),
        (None, Reply::Wait) => {}
        (cut, at_once) => panic!("byte by byte {cut:?}, at once {at_once:?}"),
    }
}

/// Checks the status line, and that the body has the length that the head declares.
fn check(answer: &[u8]) {
    let text = std::str::from_utf8(answer).expect("a text");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 ")).expect("a status line");
    let length =
        lines.find_map(|line| line.strip_prefix("Content-Length: ")).expect("a length").parse::<usize>().unwrap();
    match &status[..3] {
        "200" => assert!(body == METRICS || body.is_empty()),
        "400" | "404" | "405" | "431" => assert!(!body.is_empty() && !body.contains('\r')),
        _ => panic!("{status}"),
    }
    assert!(body.len() == length || (status == "200 OK" && body.is_empty()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutate::{A_SECOND, Corpus, run_for};

    const SEEDS: &[&[u8]] = &[
        b"GET /metrics HTTP/1.1\r\nHost: localhost:9100\r\nAccept: application/openmetrics-text;version=1.0.0\r\n\r\n",
        b"HEAD http://127.0.0.1/metrics?a=b HTTP/1.0\n\n",
        b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
        b"GET / HTTP/1.1\r\n\r\n",
    ];

    #[test]
    fn seeds_get_an_answer() {
        for seed in SEEDS {
            assert!(matches!(reply(seed, String::new), Reply::Answer(_)));
        }
    }

    #[test]
    fn mutated_seeds_never_panic() {
        let tokens = "␤ GET␣ /metrics ␣HTTP/1.1 http:// ?";
        let corpus = Corpus { seeds: SEEDS, tokens, pieces: &[b"\r\n", b"a: b\r\n", b"\0", b"\xff", b"\x80"] };
        println!("{} requests", run_for(A_SECOND, "metrics_requests", corpus, 0, run));
    }
}
