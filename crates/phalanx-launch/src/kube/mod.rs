//! `phalanx kube`: prints manifests that start a job in a Kubernetes cluster. It talks to no cluster; `kubectl apply -f -` does.
//!
//! - KUBE-1: the words of the command and the values of variables reach the container as they were written: Kubernetes expands none of them.
//! - KUBE-2: a secret is printed only in a Secret, or not at all.

mod check;
mod dollars;
mod error;
mod jobs;
mod options;
mod pod;
mod secret;
mod values;
mod yaml;

pub use options::KubeArgs;

use check::KubeJob;
use options::KubeKind;
use std::{
    io::{self, Write},
    process::ExitCode,
};
use yaml::Document;

pub fn main(args: &KubeArgs) -> ExitCode {
    let job = match KubeJob::new(&args.kind) {
        Ok(job) => job,
        Err(error) => {
            eprintln!("phalanx kube: {error}");
            return ExitCode::from(2);
        }
    };
    match io::stdout().write_all(yaml::write(&documents(&job)).as_bytes()) {
        // A reader that went away has read enough.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            eprintln!("phalanx kube: cannot write the manifest: {error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

/// The manifest, in the order in which a cluster should see it: what pods need comes before them.
fn documents(job: &KubeJob) -> Vec<Document> {
    let mut documents: Vec<Document> = secret::document(job).into_iter().collect();
    documents.extend(match job.kind {
        KubeKind::Job(_) => jobs::job(job),
        KubeKind::Jobset(_) => jobs::job_set(job),
        KubeKind::Trainjob(_) => jobs::train_job(job),
    });
    documents
}
