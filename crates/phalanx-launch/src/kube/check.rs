//! A job as it was asked for, checked as a whole. Pure but for a secret that is drawn.

use super::{
    error::KubeError,
    options::{KubeKind, PodArgs},
    secret::JobSecret,
    values::{self, Group, LABEL},
};
use phalanx_core::Config;

/// The ranks that a world can have.
const MOST_RANKS: u64 = 1 << 16;

/// A job that can become a manifest.
#[derive(Debug)]
pub struct KubeJob<'a> {
    pub kind: &'a KubeKind,
    pub args: &'a PodArgs,
    pub image: &'a str,
    pub n_nodes: u32,
    pub secret: JobSecret,
}

impl<'a> KubeJob<'a> {
    pub fn new(kind: &'a KubeKind) -> Result<KubeJob<'a>, KubeError> {
        let (KubeKind::Job(args) | KubeKind::Jobset(args) | KubeKind::Trainjob(args)) = kind;
        let image = args.image.as_deref().filter(|i| !i.is_empty()).ok_or(KubeError::NoImage)?;
        if !values::is_image(image) {
            return Err(KubeError::BadImage { image: image.into() });
        }
        let n_nodes = args.nodes.ok_or(KubeError::NoNodes)?;
        if args.command.first().is_none_or(String::is_empty) {
            return Err(KubeError::NoCommand);
        }
        if let [word] = &args.command[..]
            && word.contains(char::is_whitespace)
        {
            return Err(KubeError::OneWord { word: word.clone() });
        }
        let n_ranks = u64::from(n_nodes) * u64::from(args.slots);
        if n_ranks > MOST_RANKS {
            return Err(KubeError::TooManyRanks { n_ranks, most: MOST_RANKS });
        }
        if args.start_timeout == 0 {
            return Err(KubeError::NoTime);
        }
        if let (Some(shm), Some(memory)) = (&args.shm, &args.memory)
            && values::bytes(shm) > values::bytes(memory)
        {
            return Err(KubeError::LargeShm { shm: shm.clone(), memory: memory.clone() });
        }
        check_env(&args.env)?;
        let secret = JobSecret::new(&args.name, args.secret.as_deref());
        let job = KubeJob { kind, args, image, n_nodes, secret };
        let pod = job.pod(n_nodes - 1);
        if pod.len() > LABEL {
            let fits = LABEL.saturating_sub(pod.len() - args.name.len());
            return Err(KubeError::LongName { name: args.name.clone(), pod, fits });
        }
        Ok(job)
    }

    pub fn n_ranks(&self) -> u32 {
        self.n_nodes * self.args.slots
    }

    /// The name of a pod in DNS. A set of jobs puts its own numbers before it.
    pub fn pod(&self, index: u32) -> String {
        match self.kind {
            KubeKind::Job(_) => format!("{}-{index}", self.args.name),
            KubeKind::Jobset(_) | KubeKind::Trainjob(_) => format!("{}-node-0-{index}", self.args.name),
        }
    }

    /// Whether a launcher runs in each pod. One rank finds the others without.
    pub fn has_launcher(&self) -> bool {
        self.args.slots > 1
    }

    pub fn group(&self) -> Option<u32> {
        match self.args.fs_group {
            Group::Id(id) => Some(id),
            Group::Nobody => None,
        }
    }
}

/// Each variable once, and settings that ranks would take.
fn check_env(env: &[(String, String)]) -> Result<(), KubeError> {
    for (i, (name, _)) in env.iter().enumerate() {
        if env[..i].iter().any(|(before, _)| before == name) {
            return Err(KubeError::Twice { name: name.clone() });
        }
    }
    Config::from_vars(env.iter().cloned())?;
    Ok(())
}
