//! Which bucket of a histogram a value counts in.

use super::message::Histogram;

/// Buckets of equal width; TensorBoard shows no more than these.
const BUCKETS: usize = 30;

/// The histogram of these values, which are finite.
pub(super) fn histogram(values: &[f32]) -> Histogram {
    let each = || values.iter().map(|&value| f64::from(value));
    let (min, max) = each().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
    if values.is_empty() {
        return Histogram::default();
    }
    let n_buckets = if min < max { BUCKETS } else { 1 };
    let width = (max - min) / n_buckets as f64;
    let mut counts = vec![0.0; n_buckets];
    for value in each() {
        // The largest value is the limit of the last bucket and belongs to it; a conversion cuts off and never overflows.
        let bucket = ((value - min) / width) as usize;
        counts[bucket.min(n_buckets - 1)] += 1.0;
    }
    let limit = |i: usize| if i + 1 == n_buckets { max } else { min + width * (i + 1) as f64 };
    Histogram {
        min,
        max,
        n: values.len() as f64,
        sum: each().sum(),
        sum_squares: each().map(|value| value * value).sum(),
        limits: (0..n_buckets).map(limit).collect(),
        counts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_counts_once_in_a_bucket_that_has_it() {
        let values: Vec<f32> = (0..=60).map(|i| i as f32 / 2.0).collect();
        let made = histogram(&values);
        assert_eq!((made.min, made.max, made.n, made.sum), (0.0, 30.0, 61.0, 915.0));
        assert_eq!((made.limits.len(), made.counts.len()), (30, 30));
        assert_eq!(made.limits[29], 30.0);
        assert_eq!(made.counts[..29], [2.0; 29]);
        assert_eq!(made.counts[29], 3.0, "the largest one, too");
    }

    #[test]
    fn equal_values_extremes_and_no_values_have_a_histogram() {
        let same = histogram(&[2.0; 5]);
        assert_eq!((same.limits, same.counts, same.sum_squares), (vec![2.0], vec![5.0], 20.0));
        let wide = histogram(&[f32::MIN, f32::MAX]);
        assert_eq!((wide.counts[0], wide.counts[29]), (1.0, 1.0));
        assert_eq!(histogram(&[]), Histogram::default());
    }
}
