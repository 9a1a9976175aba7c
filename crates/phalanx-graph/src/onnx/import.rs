//! Turns a file into a program: walks the nodes in order, folds known values, and translates every other node.

use super::{
    constants::{Known, MOST},
    error::{Fault, OnnxError},
    export::{Exported, export},
    fold, graph, lower,
    node::OnnxNode,
    proto,
    screen::{Limits, screen},
    tensor::Checked,
};
use crate::{
    exec::{RunError, Store, Tensor},
    ir::{Init, Learn, Program, Role, Shape, Sig, Site, VarId, VarKind},
    op::{Assign, Fill, OpKind},
};
use phalanx_core::DType;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};

/// What becomes of batch normalisation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Norms {
    /// As the file says; one in evaluation mode is refused, because it cannot learn.
    #[default]
    Strict,
    /// All learn and follow the statistics of their batches, whatever the file says. The exporter that is built on
    /// `torch.export` writes evaluation mode even for a model in training mode.
    Learn,
    /// Those in evaluation mode stay so: for programs that only predict.
    AsWritten,
}

/// How a model is imported.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImportOptions {
    /// Initializers to learn. `None`: every one of floating point that the outputs depend on, statistics aside.
    pub learn: Option<Vec<String>>,
    /// Names of initializers that keep their values; `*` stands for anything.
    pub freeze: Vec<String>,
    /// The symbol of the batch. `None`: the first one that an input has.
    pub batch: Option<String>,
    pub norms: Norms,
    /// Whether the gradients of embedding tables have only the rows that were used.
    pub sparse: bool,
    pub limits: Limits,
}

/// A model as a program.
#[derive(Clone, Debug)]
pub struct Imported {
    pub program: Program,
    /// What is fed.
    pub inputs: Vec<String>,
    /// What the model gives; fetch it by these names.
    pub outputs: Vec<String>,
    /// What is learned.
    pub parameters: Vec<String>,
    values: Vec<(String, Tensor)>,
    /// Those of them that are floating-point initializers of the file.
    weights: Vec<String>,
}

impl Imported {
    /// Puts the values of the file into a store that an executor of the program has prepared.
    pub fn give(&self, store: &mut Store) -> Result<(), RunError> {
        self.values.iter().try_for_each(|(name, value)| store.set(name, value))
    }

    /// Writes the store's values of all initializers that were imported into a file: the one that was imported, or another
    /// of the same model, such as one for prediction.
    pub fn export(&self, bytes: &[u8], store: &mut Store, limits: &Limits) -> Result<Exported, OnnxError> {
        let exported = export(bytes, store, limits)?;
        let written: BTreeSet<&str> = exported.replaced.iter().map(String::as_str).collect();
        match self.weights.iter().find(|name| !written.contains(name.as_str())) {
            Some(name) => Err(OnnxError::NotInFile { name: name.clone() }),
            None => Ok(exported),
        }
    }

    /// The values of the file, by name.
    pub fn values(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.values.iter().map(|(name, value)| (name.as_str(), value))
    }
}

/// Reads a model. Nothing of it runs.
pub fn import(bytes: &[u8], options: &ImportOptions) -> Result<Imported, OnnxError> {
    screen(bytes, &options.limits)?;
    let model = proto::Model::decode(bytes).map_err(OnnxError::Undecodable)?;
    let graph = model.graph.as_ref().ok_or(OnnxError::NoGraph)?;
    graph::opset(&model)?;
    if graph.outputs.is_empty() {
        return Err(OnnxError::NoOutputs);
    }
    graph::names(graph)?;
    let (live, read) = graph::live(graph);
    graph::known(graph, &live)?;
    let mut import = Import::new(options, read, bytes.len());
    let inputs = import.edges(graph)?;
    for (index, proto) in graph.nodes.iter().enumerate().filter(|(i, _)| live[*i]) {
        let node = OnnxNode::new(proto, index);
        import.node(&node).map_err(|why| {
            let name = super::node::name(proto).to_string();
            OnnxError::Node { index, name, op: proto.op.clone(), why: Box::new(why) }
        })?;
    }
    let outputs = graph.outputs.iter().map(|o| import.output(&o.name)).collect::<Result<_, _>>()?;
    import.finish(inputs, outputs)
}

/// What a name of the graph stands for.
#[derive(Clone, Debug)]
pub(super) enum Value<'a> {
    Var(VarId),
    Known(Known),
    /// An initializer, put into the store when something reads it as data.
    Weight(Checked<'a>),
    /// A large constant.
    Constant(Checked<'a>),
}

/// An import on its way.
#[derive(Debug)]
pub(super) struct Import<'a> {
    pub program: Program,
    pub options: &'a ImportOptions,
    /// Every name that something reads.
    pub read: BTreeSet<&'a str>,
    /// Logarithms of probabilities, and the scores they were made from.
    pub scores: BTreeMap<VarId, VarId>,
    values: BTreeMap<&'a str, Value<'a>>,
    /// Variables for values that were not variables at first.
    made: BTreeMap<&'a str, VarId>,
    given: Vec<(String, Tensor)>,
    /// Operations on the way so far; their names count them.
    n_parts: u64,
    /// How many elements of known values may be kept in all, and are: small nodes must not make much of a large constant.
    budget: usize,
    kept: usize,
}

