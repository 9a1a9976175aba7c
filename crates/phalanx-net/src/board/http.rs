//! As much HTTP/1.1 as etcd's JSON gateway needs: one POST on a connection of its own, with a deadline and a cap on the answer.

use super::{
    Wait,
    wire::{MAX_ANSWER, nonsense},
};
use crate::error::BoardError;
use std::{
    io::{self, Read, Write},
    net::{TcpStream, ToSocketAddrs},
    time::Duration,
};

/// How long one address may take to answer before the next one is tried.
const ATTEMPT: Duration = Duration::from_secs(2);

/// The body of the answer; any status but 200 is an error.
pub fn post(endpoint: &str, path: &str, body: &str, wait: Wait) -> Result<String, BoardError> {
    let failed = |error| BoardError::Unreachable { address: endpoint.to_string(), error };
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {endpoint}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let mut stream = connect(endpoint, wait).map_err(failed)?;
    stream.set_write_timeout(wait.left()).map_err(failed)?;
    stream.write_all(request.as_bytes()).map_err(failed)?;
    let mut answer = Vec::new();
    let mut bytes = [0; 4096];
    loop {
        let Some(left) = wait.left() else {
            let waited_s = wait.since.elapsed().as_secs_f64();
            return Err(BoardError::SilentEtcd { address: endpoint.to_string(), waited_s });
        };
        stream.set_read_timeout(Some(left)).map_err(failed)?;
        match stream.read(&mut bytes) {
            Ok(0) => break,
            Ok(n) => answer.extend_from_slice(&bytes[..n]),
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
                ) => {}
            Err(e) => return Err(failed(e)),
        }
        if answer.len() > MAX_ANSWER {
            return Err(nonsense(&String::from_utf8_lossy(&answer)));
        }
    }
    match parse(&answer) {
        Some((200, body)) => Ok(body),
        Some((_, body)) if body.contains("HTTPS server") => {
            Err(BoardError::EtcdTls { address: endpoint.to_string() })
        }
        Some((_, body)) if body.contains("user name is empty") || body.contains("invalid auth token") => {
            Err(BoardError::EtcdUser { address: endpoint.to_string() })
        }
        Some((status, body)) => {
            let body: String = body.trim().chars().take(200).collect();
            Err(BoardError::Refused { answer: format!("status {status}: {body}") })
        }
        None => Err(nonsense(&String::from_utf8_lossy(&answer))),
    }
}

fn connect(endpoint: &str, wait: Wait) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in endpoint.to_socket_addrs()? {
        let Some(left) = wait.left() else { return Err(io::ErrorKind::TimedOut.into()) };
        match TcpStream::connect_timeout(&address, left.min(ATTEMPT)) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Status and body of a whole answer.
pub fn parse(answer: &[u8]) -> Option<(u16, String)> {
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).ok()?;
    let body = &answer[end + 4..];
    let mut lines = head.split("\r\n");
    let (version, rest) = lines.next()?.split_once(' ')?;
    if !version.starts_with("HTTP/1.") {
        return None;
    }
    let status = rest.split(' ').next()?.parse().ok()?;
    let fields: Vec<(String, &str)> =
        lines.filter_map(|l| l.split_once(':')).map(|(k, v)| (k.to_ascii_lowercase(), v.trim())).collect();
    let field = |name: &str| fields.iter().find(|(k, _)| k == name).map(|(_, v)| *v);
    let body = match (field("transfer-encoding"), field("content-length")) {
        (Some(coding), _) if coding.eq_ignore_ascii_case("chunked") => chunks(body)?,
        (Some(_), _) => return None,
        (None, Some(n)) => body.get(..n.parse().ok()?)?.to_vec(),
        (None, None) => body.to_vec(),
    };
    Some((status, String::from_utf8(body).ok()?))
}

