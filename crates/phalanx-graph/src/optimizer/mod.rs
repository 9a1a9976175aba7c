//! Optimizers: gradients, decay, clipping, rates and updates, all as operations of the program.

use crate::{
    grad::append_backward_with,
    ir::{GraphError, Init, Learn, Program, Role, Sig, Site, VarId, VarKind},
    op::{
        Adagrad, Adam, ClipFactor, Decay, Func, Increment, LarsRate, MergeRows, Momentum, OpKind, Rate,
        RmsProp, ScaleBy, Schedule, Sgd, SquaredNorm, Unary,
    },
};
use phalanx_core::DType;

/// Counts the steps of training, from 1 in the first.
pub const STEP: &str = "@STEP@";
/// The rate of the step.
pub const RATE: &str = "learning_rate";

/// How a parameter follows its gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    Sgd,
    Momentum { mu: f64, nesterov: bool },
    Adam { beta1: f64, beta2: f64, epsilon: f64 },
    AdamW { beta1: f64, beta2: f64, epsilon: f64, decay: f64 },
    Adagrad { epsilon: f64 },
    RmsProp { rho: f64, epsilon: f64, mu: f64 },
    Lars { mu: f64, coefficient: f64, decay: f64 },
}

impl Rule {
    pub fn adam() -> Rule {
        Rule::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 }
    }
}

/// How gradients are kept small.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Clip {
    /// Every element.
    Value { low: f64, high: f64 },
    /// The norm of each gradient.
    Norm(f64),
    /// The norm of all gradients together.
    GlobalNorm(f64),
}

/// What `minimize` adds to a program.
#[derive(Clone, Debug, PartialEq)]
pub struct Optimizer {
    pub rule: Rule,
    pub rate: Schedule,
    /// L2 decay of parameters that have none of their own.
    pub decay: Option<f64>,
    pub clip: Option<Clip>,
}

impl Optimizer {
    pub fn new(rule: Rule, rate: f64) -> Optimizer {
        Optimizer { rule, rate: Schedule::Constant(rate), decay: None, clip: None }
    }

    /// Appends gradients of the loss and updates of all parameters that are learned; gives both.
    #[track_caller]
    pub fn minimize(&self, program: &mut Program, loss: VarId) -> Result<Vec<(VarId, VarId)>, GraphError> {
        self.minimize_with(program, loss, &[])
    }

    /// The same, keeping only the checkpoints of what was computed on the way to the loss (AGAIN-1).
    #[track_caller]
    pub fn minimize_with(
        &self,
        program: &mut Program,
        loss: VarId,
        checkpoints: &[VarId],
    ) -> Result<Vec<(VarId, VarId)>, GraphError> {
        let site = Site::here();
        let pairs = append_backward_with(program, loss, &[], checkpoints)?;
        let dtype = program.sig(loss).dtype;
        let mut adding = Adding { program, site, dtype, n: 0 };
        let step = adding.program.scalar_state(STEP, DType::I64, 0.0, adding.site.clone())?;
        adding.to(Increment { by: 1 }, &[step], &[step], Role::LrSched)?;
        let rate = adding.program.scalar_state(RATE, dtype, 0.0, adding.site.clone())?;
        let follow = Rate { schedule: self.rate.clone(), dtype };
        adding.to(follow, &[step], &[rate], Role::LrSched)?;
        let mut grads = Vec::with_capacity(pairs.len());
        for &(_, g) in &pairs {
            // Sparse rules want each row once.
            let is_dense = adding.program.sig(g).is_dense();
            grads.push(if is_dense { g } else { adding.op(MergeRows, &[g])? });
        }
        for (g, &(p, _)) in grads.iter_mut().zip(&pairs) {
            if let Some(factor) = adding.learn(p).decay.or(self.decay) {
                *g = adding.op(Decay { factor }, &[*g, p])?;
            }
        }
        self.clip(&mut adding, &pairs, &mut grads)?;
        for (&(p, _), &g) in pairs.iter().zip(&grads) {
            let scale = adding.learn(p).rate;
            let rate = if scale == 1.0 {
                rate
            } else {
                adding.op(Unary(Func::Scale { a: scale, b: 0.0 }), &[rate])?
            };
            self.update(&mut adding, Update { p, g, rate, step })?;
        }
        Ok(pairs)
    }

