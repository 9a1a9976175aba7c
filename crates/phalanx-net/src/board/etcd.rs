//! etcd as a board, through its v3 JSON gateway. Others can read it, so ranks need a given secret; the connection is plain HTTP.
//!
//! - RDZV-7: what a rank puts there belongs to a lease that ends [`LEASE_S`] seconds after the rank: a job that was killed leaves nothing.
//!   A rank 0 with the same name waits for that; while the other one is alive it is refused (RDZV-8).

use super::{LOOK_EVERY, Notices, Wait, base64, http, wire::nonsense};
use crate::error::BoardError;
use phalanx_core::Rank;
use serde_json::{Value, json};
use std::{
    sync::mpsc::{self, RecvTimeoutError},
    thread::JoinHandle,
    time::Duration,
};

/// How long an entry outlives the rank that made it.
const LEASE_S: u64 = 10;
const LONGEST: usize = 8 << 10;

#[derive(Debug)]
pub struct Etcd {
    endpoints: Vec<String>,
    job: String,
    lease: Option<Lease>,
}

/// A lease, and the thread that keeps it; dropping it ends both, and what was put under it is gone.
#[derive(Debug)]
struct Lease {
    id: String,
    stop: Option<mpsc::Sender<()>>,
    keeper: Option<JoinHandle<()>>,
}

impl Etcd {
    pub fn new(endpoints: &[String], job: &str) -> Etcd {
        Etcd { endpoints: endpoints.to_vec(), job: job.to_string(), lease: None }
    }

    fn key(&self, key: &str) -> String {
        base64::encode(format!("/phalanx/{}/{key}", self.job).as_bytes())
    }

    /// Whether it answers at all.
    pub fn answers(&self, wait: Wait) -> Result<(), BoardError> {
        value(&self.ask("/v3/kv/range", &json!({ "key": self.key("rank0") }), wait)?).map(|_| ())
    }

    fn ask(&self, path: &str, question: &Value, wait: Wait) -> Result<Value, BoardError> {
        ask(&self.endpoints, path, question, wait)
    }

    /// The lease of this rank's entries.
    fn lease(&mut self, wait: Wait) -> Result<String, BoardError> {
        if let Some(lease) = &self.lease {
            return Ok(lease.id.clone());
        }
        let granted = self.ask("/v3/lease/grant", &json!({ "TTL": LEASE_S.to_string() }), wait)?;
        let id = granted["ID"].as_str().filter(|id| !id.is_empty()).ok_or_else(|| odd(&granted))?.to_string();
        self.lease = Some(Lease::keep(self.endpoints.clone(), id.clone())?);
        Ok(id)
    }
}

impl Lease {
    fn keep(endpoints: Vec<String>, id: String) -> Result<Lease, BoardError> {
        let (stop, stopped) = mpsc::channel();
        let kept = json!({ "ID": id });
        let work = move || {
            let every = Duration::from_secs(LEASE_S) / 4;
            while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                // One that fails is tried again before the lease ends.
                if let Err(error) = ask(&endpoints, "/v3/lease/keepalive", &kept, Wait::within(every)) {
                    tracing::debug!(%error, "the lease of this rank's entry was not renewed");
                }
            }
            let _ = ask(&endpoints, "/v3/lease/revoke", &kept, Wait::within(every));
        };
        let keeper = std::thread::Builder::new().name("phalanx-board".into()).spawn(work);
        let keeper = keeper.map_err(|error| BoardError::System { what: "cannot start a thread", error })?;
        Ok(Lease { id, stop: Some(stop), keeper: Some(keeper) })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.keeper.take().map(JoinHandle::join);
    }
}

/// Asks the endpoints in order; the first answer counts.
fn ask(endpoints: &[String], path: &str, question: &Value, wait: Wait) -> Result<Value, BoardError> {
    let mut last = None;
    for endpoint in endpoints {
        match http::post(endpoint, path, &question.to_string(), wait) {
            Ok(answer) => return serde_json::from_str(&answer).map_err(|_| nonsense(&answer)),
            Err(error) => last = Some(error),
        }
    }
    Err(last.expect("an address of etcd has at least one endpoint"))
}

fn odd(answer: &Value) -> BoardError {
    nonsense(&answer.to_string())
}

/// The value of the one key that was asked for; `None` if it is not there.
fn value(answer: &Value) -> Result<Option<String>, BoardError> {
    let found = match &answer["kvs"] {
        Value::Null => return Ok(None),
        Value::Array(kvs) => kvs.first().and_then(|kv| kv["value"].as_str()),
        _ => None,
    };
    let bytes = found.and_then(base64::decode).ok_or_else(|| odd(answer))?;
    String::from_utf8(bytes).map(Some).map_err(|_| odd(answer))
}

/// Reads the body of an answer in every way, for fuzzing.
pub(super) fn read(body: &str) {
    if let Ok(answer) = serde_json::from_str::<Value>(body) {
        let _ = (value(&answer), answer["ID"].as_str(), answer["succeeded"].as_bool());
    }
}

impl Notices for Etcd {
    fn publish(&mut self, key: &str, text: &str, wait: Wait) -> Result<(), BoardError> {
        let lease = self.lease(wait)?;
        let name = self.key(key);
        let put = json!({ "key": name, "value": base64::encode(text.as_bytes()), "lease": lease });
        let question = json!({
            "compare": [{ "key": name, "target": "CREATE", "create_revision": "0" }],
            "success": [{ "request_put": put }],
        });
        let answer = self.ask("/v3/kv/txn", &question, wait)?;
        match &answer["succeeded"] {
            Value::Bool(true) => Ok(()),
            Value::Null | Value::Bool(false) if answer.is_object() => {
                Err(BoardError::There { key: key.into() })
            }
            _ => Err(odd(&answer)),
        }
    }

    fn replace(&mut self, key: &str, text: &str, wait: Wait) -> Result<(), BoardError> {
        let lease = self.lease(wait)?;
        let put = json!({ "key": self.key(key), "value": base64::encode(text.as_bytes()), "lease": lease });
        self.ask("/v3/kv/put", &put, wait).map(|_| ())
    }

    fn settle(&mut self, _: Wait) -> Result<(), BoardError> {
        Ok(())
    }

    fn look(&mut self, by: Rank, key: &str, wait: Wait) -> Result<String, BoardError> {
        loop {
            if let Some(text) = self.glance(key, wait)? {
                return Ok(text);
            }
            if wait.left_to_look().is_none() {
                return Err(wait.late(format!("rank {by} to publish under the name {:?}", self.job)));
            }
            std::thread::park_timeout(LOOK_EVERY);
        }
    }

    fn glance(&mut self, key: &str, wait: Wait) -> Result<Option<String>, BoardError> {
        value(&self.ask("/v3/kv/range", &json!({ "key": self.key(key) }), wait)?)
    }

    fn longest(&self) -> usize {
        LONGEST
    }

    fn withdraw(&mut self, _: &str, _: &str) {
        self.lease = None;
    }
}

#[cfg(test)]
mod tests;
