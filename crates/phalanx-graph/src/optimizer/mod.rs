//! Optimizers: gradients, decay, clipping, rates and updates, all as operations of the program.

use crate::{
    grad::{Chosen, append_backward_of, append_backward_with},
    ir::{GraphError, Init, Learn, Program, Role, Shape, Sig, Site, VarId, VarKind},
    op::{
        Adadelta, Adagrad, Adam, Adamax, ClipFactor, Decay, DecayedAdagrad, Ftrl, Func, Increment,
        LambDirection, LambRate, LarsRate, MergeRows, Momentum, OpKind, Rate, RmsProp, ScaleBy, Schedule,
        Sgd, SignDecay, SquaredNorm, Unary,
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
    Momentum {
        mu: f64,
        nesterov: bool,
    },
    Adam {
        beta1: f64,
        beta2: f64,
        epsilon: f64,
    },
    AdamW {
        beta1: f64,
        beta2: f64,
        epsilon: f64,
        decay: f64,
    },
    Adagrad {
        epsilon: f64,
    },
    /// Adagrad whose sums of squares begin with this.
    AdagradFrom {
        epsilon: f64,
        first: f64,
    },
    RmsProp {
        rho: f64,
        epsilon: f64,
        mu: f64,
    },
    /// RMSProp with epsilon under the root: steps stay small where gradients are.
    RmsPropUnderRoot {
        rho: f64,
        epsilon: f64,
        mu: f64,
    },
    Lars {
        mu: f64,
        coefficient: f64,
        decay: f64,
    },
    Adamax(Adamax),
    Adadelta(Adadelta),
    DecayedAdagrad(DecayedAdagrad),
    Ftrl(Ftrl),
    Lamb(LambDirection),
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

/// What an optimizer keeps in the store is called after these: each optimizer has its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    pub step: String,
    pub rate: String,
    /// Behind the names of what it keeps for each parameter.
    pub suffix: String,
}

impl Names {
    /// With nothing behind them for the first optimizer, `""`.
    pub fn of(label: &str) -> Names {
        let suffix = if label.is_empty() { String::new() } else { format!("_{label}") };
        Names { step: format!("{STEP}{suffix}"), rate: format!("{RATE}{suffix}"), suffix }
    }

    /// The first that no optimizer of this program has.
    fn free(program: &Program) -> Names {
        let numbered = (1..).map(|i| Names::of(&i.to_string()));
        let free = |names: &Names| program.find(&names.step).is_none() && program.find(&names.rate).is_none();
        [Names::of("")].into_iter().chain(numbered).find(free).expect("names never run out")
    }
}

/// What `minimize` adds to a program.
#[derive(Clone, Debug, PartialEq)]
pub struct Optimizer {
    pub rule: Rule,
    pub rate: Schedule,
    /// L2 decay of parameters that have none of their own. It is added to gradients that were clipped.
    pub decay: Option<f64>,
    /// L1 decay of all parameters that have no decay of their own, instead.
    pub sign_decay: Option<f64>,
    pub clip: Option<Clip>,
    /// Those that are free in the program, if none are given.
    pub names: Option<Names>,
    /// A constant rate is not computed in each step: it begins with this value in the store and can be set there. One that
    /// is there already is taken.
    pub is_rate_kept: bool,
}

impl Optimizer {
    pub fn new(rule: Rule, rate: f64) -> Optimizer {
        let rate = Schedule::Constant(rate);
        Optimizer { rule, rate, decay: None, sign_decay: None, clip: None, names: None, is_rate_kept: false }
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
        let pairs = match checkpoints {
            [] => append_backward_of(program, loss, Chosen::default())?,
            _ => append_backward_with(program, loss, &[], checkpoints)?,
        };
        self.apply(program, &pairs)?;
        Ok(pairs)
    }

    /// The same for the parameters that were chosen.
    #[track_caller]
    pub fn minimize_of(
        &self,
        program: &mut Program,
        loss: VarId,
        chosen: Chosen<'_>,
    ) -> Result<Vec<(VarId, VarId)>, GraphError> {
        let pairs = append_backward_of(program, loss, chosen)?;
        self.apply(program, &pairs)?;
        Ok(pairs)
    }

    /// Appends updates of parameters by gradients that are there: those of `append_backward`, or what was made of them.
    #[track_caller]
    pub fn apply(&self, program: &mut Program, pairs: &[(VarId, VarId)]) -> Result<(), GraphError> {
        let site = Site::here();
        check(program, pairs, &site)?;
        let Some(&(first, _)) = pairs.first() else { return Ok(()) };
        let names = self.names.clone().unwrap_or_else(|| Names::free(program));
        let dtype = program.sig(first).dtype;
        let mut adding = Adding { program, site, dtype, suffix: names.suffix.clone() };
        let step = adding.scalar(&names.step, DType::I64, 0.0)?;
        adding.to(Increment { by: 1 }, &[step], &[step], Role::LrSched)?;
        let rate = self.rate(&mut adding, &names, step)?;
        let mut grads = Vec::with_capacity(pairs.len());
        for &(_, g) in pairs {
            // Sparse rules want each row once.
            let is_dense = adding.program.sig(g).is_dense();
            grads.push(if is_dense { g } else { adding.op(MergeRows, &[g])? });
        }
        self.clip(&mut adding, pairs, &mut grads)?;
        for (g, &(p, _)) in grads.iter_mut().zip(pairs) {
            if let Some(factor) = adding.learn(p).decay.or(self.decay) {
                *g = adding.op(Decay { factor }, &[*g, p])?;
            } else if let Some(factor) = self.sign_decay {
                *g = adding.op(SignDecay { factor }, &[*g, p])?;
            }
        }
        for (&(p, _), &g) in pairs.iter().zip(&grads) {
            let scale = adding.learn(p).rate;
            let rate = if scale == 1.0 {
                rate
            } else {
                adding.op(Unary(Func::Scale { a: scale, b: 0.0 }), &[rate])?
            };
            self.update(&mut adding, Update { p, g, rate, step })?;
        }
        Ok(())
    }

    /// The rate of each step, or the one that is kept.
    fn rate(&self, adding: &mut Adding<'_>, names: &Names, step: VarId) -> Result<VarId, GraphError> {
        match &self.rate {
            Schedule::Constant(value) if self.is_rate_kept => {
                let known = adding.program.find(&names.rate);
                known.map_or_else(|| adding.scalar(&names.rate, adding.dtype, *value), Ok)
            }
            schedule => {
                let rate = adding.scalar(&names.rate, adding.dtype, 0.0)?;
                let follow = Rate { schedule: schedule.clone(), dtype: adding.dtype };
                adding.to(follow, &[step], &[rate], Role::LrSched)?;
                Ok(rate)
            }
        }
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
                adding.adam(Adam { beta1, beta2, epsilon, decay: 0.0, epsilon_first: false }, first, step)
            }
            Rule::AdamW { beta1, beta2, epsilon, decay } => {
                adding.adam(Adam { beta1, beta2, epsilon, decay, epsilon_first: false }, first, step)
            }
            Rule::Adagrad { epsilon } => adding.adagrad(epsilon, 0.0, first),
            Rule::AdagradFrom { epsilon, first: squares } => adding.adagrad(epsilon, squares, first),
            Rule::RmsProp { rho, epsilon, mu } => {
                adding.rmsprop(RmsProp { rho, epsilon, mu, under_root: false }, first)
            }
            Rule::RmsPropUnderRoot { rho, epsilon, mu } => {
                adding.rmsprop(RmsProp { rho, epsilon, mu, under_root: true }, first)
            }
            Rule::Lars { mu, coefficient, decay } => {
                let (pn, gn) = (adding.op(SquaredNorm, &[p])?, adding.op(SquaredNorm, &[g])?);
                let local = adding.op(LarsRate { coefficient, decay }, &[pn, gn, rate])?;
                let g = adding.op(Decay { factor: decay }, &[g, p])?;
                let v = adding.state(p, "velocity")?;
                let op = Momentum { mu, nesterov: false, rate_inside: true };
                adding.to(op, &[p, g, local, v], &[p, v], Role::Optimize)
            }
            Rule::Adamax(op) => {
                let (m, u) = (adding.state(p, "moment")?, adding.state(p, "largest")?);
                adding.to(op, &[p, g, rate, m, u, step], &[p, m, u], Role::Optimize)
            }
            Rule::Adadelta(op) => {
                let (s, d) = (adding.state(p, "squares")?, adding.state(p, "steps")?);
                adding.to(op, &[p, g, rate, s, d], &[p, s, d], Role::Optimize)
            }
            Rule::DecayedAdagrad(op) => {
                let s = adding.state(p, "squares")?;
                adding.to(op, &[p, g, rate, s], &[p, s], Role::Optimize)
            }
            Rule::Ftrl(op) => {
                let (s, z) = (adding.state(p, "squares")?, adding.state(p, "linear")?);
                adding.to(op, &[p, g, rate, s, z], &[p, s, z], Role::Optimize)
            }
            Rule::Lamb(op) => adding.lamb(op, first, step),
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

/// Whether these are parameters, each once, with something that could be their gradients.
fn check(program: &Program, pairs: &[(VarId, VarId)], site: &Site) -> Result<(), GraphError> {
    for (i, &(p, _)) in pairs.iter().enumerate() {
        let refused = |why| {
            let var = program.var(p).name.clone();
            Err(GraphError::NotUpdated { var, why, site: site.clone() })
        };
        if !matches!(program.var(p).kind, VarKind::Parameter(_)) {
            return refused("it is not a parameter");
        }
        if pairs[..i].iter().any(|(other, _)| *other == p) {
            return refused("it is listed twice; add its gradients up first");
        }
    }
    Ok(())
}

/// Adds operations to the program.
struct Adding<'a> {
    program: &'a mut Program,
    site: Site,
    dtype: DType,
    suffix: String,
}

impl Adding<'_> {
    fn learn(&self, p: VarId) -> Learn {
        match self.program.var(p).kind {
            VarKind::Parameter(learn) => learn,
            _ => Learn::default(),
        }
    }

    fn op(&mut self, kind: impl Into<OpKind>, inputs: &[VarId]) -> Result<VarId, GraphError> {
        let name = "@OPTIMIZE@";
        Ok(self.program.append(kind, inputs, name, Role::Optimize, self.site.clone())?[0])
    }

    /// A number in the store.
    fn scalar(&mut self, name: &str, dtype: DType, value: f64) -> Result<VarId, GraphError> {
        let (sig, kind) = (Sig::dense(dtype, Shape::scalar()), VarKind::State(Init::Constant(value)));
        self.program.declare(name, sig, kind, self.site.clone())
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
        self.state_from(p, what, 0.0)
    }

    fn state_from(&mut self, p: VarId, what: &str, value: f64) -> Result<VarId, GraphError> {
        let name = format!("{}.{what}{}", self.program.var(p).name, self.suffix);
        let sig = Sig::dense(self.dtype, self.program.sig(p).shape.clone());
        self.program.declare(&name, sig, VarKind::State(Init::Constant(value)), self.site.clone())
    }

    fn adagrad(&mut self, epsilon: f64, squares: f64, [p, g, rate]: [VarId; 3]) -> Result<(), GraphError> {
        let s = self.state_from(p, "squares", squares)?;
        self.to(Adagrad { epsilon }, &[p, g, rate, s], &[p, s], Role::Optimize)
    }

    fn rmsprop(&mut self, op: RmsProp, [p, g, rate]: [VarId; 3]) -> Result<(), GraphError> {
        let (s, v) = (self.state(p, "squares")?, self.state(p, "velocity")?);
        self.to(op, &[p, g, rate, s, v], &[p, s, v], Role::Optimize)
    }

    /// The norm of its whole direction counts, so it cannot go on by rows.
    fn lamb(&mut self, op: LambDirection, [p, g, rate]: [VarId; 3], step: VarId) -> Result<(), GraphError> {
        if !self.program.sig(g).is_dense() {
            let (var, site) = (self.program.var(p).name.clone(), self.site.clone());
            return Err(GraphError::SparseGradient { what: "update by LAMB", var, site });
        }
        let (m, v) = (self.state(p, "moment1")?, self.state(p, "moment2")?);
        let (name, sig) = (self.program.fresh("@OPTIMIZE@"), self.program.sig(p).clone());
        let way = self.program.declare(&name, sig, VarKind::Temp, self.site.clone())?;
        self.to(op, &[p, g, rate, m, v, step], &[way, m, v], Role::Optimize)?;
        let (pn, wn) = (self.op(SquaredNorm, &[p])?, self.op(SquaredNorm, &[way])?);
        let rate = self.op(LambRate, &[pn, wn, rate])?;
        self.to(Sgd, &[p, way, rate], &[p], Role::Optimize)
    }

    fn adam(&mut self, op: Adam, [p, g, rate]: [VarId; 3], step: VarId) -> Result<(), GraphError> {
        let (m, v) = (self.state(p, "moment1")?, self.state(p, "moment2")?);
        self.to(op, &[p, g, rate, m, v, step], &[p, m, v], Role::Optimize)
    }
}
