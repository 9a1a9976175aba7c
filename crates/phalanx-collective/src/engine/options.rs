//! The options of an engine. Rank 0's values are used on all ranks, because all ranks must decide the same.

use super::{negotiate::fuse::FusionLimits, whereabouts::Whereabouts};
use phalanx_core::Config;

#[derive(Clone, Debug, PartialEq)]
pub struct EngineOptions {
    /// Small tensors travel together up to this size; 0: each travels alone.
    pub fusion_bytes: u64,
    /// Operations remembered by number; 0: each is described in full every time.
    pub cache_capacity: u64,
    /// Whether sequences that repeat run without agreeing on them again.
    pub replay: bool,
    /// After so long a waiting tensor is reported.
    pub stall_ms: Option<u64>,
    /// After so long a waiting tensor ends everything.
    pub abort_ms: Option<u64>,
    /// Process sets to begin with, besides that of all ranks.
    pub process_sets: Vec<Vec<u32>>,
    /// How to ask this rank's program where it is when it keeps others waiting. Each rank has its own, or none.
    pub whereabouts: Option<Whereabouts>,
    /// For tests: the system starts no more threads than this for the engine of this rank.
    #[doc(hidden)]
    pub most_threads: Option<u32>,
}

/// Larger tensors gain nothing from company.
const ALONE_BYTES: u64 = 4 << 20;

impl EngineOptions {
    pub fn from_config(config: &Config) -> EngineOptions {
        let ms = |d: std::time::Duration| (!d.is_zero()).then_some(d.as_millis() as u64);
        EngineOptions {
            fusion_bytes: config.fusion_bytes,
            cache_capacity: config.cache_capacity,
            replay: config.replay,
            stall_ms: ms(config.stall_warn),
            abort_ms: ms(config.stall_abort),
            process_sets: Vec::new(),
            whereabouts: None,
            most_threads: None,
        }
    }

    pub(super) fn limits(&self) -> FusionLimits {
        FusionLimits {
            fusion_bytes: self.fusion_bytes,
            alone_bytes: ALONE_BYTES.min(self.fusion_bytes.max(1)),
        }
    }

    /// As numbers that rank 0 can send to all.
    pub(super) fn to_words(&self) -> [i64; 5] {
        let ms = |value: Option<u64>| value.map_or(-1, |v| v as i64);
        let replay = i64::from(self.replay);
        [self.fusion_bytes as i64, self.cache_capacity as i64, replay, ms(self.stall_ms), ms(self.abort_ms)]
    }

    pub(super) fn with_words(self, words: [i64; 5]) -> EngineOptions {
        let ms = |word: i64| u64::try_from(word).ok();
        EngineOptions {
            fusion_bytes: words[0] as u64,
            cache_capacity: words[1] as u64,
            replay: words[2] != 0,
            stall_ms: ms(words[3]),
            abort_ms: ms(words[4]),
            ..self
        }
    }
}
