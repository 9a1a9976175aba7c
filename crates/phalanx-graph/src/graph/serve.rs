//! Parameters on servers: which ones can be there, and the program without them.
//!
//! Of a table whose gradients are rows, table, states and update leave the program: lookups become [`PullRows`], the update a
//! [`PushRows`]. A parameter with dense gradients stays as a copy that the servers update.
//! Where gradients are clipped by a norm of several, those that are served wait on the servers: all of them are pushed, [`ServedSquares`] is
//! their part of the norm, and each update becomes a [`ReleaseRows`] with the factor that gradients in the program are multiplied with, too.
//! - SERVED-1: only what a server does with the same formula is served; everything else is refused, with the reason.

use super::error::BuildError;
use crate::{
    ir::{GraphError, Init, Op, OpId, Program, Role, Shape, Sig, Site, VarId, VarKind},
    op::{
        Embedding, Func, Momentum, OpKind, PullRows, PushRows, ReleaseRows, ServedSquares, Squares,
        SumSquares, Unary,
    },
};
use phalanx_core::DType;
use std::collections::BTreeMap;

/// A parameter that servers have.
#[derive(Clone, Debug, PartialEq)]
pub struct ServedVar {
    pub name: String,
    /// Whether its gradients are rows, so that only rows travel and no rank has all of it.
    pub sparse: bool,
    /// The parameter's own dimensions.
    pub dims: Vec<usize>,
    pub dtype: DType,
    /// `Given`: somebody must write its first values onto the servers.
    pub init: Init,
    /// Rows on the servers, and elements of each. A dense parameter is cut; what is missing in the last row is zero.
    pub height: usize,
    pub width: usize,
    /// The update, with its attributes.
    pub update: OpKind,
    /// Names of what the update keeps, in its order.
    pub states: Vec<String>,
    /// The state that counts the steps of its rule, where the formula depends on them; it stays in the program.
    pub counter: Option<String>,
    /// What these begin with.
    pub first_state: f64,
    pub decay: f64,
    pub clip: ServedClip,
}

/// How servers clip a gradient before its rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ServedClip {
    No,
    /// By its own norm, to this.
    Norm(f64),
    /// By a factor that the program makes of the norm of several gradients: the rule waits for it.
    Factor,
}

impl ServedVar {
    /// Elements of the parameter.
    pub fn volume(&self) -> usize {
        self.dims.iter().product()
    }
}

/// Elements in a row of a dense parameter.
const CHUNK: usize = 1024;

