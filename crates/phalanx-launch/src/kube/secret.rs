//! The job's secret: one that the cluster has, or a new one in the manifest (KUBE-2).

use super::{check::KubeJob, pod, yaml::Document};
use phalanx_net::secret::Secret;
use serde_json::json;
use std::fmt::Write as _;

/// The key of a Secret under which the job's secret stands, and the name of its file.
pub const KEY: &str = "secret";

/// Where the pods find the secret.
#[derive(Debug)]
pub struct JobSecret {
    /// Of the Secret.
    pub name: String,
    /// `None`: the Secret exists already.
    new: Option<Secret>,
}

impl JobSecret {
    pub fn new(job: &str, existing: Option<&str>) -> JobSecret {
        match existing {
            Some(name) => JobSecret { name: name.into(), new: None },
            None => JobSecret { name: format!("{job}-secret"), new: Some(Secret::random()) },
        }
    }
}

/// The Secret, unless the cluster has it.
pub fn document(job: &KubeJob) -> Option<Document> {
    let secret = job.secret.new.as_ref()?;
    let hex = secret.expose().iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    });
    Some(Document {
        comment: "This is a secret: who reads it can join the job. Do not commit it; --secret NAME prints a manifest without one.",
        value: json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": pod::metadata(job, &job.secret.name),
            "type": "Opaque",
            "stringData": { KEY: hex },
        }),
    })
}
