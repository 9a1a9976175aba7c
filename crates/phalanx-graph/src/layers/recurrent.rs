//! Layers over sequences `[n, t, width]`.

use super::{Act, Builder, Made};
use crate::{
    ir::{Init, VarId},
    op::{Gru, Lstm},
};

impl Builder {
    /// Outputs `[n, t, hidden]` of a long short-term memory.
    #[track_caller]
    pub fn lstm(&mut self, x: VarId, hidden: usize, reverse: bool) -> Made {
        let gates = self.fc(x, 4 * hidden, Act::None)?;
        let w = self.parameter("lstm.w", [hidden, 4 * hidden], spread(hidden))?;
        self.op1(Lstm { reverse }, &[gates, w])
    }

    /// Outputs `[n, t, hidden]` of gated recurrent units.
    #[track_caller]
    pub fn gru(&mut self, x: VarId, hidden: usize, reverse: bool) -> Made {
        let gates = self.fc(x, 3 * hidden, Act::None)?;
        let w = self.parameter("gru.w", [hidden, 3 * hidden], spread(hidden))?;
        let bias = self.parameter("gru.b", [hidden], Init::Constant(0.0))?;
        self.op1(Gru { reverse }, &[gates, w, bias])
    }
}

fn spread(hidden: usize) -> Init {
    let high = 1.0 / libm::sqrt(hidden.max(1) as f64);
    Init::Uniform { low: -high, high }
}
