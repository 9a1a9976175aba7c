//! What recurrences do to the sums of their gates, and its slopes, which follow from what it gave.

use crate::kernel::Real;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GateAct {
    Sigmoid,
    Tanh,
    Relu,
    Identity,
}

impl GateAct {
    /// In place.
    #[inline(always)]
    pub(super) fn apply<T: Real>(self, row: &mut [T]) {
        match self {
            GateAct::Sigmoid => row.iter_mut().for_each(|v| *v = v.sigmoid()),
            GateAct::Tanh => row.iter_mut().for_each(|v| *v = v.tanh()),
            GateAct::Relu => row.iter_mut().for_each(|v| *v = if *v > T::ZERO { *v } else { T::ZERO }),
            GateAct::Identity => {}
        }
    }

    /// Multiplies gradients by the slopes, where it gave this.
    #[inline(always)]
    pub(super) fn back<T: Real>(self, gave: &[T], d: &mut [T]) {
        let both = d.iter_mut().zip(gave);
        match self {
            GateAct::Sigmoid => both.for_each(|(d, &y)| *d = *d * y * (T::ONE - y)),
            GateAct::Tanh => both.for_each(|(d, &y)| *d *= T::ONE - y * y),
            GateAct::Relu => both.for_each(|(d, &y)| *d = if y > T::ZERO { *d } else { T::ZERO }),
            GateAct::Identity => {}
        }
    }
}
