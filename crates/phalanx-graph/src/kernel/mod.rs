//! What operations do to memory: one thread, given slices, nothing allocated. Knows no programs and no plans.

mod arena;
mod call;
mod gemm;
mod number;
mod random;
mod sum;
mod walk;

pub use arena::Arena;
pub use call::{Call, Env, Operand, Pair, Place, Step};
pub(crate) use call::{MAX_OUTPUTS, Memory};
pub use gemm::{Gemm, Mat, Size, Taps, Tiled, Turned};
pub use number::Real;
pub use random::Stream;
pub use sum::{dot, fast, largest, sum, total};
pub use walk::{Strides, Walk, stretched, strides};

use phalanx_core::DType;

/// Why a kernel could not do its work. What is wrong with types and shapes was found before.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum KernelError {
    #[error("input {input}, element {at}: {value} is not in 0..{limit}")]
    Index { input: usize, at: usize, value: i64, limit: usize },
    #[error("no kernel for {0}")]
    DType(DType),
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
