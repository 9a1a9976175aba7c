//! The program: variables and operations, ids inside, names at the edge.
//! - GRAPH-1: every variable that is not a feed, parameter or state is written by exactly one operation, before anything
//!   reads it.
//! - GRAPH-2: a parameter or state is written only by operations that name it among their outputs, in program order.
//! - GRAPH-3: the outputs of every operation have the element type, shape and form that its `infer` gives.

use super::{
    error::GraphError,
    shape::Shape,
    sig::{Sig, Storage},
    verify,
};
use crate::op::OpKind;
use phalanx_core::DType;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fmt,
    panic::Location,
    sync::Arc,
};

/// A variable of one program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct VarId(pub(crate) u32);

/// An operation of one program: its place in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OpId(pub(crate) u32);

impl VarId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl OpId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Where in the user's program something was declared. Small, because every error has one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Site(Arc<(Cow<'static, str>, u32)>);

impl Site {
    #[track_caller]
    pub fn here() -> Site {
        let at = Location::caller();
        Site(Arc::new((Cow::Borrowed(at.file()), at.line())))
    }

    /// A place in something that was read, such as a model's file.
    pub fn new(file: impl Into<Cow<'static, str>>, line: u32) -> Site {
        Site(Arc::new((file.into(), line)))
    }

    pub fn file(&self) -> &str {
        &self.0.0
    }

    pub fn line(&self) -> u32 {
        self.0.1
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file(), self.line())
    }
}

/// How a persistent variable begins.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Init {
    /// The program does not say: it must be set in the store before the first run.
    Given,
    Constant(f64),
    Uniform {
        low: f64,
        high: f64,
    },
    Normal {
        mean: f64,
        std: f64,
    },
    /// Uniform in ±sqrt(6 / (fan in + fan out)).
    Xavier,
    /// Normal with deviation sqrt(2 / fan in).
    Msra,
    /// Normal, drawn again until it is within two deviations.
    TruncatedNormal {
        mean: f64,
        std: f64,
    },
}

/// What a variable is for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum VarKind {
    /// Given anew with every run.
    Feed,
    /// Learned; lives in the store.
    Parameter(Learn),
    /// Lives in the store and is not learned: statistics, moments, the learning rate.
    State(Init),
    /// Computed in every run.
    Temp,
}

/// How a parameter is learned.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Learn {
    pub init: Init,
    pub trainable: bool,
    /// Its learning rate, as a multiple of the optimizer's.
    pub rate: f64,
    /// L2 decay of its own, instead of the optimizer's.
    pub decay: Option<f64>,
}

impl Default for Learn {
    fn default() -> Learn {
        Learn { init: Init::Xavier, trainable: true, rate: 1.0, decay: None }
    }
}

impl From<Init> for Learn {
    fn from(init: Init) -> Learn {
        Learn { init, ..Learn::default() }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Var {
    pub name: String,
    pub sig: Sig,
    pub kind: VarKind,
    pub site: Site,
    /// Whether gradients end here, where the user has said so. By itself they end only at what is fed.
    #[serde(skip)]
    pub stops: Option<bool>,
}

impl Var {
    /// Whether it lives in the store.
    pub fn is_persistable(&self) -> bool {
        matches!(self.kind, VarKind::Parameter(_) | VarKind::State(_))
    }
}

/// Which part of a training step an operation belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Role {
    Forward,
    /// The gradient that everything begins with: that of the loss.
    Loss,
    Backward,
    Optimize,
    LrSched,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Op {
    pub kind: OpKind,
    pub inputs: Vec<VarId>,
    pub outputs: Vec<VarId>,
    pub role: Role,
    pub site: Site,
}

impl Op {
    pub fn name(&self) -> &'static str {
        self.kind.operator().name()
    }
}

/// A training or test program, written for one device.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    pub(crate) vars: Vec<Var>,
    pub(crate) ops: Vec<Op>,
    /// Variables with their gradients: one for each loss that was differentiated. The oldest comes first.
    pub(crate) grads: BTreeSet<(VarId, VarId)>,
    /// How many operations draw random numbers.
    pub(crate) n_streams: u32,
    names: BTreeMap<String, VarId>,
}

/// A program as it is written down; reading one verifies it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Parts {
    vars: Vec<Var>,
    ops: Vec<Op>,
    grads: Vec<(VarId, VarId)>,
    n_streams: u32,
}

/// The same as text, where gradients that end are written down, too. In files for prediction there are none.
#[derive(Serialize, Deserialize)]
struct Text {
    vars: Vec<Var>,
    ops: Vec<Op>,
    grads: Vec<(VarId, VarId)>,
    n_streams: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    stops: Vec<(VarId, bool)>,
}

impl Serialize for Program {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let parts = Parts::from(self.clone());
        if !to.is_human_readable() {
            return parts.serialize(to);
        }
        let Parts { vars, ops, grads, n_streams } = parts;
        let stops = self.vars().filter_map(|(id, var)| Some((id, var.stops?))).collect();
        Text { vars, ops, grads, n_streams, stops }.serialize(to)
    }
}

