//! LSTM and GRU. ONNX has time first, a leading axis of directions in every weight, and another order of gates.

use super::super::{
    error::Fault,
    import::{Import, Value},
    node::OnnxNode,
};
use crate::{
    ir::{Dim, Shape, VarId},
    op::{
        Arith, Binary, Cast, Concat, Fill, GateAct, Gru, Lstm, MatMul, ResetGru, Reshape, SequenceOp,
        SequencePool, Slice, Transpose,
    },
};
use phalanx_core::DType;

/// What the node says of its sizes.
struct Form {
    /// The directions, and whether each goes from the end to the front.
    directions: Vec<bool>,
    gates: usize,
    h: usize,
    /// Of the input: time, samples, width.
    time: Dim,
    n: Dim,
    dtype: DType,
}

/// What one direction gives: `[n, time, h]`, and the last states `[n, h]`.
struct States {
    all: VarId,
    last: Vec<VarId>,
}

pub fn lstm<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    activations(node, &["Sigmoid", "Tanh", "Tanh"])?;
    if node.flag("input_forget", false)? {
        return Err(Fault::Attribute { name: "input_forget", wanted: "0", got: "1".into() });
    }
    if im.has(node, 7) {
        let got = "weights of peepholes".into();
        return Err(Fault::Input { slot: 7, wanted: "nothing: peepholes are not supported", got });
    }
    let form = Form::of(im, node, 4)?;
    let (x, lengths) = (form.samples_first(im, node)?, lengths(im, node)?);
    let mut found = Vec::new();
    for (d, &reverse) in form.directions.iter().enumerate() {
        // In the file: input, output, forget, candidate.
        let order = [0, 2, 3, 1];
        let (sums, r) = (form.sums(im, node, (x, d), &order)?, form.weights(im, node, 2, d, &order)?);
        let mut takes = vec![sums, r, form.first(im, node, 5, d)?, form.first(im, node, 6, d)?];
        takes.extend(lengths);
        let made = im.emit_all(node, Lstm { reverse, ragged: lengths.is_some() }, &takes)?;
        found.push(States { all: made[0], last: made[1..3].to_vec() });
    }
    form.give(im, node, &found)
}

pub fn gru<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    activations(node, &["Sigmoid", "Tanh"])?;
    let form = Form::of(im, node, 3)?;
    let resets_after = node.flag("linear_before_reset", false)?;
    let (x, lengths) = (form.samples_first(im, node)?, lengths(im, node)?);
    let mut found = Vec::new();
    for (d, &reverse) in form.directions.iter().enumerate() {
        let states = match resets_after {
            true => form.resets_product(im, node, (x, lengths), (d, reverse))?,
            false => form.resets_state(im, node, (x, lengths), (d, reverse))?,
        };
        found.push(states);
    }
    form.give(im, node, &found)
}

/// Only those that the operations have, in every direction.
fn activations(node: &OnnxNode<'_>, wanted: &[&str]) -> Result<(), Fault> {
    for name in ["activation_alpha", "activation_beta", "clip"] {
        if node.has(name) {
            return Err(Fault::Attribute { name, wanted: "nothing", got: "a value".into() });
        }
    }
    let given = node.texts("activations");
    if given.chunks(wanted.len()).all(|part| part == wanted) {
        return Ok(());
    }
    let wanted = "Sigmoid for gates and Tanh for the others, as by default";
    Err(Fault::Attribute { name: "activations", wanted, got: given.join(", ") })
}

/// How long each sequence is, if that is given.
fn lengths<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<Option<VarId>, Fault> {
    if !im.has(node, 4) {
        return Ok(None);
    }
    let given = im.var(node, 4)?;
    match im.program.sig(given).dtype {
        DType::I64 => Ok(Some(given)),
        _ => im.emit(node, Cast { to: DType::I64 }, &[given]).map(Some),
    }
}

