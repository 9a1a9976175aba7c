//! The documents of each kind of job.

use super::{check::KubeJob, pod, yaml::Document};
use serde_json::{Value, json};

/// A Service without an address of its own, which gives each pod a name, and the Job.
pub fn job(job: &KubeJob) -> Vec<Document> {
    let name = &job.args.name;
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": pod::metadata(job, name),
        "spec": {
            "clusterIP": "None",
            // Pods look for each other before they are ready.
            "publishNotReadyAddresses": true,
            "selector": { "batch.kubernetes.io/job-name": name },
        },
    });
    let mut pod = pod::spec(job, pod::container(job));
    pod["subdomain"] = json!(name);
    // When a rank fails, the ranks of all other pods fail, too.
    let n_failures = u64::from(job.args.restarts) * u64::from(job.n_nodes);
    let whole = json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": pod::metadata(job, name),
        "spec": indexed(job, pod, n_failures),
    });
    vec![service.into(), whole.into()]
}

/// JobSet makes the Service itself.
pub fn job_set(job: &KubeJob) -> Vec<Document> {
    let inner = json!({ "spec": indexed(job, pod::spec(job, pod::container(job)), 0) });
    let whole = json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": pod::metadata(job, &job.args.name),
        "spec": set(job, inner),
    });
    vec![whole.into()]
}

/// Trainer puts what the TrainJob says into the runtime's container, and makes a JobSet of it.
pub fn train_job(job: &KubeJob) -> Vec<Document> {
    let name = &job.args.name;
    let inner = json!({
        "metadata": { "labels": { "trainer.kubeflow.org/trainjob-ancestor-step": "trainer" } },
        "spec": indexed(job, pod::spec(job, pod::frame(job)), 0),
    });
    let runtime = json!({
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": pod::metadata(job, name),
        "spec": { "mlPolicy": { "numNodes": job.n_nodes }, "template": { "spec": set(job, inner) } },
    });
    let whole = json!({
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": pod::metadata(job, name),
        "spec": {
            "runtimeRef": { "apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": name },
            "trainer": {
                "image": job.image,
                "numNodes": job.n_nodes,
                "command": pod::command(job),
                "env": pod::env(job),
                "resourcesPerNode": pod::resources(job),
            },
        },
    });
    vec![runtime.into(), whole.into()]
}

/// One job with a pod for each node, all at once.
fn indexed(job: &KubeJob, pod: Value, n_failures: u64) -> Value {
    json!({
        "completionMode": "Indexed",
        "completions": job.n_nodes,
        "parallelism": job.n_nodes,
        "backoffLimit": n_failures,
        "template": { "metadata": { "labels": pod::labels(job) }, "spec": pod },
    })
}

/// A set of one job, which starts again as a whole.
fn set(job: &KubeJob, template: Value) -> Value {
    json!({
        "network": { "enableDNSHostnames": true, "publishNotReadyAddresses": true, "subdomain": job.args.name },
        "failurePolicy": { "maxRestarts": job.args.restarts },
        "replicatedJobs": [{ "name": pod::CONTAINER, "replicas": 1, "template": template }],
    })
}