impl<'de> Deserialize<'de> for Program {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Program, D::Error> {
        let (parts, stops) = match from.is_human_readable() {
            true => {
                let Text { vars, ops, grads, n_streams, stops } = Text::deserialize(from)?;
                (Parts { vars, ops, grads, n_streams }, stops)
            }
            false => (Parts::deserialize(from)?, Vec::new()),
        };
        let mut program = Program::try_from(parts).map_err(D::Error::custom)?;
        for (id, stops) in stops {
            let Some(var) = program.vars.get_mut(id.index()) else {
                return Err(D::Error::custom(format!("no variable number {}", id.index())));
            };
            var.stops = Some(stops);
        }
        Ok(program)
    }
}

impl From<Program> for Parts {
    fn from(p: Program) -> Parts {
        Parts { vars: p.vars, ops: p.ops, grads: p.grads.into_iter().collect(), n_streams: p.n_streams }
    }
}

impl TryFrom<Parts> for Program {
    type Error = GraphError;

    fn try_from(parts: Parts) -> Result<Program, GraphError> {
        let mut names = BTreeMap::new();
        for (i, var) in parts.vars.iter().enumerate() {
            if names.insert(var.name.clone(), VarId(i as u32)).is_some() {
                return Err(GraphError::Duplicate { var: var.name.clone(), site: var.site.clone() });
            }
        }
        let grads = parts.grads.into_iter().collect();
        let program = Program { vars: parts.vars, ops: parts.ops, grads, n_streams: parts.n_streams, names };
        verify::verify(&program)?;
        Ok(program)
    }
}

impl Default for Program {
    fn default() -> Program {
        Program::new()
    }
}

impl Program {
    pub fn new() -> Program {
        Program {
            vars: Vec::new(),
            ops: Vec::new(),
            grads: BTreeSet::new(),
            n_streams: 0,
            names: BTreeMap::new(),
        }
    }

    pub fn var(&self, id: VarId) -> &Var {
        &self.vars[id.index()]
    }

    pub fn op(&self, id: OpId) -> &Op {
        &self.ops[id.index()]
    }

    pub fn vars(&self) -> impl Iterator<Item = (VarId, &Var)> {
        self.vars.iter().enumerate().map(|(i, v)| (VarId(i as u32), v))
    }

    /// Makes the operations from `begin` on part of the update.
    pub fn make_update(&mut self, begin: usize) {
        self.ops.iter_mut().skip(begin).for_each(|op| op.role = Role::Optimize);
    }

    pub fn ops(&self) -> impl Iterator<Item = (OpId, &Op)> {
        self.ops.iter().enumerate().map(|(i, o)| (OpId(i as u32), o))
    }

    /// The variable of this name. `x@GRAD` finds the gradient of `x` also where it shares another's.
    pub fn find(&self, name: &str) -> Option<VarId> {
        if let Some(&id) = self.names.get(name) {
            return Some(id);
        }
        let base = self.names.get(name.strip_suffix("@GRAD")?)?;
        self.grad(*base)
    }

    /// The gradient of a variable, after `append_backward`; of several losses, that of the first.
    pub fn grad(&self, var: VarId) -> Option<VarId> {
        self.grads.range((var, VarId(0))..).next().filter(|(of, _)| *of == var).map(|(_, g)| *g)
    }

    /// All parameters that are learned, in the order they were declared.
    pub fn trainable(&self) -> Vec<VarId> {
        let learned = |v: &Var| match &v.kind {
            VarKind::Parameter(learn) => learn.trainable && v.stops != Some(true),
            _ => false,
        };
        self.vars().filter(|(_, v)| learned(v)).map(|(id, _)| id).collect()
    }

    /// Says whether gradients end at a variable, for losses that are differentiated from now on.
    pub fn stop_gradient(&mut self, var: VarId, stops: bool) {
        self.vars[var.index()].stops = Some(stops);
    }

    /// Says whether a parameter is learned by optimizers that are added from now on.
    pub fn set_trainable(&mut self, var: VarId, trainable: bool) {
        if let VarKind::Parameter(learn) = &mut self.vars[var.index()].kind {
            learn.trainable = trainable;
        }
    }

    /// Adds a variable; its name must be new.
    pub fn declare(&mut self, name: &str, sig: Sig, kind: VarKind, site: Site) -> Result<VarId, GraphError> {
        let id = VarId(self.vars.len() as u32);
        if self.names.contains_key(name) {
            return Err(GraphError::Duplicate { var: name.to_string(), site });
        }
        verify::countable(name, &sig, &site)?;
        self.names.insert(name.to_string(), id);
        self.vars.push(Var { name: name.to_string(), sig, kind, site, stops: None });
        Ok(id)
    }

    /// A name like this one that no variable has yet.
    pub fn fresh(&self, base: &str) -> String {
        if !self.names.contains_key(base) {
            return base.to_string();
        }
        (1..)
            .map(|i| format!("{base}.{i}"))
            .find(|n| !self.names.contains_key(n))
            .expect("names never run out")
    }

