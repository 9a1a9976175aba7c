//! The flags of `phalanx kube`.

use super::values;
use clap::{ArgAction, Args, Subcommand};

/// Prints a manifest; nothing is started. Pods of one job meet in pod 0, with a secret that is mounted as a file.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  phalanx kube job --image registry/train:1 --nodes 4 -- python train.py | kubectl apply -f -\n  phalanx kube jobset --image registry/train:1 --nodes 2 --slots 8 --gpus 8 --restarts 3 -- python train.py"
)]
pub struct KubeArgs {
    #[command(subcommand)]
    pub kind: KubeKind,
}

/// What the cluster is asked for.
#[derive(Debug, Subcommand)]
pub enum KubeKind {
    /// An indexed Job and its headless Service: every cluster has them
    #[command(
        override_usage = "phalanx kube job --image IMAGE --nodes N [--slots G] [OPTIONS] -- COMMAND [ARGS]..."
    )]
    Job(PodArgs),
    /// A JobSet, which restarts all pods together; the cluster needs JobSet (jobset.x-k8s.io)
    #[command(
        override_usage = "phalanx kube jobset --image IMAGE --nodes N [--slots G] [OPTIONS] -- COMMAND [ARGS]..."
    )]
    Jobset(PodArgs),
    /// A TrainJob and its TrainingRuntime; the cluster needs Kubeflow Trainer 2 (trainer.kubeflow.org)
    #[command(
        override_usage = "phalanx kube trainjob --image IMAGE --nodes N [--slots G] [OPTIONS] -- COMMAND [ARGS]..."
    )]
    Trainjob(PodArgs),
}

#[derive(Debug, Args)]
pub struct PodArgs {
    /// Image that the pods run; for more than one slot it has phalanx on its PATH
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<String>,

    /// Number of pods
    #[arg(long, value_name = "N", value_parser = values::n_nodes, allow_negative_numbers = true)]
    pub nodes: Option<u32>,

    /// Number of ranks in each pod
    #[arg(long, value_name = "G", value_parser = values::n_slots, allow_negative_numbers = true, default_value = "1")]
    pub slots: u32,

    /// Name of the job, its service and its pods
    #[arg(long, value_name = "NAME", value_parser = values::name, default_value = "phalanx")]
    pub name: String,

    /// Namespace of everything in the manifest [default: the one that kubectl uses]
    #[arg(long, value_name = "NAME", value_parser = values::namespace)]
    pub namespace: Option<String>,

    /// An existing Secret whose key `secret` holds the job's secret [default: a new one, printed with the manifest]
    #[arg(long, value_name = "NAME", value_parser = values::secret_name)]
    pub secret: Option<String>,

    /// CPUs that each pod requests [default: one for each slot]
    #[arg(long, value_name = "QUANTITY", value_parser = values::cpu)]
    pub cpu: Option<String>,

    /// Memory that each pod requests and may use at most [default: no request, no limit]
    #[arg(long, value_name = "QUANTITY", value_parser = values::memory)]
    pub memory: Option<String>,

    /// Most that each pod may keep in /dev/shm; it counts as memory of the pod [default: no limit of its own]
    #[arg(long, value_name = "QUANTITY", value_parser = values::memory)]
    pub shm: Option<String>,

    /// GPUs of each pod (nvidia.com/gpu)
    #[arg(long, value_name = "N", value_parser = values::n_gpus, allow_negative_numbers = true)]
    pub gpus: Option<u32>,

    /// Environment variable for the ranks; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = values::env, action = ArgAction::Append)]
    pub env: Vec<(String, String)>,

    /// How often the job is started again after a failure
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub restarts: u16,

    /// Seconds that pods wait for each other: images may take long to arrive
    #[arg(long, value_name = "S", default_value_t = 600)]
    pub start_timeout: u32,

    /// Group that can read the secret, for images that do not run as root; none leaves it to the cluster (OpenShift)
    #[arg(long, value_name = "GID|none", value_parser = values::group, default_value = "1000")]
    pub fs_group: values::Group,

    /// The command that every rank runs; a .py file is run with python3
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}
