//! What a rank says it calls, in a few words that others can compare.
//!
//! - CALL-1: two ranks' words are equal exactly if their calls fit together (operation, element type, reduction, factors, root, counts).

use crate::plan::{
    Memory,
    step::{Layout, Op},
};
use phalanx_core::{DType, ReduceOp};
use std::hash::{DefaultHasher, Hash, Hasher};

/// One call as compared between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Words {
    pub what: u64,
    pub count: u64,
}

const MEMORY_BITS: u64 = 3 << 12;

impl Words {
    pub fn of(
        op: Op,
        layout: &Layout,
        dtype: DType,
        reduce: Option<ReduceOp>,
        factors: (f64, f64),
        memory: Memory,
    ) -> Words {
        let op_code = Op::ALL.iter().position(|o| *o == op).expect("ALL lists every operation") as u64;
        let reduce_code = reduce.map_or(15, |r| r as u64);
        let (root, count) = match layout {
            Layout::Whole { len } => (0, *len),
            Layout::Rooted { root, len } => (root.0, *len),
            Layout::Counts { counts } => (0, digest(counts)),
            Layout::RootedCounts { root, counts } => (root.0, digest(counts)),
            Layout::Matrix { matrix, .. } => (0, digest(matrix)),
            Layout::Empty => (0, 0),
        };
        let scale = if factors == (1.0, 1.0) {
            0
        } else {
            digest(&[factors.0.to_bits(), factors.1.to_bits()]) & 0x7fff | 1
        };
        let memory = (memory as u64) << 12;
        let what =
            op_code | (dtype as u64) << 4 | reduce_code << 8 | memory | scale << 17 | u64::from(root) << 32;
        Words { what, count }
    }

    /// Where the caller's memory lies is no part of what is called.
    pub fn same_call(self, other: Words) -> bool {
        self.what | MEMORY_BITS == other.what | MEMORY_BITS && self.count == other.count
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
        let op = Op::ALL.get((self.what & 15) as usize);
        let dtype = DType::from_code((self.what >> 4 & 15) as u8).map_or("unknown", DType::name);
        let reduce =
            ReduceOp::ALL.get((self.what >> 8 & 15) as usize).map_or(String::new(), |r| format!("({r})"));
        let root = self.what >> 32;
        let scaled = if self.what >> 17 & 0x7fff != 0 { " scaled" } else { "" };
        let op_name = op.map_or("an unknown operation", |o| o.name());
        match op {
            Some(Op::Barrier) => op_name.to_string(),
            Some(Op::Broadcast | Op::Reduce) => {
                format!("{op_name}{reduce}{scaled} of {} {dtype} with root {root}", self.count)
            }
            Some(Op::Gather | Op::Scatter) => {
                format!("{op_name} of {dtype} with root {root} and counts {:04x}", self.count & 0xffff)
            }
            Some(Op::ReduceScatter | Op::Allgather | Op::Alltoall) => {
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

    fn words(op: Op, layout: Layout, dtype: DType) -> Words {
        Words::of(op, &layout, dtype, Some(ReduceOp::Sum), (1.0, 1.0), Memory::Private)
    }

    #[test]
    fn different_calls_have_different_words() {
        let a = words(Op::Allreduce, Layout::Whole { len: 3 }, DType::F32);
        assert_eq!(a.describe(), "allreduce(sum) of 3 f32");
        assert!(!a.same_call(words(Op::Allreduce, Layout::Whole { len: 4 }, DType::F32)), "CALL-1");
        assert!(!a.same_call(words(Op::Allreduce, Layout::Whole { len: 3 }, DType::I32)));
        assert!(!a.same_call(words(Op::Reduce, Layout::Rooted { root: Rank(0), len: 3 }, DType::F32)));
        let scaled = Words::of(
            Op::Allreduce,
            &Layout::Whole { len: 3 },
            DType::F32,
            Some(ReduceOp::Sum),
            (0.5, 1.0),
            Memory::Private,
        );
        assert!(!a.same_call(scaled));
        let arena = Words::of(
            Op::Allreduce,
            &Layout::Whole { len: 3 },
            DType::F32,
            Some(ReduceOp::Sum),
            (1.0, 1.0),
            Memory::Arena,
        );
        assert!(a.same_call(arena) && arena.memory() == Memory::Arena);
    }

    #[test]
    fn garbage_words_can_be_described() {
        for what in [u64::MAX, 0x1234_5678_9abc_def0, 0] {
            assert!(!Words { what, count: u64::MAX }.describe().is_empty());
        }
    }
}
