//! What each pod of a job is: its container, its variables and what is mounted.

use super::{check::KubeJob, dollars::literal, secret::KEY};
use serde_json::{Value, json};

/// The folder where the secret is mounted.
const SECRET_FOLDER: &str = "/run/phalanx";
/// Where the launchers of several pods meet.
const PORT: u16 = 29_400;
/// The container; Kubeflow Trainer looks for this name.
pub const CONTAINER: &str = "node";

/// Names and labels, the same for all that belongs to the job.
pub fn metadata(job: &KubeJob, name: &str) -> Value {
    let mut metadata = json!({ "name": name, "labels": labels(job) });
    if let Some(namespace) = &job.args.namespace {
        metadata["namespace"] = json!(namespace);
    }
    metadata
}

pub fn labels(job: &KubeJob) -> Value {
    json!({ "app.kubernetes.io/instance": job.args.name, "app.kubernetes.io/part-of": "phalanx" })
}

/// The words that the container runs.
pub fn command(job: &KubeJob) -> Vec<String> {
    let own = job.args.command.iter().map(|word| literal(word));
    if !job.has_launcher() {
        let is_script = job.args.command[0].ends_with(".py");
        return is_script.then(|| "python3".into()).into_iter().chain(own).collect();
    }
    let mut words: Vec<String> = vec!["phalanx".into(), "run".into()];
    if job.n_nodes > 1 {
        let meet = format!("{}.{}:{PORT}", job.pod(0), job.args.name);
        let flags = [
            ("--nnodes", job.n_nodes.to_string()),
            ("--node-rank", "$(JOB_COMPLETION_INDEX)".into()),
            ("--rdzv", meet),
            ("--start-timeout", job.args.start_timeout.to_string()),
        ];
        words.extend(flags.into_iter().flat_map(|(flag, value)| [flag.to_string(), value]));
    }
    words.extend(["-np".into(), job.args.slots.to_string(), "--".into()]);
    words.extend(own);
    words
}

pub fn env(job: &KubeJob) -> Vec<Value> {
    // Kubernetes replaces `$(NAME)` in commands by variables that are listed here, not by all that there are.
    let index = json!({ "fieldRef": { "fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']" } });
    let mut env = vec![json!({ "name": "JOB_COMPLETION_INDEX", "valueFrom": index })];
    let mut set = |name: &str, value: String| env.push(json!({ "name": name, "value": value }));
    set("PHALANX_SECRET_FILE", format!("{SECRET_FOLDER}/{KEY}"));
    set("PHALANX_START_TIMEOUT", job.args.start_timeout.to_string());
    if !job.has_launcher() {
        set("PHALANX_SIZE", job.n_ranks().to_string());
    }
    job.args.env.iter().for_each(|(name, value)| set(name, literal(value)));
    env
}

pub fn resources(job: &KubeJob) -> Value {
    let cpu = job.args.cpu.clone().unwrap_or_else(|| job.args.slots.to_string());
    let mut resources = json!({ "requests": { "cpu": cpu } });
    if let Some(memory) = &job.args.memory {
        resources["requests"]["memory"] = json!(memory);
        resources["limits"]["memory"] = json!(memory);
    }
    if let Some(n) = job.args.gpus {
        resources["limits"]["nvidia.com/gpu"] = json!(n.to_string());
    }
    resources
}

/// A container with its command, for jobs that start it as it is.
pub fn container(job: &KubeJob) -> Value {
    let mut container = frame(job);
    container["command"] = json!(command(job));
    container["env"] = json!(env(job));
    container["resources"] = resources(job);
    container
}

/// A container without what a TrainJob says of it.
pub fn frame(job: &KubeJob) -> Value {
    json!({
        "name": CONTAINER,
        "image": job.image,
        "volumeMounts": [
            { "name": "secret", "mountPath": SECRET_FOLDER, "readOnly": true },
            { "name": "shm", "mountPath": "/dev/shm" },
        ],
    })
}

/// A pod around a container.
pub fn spec(job: &KubeJob, container: Value) -> Value {
    // Readable by its owner alone; where the pod has a group, Kubernetes adds the group's right to read.
    const MODE: u32 = 0o400;
    let mut shm = json!({ "medium": "Memory" });
    if let Some(most) = &job.args.shm {
        shm["sizeLimit"] = json!(most);
    }
    let secret =
        json!({ "secretName": job.secret.name, "defaultMode": MODE, "items": [{ "key": KEY, "path": KEY }] });
    let mut spec = json!({
        "restartPolicy": "Never",
        // Other services' names would become variables, and some of them begin with PHALANX_.
        "enableServiceLinks": false,
        // The command is not process 1, so it ends at SIGTERM and need not reap others' children.
        "shareProcessNamespace": true,
        "containers": [container],
        "volumes": [{ "name": "secret", "secret": secret }, { "name": "shm", "emptyDir": shm }],
    });
    if let Some(group) = job.group() {
        spec["securityContext"] = json!({ "fsGroup": group });
    }
    spec
}
