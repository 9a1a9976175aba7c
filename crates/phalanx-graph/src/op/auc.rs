//! The area under the ROC curve: counts of right and wrong samples by their scores, and the area that follows from them.

use super::{Operator, check};
use crate::{
    ir::{Misfit, Shape, Sig},
    kernel::{Call, Float, KernelError, real},
};
use phalanx_core::DType;
use serde::{Deserialize, Serialize};

/// From scores `[n, k]` whose last column is a probability, labels `[n]` or `[n, 1]`, and counts of samples with label 1 and of
/// others, `[thresholds + 1]`: the counts with these samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AucCounts;

impl Operator for AucCounts {
    fn name(&self) -> &'static str {
        "auc_counts"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 4)?;
        let scores = check::real(inputs, 0)?;
        check::rank(inputs, 0, 2, "2 ([n, classes])")?;
        let labels = check::index(inputs, 1)?;
        if labels.shape.volume() != Some(scores.shape.dims()[0]) {
            return Err(Misfit::Pair { a: scores.shape.clone(), b: labels.shape.clone() });
        }
        check::index(inputs, 2)?;
        check::rank(inputs, 2, 1, "1 ([thresholds + 1])")?;
        check::like(inputs, 3, 2)?;
        if check::fixed(inputs, 2, 0)? < 2 {
            let got = inputs[2].shape.to_string();
            return Err(Misfit::Attribute { name: "num_thresholds", wanted: "at least 1", got });
        }
        Ok(vec![inputs[2].clone(), inputs[3].clone()])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (k, bins) = (call.dims(0)[1], call.dims(2)[0]);
        let labels = call.input::<i64>(1);
        let (pos, neg) = (call.update::<i64>(2, 0), call.update::<i64>(3, 1));
        real!(call.dtype(0), T => {
            let scores = || call.input::<T>(0).chunks_exact(k.max(1)).map(|row| row[k - 1].wide());
            // All are checked before one is counted: a run that fails leaves the counts as they were.
            if let Some((at, value)) = scores().enumerate().find(|(_, score)| !(0.0..=1.0).contains(score)) {
                return Err(KernelError::Chance { at, value });
            }
            for (score, &label) in scores().zip(labels) {
                let counts = if label != 0 { &mut *pos } else { &mut *neg };
                counts[(score * (bins - 1) as f64) as usize] += 1;
            }
        });
        Ok(())
    }

    fn shares(&self) -> &'static [(usize, usize)] {
        &[(2, 0), (3, 1)]
    }
}

/// From both counts: the area, 0 where one of the kinds has no samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AucArea;

impl Operator for AucArea {
    fn name(&self) -> &'static str {
        "auc_area"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 2)?;
        check::index(inputs, 0)?;
        check::rank(inputs, 0, 1, "1 ([thresholds + 1])")?;
        check::like(inputs, 1, 0)?;
        Ok(vec![Sig::dense(DType::F64, Shape::scalar())])
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (pos, neg) = (call.input::<i64>(0), call.input::<i64>(1));
        let (mut right, mut wrong, mut area) = (0.0, 0.0, 0.0);
        for (&p, &n) in pos.iter().zip(neg).rev() {
            let (p, n) = (p as f64, n as f64);
            area += n * (2.0 * right + p) / 2.0;
            (right, wrong) = (right + p, wrong + n);
        }
        call.output::<f64>(0)[0] = if right > 0.0 && wrong > 0.0 { area / right / wrong } else { 0.0 };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Builder, Executor, Options, Store, Tensor};

    fn area(scores: &[f64], labels: &[i64], bins: usize) -> Result<f64, String> {
        let mut b = Builder::with_dtype(DType::F64);
        let n = scores.len();
        let x = b.feed("x", DType::F64, [n, 1]).unwrap();
        let y = b.feed("y", DType::I64, [n]).unwrap();
        let zeros = super::super::Fill { dtype: DType::I64, shape: Shape::from([bins]), value: 0.0 };
        let (pos, neg) = (b.op1(zeros.clone(), &[]).unwrap(), b.op1(zeros, &[]).unwrap());
        let counts = b.op(AucCounts, &[x, y, pos, neg]).unwrap();
        let out = b.op1(AucArea, &counts).unwrap();
        b.named(out, "area").unwrap();
        let mut exe = Executor::new(b.finish().unwrap(), Options::default()).unwrap();
        let (x, y) = (Tensor::new(&[n, 1], scores).unwrap(), Tensor::new(&[n], labels).unwrap());
        let out = exe.run(&mut Store::new(1), &[("x", &x), ("y", &y)], &["area"]);
        out.map(|out| out[0].data::<f64>().unwrap()[0]).map_err(|why| why.to_string())
    }

    /// Against the share of pairs that are in order, which is what the area is; equal scores count half.
    #[test]
    fn the_area_is_the_share_of_ordered_pairs() {
        let (scores, labels) = ([0.9, 0.1, 0.4, 0.4, 0.75, 0.0], [1, 0, 1, 0, 0, 1]);
        let mut pairs = (0.0, 0.0);
        for i in (0..6).filter(|&i| labels[i] == 1) {
            for j in (0..6).filter(|&j| labels[j] == 0) {
                pairs.0 += if scores[i] > scores[j] {
                    1.0
                } else if scores[i] == scores[j] {
                    0.5
                } else {
                    0.0
                };
                pairs.1 += 1.0;
            }
        }
        assert!((area(&scores, &labels, 4096).unwrap() - pairs.0 / pairs.1).abs() < 1e-12);
        assert_eq!(area(&[0.5, 1.0], &[1, 1], 10), Ok(0.0), "there are no others");
    }

    #[test]
    fn a_score_that_is_not_a_probability_is_refused() {
        for score in [1.5, -0.1, f64::NAN] {
            let why = area(&[0.5, score], &[1, 0], 10).unwrap_err();
            assert!(why.contains("sample 1"), "{why}");
        }
    }
}