impl Form {
    fn of<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>, gates: usize) -> Result<Form, Fault> {
        if node.int("layout", 0)? != 0 {
            return Err(Fault::Attribute { name: "layout", wanted: "0, time first", got: "1".into() });
        }
        let directions = match node.text("direction", "forward")? {
            "forward" => vec![false],
            "reverse" => vec![true],
            "bidirectional" => vec![false, true],
            got => {
                let got = got.chars().take(32).collect();
                return Err(Fault::Attribute { name: "direction", wanted: "a known one", got });
            }
        };
        let (x, r) = (im.shape(node, 0)?, im.shape(node, 2)?);
        let wrong = |slot, wanted, got: &Shape| Fault::Input { slot, wanted, got: got.to_string() };
        let [time, n, _] = x.dims()[..] else {
            return Err(wrong(0, "sequences [time, n, width]", &x));
        };
        let h = match r.dims()[..] {
            [Dim::Fixed(d), Dim::Fixed(wide), Dim::Fixed(h)]
                if d == directions.len() && h > 0 && h.checked_mul(gates) == Some(wide) =>
            {
                h
            }
            _ => return Err(wrong(2, "weights [directions, gates * h, h]", &r)),
        };
        let says = node.int("hidden_size", h as i64)?;
        if says != h as i64 {
            return Err(Fault::Attribute {
                name: "hidden_size",
                wanted: "the width of the weights",
                got: says.to_string(),
            });
        }
        Ok(Form { directions, gates, h, time, n, dtype: im.dtype(node, 0)? })
    }

    fn samples_first<'a>(&self, im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<VarId, Fault> {
        let x = im.var(node, 0)?;
        im.emit(node, Transpose { order: vec![1, 0, 2] }, &[x])
    }

    /// What an input has for a direction, without the axis of directions.
    fn part<'a>(
        &self,
        im: &mut Import<'a>,
        node: &OnnxNode<'a>,
        slot: usize,
        d: usize,
    ) -> Result<VarId, Fault> {
        let mut var = im.var(node, slot)?;
        if self.directions.len() > 1 {
            var = im.emit(node, Slice { axis: 0, begin: d, end: d + 1 }, &[var])?;
        }
        let shape = im.program.sig(var).shape.clone();
        let Some((Dim::Fixed(1), rest)) = shape.dims().split_first() else {
            let wanted = "a leading axis of directions";
            return Err(Fault::Input { slot, wanted, got: shape.to_string() });
        };
        im.emit(node, Reshape { shape: Shape(rest.to_vec()) }, &[var])
    }

    /// The gates along the first axis in this order, from `begin` on.
    fn ordered<'a>(
        &self,
        im: &mut Import<'a>,
        node: &OnnxNode<'a>,
        (var, begin): (VarId, usize),
        order: &[usize],
    ) -> Result<VarId, Fault> {
        let mut parts = Vec::new();
        for &gate in order {
            let begin = begin + gate * self.h;
            parts.push(im.emit(node, Slice { axis: 0, begin, end: begin + self.h }, &[var])?);
        }
        im.emit(node, Concat { axis: 0 }, &parts)
    }

    fn weights<'a>(
        &self,
        im: &mut Import<'a>,
        node: &OnnxNode<'a>,
        slot: usize,
        d: usize,
        order: &[usize],
    ) -> Result<VarId, Fault> {
        let var = self.part(im, node, slot, d)?;
        self.ordered(im, node, (var, 0), order)
    }

    /// Of the input and of the state, if there are any.
    fn biases<'a>(
        &self,
        im: &mut Import<'a>,
        node: &OnnxNode<'a>,
        d: usize,
        order: &[usize],
    ) -> Result<Vec<VarId>, Fault> {
        if !im.has(node, 3) {
            return Ok(Vec::new());
        }
        let var = self.part(im, node, 3, d)?;
        let of_input = self.ordered(im, node, (var, 0), order)?;
        let of_state = self.ordered(im, node, (var, self.gates * self.h), order)?;
        Ok(vec![of_input, of_state])
    }

    /// The input times its weights, plus both biases.
    fn sums<'a>(
        &self,
        im: &mut Import<'a>,
        node: &OnnxNode<'a>,
        (x, d): (VarId, usize),
        order: &[usize],
    ) -> Result<VarId, Fault> {
        let w = self.weights(im, node, 1, d, order)?;
        let mut sums = im.emit(node, MatMul { trans_a: false, trans_b: true }, &[x, w])?;
        for bias in self.biases(im, node, d, order)? {
            sums = im.emit(node, Binary { op: Arith::Add, axis: 2 }, &[sums, bias])?;
        }
        Ok(sums)
    }

    /// A first state `[n, h]`, zeros if none is given.
    fn first<'a>(
        &self,
        im: &mut Import<'a>,
        node: &OnnxNode<'a>,
        slot: usize,
        d: usize,
    ) -> Result<VarId, Fault> {
        if im.has(node, slot) {
            return self.part(im, node, slot, d);
        }
        let shape = Shape(vec![self.n, self.h.into()]);
        im.emit(node, Fill { dtype: self.dtype, shape, value: 0.0 }, &[])
    }

    /// The reset gate acts on the product, as in PyTorch. In the file: update, reset, candidate.
    fn resets_product<'a>(
        &self,
        im: &mut Import<'a>,
        node: &OnnxNode<'a>,
        (x, lengths): (VarId, Option<VarId>),
        (d, reverse): (usize, bool),
    ) -> Result<States, Fault> {
        let order = [1, 0, 2];
        let (w, r) = (self.weights(im, node, 1, d, &order)?, self.weights(im, node, 2, d, &order)?);
        let mut sums = im.emit(node, MatMul { trans_a: false, trans_b: true }, &[x, w])?;
        let bias = match self.biases(im, node, d, &order)?[..] {
            [of_input, of_state] => {
                sums = im.emit(node, Binary { op: Arith::Add, axis: 2 }, &[sums, of_input])?;
                of_state
            }
            _ => {
                let shape = Shape::from([3 * self.h]);
                im.emit(node, Fill { dtype: self.dtype, shape, value: 0.0 }, &[])?
            }
        };
        let mut takes = vec![sums, r, bias, self.first(im, node, 5, d)?];
        takes.extend(lengths);
        let made = im.emit_all(node, Gru { reverse, ragged: lengths.is_some() }, &takes)?;
        Ok(States { all: made[0], last: vec![made[1]] })
    }

    /// The reset gate acts on the state.
    fn resets_state<'a>(
        &self,
        im: &mut Import<'a>,
        node: &OnnxNode<'a>,
        (x, lengths): (VarId, Option<VarId>),
        (d, reverse): (usize, bool),
    ) -> Result<States, Fault> {
        let (h, ragged) = (self.h, lengths.is_some());
        let sums = self.sums(im, node, (x, d), &[0, 1, 2])?;
        // Two matrices one after the other: both gates, and the candidate.
        let r = self.part(im, node, 2, d)?;
        let mut flat = Vec::new();
        for (begin, end) in [(0, 2 * h), (2 * h, 3 * h)] {
            let part = im.emit(node, Slice { axis: 0, begin, end }, &[r])?;
            let turned = im.emit(node, Transpose { order: vec![1, 0] }, &[part])?;
            flat.push(im.emit(node, Reshape { shape: Shape::from([h * (end - begin)]) }, &[turned])?);
        }
        let r = im.emit(node, Concat { axis: 0 }, &flat)?;
        let r = im.emit(node, Reshape { shape: Shape::from([h, 3 * h]) }, &[r])?;
        let mut takes = vec![sums, r, self.first(im, node, 5, d)?];
        takes.extend(lengths);
        let (gate, candidate) = (GateAct::Sigmoid, GateAct::Tanh);
        let all = im.emit(node, ResetGru { reverse, ragged, origin: true, gate, candidate }, &takes)?;
        let op = if reverse { SequenceOp::First } else { SequenceOp::Last };
        let last = im.emit(
            node,
            SequencePool { op, ragged },
            &[all].into_iter().chain(lengths).collect::<Vec<_>>(),
        )?;
        Ok(States { all, last: vec![last] })
    }

    /// All states `[time, directions, n, h]`, and the last ones `[directions, n, h]`.
    fn give<'a>(&self, im: &mut Import<'a>, node: &OnnxNode<'a>, found: &[States]) -> Result<(), Fault> {
        im.only(node, 1 + found[0].last.len())?;
        let mut all = Vec::new();
        for states in found {
            let turned = im.emit(node, Transpose { order: vec![1, 0, 2] }, &[states.all])?;
            let shape = Shape(vec![self.time, Dim::Fixed(1), self.n, self.h.into()]);
            all.push(im.emit(node, Reshape { shape }, &[turned])?);
        }
        self.joined(im, node, 0, &all, 1)?;
        for slot in 0..found[0].last.len() {
            let mut last = Vec::new();
            for states in found {
                let shape = Shape(vec![Dim::Fixed(1), self.n, self.h.into()]);
                last.push(im.emit(node, Reshape { shape }, &[states.last[slot]])?);
            }
            self.joined(im, node, 1 + slot, &last, 0)?;
        }
        Ok(())
    }

    /// An output that a node may leave out.
    fn joined<'a>(
        &self,
        im: &mut Import<'a>,
        node: &OnnxNode<'a>,
        slot: usize,
        parts: &[VarId],
        axis: usize,
    ) -> Result<(), Fault> {
        if node.proto.outputs.get(slot).is_none_or(|name| name.is_empty()) {
            return Ok(());
        }
        match parts {
            [one] => im.bind(node, slot, Value::Var(*one)),
            _ => im.give(node, slot, Concat { axis }, parts).map(drop),
        }
    }
}
