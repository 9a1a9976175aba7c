//! The gradient of a loop: round by round from the last, each computed again from its inputs.

use super::{Inside, env_of, is_real, perform, repeat::kept};
use crate::{
    ir::{Body, Misfit, Sig},
    kernel::{BodySlot, Call, KernelError},
    op::{Operator, check},
};
use phalanx_core::DType;
use serde::{Deserialize, Serialize};

/// From the number of rounds, what was kept of each carried value, what the body captures, and the gradients that were
/// given of real carried values: gradients of the first real carried values, and of captured values, added up from the
/// last round to the first. The body goes forward and back: it takes what the loop's body takes and a gradient for each
/// real carried value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WhileGrad {
    pub body: Body,
    pub most: u64,
    pub n_carried: usize,
    /// Which of the real carried values have a gradient after the last round.
    pub given: Vec<bool>,
    pub stream: u32,
}

impl WhileGrad {
    fn n_given(&self) -> usize {
        self.given.iter().filter(|g| **g).count()
    }

    /// Values that the body captures.
    fn n_captured(&self, n_inputs: usize) -> usize {
        n_inputs.saturating_sub(1 + self.n_carried).saturating_sub(self.n_given())
    }
}

impl Operator for WhileGrad {
    fn name(&self) -> &'static str {
        "while_grad"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        let (n, seeds) = (self.n_carried, self.given.len());
        let least = n.saturating_add(1).saturating_add(self.n_given());
        if inputs.len() < least {
            return Err(Misfit::Count { wanted: least, got: inputs.len() });
        }
        check::scalar(inputs, 0, DType::I64)?;
        let n_captured = self.n_captured(inputs.len());
        let wants = self.body.wants();
        if wants.len() != 1 + n + n_captured + seeds {
            let wanted = (wants.len() + self.n_given()).saturating_sub(seeds);
            return Err(Misfit::Count { wanted, got: inputs.len() });
        }
        let mut given = wants[..=n].to_vec();
        check::scalar(&given, 0, DType::Bool)?;
        for (slot, sig) in given[1..].iter().enumerate() {
            let kept = kept(sig, self.most)?;
            check::shaped(inputs, 1 + slot, kept.dtype, &kept.shape)?;
        }
        given.extend_from_slice(&inputs[1 + n..][..n_captured]);
        let real: Vec<&Sig> = wants[1..=n].iter().filter(|s| is_real(s.dtype)).collect();
        given.extend(real.iter().map(|&s| s.clone()));
        let gives = self.body.infer("body", &given, 0)?;
        let with_gradient = real.iter().zip(&self.given).filter(|(_, given)| **given);
        for (slot, (sig, _)) in (1 + n + n_captured..).zip(with_gradient) {
            check::shaped(inputs, slot, sig.dtype, &sig.shape)?;
        }
        let first: Vec<Sig> = real.into_iter().cloned().collect();
        super::gives("body", &first, gives.get(..seeds).unwrap_or_default())?;
        match gives.iter().find(|s| !is_real(s.dtype)) {
            Some(s) => Err(Misfit::DType { slot: 0, wanted: "f32 or f64", got: s.dtype }),
            None => Ok(gives),
        }
    }

    fn bodies(&self) -> Vec<Inside<'_>> {
        let (n, all) = (self.n_carried, self.body.takes().count());
        let captured = 1 + n..all.saturating_sub(self.given.len());
        let at = (0..all).map(|slot| captured.contains(&slot).then_some(slot)).collect();
        vec![Inside { body: &self.body, at }]
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (n, seeds) = (self.n_carried, self.given.len());
        let captured = self.n_captured(call.n_inputs());
        let value = call.input::<i64>(0)[0];
        let rounds = u64::try_from(value).ok().filter(|&r| r <= self.most);
        let limit = self.most as usize + 1;
        let rounds = rounds.ok_or(KernelError::Index { input: 0, at: 0, value, limit })?;
        let seed = |i: usize| BodySlot::Take(0, 1 + n + captured + i);
        let mut slot = 1 + n + captured;
        for (i, &given) in self.given.iter().enumerate() {
            match given {
                true => call.transfer(BodySlot::Input(slot), seed(i)),
                false => call.fill_bytes(seed(i), 0),
            }
            slot += usize::from(given);
        }
        let sums = seeds..self.body.gives().len();
        for output in sums.clone() {
            call.fill_bytes(BodySlot::Output(output), 0);
        }
        // The condition held in every round.
        call.fill_bytes(BodySlot::Take(0, 0), 1);
        let env = call.env;
        for round in (0..rounds).rev() {
            for slot in 1..=n {
                let bytes = call.spot(BodySlot::Take(0, slot)).bytes;
                let begin = round as usize * bytes;
                call.transfer_part(
                    (BodySlot::Input(slot), begin..begin + bytes),
                    (BodySlot::Take(0, slot), 0..bytes),
                );
            }
            perform(call, 0, &self.body, env_of(env, self.stream, round))?;
            for i in 0..seeds {
                call.transfer(BodySlot::Give(0, i), seed(i));
            }
            for output in sums.clone() {
                call.add_up(BodySlot::Give(0, output), BodySlot::Output(output));
            }
        }
        for i in 0..seeds {
            call.transfer(seed(i), BodySlot::Output(i));
        }
        Ok(())
    }
}
