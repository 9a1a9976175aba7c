//! Manifests of `phalanx kube`: what they say, whether the schemas of Kubernetes, JobSet and Kubeflow Trainer take them, and whether what they tell pods to run
//! works, in network namespaces with a pod's variables, files and names. No cluster is here.

mod bad_input;
mod manifests;
mod pods;
mod schema;

use crate::launch::support::{finish, phalanx};
use serde::Deserialize;
use serde_json::Value;

/// The documents of a manifest.
struct Manifest(Vec<Value>);

/// What `phalanx kube` prints.
fn printed(args: &[&str]) -> String {
    let args: Vec<&str> = ["kube"].into_iter().chain(args.iter().copied()).collect();
    let done = finish(&mut phalanx(&args));
    assert_eq!(done.code, Some(0), "{args:?}: {done:?}");
    assert_eq!(done.stderr, "", "{args:?}");
    done.stdout
}

impl Manifest {
    fn of(args: &[&str]) -> Manifest {
        Manifest::read(&printed(args))
    }

    fn read(text: &str) -> Manifest {
        let documents = serde_norway::Deserializer::from_str(text);
        Manifest(documents.map(|d| Value::deserialize(d).expect("it is YAML")).collect())
    }

    fn get(&self, kind: &str) -> &Value {
        self.0.iter().find(|d| d["kind"] == kind).unwrap_or_else(|| panic!("no {kind} in {:?}", self.0))
    }

    fn kinds(&self) -> Vec<&str> {
        self.0.iter().map(|d| d["kind"].as_str().expect("a kind is a text")).collect()
    }

    /// The job inside, whatever is around it.
    fn job(&self) -> &Value {
        let inside = |spec: &'_ Value| spec.pointer("/replicatedJobs/0/template/spec").is_some();
        self.0
            .iter()
            .find_map(|d| match d["kind"].as_str() {
                Some("Job") => d.get("spec"),
                Some("JobSet") if inside(&d["spec"]) => d.pointer("/spec/replicatedJobs/0/template/spec"),
                Some("TrainingRuntime") => d.pointer("/spec/template/spec/replicatedJobs/0/template/spec"),
                _ => None,
            })
            .expect("a job")
    }

    fn pod(&self) -> &Value {
        &self.job()["template"]["spec"]
    }

    /// The container as a cluster would start it: Trainer puts into it what the TrainJob says.
    fn container(&self) -> Value {
        let mut container = self.pod()["containers"][0].clone();
        if let Some(trainer) = self.0.iter().find(|d| d["kind"] == "TrainJob").map(|d| &d["spec"]["trainer"])
        {
            for field in ["image", "command", "env"] {
                container[field] = trainer[field].clone();
            }
            container["resources"] = trainer["resourcesPerNode"].clone();
        }
        container
    }

    /// The words that the container runs, before Kubernetes expands them.
    fn command(&self) -> Vec<String> {
        let container = self.container();
        let words = container["command"].as_array().expect("a list of words");
        words.iter().map(|w| w.as_str().expect("a word").to_string()).collect()
    }
}
