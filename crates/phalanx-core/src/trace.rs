//! Events as `chrome://tracing` and Perfetto show them. The engine's timeline, the traces of executors and `phalanx trace` all have
//! this form.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::fmt;

/// One event. Its text is a JSON object.
///
/// ```
/// use phalanx_core::trace::Event;
/// let event = Event::new("QUEUE", 'B', 3).at_ns(1_250).args([("bytes", 8.into())]);
/// assert_eq!(event.to_string(), r#"{"name":"QUEUE","ph":"B","ts":1.25,"pid":3,"args":{"bytes":8}}"#);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    pub name: String,
    /// What kind of event it is: `B` begins, `E` ends, `X` has a duration, `i` is a moment, `M` describes a track.
    pub ph: String,
    /// Microseconds since the trace began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ts: Option<f64>,
    pub pid: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tid: Option<u64>,
    /// Everything else, as it is.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

impl Event {
    pub fn new(name: impl Into<String>, ph: char, pid: u64) -> Event {
        Event { name: name.into(), ph: ph.to_string(), ts: None, pid, tid: None, rest: Map::new() }
    }

    /// How viewers title a track.
    pub fn title(pid: u64, name: impl Into<Value>) -> Event {
        Event::new("process_name", 'M', pid).args([("name", name.into())])
    }

    /// Where viewers show a track.
    pub fn order(pid: u64) -> Event {
        Event::new("process_sort_index", 'M', pid).args([("sort_index", pid.into())])
    }

    /// Nanoseconds since the trace began.
    pub fn at_ns(self, ns: u64) -> Event {
        Event { ts: Some(microseconds(ns)), ..self }
    }

    /// How long it took, in nanoseconds.
    pub fn lasting_ns(self, ns: u64) -> Event {
        self.with("dur", microseconds(ns))
    }

    pub fn on_thread(self, tid: u64) -> Event {
        Event { tid: Some(tid), ..self }
    }

    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Event {
        self.rest.insert(key.to_string(), value.into());
        self
    }

    /// What viewers show when somebody selects it; nothing is written if there is none.
    pub fn args<const N: usize>(mut self, args: [(&str, Value); N]) -> Event {
        let all = self.rest.entry("args").or_insert_with(|| json!({}));
        if let Value::Object(all) = all {
            all.extend(args.map(|(key, value)| (key.to_string(), value)));
        }
        self
    }

    pub fn arg(&self, name: &str) -> Option<&Value> {
        self.rest.get("args")?.get(name)
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

/// Exact to the nanosecond for a hundred days.
fn microseconds(ns: u64) -> f64 {
    ns as f64 / 1e3
}
