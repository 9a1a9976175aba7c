//! What variables begin with: each element by its number, so that parts of a variable can be made anywhere.

use crate::{ir::Init, kernel::Stream};

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