fn chunks(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|w| w == b"\r\n")?;
        let size = std::str::from_utf8(&rest[..end]).ok()?;
        let n = usize::from_str_radix(size.split(';').next()?.trim(), 16).ok()?;
        rest = &rest[end + 2..];
        if n == 0 {
            return Some(body);
        }
        body.extend_from_slice(rest.get(..n)?);
        rest = rest.get(n..)?.strip_prefix(b"\r\n")?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::TcpListener;

    #[test]
    fn bodies_of_known_and_unknown_length() {
        let known = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(parse(known), Some((200, "{}".into())));
        let chunked =
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
        assert_eq!(parse(chunked), Some((200, "abcde".into())));
        assert_eq!(parse(b"HTTP/1.0 404 Not Found\r\n\r\nno"), Some((404, "no".into())));
        for wrong in [
            "",
            "HTTP/1.1 200 OK",
            "SSH x\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",
            "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n{}",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nabc\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab",
        ] {
            assert_eq!(parse(wrong.as_bytes()), None, "RDZV-2: {wrong}");
        }
    }

    /// Answers one request with these bytes, and then stays or closes.
    fn server(answer: Vec<u8>, stays: bool) -> (String, std::thread::JoinHandle<()>) {
        let door = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = door.local_addr().unwrap().to_string();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = door.accept().unwrap();
            let mut bytes = [0; 4096];
            let _ = stream.read(&mut bytes);
            let _ = stream.write_all(&answer);
            while stays && stream.read(&mut bytes).is_ok_and(|n| n > 0) {}
        });
        (address, thread)
    }

    #[test]
    fn silence_floods_and_closed_doors_are_errors() {
        let ask = |address: &str, ms| post(address, "/x", "{}", Wait::within(Duration::from_millis(ms)));
        let (address, thread) = server(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}".to_vec(), false);
        assert_eq!(ask(&address, 5000).unwrap(), "{}");
        thread.join().unwrap();
        assert!(matches!(ask(&address, 5000), Err(BoardError::Unreachable { .. })));
        let (address, thread) = server(b"HTTP/1.1 200 OK\r\n".to_vec(), true);
        let late = ask(&address, 50).unwrap_err().to_string();
        assert!(late.starts_with(&format!("etcd at {address} took the question")), "RDZV-3: {late}");
        thread.join().unwrap();
        for (says, wanted) in [
            ("400 Bad\r\n\r\nClient sent an HTTP request to an HTTPS server.\n", "wants TLS"),
            ("400 Bad\r\n\r\n{\"error\":\"etcdserver: user name is empty\"}", "wants a user and a password"),
        ] {
            let (address, thread) = server(format!("HTTP/1.0 {says}").into_bytes(), false);
            let error = ask(&address, 5000).unwrap_err().to_string();
            assert!(error.contains(wanted) && error.contains("file:/directory"), "{error}");
            thread.join().unwrap();
        }
        let (address, thread) = server(vec![b'x'; 1 << 20], false);
        assert!(matches!(ask(&address, 5000), Err(BoardError::Nonsense { .. })), "RDZV-2");
        thread.join().unwrap();
        let (address, thread) = server(b"HTTP/1.1 500 Oh\r\n\r\nbroken\n".to_vec(), false);
        assert_eq!(ask(&address, 5000).unwrap_err().to_string(), "it refused: status 500: broken");
        thread.join().unwrap();
    }

    proptest! {
        /// RDZV-2
        #[test]
        fn any_bytes_are_an_answer_or_nothing(head in "(HTTP/1\\.1 [0-9]{1,5} OK)?(\r\n(Content-Length|Transfer-Encoding): ?([0-9]{0,20}|chunked))?(\r\n\r\n)?", body in proptest::collection::vec(any::<u8>(), 0..80)) {
            let answer = [head.as_bytes(), &body].concat();
            if let Some((_, text)) = parse(&answer) {
                prop_assert!(text.len() <= answer.len());
            }
        }

        /// RDZV-2
        #[test]
        fn chunks_of_any_size_are_whole_or_nothing(text in "([0-9a-f]{1,3}\r\n[a-z]{0,20}(\r\n)?){0,4}(0\r\n)?") {
            if let Some(body) = chunks(text.as_bytes()) {
                prop_assert!(body.len() <= text.len());
            }
        }
    }
}
