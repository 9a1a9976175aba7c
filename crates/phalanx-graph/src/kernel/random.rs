//! Random numbers by position: the i-th number of a stream is a function of key and i, so that it does not matter
//! who draws it, in which order, or how a batch is split.

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

#[inline(always)]
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// One stream of random numbers (SplitMix64, entered at any place).
#[derive(Clone, Copy, Debug)]
pub struct Stream(u64);

impl Stream {
    pub fn new(seed: u64, stream: u64, run: u64) -> Stream {
        Stream(mix(mix(mix(seed ^ GOLDEN).wrapping_add(stream)).wrapping_add(run)))
    }

    #[inline(always)]
    pub fn bits(self, i: u64) -> u64 {
        mix(self.0.wrapping_add(i.wrapping_add(1).wrapping_mul(GOLDEN)))
    }

    /// In [0, 1).
    #[inline(always)]
    pub fn uniform(self, i: u64) -> f64 {
        (self.bits(i) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Normal, mean 0, deviation 1 (Box and Muller).
    pub fn normal(self, i: u64) -> f64 {
        let (u, v) = (1.0 - self.uniform(2 * i), self.uniform(2 * i + 1));
        libm::sqrt(-2.0 * libm::log(u)) * libm::cos(std::f64::consts::TAU * v)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_those_of_the_distributions() {
        let stream = Stream::new(1, 2, 3);
        let n = 100_000;
        let mean = (0..n).map(|i| stream.uniform(i)).sum::<f64>() / n as f64;
        assert!((mean - 0.5).abs() < 0.005, "{mean}");
        let (m, s) = (0..n).map(|i| stream.normal(i)).fold((0.0, 0.0), |(m, s), x| (m + x, s + x * x));
        assert!((m / n as f64).abs() < 0.01 && (s / n as f64 - 1.0).abs() < 0.02);
        assert_ne!(Stream::new(1, 2, 4).bits(0), stream.bits(0));
        assert_ne!(Stream::new(1, 3, 3).bits(0), stream.bits(0));
    }
}
