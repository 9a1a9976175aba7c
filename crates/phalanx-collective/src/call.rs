//! The signature of a call: a few machine words that ranks compare.
//!
//! - CALL-1: words of two ranks whose calls fit together are equal. Otherwise they differ: always where operation, element type, reduction, factors,
//!   root or the number of elements do, and where lists of counts do unless two digests of 64 bits happen to be the same.

use crate::plan::{
    Memory,
    step::{CollectiveOp, Layout},
};
use phalanx_core::{DType, ReduceOp};
use std::hash::{DefaultHasher, Hash, Hasher};

/// One call as compared between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallSignature {
    pub what: u64,
    /// Elements, or a digest of all counts.
    pub count: u64,
    /// The bits of the factors before and after, of a call that is scaled; zeros otherwise.
    pub factors: [u64; 2],
}

const MEMORY_BITS: u64 = 3 << 12;
const SCALED: u64 = 1 << 17;

impl CallSignature {
    pub fn of(
        op: CollectiveOp,
        layout: &Layout,
        dtype: DType,
        reduce: Option<ReduceOp>,
        factors: (f64, f64),
        memory: Memory,
    ) -> CallSignature {
        let op_code =
            CollectiveOp::ALL.iter().position(|o| *o == op).expect("ALL lists every operation") as u64;
        let reduce_code = reduce.map_or(15, |r| r as u64);
        let (root, count) = match layout {
            Layout::Whole { len } => (0, *len),
            Layout::Rooted { root, len } => (root.0, *len),
            Layout::Counts { counts } => (0, digest(counts)),
            Layout::RootedCounts { root, counts } => (root.0, digest(counts)),
            Layout::Matrix { matrix, .. } => (0, digest(matrix)),
            Layout::Empty => (0, 0),
        };
        let is_scaled = factors != (1.0, 1.0);
        let scaled = if is_scaled { SCALED } else { 0 };
        let memory = (memory as u64) << 12;
        let what = op_code | (dtype as u64) << 4 | reduce_code << 8 | memory | scaled | u64::from(root) << 32;
        let factors = if is_scaled { [factors.0.to_bits(), factors.1.to_bits()] } else { [0; 2] };
        CallSignature { what, count, factors }
    }

    pub fn is_scaled(self) -> bool {
        self.what & SCALED != 0
    }

    /// Where the caller's memory lies is no part of what is called.
    pub fn same_call(self, other: CallSignature) -> bool {
        self.what | MEMORY_BITS == other.what | MEMORY_BITS
            && self.count == other.count
            && self.factors == other.factors
    }

    pub fn memory(self) -> Memory {
        match (self.what & MEMORY_BITS) >> 12 {
            1 => Memory::Readable,
            2 => Memory::Arena,
            _ => Memory::Private,
        }
    }

    /// For people: "allreduce(sum) of 100 f32". Codes may come from another rank, so none is trusted.
    pub fn describe(self) -> String {
        let op = CollectiveOp::ALL.get((self.what & 15) as usize);
        let dtype = DType::from_code((self.what >> 4 & 15) as u8).map_or("unknown", DType::name);
        let reduce =
            ReduceOp::ALL.get((self.what >> 8 & 15) as usize).map_or(String::new(), |r| format!("({r})"));
        let root = self.what >> 32;
        let [pre, post] = self.factors.map(f64::from_bits);
        let scaled = if self.is_scaled() { format!(" scaled by {pre} and {post}") } else { String::new() };
        let op_name = op.map_or("an unknown operation", |o| o.name());
        match op {
            Some(CollectiveOp::Barrier) => op_name.to_string(),
            Some(CollectiveOp::Broadcast | CollectiveOp::Reduce) => {
                format!("{op_name}{reduce}{scaled} of {} {dtype} with root {root}", self.count)
            }
            Some(CollectiveOp::Gather | CollectiveOp::Scatter) => {
                format!("{op_name} of {dtype} with root {root} and counts {:04x}", self.count & 0xffff)
            }
            Some(CollectiveOp::ReduceScatter | CollectiveOp::Allgather | CollectiveOp::Alltoall) => {
                format!("{op_name}{reduce}{scaled} of {dtype} with counts {:04x}", self.count & 0xffff)
            }
            _ => format!("{op_name}{reduce}{scaled} of {} {dtype}", self.count),
        }
    }
}

fn digest(counts: &[u64]) -> u64 {
    let mut hasher = DefaultHasher::new();
    counts.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_core::Rank;

    fn words(op: CollectiveOp, layout: Layout, dtype: DType) -> CallSignature {
        CallSignature::of(op, &layout, dtype, Some(ReduceOp::Sum), (1.0, 1.0), Memory::Private)
    }

    #[test]
    fn different_calls_have_different_words() {
        let a = words(CollectiveOp::Allreduce, Layout::Whole { len: 3 }, DType::F32);
        assert_eq!(a.describe(), "allreduce(sum) of 3 f32");
        assert!(!a.same_call(words(CollectiveOp::Allreduce, Layout::Whole { len: 4 }, DType::F32)), "CALL-1");
        assert!(!a.same_call(words(CollectiveOp::Allreduce, Layout::Whole { len: 3 }, DType::I32)));
        assert!(!a.same_call(words(
            CollectiveOp::Reduce,
            Layout::Rooted { root: Rank(0), len: 3 },
            DType::F32
        )));
        let scaled = CallSignature::of(
            CollectiveOp::Allreduce,
            &Layout::Whole { len: 3 },
            DType::F32,
            Some(ReduceOp::Sum),
            (0.5, 1.0),
            Memory::Private,
        );
        assert!(!a.same_call(scaled));
        let arena = CallSignature::of(
            CollectiveOp::Allreduce,
            &Layout::Whole { len: 3 },
            DType::F32,
            Some(ReduceOp::Sum),
            (1.0, 1.0),
            Memory::Arena,
        );
        assert!(a.same_call(arena) && arena.memory() == Memory::Arena);
    }

    #[test]
    fn calls_with_any_other_factors_differ() {
        let scaled = |pre, post| {
            let layout = Layout::Whole { len: 3 };
            CallSignature::of(
                CollectiveOp::Allreduce,
                &layout,
                DType::F32,
                Some(ReduceOp::Sum),
                (pre, post),
                Memory::Private,
            )
        };
        let mine = scaled(0.5, 1.0);
        assert!(mine.same_call(scaled(0.5, 1.0)));
        assert_eq!(mine.describe(), "allreduce(sum) scaled by 0.5 and 1 of 3 f32");
        for i in 0..100_000 {
            let other = scaled(1.0, 2.0 + f64::from(i) * 1e-3);
            assert!(!mine.same_call(other), "CALL-1: {}", other.describe());
        }
        assert!(!scaled(0.0, 0.0).same_call(scaled(1.0, 1.0)), "CALL-1");
    }

    #[test]
    fn garbage_words_can_be_described() {
        for what in [u64::MAX, 0x1234_5678_9abc_def0, 0] {
            assert!(!CallSignature { what, count: u64::MAX, factors: [what; 2] }.describe().is_empty());
        }
    }
}
