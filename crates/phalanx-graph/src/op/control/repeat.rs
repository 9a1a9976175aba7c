//! The loop.

use super::{Inside, WhileGrad, env_of, gives, is_real, perform};
use crate::{
    grad::{Grad, backward},
    ir::{Body, Dim, GraphError, Misfit, Op, Shape, Sig, VarId},
    kernel::{BodySlot, Call, KernelError},
    op::{Operator, check},
};
use phalanx_core::DType;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// From a condition, the first values of what is carried from round to round, and what the body captures: the values
/// after the last round, how many rounds there were and, if `keeps`, the bytes of what each carried value was before each
/// round (unspecified behind the last). The body takes all inputs and gives the next condition and carried values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct While {
    pub body: Body,
    /// The most rounds it may take.
    pub most: u64,
    /// How many values are carried, beside the condition.
    pub n_carried: usize,
    /// Gradients need what was carried.
    pub keeps: bool,
    pub stream: u32,
}

/// What keeps a value for each round.
pub(super) fn kept(sig: &Sig, most: u64) -> Result<Sig, Misfit> {
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let bytes = sig.shape.volume().and_then(|v| v.times(Dim::Fixed(sig.dtype.size())));
    let bytes = bytes.and_then(|b| b.times(Dim::Fixed(most)));
    let wanted = "a limit for which the loop's values fit into memory";
    let bytes = bytes.ok_or(Misfit::Attribute { name: "most", wanted, got: most.to_string() })?;
    Ok(Sig::dense(DType::U8, Shape(vec![bytes])))
}

impl While {
    /// Which carried values have a gradient: those that are used after the loop, and those that they are made of.
    fn live(&self, real: &[usize], used: impl Fn(usize) -> bool) -> Vec<bool> {
        let program = self.body.program();
        let takes: Vec<VarId> = self.body.takes().collect();
        let mut live: Vec<bool> = (0..self.n_carried).map(|c| real.contains(&c) && used(c)).collect();
        loop {
            let gives = (0..self.n_carried).filter(|&c| live[c]).map(|c| self.body.gives()[1 + c]);
            let mut seen: BTreeSet<VarId> = gives.collect();
            for op in program.ops.iter().rev() {
                if op.outputs.iter().any(|out| seen.contains(out)) {
                    seen.extend(op.inputs.iter().filter(|&&id| is_real(program.sig(id).dtype)));
                }
            }
            let before = live.clone();
            real.iter().for_each(|&c| live[c] |= seen.contains(&takes[1 + c]));
            if live == before {
                return live;
            }
        }
    }
}

impl Operator for While {
    fn name(&self) -> &'static str {
        "while"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        let n = self.n_carried.saturating_add(1);
        if inputs.len() < n {
            return Err(Misfit::Count { wanted: n, got: inputs.len() });
        }
        if self.most == 0 {
            return Err(Misfit::Attribute { name: "most", wanted: "at least one round", got: "0".into() });
        }
        check::scalar(inputs, 0, DType::Bool)?;
        let given = self.body.infer("body", inputs, 0)?;
        gives("body", &inputs[..n], &given)?;
        let carried = &inputs[1..n];
        let mut out = carried.to_vec();
        out.push(Sig::dense(DType::I64, Shape::scalar()));
        if self.keeps {
            for sig in carried {
                out.push(kept(sig, self.most)?);
            }
        }
        Ok(out)
    }

    fn bodies(&self) -> Vec<Inside<'_>> {
        let n = self.body.takes().count();
        let at = (0..n).map(|slot| (slot > self.n_carried).then_some(slot)).collect();
        vec![Inside { body: &self.body, at }]
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let n = self.n_carried;
        for slot in 0..=n {
            call.transfer(BodySlot::Input(slot), BodySlot::Take(0, slot));
        }
        let (env, mut rounds) = (call.env, 0u64);
        while call.byte_at(BodySlot::Take(0, 0)) != 0 {
            // CONTROL-1
            if rounds == self.most {
                return Err(KernelError::Rounds { most: self.most });
            }
            for slot in (0..n).filter(|_| self.keeps) {
                let from = BodySlot::Take(0, 1 + slot);
                let bytes = call.spot(from).bytes;
                let begin = rounds as usize * bytes;
                call.transfer_part((from, 0..bytes), (BodySlot::Output(n + 1 + slot), begin..begin + bytes));
            }
            perform(call, 0, &self.body, env_of(env, self.stream, rounds))?;
            for slot in 0..=n {
                call.transfer(BodySlot::Give(0, slot), BodySlot::Take(0, slot));
            }
            rounds += 1;
        }
        for slot in 0..n {
            call.transfer(BodySlot::Take(0, 1 + slot), BodySlot::Output(slot));
        }
        call.output::<i64>(n)[0] = rounds as i64;
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        let n = self.n_carried;
        if !self.keeps {
            return Ok(false);
        }
        let wants = self.body.wants();
        let real: Vec<usize> = (0..n).filter(|&c| is_real(wants[1 + c].dtype)).collect();
        let captured: Vec<usize> =
            (1 + n..grad.n_inputs()).filter(|&s| grad.wants(s) && is_real(wants[s].dtype)).collect();
        let of: Vec<usize> = real.iter().map(|c| 1 + c).collect();
        let wrt: Vec<usize> = of.iter().chain(&captured).copied().collect();
        let live = self.live(&real, |c| grad.has_dy(c));
        let body = backward(&self.body, &of, |given| live[given - 1], &wrt)?;
        let given: Vec<bool> = real.iter().map(|&c| grad.has_dy(c)).collect();
        let mut inputs = vec![grad.y(n)];
        inputs.extend((0..n).map(|c| grad.y(n + 1 + c)));
        inputs.extend((1 + n..grad.n_inputs()).map(|s| grad.x(s)));
        inputs.extend(real.iter().filter(|c| grad.has_dy(**c)).map(|&c| grad.dy(c)));
        let (most, stream) = (self.most, self.stream);
        let found = grad.emit_all(WhileGrad { body, most, n_carried: n, given, stream }, &inputs)?;
        for (slot, d) in wrt.into_iter().zip(found) {
            if slot > n || live[slot - 1] {
                grad.pass(slot, d)?;
            }
        }
        Ok(true)
    }

    fn for_test(&self, op: &Op) -> Option<Op> {
        let kind = While { body: self.body.for_test(), keeps: false, ..self.clone() };
        let outputs = op.outputs[..=self.n_carried].to_vec();
        Some(Op { kind: kind.into(), outputs, ..op.clone() })
    }
}
