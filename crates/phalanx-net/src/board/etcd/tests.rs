//! Against a server in this process that knows the six calls.

use super::*;
use proptest::prelude::*;
use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::TcpListener,
    sync::{Arc, Mutex},
};

#[derive(Debug, Default)]
struct Store {
    /// Value and lease of each key.
    entries: BTreeMap<String, (String, String)>,
    n_leases: u32,
    calls: Vec<String>,
    /// Answers everything with this instead.
    says: Option<String>,
}

impl Store {
    fn answer(&mut self, path: &str, asked: &Value) -> Value {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
        self.calls.push(path.into());
        match path {
            "/v3/lease/grant" => {
                self.n_leases += 1;
                json!({ "ID": self.n_leases.to_string(), "TTL": asked["TTL"] })
            }
            "/v3/kv/txn" => {
                let put = &asked["success"][0]["request_put"];
                let key = text(&put["key"]);
                if self.entries.contains_key(&key) {
                    return json!({ "header": {} });
                }
                self.entries.insert(key, (text(&put["value"]), text(&put["lease"])));
                json!({ "succeeded": true })
            }
            "/v3/kv/put" => {
                self.entries.insert(text(&asked["key"]), (text(&asked["value"]), text(&asked["lease"])));
                json!({})
            }
            "/v3/kv/range" => match self.entries.get(&text(&asked["key"])) {
                Some((value, _)) => json!({ "kvs": [{ "key": asked["key"], "value": value }], "count": "1" }),
                None => json!({ "header": {} }),
            },
            "/v3/lease/revoke" => {
                self.entries.retain(|_, (_, lease)| *lease != text(&asked["ID"]));
                json!({})
            }
            _ => json!({ "result": { "ID": asked["ID"] } }),
        }
    }
}

/// Serves until the test process ends; returns where.
fn server() -> (String, Arc<Mutex<Store>>) {
    let door = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, store) = (door.local_addr().unwrap().to_string(), Arc::new(Mutex::new(Store::default())));
    let shared = store.clone();
    std::thread::spawn(move || {
        for mut stream in door.incoming().map_while(Result::ok) {
            let mut request = Vec::new();
            let mut bytes = [0; 4096];
            let body = loop {
                let n = stream.read(&mut bytes).unwrap_or(0);
                request.extend_from_slice(&bytes[..n]);
                let text = String::from_utf8_lossy(&request).into_owned();
                let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                let length =
                    head.split("Content-Length: ").nth(1).and_then(|l| l.lines().next()?.parse().ok());
                if n == 0 || length == Some(body.len()) {
                    break body.to_string();
                }
            };
            let path = String::from_utf8_lossy(&request).split(' ').nth(1).unwrap_or_default().to_string();
            let mut store = shared.lock().unwrap();
            let answer = store.answer(&path, &serde_json::from_str(&body).unwrap_or_default());
            let answer = store.says.clone().unwrap_or_else(|| answer.to_string());
            let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{answer}", answer.len());
        }
    });
    (address, store)
}

fn soon() -> Wait {
    Wait::within(Duration::from_secs(1))
}

#[test]
fn an_entry_is_found_by_others_and_goes_with_its_lease() {
    let (address, store) = server();
    let endpoints = ["127.0.0.1:9".to_string(), address];
    let mut zero = Etcd::new(&endpoints, "job");
    let mut one = Etcd::new(&endpoints, "job");
    let late = one.look(Rank(0), "rank0", soon()).unwrap_err().to_string();
    assert!(late.contains("for rank 0 to publish under the name \"job\""), "RDZV-3: {late}");
    zero.publish("rank0", "10.0.0.1:5/x", soon()).unwrap();
    assert_eq!(one.look(Rank(0), "rank0", soon()).unwrap(), "10.0.0.1:5/x");
    assert!(matches!(one.publish("rank0", "y", soon()), Err(BoardError::There { .. })), "RDZV-7");
    assert_eq!(one.glance("rank0", soon()).unwrap().as_deref(), Some("10.0.0.1:5/x"));
    assert_eq!(one.glance("rank1", soon()).unwrap(), None);
    zero.replace("rank0", "z", soon()).unwrap();
    assert_eq!(one.look(Rank(0), "rank0", soon()).unwrap(), "z");
    zero.withdraw("rank0", "z");
    assert!(store.lock().unwrap().entries.is_empty(), "RDZV-7");
    one.publish("rank0", "y", soon()).expect("RDZV-7: the name is free again");
}

#[test]
fn nobody_there_and_nonsense_are_errors() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let error =
        Etcd::new(std::slice::from_ref(&closed), "job").look(Rank(0), "k", soon()).unwrap_err().to_string();
    assert!(error.starts_with(&format!("{closed} cannot be reached")), "{error}");
    let (address, store) = server();
    for says in [
        "",
        "[]",
        "null",
        "{\"kvs\":7}",
        "{\"kvs\":[{}]}",
        "{\"kvs\":[{\"value\":\"/\"}]}",
        "{\"kvs\":[{\"value\":\"//8=\"}]}",
    ] {
        store.lock().unwrap().says = Some(says.into());
        let mut board = Etcd::new(std::slice::from_ref(&address), "job");
        assert!(board.look(Rank(0), "k", soon()).is_err(), "RDZV-2: {says}");
        assert!(board.publish("k", "v", soon()).is_err(), "RDZV-2: {says}");
    }
}

#[test]
fn an_etcd_that_goes_away_or_falls_silent_during_the_meeting_is_named_in_time() {
    let (address, _) = server();
    let door = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = door.local_addr().unwrap().to_string();
    // It answers the first question, and then takes no more calls.
    let first = std::thread::spawn({
        let address = address.clone();
        move || {
            let (mut near, _) = door.accept().unwrap();
            let mut far = std::net::TcpStream::connect(address).unwrap();
            let mut bytes = vec![0; 4096];
            let n = near.read(&mut bytes).unwrap();
            far.write_all(&bytes[..n]).unwrap();
            let _ = std::io::copy(&mut far, &mut near);
            door
        }
    });
    let mut board = Etcd::new(std::slice::from_ref(&silent), "job");
    let late = board.look(Rank(0), "rank0", soon());
    let late = late.unwrap_err().to_string();
    assert!(late.contains(&format!("etcd at {silent} took the question")), "RDZV-3: {late}");
    // Now nobody listens there any more.
    drop(first.join().unwrap());
    let gone = board.look(Rank(0), "rank0", soon()).unwrap_err().to_string();
    assert!(gone.starts_with(&format!("{silent} cannot be reached")), "{gone}");
    // A second endpoint that still answers is enough.
    let mut two = Etcd::new(&[silent, address], "job");
    two.publish("rank0", "x", soon()).unwrap();
    assert_eq!(two.look(Rank(0), "rank0", soon()).unwrap(), "x");
}

proptest! {
    /// RDZV-2
    #[test]
    fn any_json_is_a_value_or_an_error(text in "\\{\"kvs\":(\\[\\{\"value\":\"[A-Za-z0-9=]{0,12}\"\\}\\]|[0-9]|null|\"x\")\\}") {
        if let Ok(answer) = serde_json::from_str(&text) {
            let _ = value(&answer);
        }
    }
}
