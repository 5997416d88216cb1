//! Minimal HTTP/1.1 (RFC 9112) for metrics: GET and HEAD of one path, one request per connection.
//!
//! No state is kept between requests. Only the head of a request is read, and its length is
//! limited.

/// Maximum length of a request's head.
pub const MAX_HEAD_BYTES: usize = 8 << 10;

/// Maximum number of header fields: more than any client sends.
const MAX_HEADERS: usize = 64;

const PATH: &str = "/metrics";

/// Action after receiving part of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The request is incomplete.
    Wait,
    /// The response to send, after which the connection is closed.
    Answer(Vec<u8>),
}

/// Parses what has been received of a request and answers it once complete. Calls `metrics` only if
/// the response contains them.
pub fn reply(request: &[u8], metrics: impl FnOnce() -> String) -> Reply {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut head = httparse::Request::new(&mut headers);
    let bounded = &request[..request.len().min(MAX_HEAD_BYTES)];
    match head.parse(bounded) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if request.len() < MAX_HEAD_BYTES => return Reply::Wait,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return error("431 Request Header Fields Too Large", "", "the request is too long");
        }
        Err(_) => return error("400 Bad Request", "", "this is not an HTTP request"),
    }
    // Both are present in a complete request.
    let (method, target) = (head.method.unwrap_or_default(), head.path.unwrap_or_default());
    if method != "GET" && method != "HEAD" {
        return error("405 Method Not Allowed", "Allow: GET, HEAD\r\n", "only GET and HEAD are supported");
    }
    if path(target) != PATH {
        return error("404 Not Found", "", "only /metrics exists here");
    }
    let text = metrics();
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let mut answer = self::head("200 OK", kind, "", text.len());
    if method == "GET" {
        answer.push_str(&text);
    }
    Reply::Answer(answer.into_bytes())
}

/// The path of a request target, without the authority of an absolute form and without a query.
fn path(target: &str) -> &str {
    let target = target.split(['?', '#']).next().unwrap_or_default();
    match target.strip_prefix("http://") {
        Some(rest) => rest.find('/').map_or("", |at| &rest[at..]),
        None => target,
    }
}

fn head(status: &str, kind: &str, more: &str, length: usize) -> String {
    let always = "Connection: close\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n";
    format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{more}{always}\r\n")
}

fn error(status: &str, more: &str, text: &str) -> Reply {
    let answer = head(status, "text/plain; charset=utf-8", more, text.len() + 1);
    Reply::Answer((answer + text + "\n").into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The status line and the body of the response.
    fn answer(request: &[u8]) -> (String, String) {
        let Reply::Answer(answer) = reply(request, || "portcullis_batches_total 1\n# EOF\n".into()) else {
            return ("wait".into(), String::new());
        };
        let text = String::from_utf8(answer).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("\r\nConnection: close\r\n"), "{head}");
        (head.lines().next().unwrap().to_owned(), body.to_owned())
    }

    #[test]
    fn requests_for_metrics_are_answered() {
        let body = "portcullis_batches_total 1\n# EOF\n";
        for request in [
            "GET /metrics HTTP/1.1\r\nHost: localhost:9100\r\n\r\n",
            "GET /metrics HTTP/1.0\r\n\r\n",
            "GET /metrics?lane=1 HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n",
            "GET http://127.0.0.1:9100/metrics HTTP/1.1\r\nHost: a\r\n\r\na body, which is ignored",
        ] {
            assert_eq!(answer(request.as_bytes()), ("HTTP/1.1 200 OK".into(), body.into()), "{request}");
        }
        let Reply::Answer(head) = reply(b"HEAD /metrics HTTP/1.1\r\n\r\n", || body.into()) else { panic!() };
        let head = String::from_utf8(head).unwrap();
        assert!(
            head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())) && head.ends_with("\r\n\r\n"),
            "{head}"
        );
    }

    #[test]
    fn other_requests_get_an_error_status() {
        for (request, status) in [
            ("GET / HTTP/1.1\r\n\r\n", "404 Not Found"),
            ("GET /metrics/ HTTP/1.1\r\n\r\n", "404 Not Found"),
            ("GET http://localhost HTTP/1.1\r\n\r\n", "404 Not Found"),
            ("POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "405 Method Not Allowed"),
            ("DELETE / HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
            ("get /metrics\r\n\r\n", "400 Bad Request"),
            ("GET /metrics HTTP/2.0\r\n\r\n", "400 Bad Request"),
            ("\u{16}\u{3}\u{1}", "400 Bad Request"),
        ] {
            assert_eq!(answer(request.as_bytes()).0, format!("HTTP/1.1 {status}"), "{request}");
        }
        let long = format!("GET /metrics HTTP/1.1\r\nCookie: {}", "x".repeat(MAX_HEAD_BYTES));
        let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(MAX_HEADERS + 1));
        for request in [long, many] {
            assert_eq!(answer(request.as_bytes()).0, "HTTP/1.1 431 Request Header Fields Too Large");
        }
    }

    #[test]
    fn an_incomplete_request_waits_for_more() {
        let request = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
        for length in 0..request.len() {
            assert_eq!(answer(&request[..length]).0, "wait", "{length} bytes");
        }
    }
}