/// Why a parameter cannot be on servers.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Unserved {
    #[error("the program has no parameter of that name")]
    Unknown,
    #[error("nothing updates it; call `minimize` first")]
    NotLearned,
    #[error("{n} operations update it, the last at {site}; servers know one rule for each parameter")]
    Updates { n: usize, site: Site },
    #[error("`{op}` at {site} updates it, and servers know sgd, momentum, adam, adagrad and rmsprop")]
    Rule { op: &'static str, site: Site },
    #[error("LARS wants the norm of the whole parameter in every step; use another rule for it")]
    Lars,
    #[error(
        "its rate is written by `{op}` at {site} after the norm that its gradient is clipped by; write the rate before gradients are clipped"
    )]
    LateRate { op: &'static str, site: Site },
    #[error(
        "`{op}` at {site} makes another gradient of its gradient before the update, which servers do not"
    )]
    Remade { op: &'static str, site: Site },
    #[error("its rate is computed by `{op}` at {site}; servers know one rate and a multiple of it")]
    Rate { op: &'static str, site: Site },
    #[error("`{op}` at {site} uses all of it, so its gradients are dense")]
    UsedWhole { op: &'static str, site: Site },
    #[error("`{op}` at {site} reads `{var}`, which is gone with it")]
    Read { op: &'static str, site: Site, var: String },
    #[error("its first values are not in the program but set in the store; give it an `Init`")]
    Given,
    #[error("it is of {0}; servers have f32 and f64")]
    Element(DType),
}

/// What there is of a parameter in a program.
struct Found {
    var: ServedVar,
    /// The raw gradient, the rate, and a factor for it.
    gradient: VarId,
    rate: VarId,
    scale: f64,
    /// Lookups; and everything that goes with the update, which is the last of it.
    pulls: Vec<OpId>,
    gone: Vec<OpId>,
    states: Vec<VarId>,
    group: Option<Group>,
}

/// A norm of several gradients that one of them is clipped by.
#[derive(Clone, Copy, Debug)]
struct Group {
    /// The operation that computes the norm, and the gradient as it enters that.
    norm: OpId,
    of: VarId,
    factor: VarId,
}

/// Whether a parameter can be on servers, and as what.
pub fn servable(program: &Program, name: &str) -> Result<ServedVar, Unserved> {
    found(program, name).map(|found| found.var)
}

/// The program without these parameters, and what servers must have in their place.
pub fn serve(program: &Program, names: &[String]) -> Result<(Program, Vec<ServedVar>), BuildError> {
    let mut all = Vec::new();
    for name in names {
        let unserved = |why| BuildError::Unserved { var: name.clone(), why };
        all.push(found(program, name).map_err(unserved)?);
    }
    let mut ops: Vec<Vec<Op>> = program.ops.iter().cloned().map(|op| vec![op]).collect();
    let mut stays = vec![true; program.vars.len()];
    let mut groups: BTreeMap<OpId, Waiting> = BTreeMap::new();
    for found in &all {
        let update = *found.gone.last().expect("an update was found");
        for &id in &found.gone {
            let is_temp = |out: &&VarId| program.var(**out).kind == VarKind::Temp;
            let outputs = program.op(id).outputs.iter().filter(is_temp);
            outputs.for_each(|out| stays[out.index()] = false);
            ops[id.index()].clear();
        }
        found.states.iter().for_each(|state| stays[state.index()] = false);
        let p = program.op(update).inputs[0];
        stays[p.index()] = !found.var.sparse;
        let ServedVar { name, sparse, width, height, dtype, .. } = &found.var;
        let waits = found.group.is_some();
        let push = PushRows { table: name.clone(), width: *width, scale: found.scale, waits };
        let own = || if *sparse { Vec::new() } else { vec![p] };
        let push = Op {
            kind: push.into(),
            inputs: vec![found.gradient, found.rate],
            outputs: if waits { Vec::new() } else { own() },
            role: Role::Optimize,
            site: program.op(update).site.clone(),
        };
        ops[update.index()].push(match found.group {
            None => push,
            Some(group) => {
                let height = if *sparse { 0 } else { *height };
                let release = ReleaseRows { table: name.clone(), height, dims: found.var.dims.clone() };
                let inputs = vec![group.factor];
                let release = Op { kind: release.into(), inputs, outputs: own(), ..push.clone() };
                let waiting = groups.entry(group.norm).or_default();
                waiting.pushes.push(push);
                waiting.tables.push(name.clone());
                waiting.of.push(group.of);
                release
            }
        });
        for &id in &found.pulls {
            let op = program.op(id);
            let OpKind::Embedding(Embedding { padding, .. }) = &op.kind else { continue };
            let pull = PullRows {
                table: name.clone(),
                height: *height,
                width: *width,
                dtype: *dtype,
                padding: *padding,
            };
            ops[id.index()] = vec![Op { kind: pull.into(), inputs: vec![op.inputs[1]], ..op.clone() }];
        }
    }
    let mut program = program.clone();
    for (norm, waiting) in groups {
        ops[norm.index()] = waiting.norm(&mut program, norm)?;
    }
    stays.resize(program.vars.len(), true);
    let served = program.keeping(ops.into_iter().flatten().collect(), &stays);
    Ok((served, all.into_iter().map(|found| found.var).collect()))
}

/// What of the gradients of a norm is served.
#[derive(Default)]
struct Waiting {
    pushes: Vec<Op>,
    tables: Vec<String>,
    of: Vec<VarId>,
}

impl Waiting {
    /// The same norm, of what waits on the servers and what is in the program.
    fn norm(self, program: &mut Program, norm: OpId) -> Result<Vec<Op>, GraphError> {
        let op = program.op(norm).clone();
        let mut squares = |kind: OpKind, inputs: Vec<VarId>| -> Result<Op, GraphError> {
            let (name, sig) = (program.fresh("@SQUARES@"), Sig::dense(DType::F64, Shape::scalar()));
            let out = program.declare(&name, sig, VarKind::Temp, op.site.clone())?;
            Ok(Op { kind, inputs, outputs: vec![out], ..op.clone() })
        };
        let mut all = self.pushes;
        let n_pushes = all.len();
        all.push(squares(ServedSquares { tables: self.tables }.into(), Vec::new())?);
        for &var in op.inputs.iter().filter(|var| !self.of.contains(var)) {
            all.push(squares(Squares.into(), vec![var])?);
        }
        let inputs = all[n_pushes..].iter().map(|op| op.outputs[0]).collect();
        let dtype = program.sig(op.outputs[0]).dtype;
        all.push(Op { kind: SumSquares { dtype }.into(), inputs, ..op });
        Ok(all)
    }
}

/// The same program, in which the rows that tables learn from are multiplied with a number. Dense gradients stay as they are.
pub fn scale_rows(program: &Program, by: f64) -> Result<Program, GraphError> {
    let mut scaled = program.clone();
    if by == 1.0 {
        return Ok(scaled);
    }
    for mut op in std::mem::take(&mut scaled.ops) {
        if let OpKind::EmbeddingRows(_) = &op.kind {
            let (dy, name) = (op.inputs[1], scaled.fresh("@SCALED@"));
            let (sig, site) = (scaled.sig(dy).clone(), op.site.clone());
            let out = scaled.declare(&name, sig, VarKind::Temp, site)?;
            let kind = Unary(Func::Scale { a: by, b: 0.0 }).into();
            scaled.ops.push(Op { kind, inputs: vec![dy], outputs: vec![out], ..op.clone() });
            op.inputs[1] = out;
        }
        scaled.ops.push(op);
    }
    scaled.verify()?;
    Ok(scaled)
}

fn found(program: &Program, name: &str) -> Result<Found, Unserved> {
    let p = program.find(name).ok_or(Unserved::Unknown)?;
    let VarKind::Parameter(learn) = program.var(p).kind else { return Err(Unserved::Unknown) };
    let sig = program.sig(p);
    if !matches!(sig.dtype, DType::F32 | DType::F64) {
        return Err(Unserved::Element(sig.dtype));
    }
    let writers: Vec<OpId> = writers(program, p).collect();
    let &[update] = writers.as_slice() else {
        let last = writers.last().ok_or(Unserved::NotLearned)?;
        return Err(Unserved::Updates { n: writers.len(), site: program.op(*last).site.clone() });
    };
    let op = program.op(update);
    let named = |id: OpId| (program.op(id).name(), program.op(id).site.clone());
    let n_states = match &op.kind {
        OpKind::Sgd(_) => 0,
        OpKind::Momentum(Momentum { rate_inside: true, .. }) => return Err(Unserved::Lars),
        OpKind::Momentum(_) | OpKind::Adagrad(_) => 1,
        OpKind::Adam(_) | OpKind::RmsProp(_) => 2,
        _ => {
            let (op, site) = named(update);
            return Err(Unserved::Rule { op, site });
        }
    };
    let mut way = Way { program, p, gone: Vec::new(), decay: 0.0, clip: ServedClip::No, group: None };
    let gradient = way.back(op.inputs[1])?;
    let (rate, scale) = way.rate(op.inputs[2])?;
    let Way { mut gone, decay, clip, group, .. } = way;
    let late = |group: Group| self::writers(program, rate).find(|writer| *writer > group.norm);
    if let Some(late) = group.and_then(late) {
        let (op, site) = named(late);
        return Err(Unserved::LateRate { op, site });
    }
    gone.push(update);
    let states = op.inputs[3..3 + n_states].to_vec();
    let first_state = first_of(program, &states)?;
    let sparse = !program.sig(gradient).is_dense();
    let mut pulls = Vec::new();
    for (id, other) in program.ops().filter(|(id, op)| !gone.contains(id) && op.inputs.contains(&p)) {
        match &other.kind {
            OpKind::Embedding(Embedding { sparse: true, .. }) if sparse => pulls.push(id),
            _ if !sparse => {}
            _ => {
                let (op, site) = named(id);
                return Err(Unserved::UsedWhole { op, site });
            }
        }
    }
    let outputs = gone.iter().flat_map(|&id| &program.op(id).outputs);
    let lost = outputs.copied().filter(|&out| out != p).chain([gradient]);
    for var in lost.chain(states.iter().copied()) {
        let is_norm = |id: OpId| group.is_some_and(|group| group.norm == id && group.of == var);
        let reader =
            program.ops().find(|(id, op)| !gone.contains(id) && !is_norm(*id) && op.inputs.contains(&var));
        if let Some((id, _)) = reader {
            let ((op, site), var) = (named(id), program.var(var).name.clone());
            return Err(Unserved::Read { op, site, var });
        }
    }
    let dims = sig.shape.at(0);
    let volume: usize = dims.iter().product();
    let (height, width) = match sparse {
        true => (dims[0], dims[1..].iter().product()),
        false => (volume.div_ceil(volume.clamp(1, CHUNK)), volume.clamp(1, CHUNK)),
    };
    let var = ServedVar {
        name: name.to_string(),
        sparse,
        dims,
        dtype: sig.dtype,
        init: learn.init,
        height,
        width,
        update: op.kind.clone(),
        states: states.iter().map(|&state| program.var(state).name.clone()).collect(),
        counter: op.inputs.get(3 + n_states).map(|&id| program.var(id).name.clone()),
        first_state,
        decay,
        clip,
    };
    Ok(Found { var, gradient, rate, scale, pulls, gone, states, group })
}

fn writers(program: &Program, var: VarId) -> impl Iterator<Item = OpId> {
    program.ops().filter(move |(_, op)| op.outputs.contains(&var)).map(|(id, _)| id)
}

/// What all states begin with.
fn first_of(program: &Program, states: &[VarId]) -> Result<f64, Unserved> {
    let first = |&state: &VarId| match program.var(state).kind {
        VarKind::State(Init::Constant(value)) => Ok(value),
        _ => Err(Unserved::Given),
    };
    let all = states.iter().map(first).collect::<Result<Vec<f64>, _>>()?;
    match all.as_slice() {
        [] => Ok(0.0),
        [value, others @ ..] if others.iter().all(|other| other == value) => Ok(*value),
        _ => Err(Unserved::Given),
    }
}

/// The way from an update back to the gradient.
struct Way<'a> {
    program: &'a Program,
    p: VarId,
    gone: Vec<OpId>,
    decay: f64,
    clip: ServedClip,
    group: Option<Group>,
}

impl<'a> Way<'a> {
    fn writer(&self, var: VarId) -> Option<(OpId, &'a Op)> {
        self.program.ops().find(|(_, op)| op.outputs.contains(&var))
    }

    fn back(&mut self, mut g: VarId) -> Result<VarId, Unserved> {
        loop {
            if self.program.grads.contains(&(self.p, g)) {
                return Ok(g);
            }
            let Some((id, op)) = self.writer(g) else { return Err(Unserved::NotLearned) };
            let (name, site, from) = (op.name(), op.site.clone(), op.inputs[0]);
            match &op.kind {
                OpKind::Decay(by) if self.decay == 0.0 && self.clip == ServedClip::No => {
                    self.decay = by.factor;
                }
                OpKind::ScaleBy(_) if self.clip == ServedClip::No => self.clip(op)?,
                OpKind::MergeRows(_) => {}
                _ => return Err(Unserved::Remade { op: name, site }),
            }
            self.gone.push(id);
            g = from;
        }
    }

    /// Clipping by the gradient's own norm, or by one of several: scaling, factor, norm.
    fn clip(&mut self, scaling: &Op) -> Result<(), Unserved> {
        let (of, factor) = (scaling.inputs[0], scaling.inputs[1]);
        let remade = |op: &Op| Unserved::Remade { op: op.name(), site: op.site.clone() };
        let (cut, op) = self.writer(factor).ok_or_else(|| remade(scaling))?;
        let OpKind::ClipFactor(by) = &op.kind else { return Err(remade(op)) };
        let (limit, squares) = (by.limit, op.inputs[0]);
        let (norm, op) = self.writer(squares).ok_or_else(|| remade(op))?;
        let n_times = op.inputs.iter().filter(|var| **var == of).count();
        match &op.kind {
            OpKind::SquaredNorm(_) if op.inputs == [of] => {
                self.clip = ServedClip::Norm(limit);
                self.gone.extend([norm, cut]);
            }
            OpKind::SquaredNorm(_) if n_times == 1 => {
                (self.clip, self.group) = (ServedClip::Factor, Some(Group { norm, of, factor }));
            }
            _ => return Err(remade(op)),
        }
        Ok(())
    }

    /// The rate in the store, and what it is multiplied with.
    fn rate(&mut self, rate: VarId) -> Result<(VarId, f64), Unserved> {
        if self.program.var(rate).is_persistable() {
            return Ok((rate, 1.0));
        }
        let Some((id, op)) = self.writer(rate) else { return Err(Unserved::NotLearned) };
        match &op.kind {
            OpKind::Unary(unary) if self.program.var(op.inputs[0]).is_persistable() => {
                if let Func::Scale { a, b: 0.0 } = unary.0 {
                    let from = op.inputs[0];
                    self.gone.push(id);
                    return Ok((from, a));
                }
                Err(Unserved::Rate { op: op.name(), site: op.site.clone() })
            }
            _ => Err(Unserved::Rate { op: op.name(), site: op.site.clone() }),
        }
    }
}
