//! What operations do to memory: one thread, given slices, nothing allocated. Knows no programs and no plans.

mod call;
mod gemm;
mod inner;
mod number;
mod random;
mod raw_memory;
mod sum;
mod walk;

pub(crate) use call::MemoryView;
pub use call::{Call, Env, MemorySpace, OpStep, Operand, Pair};
pub use gemm::{Gemm, Mat, Size, Taps, Tiled, Turned, chains};
pub use inner::{BodySlot, Inner};
pub use number::Real;
pub use phalanx_core::kernel::{Float, fast};
pub use random::Stream;
pub use raw_memory::RawMemory;
pub use sum::{DEEP, columns, dot, largest, sum, sums, total, widen};
pub use walk::{Strides, Walk, stretched, strides};

use crate::ir::Site;
use phalanx_core::DType;

/// Why a kernel could not do its work. What is wrong with types and shapes was found before.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum KernelError {
    #[error("input {input}, element {at}: {value} is not in 0..{limit}")]
    Index { input: usize, at: usize, value: i64, limit: usize },
    #[error("element {at} of the divisor is zero")]
    ZeroDivisor { at: usize },
    #[error(
        "table `{table}` is on servers, which only a ParallelExecutor with `Setup::served` asks; run it there, or run the program before its tables were served"
    )]
    Served { table: String },
    #[error(
        "sample {at} has the score {value}, which is not a probability from 0 to 1; take softmax or sigmoid of it"
    )]
    Chance { at: usize, value: f64 },
    #[error("{title}: {why}")]
    Foreign { title: String, why: String },
    #[error("no kernel for {0}")]
    DType(DType),
    #[error("it has not ended after {most} rounds, its limit; allow more, or let its condition end it")]
    Rounds { most: u64 },
    #[error("it computed {value} in `{var}`, element {at}")]
    NotFinite { var: String, at: usize, value: f64 },
    #[error(transparent)]
    Within(Box<Within>),
}

/// What went wrong with an operation of a body.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("`{op}` at {site} within it: {why} (inputs: {inputs})")]
pub struct Within {
    pub op: &'static str,
    pub site: Site,
    pub inputs: String,
    pub why: KernelError,
}

/// Runs an expression for the floating-point type of a `DType`.
macro_rules! real {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            phalanx_core::DType::F32 => {
                type $t = f32;
                $body
            }
            phalanx_core::DType::F64 => {
                type $t = f64;
                $body
            }
            other => return Err($crate::kernel::KernelError::DType(other)),
        }
    };
}
pub(crate) use real;