    fn clip(
        &self,
        adding: &mut Adding<'_>,
        pairs: &[(VarId, VarId)],
        grads: &mut [VarId],
    ) -> Result<(), GraphError> {
        match self.clip {
            None => {}
            Some(Clip::Value { low, high }) => {
                for (g, &(p, _)) in grads.iter_mut().zip(pairs) {
                    if !adding.program.sig(*g).is_dense() {
                        let (var, site) = (adding.program.var(p).name.clone(), adding.site.clone());
                        return Err(GraphError::SparseGradient { what: "clip by value", var, site });
                    }
                    *g = adding.op(Unary(Func::Clip { low, high }), &[*g])?;
                }
            }
            Some(Clip::Norm(limit)) => {
                for g in grads.iter_mut() {
                    let norm = adding.op(SquaredNorm, &[*g])?;
                    let factor = adding.op(ClipFactor { limit }, &[norm])?;
                    *g = adding.op(ScaleBy, &[*g, factor])?;
                }
            }
            Some(Clip::GlobalNorm(limit)) => {
                let norm = adding.op(SquaredNorm, grads)?;
                let factor = adding.op(ClipFactor { limit }, &[norm])?;
                for g in grads.iter_mut() {
                    *g = adding.op(ScaleBy, &[*g, factor])?;
                }
            }
        }
        Ok(())
    }

    fn update(&self, adding: &mut Adding<'_>, update: Update) -> Result<(), GraphError> {
        let Update { p, g, rate, step } = update;
        let first = [p, g, rate];
        match self.rule {
            Rule::Sgd => adding.to(Sgd, &first, &[p], Role::Optimize),
            Rule::Momentum { mu, nesterov } => {
                let v = adding.state(p, "velocity")?;
                let op = Momentum { mu, nesterov, rate_inside: false };
                adding.to(op, &[p, g, rate, v], &[p, v], Role::Optimize)
            }
            Rule::Adam { beta1, beta2, epsilon } => {
                adding.adam(Adam { beta1, beta2, epsilon, decay: 0.0 }, first, step)
            }
            Rule::AdamW { beta1, beta2, epsilon, decay } => {
                adding.adam(Adam { beta1, beta2, epsilon, decay }, first, step)
            }
            Rule::Adagrad { epsilon } => {
                let s = adding.state(p, "squares")?;
                adding.to(Adagrad { epsilon }, &[p, g, rate, s], &[p, s], Role::Optimize)
            }
            Rule::RmsProp { rho, epsilon, mu } => {
                let (s, v) = (adding.state(p, "squares")?, adding.state(p, "velocity")?);
                let op = RmsProp { rho, epsilon, mu };
                adding.to(op, &[p, g, rate, s, v], &[p, s, v], Role::Optimize)
            }
            Rule::Lars { mu, coefficient, decay } => {
                let (pn, gn) = (adding.op(SquaredNorm, &[p])?, adding.op(SquaredNorm, &[g])?);
                let local = adding.op(LarsRate { coefficient, decay }, &[pn, gn, rate])?;
                let g = adding.op(Decay { factor: decay }, &[g, p])?;
                let v = adding.state(p, "velocity")?;
                let op = Momentum { mu, nesterov: false, rate_inside: true };
                adding.to(op, &[p, g, local, v], &[p, v], Role::Optimize)
            }
        }
    }
}

/// One parameter's update.
#[derive(Clone, Copy, Debug)]
struct Update {
    p: VarId,
    g: VarId,
    rate: VarId,
    step: VarId,
}

/// Adds operations to the program.
struct Adding<'a> {
    program: &'a mut Program,
    site: Site,
    dtype: DType,
    n: usize,
}

impl Adding<'_> {
    fn learn(&self, p: VarId) -> Learn {
        match self.program.var(p).kind {
            VarKind::Parameter(learn) => learn,
            _ => Learn::default(),
        }
    }

    fn op(&mut self, kind: impl Into<OpKind>, inputs: &[VarId]) -> Result<VarId, GraphError> {
        self.n += 1;
        let name = format!("@OPTIMIZE@{}", self.n);
        Ok(self.program.append(kind, inputs, &name, Role::Optimize, self.site.clone())?[0])
    }

    fn to(
        &mut self,
        kind: impl Into<OpKind>,
        inputs: &[VarId],
        outputs: &[VarId],
        role: Role,
    ) -> Result<(), GraphError> {
        self.program.append_to(kind, inputs, outputs, role, self.site.clone())
    }

    /// A state like the parameter, zero at first.
    fn state(&mut self, p: VarId, what: &str) -> Result<VarId, GraphError> {
        let name = format!("{}.{what}", self.program.var(p).name);
        let sig = Sig::dense(self.dtype, self.program.sig(p).shape.clone());
        self.program.declare(&name, sig, VarKind::State(Init::Constant(0.0)), self.site.clone())
    }

    fn adam(&mut self, op: Adam, [p, g, rate]: [VarId; 3], step: VarId) -> Result<(), GraphError> {
        let (m, v) = (self.state(p, "moment1")?, self.state(p, "moment2")?);
        self.to(op, &[p, g, rate, m, v, step], &[p, m, v], Role::Optimize)
    }
}
