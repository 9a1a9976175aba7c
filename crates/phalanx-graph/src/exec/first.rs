//! What variables begin with: each element by its number, so that parts of a variable can be made anywhere.

use crate::{
    ir::{Init, Sig},
    kernel::{RawMemory, Stream},
};
use half::{bf16, f16};
use phalanx_core::DType;

/// Writes the first value of a variable into its memory.
pub(super) fn begin(name: &str, sig: &Sig, init: Init, seed: u64, buffer: &mut RawMemory) {
    let value = first_values(name, &sig.shape.at(0), init, seed);
    match sig.dtype {
        DType::F32 => fill(buffer.as_slice::<f32>(), |i| value(i) as f32),
        DType::F64 => fill(buffer.as_slice::<f64>(), value),
        DType::F16 => fill(buffer.as_slice::<f16>(), |i| f16::from_f64(value(i))),
        DType::BF16 => fill(buffer.as_slice::<bf16>(), |i| bf16::from_f64(value(i))),
        DType::I64 => fill(buffer.as_slice::<i64>(), |i| value(i) as i64),
        DType::I32 => fill(buffer.as_slice::<i32>(), |i| value(i) as i32),
        DType::I16 => fill(buffer.as_slice::<i16>(), |i| value(i) as i16),
        DType::U16 => fill(buffer.as_slice::<u16>(), |i| value(i) as u16),
        DType::I8 => fill(buffer.as_slice::<i8>(), |i| value(i) as i8),
        DType::U8 => fill(buffer.as_slice::<u8>(), |i| value(i) as u8),
        DType::Bool => fill(buffer.as_slice::<u8>(), |i| u8::from(value(i) != 0.0)),
    }
}

pub(super) fn fill<T>(out: &mut [T], f: impl Fn(usize) -> T) {
    out.iter_mut().enumerate().for_each(|(i, v)| *v = f(i));
}

/// What each element of a variable begins with, in a store of this seed. It depends on nothing else, so that anybody can make any part of it.
pub fn first_values(
    name: &str,
    dims: &[usize],
    init: Init,
    seed: u64,
) -> impl Fn(usize) -> f64 + Send + Sync + 'static {
    // By name, so that the order of declarations does not matter.
    let key =
        name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    let stream = Stream::new(seed, key, 0);
    let (fan_in, fan_out) = fans(dims);
    move |i: usize| match init {
        Init::Given => 0.0,
        Init::Constant(value) => value,
        Init::Uniform { low, high } => low + (high - low) * stream.uniform(i as u64),
        Init::Normal { mean, std } => mean + std * stream.normal(i as u64),
        Init::Xavier => {
            let limit = libm::sqrt(6.0 / (fan_in + fan_out).max(1) as f64);
            limit * (2.0 * stream.uniform(i as u64) - 1.0)
        }
        Init::Msra => libm::sqrt(2.0 / fan_in.max(1) as f64) * stream.normal(i as u64),
        Init::TruncatedNormal { mean, std } => {
            // Each element has draws of its own, far from those of the others.
            let draws = (0..64u64).map(|k| stream.normal((i as u64).wrapping_add(k << 40)));
            mean + std * draws.into_iter().find(|v| v.abs() <= 2.0).unwrap_or(0.0)
        }
    }
}

/// How many numbers go into and come out of each element's neighbours: `[in, out]`, or filters `[out, in, h, w]`.
fn fans(dims: &[usize]) -> (usize, usize) {
    match dims {
        [] => (1, 1),
        [n] => (*n, *n),
        [rows, cols] => (*rows, *cols),
        [o, i, rest @ ..] => (i * rest.iter().product::<usize>(), o * rest.iter().product::<usize>()),
    }
}