impl<'a> Import<'a> {
    fn new(options: &'a ImportOptions, read: BTreeSet<&'a str>, n_bytes: usize) -> Import<'a> {
        Import {
            program: Program::new(),
            options,
            read,
            scores: BTreeMap::new(),
            values: BTreeMap::new(),
            made: BTreeMap::new(),
            given: Vec::new(),
            n_parts: 0,
            budget: n_bytes.saturating_add(MOST),
            kept: 0,
        }
    }

    /// Feeds and initializers, as far as something reads them.
    fn edges(&mut self, graph: &'a proto::GraphProto) -> Result<Vec<String>, OnnxError> {
        for proto in graph.initializers.iter().filter(|t| self.read.contains(&t.name[..])) {
            let fault = |why| OnnxError::Tensor { name: proto.name.clone(), why };
            self.values.insert(&proto.name, Value::Weight(Checked::new(proto).map_err(fault)?));
        }
        let mut batch = self.options.batch.clone();
        let mut inputs = Vec::new();
        for (i, input) in graph.inputs.iter().enumerate() {
            let name = &input.name[..];
            if !self.read.contains(name) || self.values.contains_key(name) {
                continue;
            }
            let sig = graph::feed(input, &mut batch)?;
            let site = Site::new(format!("onnx:input {name}"), i as u32);
            let var = self.program.declare(name, sig, VarKind::Feed, site)?;
            self.values.insert(name, Value::Var(var));
            inputs.push(name.to_string());
        }
        Ok(inputs)
    }

    fn node(&mut self, node: &OnnxNode<'a>) -> Result<(), Fault> {
        if let Some(known) = self.folded(node)? {
            return self.bind(node, 0, Value::Known(known));
        }
        match lower::find(node.op()) {
            Some(lower) => lower(self, node),
            None => {
                let slot = (0..node.proto.inputs.len()).find(|&s| self.known(node, s).is_none());
                Err(Fault::NotConstant { slot: slot.unwrap_or(0) })
            }
        }
    }

    fn folded(&self, node: &OnnxNode<'a>) -> Result<Option<Known>, Fault> {
        /// No operation that is folded has more inputs, but for lists that are joined.
        const MOST_INPUTS: usize = 64;
        let named = node.proto.inputs.iter().enumerate().filter(|(_, name)| !name.is_empty());
        let known: Option<Vec<Known>> = named.take(MOST_INPUTS).map(|(s, _)| self.known(node, s)).collect();
        match known {
            Some(all) if !all.is_empty() && node.proto.inputs.len() <= MOST_INPUTS => fold::fold(node, &all),
            _ => Ok(None),
        }
    }

    /// An output, under its own name.
    fn output(&mut self, name: &str) -> Result<String, OnnxError> {
        let Some((&key, value)) = self.values.get_key_value(name) else {
            return Err(OnnxError::NoOutput { name: name.into() });
        };
        let site = Site::new(format!("onnx:output {name}"), 0);
        let value = value.clone();
        let at =
            |why| OnnxError::Node { index: 0, name: name.into(), op: "output".into(), why: Box::new(why) };
        let var = self.variable(key, &value, 0, &site).map_err(at)?;
        if self.program.var(var).name != name {
            let sig = self.program.sig(var).clone();
            let copy = self.program.declare(name, sig, VarKind::Temp, site.clone())?;
            self.program.append_to(Assign, &[var], &[copy], Role::Forward, site)?;
        }
        Ok(name.into())
    }

    fn finish(self, inputs: Vec<String>, outputs: Vec<String>) -> Result<Imported, OnnxError> {
        self.program.verify()?;
        let named = |id: &VarId| self.program.var(*id).name.clone();
        let parameters: Vec<String> = self.program.trainable().iter().map(named).collect();
        let missing = |name: &String, what| Err(OnnxError::NoSuchWeight { name: name.clone(), what });
        let all: BTreeSet<&str> = parameters.iter().map(String::as_str).collect();
        if let Some(lost) = self.options.learn.iter().flatten().find(|n| !all.contains(n.as_str())) {
            return missing(lost, "learned");
        }
        for pattern in &self.options.freeze {
            if !self.given.iter().any(|(name, _)| fits(pattern, name)) {
                return missing(pattern, "frozen");
            }
        }
        let is_weight = |name: &str| matches!(self.values.get(name), Some(Value::Weight(t)) if t.is_real());
        let weights = self.given.iter().map(|(name, _)| name).filter(|n| is_weight(n)).cloned().collect();
        Ok(Imported { program: self.program, inputs, outputs, parameters, values: self.given, weights })
    }

    /// Whether the node has this input.
    pub fn has(&self, node: &OnnxNode<'a>, slot: usize) -> bool {
        node.proto.inputs.get(slot).is_some_and(|name| !name.is_empty())
    }

    fn value(&self, node: &OnnxNode<'a>, slot: usize) -> Result<(&'a str, &Value<'a>), Fault> {
        let name = node.proto.inputs.get(slot).filter(|n| !n.is_empty()).ok_or(Fault::Missing { slot })?;
        let value = self.values.get(&name[..]);
        value.map(|v| (&name[..], v)).ok_or_else(|| Fault::Undefined { name: name.clone() })
    }

    /// An input as data.
    pub fn var(&mut self, node: &OnnxNode<'a>, slot: usize) -> Result<VarId, Fault> {
        let (name, value) = self.value(node, slot)?;
        let value = value.clone();
        self.variable(name, &value, slot, &node.site)
    }

    fn variable(
        &mut self,
        name: &'a str,
        value: &Value<'a>,
        slot: usize,
        site: &Site,
    ) -> Result<VarId, Fault> {
        if let Value::Var(var) = value {
            return Ok(*var);
        }
        if let Some(&var) = self.made.get(name) {
            return Ok(var);
        }
        let var = match value {
            Value::Var(var) => *var,
            Value::Known(known) => self.constant_var(name, known, slot, site)?,
            Value::Weight(tensor) if tensor.is_real() => {
                let learn = Learn { init: Init::Given, trainable: self.learns(name), ..Learn::default() };
                self.stored(name, tensor.tensor()?, VarKind::Parameter(learn), site)?
            }
            Value::Weight(tensor) | Value::Constant(tensor) => {
                self.stored(name, tensor.tensor()?, VarKind::State(Init::Given), site)?
            }
        };
        self.made.insert(name, var);
        Ok(var)
    }

    fn constant_var(&mut self, name: &str, known: &Known, slot: usize, site: &Site) -> Result<VarId, Fault> {
        let fits = matches!(known.dtype, DType::F32 | DType::F64 | DType::I64);
        match known.everywhere().filter(|_| fits) {
            Some(value) => {
                let fill = Fill { dtype: known.dtype, shape: known.shape(), value };
                Ok(self.program.append(fill, &[], name, Role::Forward, site.clone())?[0])
            }
            None => self.stored(name, known.tensor(slot)?, VarKind::State(Init::Given), site),
        }
    }

    fn stored(&mut self, name: &str, value: Tensor, kind: VarKind, site: &Site) -> Result<VarId, Fault> {
        let sig = Sig::dense(value.dtype(), value.dims());
        let var = self.program.declare(name, sig, kind, site.clone())?;
        self.given.push((name.to_string(), value));
        Ok(var)
    }

    fn learns(&self, name: &str) -> bool {
        let listed = self.options.learn.as_ref().is_none_or(|all| all.iter().any(|n| n == name));
        listed && !self.options.freeze.iter().any(|pattern| fits(pattern, name))
    }

    /// Statistics that a normalisation reads and writes.
    pub fn statistics(&mut self, node: &OnnxNode<'a>, slot: usize) -> Result<VarId, Fault> {
        let (name, value) = self.value(node, slot)?;
        let value = value.clone();
        let known = self.made.get(name).copied();
        match (known, value) {
            (Some(var), _) if matches!(self.program.var(var).kind, VarKind::State(_)) => Ok(var),
            (None, Value::Weight(tensor)) => {
                let var = self.stored(name, tensor.tensor()?, VarKind::State(Init::Given), &node.site)?;
                self.made.insert(name, var);
                Ok(var)
            }
            _ => Err(Fault::Statistics { name: name.into() }),
        }
    }

    /// An input that is known already. Weights are not: they will be learned.
    pub fn known(&self, node: &OnnxNode<'a>, slot: usize) -> Option<Known> {
        match self.value(node, slot).ok()?.1 {
            Value::Known(known) => Some(known.clone()),
            Value::Weight(tensor) if !tensor.is_real() => tensor.known(),
            Value::Var(_) | Value::Weight(_) | Value::Constant(_) => None,
        }
    }

    /// An input that has to be known, even if it is written down as a weight.
    pub fn setting(&self, node: &OnnxNode<'a>, slot: usize) -> Result<Known, Fault> {
        let known = match self.value(node, slot)?.1 {
            Value::Weight(tensor) => tensor.known(),
            _ => self.known(node, slot),
        };
        known.ok_or(Fault::NotConstant { slot })
    }

    /// A list of integers that has to be known and does not depend on the batch.
    pub fn integers(&self, node: &OnnxNode<'a>, slot: usize) -> Result<Vec<i64>, Fault> {
        self.setting(node, slot)?.fixed().ok_or(Fault::NotConstant { slot })
    }

    /// The shape of an input, without making it a variable.
    pub fn shape(&self, node: &OnnxNode<'a>, slot: usize) -> Result<Shape, Fault> {
        Ok(match self.value(node, slot)?.1 {
            Value::Var(var) => self.program.sig(*var).shape.clone(),
            Value::Known(known) => known.shape(),
            Value::Weight(tensor) | Value::Constant(tensor) => Shape::from(&tensor.dims[..]),
        })
    }

    /// The element type that an input has as a variable.
    pub fn dtype(&self, node: &OnnxNode<'a>, slot: usize) -> Result<DType, Fault> {
        Ok(match self.value(node, slot)?.1 {
            Value::Var(var) => self.program.sig(*var).dtype,
            Value::Known(known) => known.dtype,
            Value::Weight(tensor) | Value::Constant(tensor) if tensor.is_real() => tensor.dtype,
            Value::Weight(_) | Value::Constant(_) => DType::I64,
        })
    }

    /// Adds an operation on the way to what the node gives; gives its first output.
    pub fn emit(
        &mut self,
        node: &OnnxNode<'a>,
        kind: impl Into<OpKind>,
        inputs: &[VarId],
    ) -> Result<VarId, Fault> {
        Ok(self.emit_all(node, kind, inputs)?[0])
    }

    /// The same; gives all outputs.
    pub fn emit_all(
        &mut self,
        node: &OnnxNode<'a>,
        kind: impl Into<OpKind>,
        inputs: &[VarId],
    ) -> Result<Vec<VarId>, Fault> {
        let name = self.part(node);
        Ok(self.program.append(kind, inputs, &name, Role::Forward, node.site.clone())?)
    }

    fn part(&mut self, node: &OnnxNode<'a>) -> String {
        self.n_parts += 1;
        format!("{}.part{}", super::node::name(node.proto), self.n_parts)
    }

    /// Numbers that the node needs and the file does not have.
    pub fn constant(&mut self, node: &OnnxNode<'a>, value: Tensor) -> Result<VarId, Fault> {
        let name = self.part(node);
        self.stored(&name, value, VarKind::State(Init::Given), &node.site)
    }

    /// Adds the operation that gives an output of the node.
    pub fn give(
        &mut self,
        node: &OnnxNode<'a>,
        slot: usize,
        kind: impl Into<OpKind>,
        inputs: &[VarId],
    ) -> Result<VarId, Fault> {
        let name = node.proto.outputs.get(slot).filter(|o| !o.is_empty()).ok_or(Fault::NoOutput)?;
        let var = self.emit(node, kind, inputs)?;
        // Only this one: what else the operation gives must not take names that others have in the file.
        if self.program.find(name).is_none() {
            self.program.rename(var, name.clone());
        }
        self.bind(node, slot, Value::Var(var))?;
        Ok(var)
    }

    /// Says what an output of the node is.
    pub fn bind(&mut self, node: &OnnxNode<'a>, slot: usize, value: Value<'a>) -> Result<(), Fault> {
        let name = node.proto.outputs.get(slot).filter(|o| !o.is_empty()).ok_or(Fault::NoOutput)?;
        if let Value::Known(known) = &value {
            self.kept = self.kept.saturating_add(known.len());
            if self.kept > self.budget {
                return Err(Fault::Budget { limit: self.budget });
            }
        }
        self.values.insert(name, value);
        Ok(())
    }

    /// An output that is another name of an input.
    pub fn alias(&mut self, node: &OnnxNode<'a>, slot: usize) -> Result<(), Fault> {
        let var = self.var(node, slot)?;
        self.bind(node, 0, Value::Var(var))
    }

    /// Refuses a node of which more than the first outputs are read.
    pub fn only(&self, node: &OnnxNode<'a>, n: usize) -> Result<(), Fault> {
        let used = |o: &String| !o.is_empty() && self.read.contains(&o[..]);
        match node.proto.outputs.iter().skip(n).position(used) {
            None => Ok(()),
            Some(more) => Err(Fault::OutputUsed { slot: n + more }),
        }
    }
}

/// Whether a name is like a pattern in which `*` stands for anything.
fn fits(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn patterns() {
        for (pattern, name, wanted) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a*", "ab", true),
            ("*.bias", "fc.bias", true),
            ("*.bias", "fc.bias.x", false),
            ("a*c*e", "abcde", true),
            ("a*c*e", "ae", false),
            ("*", "", true),
        ] {
            assert_eq!(fits(pattern, name), wanted, "{pattern} {name}");
        }
    }
}