    /// Adds an operation whose outputs are new variables, named after `name`.
    pub fn append(
        &mut self,
        kind: impl Into<OpKind>,
        inputs: &[VarId],
        name: &str,
        role: Role,
        site: Site,
    ) -> Result<Vec<VarId>, GraphError> {
        let kind = kind.into();
        let sigs = verify::inferred(self, &kind, inputs, &site)?;
        let mut outputs = Vec::with_capacity(sigs.len());
        for sig in sigs {
            let name = self.fresh(name);
            outputs.push(self.declare(&name, sig, VarKind::Temp, site.clone())?);
        }
        self.ops.push(Op { kind, inputs: inputs.to_vec(), outputs: outputs.clone(), role, site });
        Ok(outputs)
    }

    /// Adds an operation that writes these variables, some of which may live in the store.
    pub fn append_to(
        &mut self,
        kind: impl Into<OpKind>,
        inputs: &[VarId],
        outputs: &[VarId],
        role: Role,
        site: Site,
    ) -> Result<(), GraphError> {
        let op = Op { kind: kind.into(), inputs: inputs.to_vec(), outputs: outputs.to_vec(), role, site };
        verify::fits(self, &op)?;
        self.ops.push(op);
        Ok(())
    }

    /// Gives variables and operations whose place is like this another one.
    pub fn place(&mut self, is_to_move: impl Fn(&Site) -> bool, to: &Site) {
        let sites = self.vars.iter_mut().map(|v| &mut v.site).chain(self.ops.iter_mut().map(|o| &mut o.site));
        sites.filter(|site| is_to_move(site)).for_each(|site| *site = to.clone());
    }

    /// The first operation whose function comes from outside, which cannot be written down.
    pub fn foreign(&self) -> Option<&str> {
        self.ops.iter().find_map(|op| match &op.kind {
            OpKind::Foreign(foreign) => Some(foreign.title.as_str()),
            _ => None,
        })
    }

    pub(crate) fn rename(&mut self, var: VarId, name: String) {
        let old = std::mem::replace(&mut self.vars[var.index()].name, name.clone());
        self.names.remove(&old);
        self.names.insert(name, var);
    }

    /// Checks everything that `GRAPH-1` to `GRAPH-3` promise.
    pub fn verify(&self) -> Result<(), GraphError> {
        verify::verify(self)
    }

    /// The same network for testing: no backward, no updates, statistics as learned, nothing dropped.
    pub fn clone_for_test(&self) -> Program {
        let mut ops = Vec::new();
        // What is made of gradients goes with them.
        let mut gone = vec![false; self.vars.len()];
        for op in &self.ops {
            if op.role == Role::Forward && !op.inputs.iter().any(|id| gone[id.index()]) {
                ops.push(op.kind.operator().for_test(op).unwrap_or_else(|| op.clone()));
                continue;
            }
            let temps = op.outputs.iter().filter(|id| self.var(**id).kind == VarKind::Temp);
            temps.for_each(|id| gone[id.index()] = true);
        }
        let mut used = vec![false; self.vars.len()];
        for id in ops.iter().flat_map(|o| o.inputs.iter().chain(&o.outputs)) {
            used[id.index()] = true;
        }
        for (id, var) in self.vars() {
            used[id.index()] |= matches!(var.kind, VarKind::Feed | VarKind::Parameter(_));
        }
        Program { grads: BTreeSet::new(), ..self.keeping(ops, &used) }
    }

    /// A program of these operations and the variables that stay, among which are all that the operations name.
    pub(crate) fn keeping(&self, mut ops: Vec<Op>, stays: &[bool]) -> Program {
        let mut kept = Program { n_streams: self.n_streams, ..Program::new() };
        let mut place = vec![None; self.vars.len()];
        for (id, var) in self.vars().filter(|(id, _)| stays[id.index()]) {
            let new = VarId(kept.vars.len() as u32);
            place[id.index()] = Some(new);
            kept.names.insert(var.name.clone(), new);
            kept.vars.push(var.clone());
        }
        for op in &mut ops {
            for id in op.inputs.iter_mut().chain(&mut op.outputs) {
                *id = place[id.index()].expect("every variable of a kept operation is kept");
            }
        }
        kept.ops = ops;
        let both = self.grads.iter().filter_map(|(of, g)| place[of.index()].zip(place[g.index()]));
        kept.grads = both.collect();
        kept
    }

    /// The scalar type that losses and rates of this program have.
    pub fn sig(&self, var: VarId) -> &Sig {
        &self.vars[var.index()].sig
    }

    pub(crate) fn is_scalar(&self, var: VarId) -> bool {
        let sig = self.sig(var);
        sig.form == Storage::Dense && sig.shape.dims().iter().all(|d| *d == 1.into()) && sig.dtype.is_float()
    }

    /// A scalar that lives in the store.
    pub fn scalar_state(
        &mut self,
        name: &str,
        dtype: DType,
        value: f64,
        site: Site,
    ) -> Result<VarId, GraphError> {
        if let Some(id) = self.find(name) {
            return Ok(id);
        }
        self.declare(name, Sig::dense(dtype, Shape::scalar()), VarKind::State(Init::Constant(value)), site)
    }
}
