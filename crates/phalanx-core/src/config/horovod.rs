//! Settings of Horovod that scripts and machines set. Those with a counterpart are used; for all others the user gets a remark.

use super::edits;

/// Horovod's settings, and ours that mean the same.
pub const SETTINGS: &[(&str, &str)] = &[
    ("HOROVOD_FUSION_THRESHOLD", "PHALANX_FUSION_BYTES"),
    ("HOROVOD_CACHE_CAPACITY", "PHALANX_CACHE_CAPACITY"),
    ("HOROVOD_STALL_CHECK_TIME_SECONDS", "PHALANX_STALL_WARN"),
    ("HOROVOD_STALL_CHECK_DISABLE", "PHALANX_STALL_WARN"),
    ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "PHALANX_STALL_ABORT"),
    ("HOROVOD_START_TIMEOUT", "PHALANX_START_TIMEOUT"),
    ("HOROVOD_TIMELINE", "PHALANX_TIMELINE"),
    ("HOROVOD_TIMELINE_MARK_CYCLES", "PHALANX_TIMELINE_MARK_CYCLES"),
    ("HOROVOD_AUTOTUNE", "PHALANX_AUTOTUNE"),
    ("HOROVOD_AUTOTUNE_LOG", "PHALANX_AUTOTUNE_LOG"),
];

const NO_CYCLES: &str = "Phalanx has no cycles: an operation starts when the last rank has submitted it";
const NO_NCCL: &str = "Phalanx does not use NCCL, MPI, CCL or XLA";
const OWN_CHOICE: &str = "the algorithm is chosen for each operation; PHALANX_ALGORITHM names one";
const OWN_TUNING: &str = "autotuning has no such parameter";
const NOT_ELASTIC: &str = "elastic jobs are not supported yet";
const LOG: &str = "PHALANX_LOG sets what is logged";

/// Horovod's settings that mean nothing here, and why or what to write instead.
const MEANINGLESS: &[(&str, &str)] = &[
    ("HOROVOD_ADASUM_MPI_CHUNK_SIZE", NO_NCCL),
    ("HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", OWN_TUNING),
    ("HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", OWN_TUNING),
    ("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", OWN_TUNING),
    ("HOROVOD_AUTOTUNE_WARMUP_SAMPLES", OWN_TUNING),
    ("HOROVOD_BATCH_D2D_MEMCOPIES", NO_NCCL),
    ("HOROVOD_CCL_BGT_AFFINITY", NO_NCCL),
    ("HOROVOD_CCL_CACHE", NO_NCCL),
    ("HOROVOD_CYCLE_TIME", NO_CYCLES),
    ("HOROVOD_DISABLE_GROUP_FUSION", "PHALANX_FUSION_BYTES=0 sends each tensor alone"),
    ("HOROVOD_DISABLE_NVTX_RANGES", NO_NCCL),
    ("HOROVOD_ELASTIC", NOT_ELASTIC),
    ("HOROVOD_ELASTIC_TIMEOUT", NOT_ELASTIC),
    ("HOROVOD_ENABLE_ASYNC_COMPLETION", NO_NCCL),
    ("HOROVOD_ENABLE_XLA_OPS", NO_NCCL),
    ("HOROVOD_GLOO_IFACE", "PHALANX_INTERFACE names the network"),
    ("HOROVOD_GLOO_TIMEOUT_SECONDS", "PHALANX_TIMEOUT sets how long an operation waits"),
    ("HOROVOD_HIERARCHICAL_ALLGATHER", OWN_CHOICE),
    ("HOROVOD_HIERARCHICAL_ALLREDUCE", OWN_CHOICE),
    ("HOROVOD_LOG_HIDE_TIME", LOG),
    ("HOROVOD_LOG_LEVEL", LOG),
    ("HOROVOD_MPI_THREADS_DISABLE", NO_NCCL),
    ("HOROVOD_NUM_NCCL_STREAMS", NO_NCCL),
    ("HOROVOD_THREAD_AFFINITY", "phalanx run --bind gives each rank its own cores"),
    ("HOROVOD_TORUS_ALLREDUCE", OWN_CHOICE),
];

/// No settings of a run: what launchers tell ranks, what only a build reads, and what others than the engine read.
const QUIET: &[&str] = &[
    "HOROVOD_ALLOW_MIXED_GPU_IMPL",
    "HOROVOD_BUILD_ARCH_FLAGS",
    "HOROVOD_BUILD_CUDA_CC_LIST",
    "HOROVOD_CMAKE",
    "HOROVOD_CONTROLLER",
    "HOROVOD_CPU_OPERATIONS",
    "HOROVOD_CROSS_RANK",
    "HOROVOD_CROSS_SIZE",
    "HOROVOD_DEBUG",
    "HOROVOD_DYNAMIC_PROCESS_SETS",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR",
    "HOROVOD_GLOO_RENDEZVOUS_PORT",
    "HOROVOD_GPU",
    "HOROVOD_HOSTNAME",
    "HOROVOD_LOCAL_RANK",
    "HOROVOD_LOCAL_SIZE",
    "HOROVOD_LOCAL_VERSION",
    "HOROVOD_RANK",
    "HOROVOD_SIZE",
    "HOROVOD_SKIP_COMPILE",
    "HOROVOD_VERSION",
];
const QUIET_PREFIXES: &[&str] = &[
    "HOROVOD_CUDA_",
    "HOROVOD_GPU_",
    "HOROVOD_NCCL_",
    "HOROVOD_NVTX_",
    "HOROVOD_ROCM_",
    "HOROVOD_WITH_",
    "HOROVOD_WITHOUT_",
];

/// What to say of a variable that is none of [`SETTINGS`]: why it has no effect, and what would have.
pub fn remark(name: &str) -> Option<String> {
    if QUIET.contains(&name) || QUIET_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
        return None;
    }
    if let Some((_, why)) = MEANINGLESS.iter().find(|(known, _)| *known == name) {
        return Some(format!("{name} has no effect: {why}"));
    }
    let known = SETTINGS.iter().chain(MEANINGLESS).map(|(known, _)| *known);
    let nearest = known.map(|known| (edits(name, known), known)).min().filter(|(distance, _)| *distance <= 3);
    let meant = nearest.map(|(_, known)| format!("; did you mean {known}?")).unwrap_or_default();
    Some(format!("{name} has no effect: Horovod has no such setting{meant}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_effect_is_said_with_what_has() {
        assert_eq!(
            remark("HOROVOD_GLOO_TIMEOUT_SECONDS").as_deref(),
            Some(
                "HOROVOD_GLOO_TIMEOUT_SECONDS has no effect: PHALANX_TIMEOUT sets how long an operation waits"
            )
        );
        assert_eq!(
            remark("HOROVOD_FUSION_TRESHOLD").as_deref(),
            Some(
                "HOROVOD_FUSION_TRESHOLD has no effect: Horovod has no such setting; did you mean HOROVOD_FUSION_THRESHOLD?"
            )
        );
        assert_eq!(
            remark("HOROVOD_SOMETHING_ELSE").as_deref(),
            Some("HOROVOD_SOMETHING_ELSE has no effect: Horovod has no such setting")
        );
        for quiet in ["HOROVOD_RANK", "HOROVOD_GPU_OPERATIONS", "HOROVOD_WITH_PYTORCH"] {
            assert_eq!(remark(quiet), None, "{quiet} is no setting of a run");
        }
    }
}
