//! What cannot become a manifest, and what to write instead.

use phalanx_core::ConfigError;

#[derive(Debug, thiserror::Error)]
pub enum KubeError {
    #[error("no image is given: write which one the pods run, e.g. --image registry.example/train:1")]
    NoImage,
    #[error(
        "--image {image:?} is no image: write [HOST[:PORT]/]NAME[:TAG], the name in small letters, e.g. --image registry.example/train:1"
    )]
    BadImage { image: String },
    #[error("no number of pods is given: write e.g. --nodes 4")]
    NoNodes,
    #[error("no command is given: write what every rank runs behind --, e.g. -- python train.py")]
    NoCommand,
    #[error(
        "{word:?} is one word with spaces: write the command without quotes around it, e.g. -- python train.py, or -- sh -c {word:?}"
    )]
    OneWord { word: String },
    #[error("{n_ranks} ranks are more than the {most} that a world can have; lower --nodes or --slots")]
    TooManyRanks { n_ranks: u64, most: u64 },
    #[error(
        "--name {name} is too long: pod {pod} would have {length} characters, and DNS allows {most}; write a name of at most {fits}",
        length = pod.len(),
        most = super::values::LABEL,
    )]
    LongName { name: String, pod: String, fits: usize },
    #[error(
        "--shm {shm} is more than --memory {memory}, of which it is a part: a pod that filled it would be ended; raise --memory or lower --shm"
    )]
    LargeShm { shm: String, memory: String },
    #[error("--env {name} is given twice; leave one")]
    Twice { name: String },
    #[error("--start-timeout 0 waits for nobody; write a number of seconds from 1")]
    NoTime,
    #[error("--env {0}")]
    Setting(#[from] ConfigError),
}
