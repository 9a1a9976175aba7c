//! GRAD-1: every gradient rule against finite differences, in f64, over random shapes.

use phalanx_core::DType;
use phalanx_graph::{
    Act, Builder, Executor, GraphError, Init, Options, Program, Store, Tensor, VarId, append_gradients,
    kernel::Stream,
    layers::{AttentionOptions, BatchNormOptions, EmbeddingOptions, RnnOptions},
    op::*,
};
use std::collections::BTreeSet;

/// A network whose inputs are parameters, and what is fed to it.
struct Net {
    b: Builder,
    feeds: Vec<(String, Tensor)>,
    dice: Stream,
    drawn: u64,
}

impl Net {
    fn new(seed: u64) -> Net {
        Net { b: Builder::with_dtype(DType::F64), feeds: Vec::new(), dice: Stream::new(seed, 0, 0), drawn: 0 }
    }

    fn roll(&mut self, low: usize, high: usize) -> usize {
        self.drawn += 1;
        low + (self.dice.bits(self.drawn) % (high - low + 1) as u64) as usize
    }

    /// An input away from zero, where some functions have no derivative.
    fn input(&mut self, dims: &[usize]) -> VarId {
        self.b.parameter("x", dims, Init::Uniform { low: 0.3, high: 1.9 }).unwrap()
    }

    fn signed(&mut self, dims: &[usize]) -> VarId {
        self.b.parameter("x", dims, Init::Normal { mean: 0.0, std: 1.0 }).unwrap()
    }

    fn ids(&mut self, dims: &[usize], limit: usize) -> VarId {
        let n: usize = dims.iter().product();
        let ids: Vec<i64> = (0..n).map(|_| self.roll(0, limit - 1) as i64).collect();
        let name = format!("ids{}", self.feeds.len());
        let id = self.b.feed(&name, DType::I64, dims).unwrap();
        self.feeds.push((name, Tensor::new(dims, &ids).unwrap()));
        id
    }
}

/// Compares all gradients of a weighted sum of the outputs with differences; gives the kinds of the forward operations.
fn check(
    name: &str,
    seed: u64,
    build: impl Fn(&mut Net) -> Result<VarId, GraphError>,
) -> BTreeSet<&'static str> {
    let mut net = Net::new(seed);
    let out = build(&mut net).unwrap_or_else(|e| panic!("{name}, seed {seed}: {e}"));
    let shape = net.b.program().sig(out).shape.clone();
    let weights = net.b.state("weights", shape, Init::Normal { mean: 0.0, std: 1.0 }).unwrap();
    let weighted = net.b.mul(out, weights).unwrap();
    let loss = net.b.reduce(Reduction::Sum, weighted, &[], false).unwrap();
    let loss = net.b.named(loss, "loss").unwrap();
    let mut program: Program = net.b.finish().unwrap();
    let kinds = program.ops().map(|(_, op)| op.kind.kind()).collect();
    let wrt = program.trainable();
    let pairs = append_gradients(&mut program, loss, &wrt, &[]).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(pairs.len(), wrt.len(), "{name}: every input has a gradient");
    program.verify().unwrap();
    let names: Vec<(String, String)> =
        pairs.iter().map(|&(p, g)| (program.var(p).name.clone(), program.var(g).name.clone())).collect();
    let feeds: Vec<(&str, &Tensor)> = net.feeds.iter().map(|(n, t)| (n.as_str(), t)).collect();
    let mut executor = Executor::new(program, Options::default()).unwrap();
    let mut store = Store::new(seed);
    let mut fetch = vec!["loss"];
    let is_sparse = |g: &str| !executor.program().sig(executor.program().find(g).unwrap()).is_dense();
    fetch.extend(names.iter().map(|(_, g)| g.as_str()).filter(|g| !is_sparse(g)));
    let got = executor.run(&mut store, &feeds, &fetch).unwrap();
    let mut value =
        |store: &mut Store| executor.run(store, &feeds, &["loss"]).unwrap()[0].data::<f64>().unwrap()[0];
    for (i, (p, _)) in names.iter().enumerate() {
        let grad = got[i + 1].data::<f64>().unwrap();
        let at = store.get(p).unwrap();
        let base = at.data::<f64>().unwrap().to_vec();
        for k in 0..base.len().min(60) {
            let h = 1e-6;
            let mut moved = |d: f64| {
                let mut x = base.clone();
                x[k] += d;
                store.set(p, &Tensor::new(at.dims(), &x).unwrap()).unwrap();
                value(&mut store)
            };
            let slope = (moved(h) - moved(-h)) / (2.0 * h);
            let tolerance = 2e-6 * (1.0 + slope.abs().max(grad[k].abs()));
            assert!(
                (slope - grad[k]).abs() < tolerance,
                "{name}, seed {seed}: d/d{p}[{k}] is {}, differences say {slope}",
                grad[k]
            );
        }
        store.set(p, &Tensor::new(at.dims(), &base).unwrap()).unwrap();
    }
    kinds
}

#[test]
fn functions_of_one_element() {
    use Func::*;
    let all = [
        Relu,
        Relu6,
        LeakyRelu { slope: 0.1 },
        Elu { alpha: 0.7 },
        Tanh,
        Sigmoid,
        HardSigmoid,
        Softplus,
        Softsign,
        Gelu,
        Erf,
        Swish,
        Exp,
        Square,
        Abs,
        Sin,
        Cos,
        Scale { a: -2.5, b: 0.5 },
        Clip { low: -0.8, high: 0.9 },
    ];
    for (i, f) in all.into_iter().enumerate() {
        check(&format!("{f:?}"), i as u64, |n| {
            let dims = [n.roll(1, 4), n.roll(1, 5)];
            let x = n.signed(&dims);
            n.b.map(f, x)
        });
    }
    for (i, f) in [Log, Sqrt, Rsqrt, Reciprocal, Pow { by: 2.7 }].into_iter().enumerate() {
        check(&format!("{f:?}"), i as u64, |n| {
            let dims = [n.roll(1, 9)];
            let x = n.input(&dims);
            n.b.map(f, x)
        });
    }
}

/// A loop of `n` rounds with a counter; the sum of what it carries in the end.
fn counted(
    n: &mut Net,
    rounds: usize,
    first: &[VarId],
    body: impl Fn(&mut Builder, VarId, &[VarId]) -> Result<Vec<VarId>, GraphError>,
) -> Result<VarId, GraphError> {
    let limit = n.b.fill(DType::I64, [1], rounds as f64)?;
    let mut carried = vec![n.b.fill(DType::I64, [1], 0.0)?];
    carried.extend(first);
    let condition = |b: &mut Builder, v: &[VarId]| b.less_than(v[0], limit);
    let out = n.b.while_loop(5, &carried, condition, |b, v| {
        let mut next = vec![b.increment(v[0], 1)?];
        next.extend(body(b, v[0], &v[1..])?);
        Ok(next)
    })?;
    // Of two, the first weighs more.
    let first = n.b.scale(out[1], 3.0, 0.0)?;
    out[2..].iter().try_fold(first, |sum, &v| n.b.add(sum, v))
}

#[test]
fn every_rule_of_every_operation() {
    let mut seen: BTreeSet<&'static str> = BTreeSet::new();
    let mut case = |name: &str, build: &dyn Fn(&mut Net) -> Result<VarId, GraphError>| {
        for seed in 0..4 {
            seen.extend(check(name, seed, build));
        }
    };
    for op in [Arith::Add, Arith::Sub, Arith::Mul, Arith::Div, Arith::Max, Arith::Min] {
        case("same shapes", &|n| {
            let d = [n.roll(1, 4), n.roll(1, 4)];
            let (x, y) = (n.input(&d), n.input(&d));
            n.b.arith(op, x, y)
        });
        case("stretched last", &|n| {
            let (a, b) = (n.roll(1, 4), n.roll(1, 4));
            let (x, y) = (n.input(&[a, b]), n.input(&[b]));
            n.b.arith(op, x, y)
        });
        case("stretched inside", &|n| {
            let d = [n.roll(1, 3), n.roll(2, 4), n.roll(1, 3)];
            let (x, y) = (n.input(&d), n.input(&[d[1], 1]));
            n.b.op1(Binary { op, axis: 1 }, &[x, y])
        });
        case("with itself", &|n| {
            let x = n.input(&[3]);
            let t = n.b.map(Func::Square, x)?;
            n.b.arith(op, t, x)
        });
    }
    for (ta, tb) in [(false, false), (false, true), (true, false), (true, true)] {
        case("matmul", &|n| {
            let (m, k, w) = (n.roll(1, 5), n.roll(1, 5), n.roll(1, 5));
            let a = n.signed(&if ta { [k, m] } else { [m, k] });
            let b = n.signed(&if tb { [w, k] } else { [k, w] });
            n.b.matmul(a, b, ta, tb)
        });
        case("batched matmul", &|n| {
            let (c, m, k, w) = (n.roll(1, 3), n.roll(1, 4), n.roll(1, 4), n.roll(1, 4));
            let a = n.signed(&if ta { [c, k, m] } else { [c, m, k] });
            let b = n.signed(&if tb { [c, w, k] } else { [c, k, w] });
            n.b.matmul(a, b, ta, tb)
        });
    }
    for tb in [false, true] {
        case("matmul with one right side", &|n| {
            let (c, m, k, w) = (n.roll(1, 3), n.roll(1, 4), n.roll(1, 4), n.roll(1, 4));
            let (a, b) = (n.signed(&[c, m, k]), n.signed(&if tb { [w, k] } else { [k, w] }));
            n.b.matmul(a, b, false, tb)
        });
    }
    for op in [Reduction::Sum, Reduction::Mean, Reduction::Max, Reduction::Min] {
        for (axes, keep) in
            [(vec![], false), (vec![0], false), (vec![1], true), (vec![0, 2], false), (vec![1, 2], true)]
        {
            case("reduce", &|n| {
                let d = [n.roll(1, 3), n.roll(1, 4), n.roll(1, 3)];
                let x = n.signed(&d);
                n.b.reduce(op, x, &axes, keep)
            });
        }
    }
    case("layout", &|n| {
        let (a, b, c) = (n.roll(1, 3), n.roll(2, 4), n.roll(1, 3));
        let x = n.signed(&[a, b, c]);
        let y = n.b.transpose(x, &[2, 0, 1])?;
        let z = n.b.reshape(y, [c * a, b])?;
        let left = n.b.slice(z, 1, 1, b)?;
        let all = n.b.concat(&[left, z, left], 1)?;
        n.b.stack(&[all, all], 1)
    });
    case("expand", &|n| {
        let (a, b) = (n.roll(1, 3), n.roll(1, 4));
        let x = n.signed(&[a, 1]);
        n.b.expand(x, [2, a, b])
    });
    case("second derivative of slice", &|n| {
        let x = n.signed(&[5]);
        n.b.op1(SliceGrad { slice: Slice { axis: 0, begin: 2, end: 7 }, n: 9 }, &[x])
    });
    case("sum, assign, cast", &|n| {
        let (x, y) = (n.signed(&[4]), n.signed(&[4]));
        let z = n.b.op1(Sum, &[x, y, x])?;
        let z = n.b.op1(Assign, &[z])?;
        n.b.cast(z, DType::F64)
    });
    case("gather", &|n| {
        let rows = n.roll(2, 5);
        let x = n.signed(&[rows, 3]);
        let i = n.ids(&[6], rows);
        n.b.op1(Gather, &[x, i])
    });
    case("embedding", &|n| {
        let x = n.signed(&[5, 3]);
        let i = n.ids(&[2, 4], 5);
        n.b.lookup(x, i, EmbeddingOptions { sparse: false, padding: Some(2) })
    });
    case("softmax", &|n| {
        let d = [n.roll(1, 4), n.roll(1, 20)];
        let x = n.signed(&d);
        n.b.softmax(x)
    });
    case("log softmax", &|n| {
        let d = [n.roll(1, 4), n.roll(1, 20)];
        let x = n.signed(&d);
        n.b.op1(Softmax { log: true }, &[x])
    });
    case("cross entropy", &|n| {
        let (r, c) = (n.roll(1, 4), n.roll(2, 6));
        let x = n.input(&[r, c]);
        let i = n.ids(&[r, 1], c);
        n.b.cross_entropy(x, i)
    });
    case("softmax with cross entropy", &|n| {
        let (r, c) = (n.roll(1, 4), n.roll(2, 6));
        let (x, i) = (n.signed(&[r, c]), n.ids(&[r], c));
        n.b.op1(SoftmaxCrossEntropy { ignored: Some(0) }, &[x, i])
    });
    case("sigmoid cross entropy", &|n| {
        let x = n.signed(&[7]);
        let t = n.b.state("t", [7], Init::Uniform { low: 0.0, high: 1.0 })?;
        n.b.sigmoid_cross_entropy(x, t)
    });
    case("huber", &|n| {
        let x = n.signed(&[7]);
        let t = n.b.state("t", [7], Init::Constant(0.1))?;
        n.b.huber(x, t, 0.8)
    });
    case("dropout", &|n| {
        let x = n.signed(&[4, 5]);
        n.b.dropout(x, 0.0)
    });
    for groups in [1, 2] {
        for (stride, padding, dilation) in
            [([1, 1], [0, 0], [1, 1]), ([2, 1], [1, 0], [1, 2]), ([1, 3], [2, 1], [2, 1])]
        {
            case("conv2d", &|n| {
                let (h, w, kh, kw) = (n.roll(5, 7), n.roll(5, 7), n.roll(1, 3), n.roll(1, 3));
                let (x, f) = (n.signed(&[2, 2 * groups, h, w]), n.signed(&[3 * groups, 2, kh, kw]));
                n.b.op1(Conv2d { stride, padding, dilation, groups }, &[x, f])
            });
        }
    }
    case("conv2d 1x1", &|n| {
        let (x, f) = (n.signed(&[2, 3, 4, 4]), n.signed(&[5, 3, 1, 1]));
        n.b.op1(Conv2d { stride: [1, 1], padding: [0, 0], dilation: [1, 1], groups: 1 }, &[x, f])
    });
    for op in [Pool::Max, Pool::Mean] {
        for (kernel, stride, padding) in [([2, 2], [2, 2], [0, 0]), ([3, 2], [1, 2], [1, 1])] {
            case("pool2d", &|n| {
                let d = [2, n.roll(1, 2), n.roll(4, 6), n.roll(4, 6)];
                let x = n.signed(&d);
                n.b.op1(Pool2d { op, kernel, stride, padding }, &[x])
            });
        }
    }
    case("batch norm", &|n| {
        let d = [n.roll(3, 5), n.roll(1, 3), 2, 2];
        let x = n.signed(&d);
        n.b.batch_norm(x, BatchNormOptions::default())
    });
    case("layer norm", &|n| {
        let d = [n.roll(1, 3), n.roll(3, 5), 2];
        let x = n.signed(&d);
        n.b.layer_norm(x, 1)
    });
    case("attention", &|n| {
        let x = n.signed(&[2, 3, 4]);
        n.b.attention(x, 2, None)
    });
    case("fully connected, shared input", &|n| {
        let x = n.signed(&[3, 4]);
        let y = n.b.fc(x, 4, Act::Tanh)?;
        let z = n.b.add(y, x)?;
        n.b.mul(z, y)
    });
    for (reverse, ragged) in [(false, false), (false, true), (true, false), (true, true)] {
        case("lstm", &|n| {
            let (rows, time, h) = (n.roll(1, 3), n.roll(1, 4), n.roll(1, 3));
            let (x, w) = (n.signed(&[rows, time, 4 * h]), n.signed(&[4 * h, h]));
            let (hidden, cell) = (n.signed(&[rows, h]), n.signed(&[rows, h]));
            let mut inputs = vec![x, w, hidden, cell];
            if ragged {
                inputs.push(n.ids(&[rows], time + 1));
            }
            let out = n.b.op(Lstm { reverse, ragged }, &inputs)?;
            let all = n.b.reshape(out[0], [rows, time * h])?;
            n.b.concat(&[all, out[1], out[2]], 1)
        });
        case("gru", &|n| {
            let (rows, time, h) = (n.roll(1, 3), n.roll(1, 4), n.roll(1, 3));
            let (x, w) = (n.signed(&[rows, time, 3 * h]), n.signed(&[3 * h, h]));
            let (b, first) = (n.signed(&[3 * h]), n.signed(&[rows, h]));
            let mut inputs = vec![x, w, b, first];
            if ragged {
                inputs.push(n.ids(&[rows], time + 1));
            }
            let out = n.b.op(Gru { reverse, ragged }, &inputs)?;
            let all = n.b.reshape(out[0], [rows, time * h])?;
            n.b.concat(&[all, out[1]], 1)
        });
    }
    let acts = [GateAct::Sigmoid, GateAct::Tanh, GateAct::Relu, GateAct::Identity];
    for (i, (reverse, ragged)) in
        [(false, false), (false, true), (true, false), (true, true)].into_iter().enumerate()
    {
        for peepholes in [false, true] {
            case("peephole lstm", &|n| {
                let (rows, time, h) = (n.roll(1, 3), n.roll(1, 4), n.roll(1, 3));
                let (x, w) = (n.signed(&[rows, time, 4 * h]), n.signed(&[h, 4 * h]));
                let mut inputs = vec![x, w, n.signed(&[rows, h]), n.signed(&[rows, h])];
                if peepholes {
                    inputs.push(n.signed(&[3 * h]));
                }
                if ragged {
                    inputs.push(n.ids(&[rows], time + 1));
                }
                let (gate, cell, candidate) = (acts[0], acts[(i + 1) % 4], acts[(i + 3) % 4]);
                let kind = PeepholeLstm { reverse, ragged, peepholes, gate, cell, candidate };
                let out = n.b.op(kind, &inputs)?;
                n.b.concat(&[out[0], out[1]], 2)
            });
        }
        for origin in [false, true] {
            case("reset gru", &|n| {
                let (rows, time, h) = (n.roll(1, 3), n.roll(1, 4), n.roll(1, 3));
                let (x, w) = (n.signed(&[rows, time, 3 * h]), n.signed(&[h, 3 * h]));
                let mut inputs = vec![x, w, n.signed(&[rows, h])];
                if ragged {
                    inputs.push(n.ids(&[rows], time + 1));
                }
                let (gate, candidate) = (acts[0], acts[(i + 1) % 4]);
                Ok(n.b.op(ResetGru { reverse, ragged, origin, gate, candidate }, &inputs)?[0])
            });
        }
    }
    for which in 0..2 {
        case("one output of a peephole lstm alone", &|n| {
            let (x, w) = (n.signed(&[2, 3, 8]), n.signed(&[2, 8]));
            let inputs = [x, w, n.signed(&[2, 2]), n.signed(&[2, 2]), n.signed(&[6])];
            let (gate, cell, candidate) = (acts[0], acts[1], acts[1]);
            let kind = PeepholeLstm { reverse: false, ragged: false, peepholes: true, gate, cell, candidate };
            Ok(n.b.op(kind, &inputs)?[which])
        });
    }
    case("the last states of an lstm alone", &|n| {
        let x = n.signed(&[2, 3, 2]);
        let lengths = n.ids(&[2], 4);
        let options = RnnOptions { lengths: Some(lengths), ..RnnOptions::new(2) };
        let states = n.b.lstm(x, options, None)?;
        n.b.mul(states.hidden, states.cell)
    });
    case("the last state of a gru alone", &|n| {
        let x = n.signed(&[2, 3, 2]);
        Ok(n.b.gru(x, RnnOptions::new(2), None)?.last)
    });
    for ragged in [false, true] {
        case("linear chain", &|n| {
            let (rows, time, tags) = (n.roll(1, 3), n.roll(1, 4), n.roll(1, 4));
            let x = n.signed(&[rows, time, tags]);
            let w = n.signed(&[tags + 2, tags]);
            let labels = n.ids(&[rows, time], tags);
            let mut inputs = vec![x, w, labels];
            if ragged {
                inputs.push(n.ids(&[rows], time + 1));
            }
            n.b.op1(LinearChainCrf { ragged }, &inputs)
        });
        for op in [SequenceOp::Sum, SequenceOp::Mean, SequenceOp::Max, SequenceOp::First, SequenceOp::Last] {
            case("sequence pool", &|n| {
                let (rows, time, width) = (n.roll(1, 3), n.roll(1, 4), n.roll(1, 3));
                let x = n.signed(&[rows, time, width]);
                let lengths = ragged.then(|| n.ids(&[rows], time + 1));
                n.b.sequence_pool(x, op, lengths)
            });
        }
        case("sequence expand", &|n| {
            let (rows, time, width) = (n.roll(1, 3), n.roll(1, 4), n.roll(1, 3));
            let x = n.signed(&[rows, width]);
            let lengths = ragged.then(|| n.ids(&[rows], time + 1));
            n.b.sequence_expand(x, time, lengths)
        });
    }
    case("attention to another sequence", &|n| {
        let (x, y) = (n.signed(&[2, 3, 4]), n.signed(&[2, 5, 2]));
        let lengths = n.ids(&[2], 6);
        n.b.attend(x, y, AttentionOptions { lengths: Some(lengths), ..AttentionOptions::new(2) })
    });
    case("causal attention", &|n| {
        let x = n.signed(&[2, 4, 4]);
        n.b.attend(x, x, AttentionOptions { causal: true, ..AttentionOptions::new(2) })
    });
    for rounds in [0, 1, 4] {
        case("loop over rows", &|n| {
            let (h, width) = (n.roll(1, 3), n.roll(1, 3));
            let (x, first) = (n.signed(&[5, width]), n.signed(&[1, h]));
            let (u, w) = (n.signed(&[width, h]), n.signed(&[h, h]));
            counted(n, rounds, &[first], |b, i, v| {
                let row = b.gather(x, i)?;
                let (a, b2) = (b.matmul(row, u, false, false)?, b.matmul(v[0], w, false, false)?);
                let sum = b.add(a, b2)?;
                Ok(vec![b.map(Func::Tanh, sum)?])
            })
        });
        case("loop that carries two values, and changes places", &|n| {
            let (x, y, w) = (n.signed(&[2, 3]), n.signed(&[2, 3]), n.input(&[3]));
            counted(n, rounds, &[x, y], |b, _, v| Ok(vec![b.mul(v[1], w)?, v[0]]))
        });
        case("loop with a branch and a loop in it", &|n| {
            let (x, w) = (n.signed(&[2, 3]), n.input(&[3]));
            counted(n, rounds, &[x], |b, i, v| {
                let two = b.fill(DType::I64, [1], 2.0)?;
                let early = b.less_than(i, two)?;
                let y = b.cond(
                    early,
                    |b| Ok(vec![b.mul(v[0], w)?]),
                    |b| {
                        let j = b.fill(DType::I64, [1], 0.0)?;
                        let most = |b: &mut Builder, u: &[VarId]| b.less_than(u[0], i);
                        let deep = b.while_loop(9, &[j, v[0]], most, |b, u| {
                            let y = b.mul(u[1], w)?;
                            let y = b.add(y, v[0])?;
                            Ok(vec![b.increment(u[0], 1)?, b.map(Func::Tanh, y)?])
                        })?;
                        Ok(vec![deep[1]])
                    },
                )?;
                Ok(vec![b.map(Func::Sigmoid, y[0])?])
            })
        });
    }
    for limit in [-1e9, 1e9] {
        case("branch", &|n| {
            let (x, y) = (n.signed(&[2, 3]), n.input(&[3]));
            let limit = n.b.fill(DType::F64, [1], limit)?;
            let sum = n.b.reduce(Reduction::Sum, y, &[0], true)?;
            let is = n.b.less_than(sum, limit)?;
            let then = |b: &mut Builder| Ok(vec![b.mul(x, y)?, b.map(Func::Exp, y)?]);
            let other = |b: &mut Builder| Ok(vec![b.map(Func::Square, x)?, y]);
            let out = n.b.cond(is, then, other)?;
            n.b.div(out[0], out[1])
        });
    }
    case("chosen by a condition", &|n| {
        let (x, y) = (n.signed(&[3, 2]), n.signed(&[3, 2]));
        let is = n.b.op1(Compare { op: Comparison::NotEqual, axis: 0 }, &[x, x])?;
        let one = n.b.fill(DType::F64, [3, 2], 0.2)?;
        let less = n.b.op1(Compare { op: Comparison::Less, axis: 0 }, &[x, one])?;
        let z = n.b.op1(Where, &[is, x, y])?;
        n.b.op1(Where, &[less, x, z])
    });
    case("masked", &|n| {
        let x = n.signed(&[4]);
        let half = n.b.fill(DType::F64, [4], 0.1)?;
        let less = n.b.op1(Compare { op: Comparison::Less, axis: 0 }, &[x, half])?;
        n.b.op1(Masked { keep: true }, &[less, x])
    });
    for (exclusive, reverse) in [(false, false), (true, false), (false, true), (true, true)] {
        case("running sums", &|n| {
            let x = n.signed(&[2, 4, 3]);
            n.b.op1(CumSum { axis: 1, exclusive, reverse }, &[x])
        });
    }
    for descending in [false, true] {
        case("sorted", &|n| {
            let x = n.signed(&[3, 5]);
            n.b.op1(Sort { descending }, &[x])
        });
    }
    case("top k", &|n| {
        let x = n.signed(&[3, 5]);
        n.b.op1(TopK { k: 2 }, &[x])
    });
    for add in [false, true] {
        case("rows put in", &|n| {
            let (x, rows, ids) = (n.signed(&[5, 2]), n.signed(&[1, 2]), n.ids(&[1], 5));
            n.b.op1(ScatterRows { add }, &[x, ids, rows])
        });
    }
    case("rows added", &|n| {
        let (x, rows, ids) = (n.signed(&[3, 2]), n.signed(&[6, 2]), n.ids(&[6], 3));
        n.b.op1(ScatterRows { add: true }, &[x, ids, rows])
    });
    case("by several numbers", &|n| {
        let (x, ids) = (n.signed(&[3, 3, 2]), n.ids(&[4, 2], 3));
        n.b.op1(GatherNd, &[x, ids])
    });
    for (axes, keep) in [(vec![], false), (vec![1], true), (vec![0, 2], false)] {
        case("products", &|n| {
            let x = n.signed(&[2, 3, 2]);
            let reduce = Reduce { op: Reduction::Sum, axes: axes.clone(), keep };
            n.b.op1(ReduceProd { reduce }, &[x])
        });
    }
    for op in [Pool::Max, Pool::Mean] {
        for counted in [false, true] {
            case("windows that reach beyond", &|n| {
                let x = n.signed(&[2, 2, 5, 6]);
                let (kernel, stride, padding) = ([3, 2], [2, 2], [1, 0]);
                let rule = WindowRule::Steps { kernel, stride, padding, ceil: true, counted };
                n.b.op1(PoolWindows { op, rule }, &[x])
            });
        }
        case("as many windows as asked for", &|n| {
            let x = n.signed(&[2, 2, 5, 7]);
            n.b.op1(PoolWindows { op, rule: WindowRule::Adaptive { out: [2, 3] } }, &[x])
        });
    }
    case("ways through a tree", &|n| {
        let (x, w, b) = (n.signed(&[4, 3]), n.signed(&[5, 3]), n.signed(&[5]));
        let label = n.ids(&[4, 1], 6);
        n.b.op1(HSigmoid { classes: 6 }, &[x, w, b, label])
    });
    case("transposed convolution", &|n| {
        let (f, x) = (n.signed(&[4, 3, 3, 2]), n.signed(&[2, 4, 3, 3]));
        let conv = Conv2d { stride: [2, 1], padding: [1, 0], dilation: [1, 1], groups: 2 };
        n.b.op1(Conv2dInputGrad { conv, shape: [2, 6, 5, 4].into() }, &[f, x])
    });
    case("learned statistics", &|n| {
        let (x, scale, shift) = (n.signed(&[3, 2, 4]), n.signed(&[2]), n.signed(&[2]));
        let mean = n.b.fill(DType::F64, [2], 0.3)?;
        let var = n.b.fill(DType::F64, [2], 1.7)?;
        n.b.op1(BatchNormFixed { epsilon: 1e-5 }, &[x, scale, shift, mean, var])
    });
    case("both outputs of the fused loss", &|n| {
        let (x, label) = (n.signed(&[4, 3]), n.ids(&[4, 1], 3));
        let made = n.b.op(SoftmaxCrossEntropy { ignored: None }, &[x, label])?;
        n.b.mul(made[1], made[0])
    });
    let without_rule = [
        // Derivatives themselves, and what only updates, measures, or has no inputs to learn.
        "UnaryGrad",
        "Pick",
        "SumTo",
        "ReduceGrad",
        "GatherGrad",
        "LossGrad",
        "DropoutGrad",
        "SoftmaxGrad",
        "CrossEntropyGrad",
        "SoftmaxCrossEntropyGrad",
        "Conv2dFilterGrad",
        "Pool2dGrad",
        "BatchNormGrad",
        "LayerNormGrad",
        // Put into programs that have their gradients already.
        "SyncSum",
        "ChannelSum",
        "ChannelSquares",
        "SyncNorm",
        "SyncNormStats",
        "SyncNormSlopes",
        "SyncNormGrad",
        "EmbeddingGrad",
        "EmbeddingRows",
        "MergeRows",
        "RowsToDense",
        "Compare",
        "OneHot",
        "Fill",
        "Increment",
        "Random",
        "ArgMax",
        "Accuracy",
        "LstmGrad",
        "GruGrad",
        "PeepholeLstmGrad",
        "ResetGruGrad",
        "AucCounts",
        "AucArea",
        // Its rule is the function that it is given: tests/foreign.rs.
        "Foreign",
        "LinearChainCrfGrad",
        "CrfDecoding",
        "SequencePoolGrad",
        "SequenceMask",
        "Every",
        "Accumulate",
        "Logical",
        "WhileGrad",
        "CondGrad",
        "Sgd",
        "Momentum",
        "Adam",
        "Adagrad",
        "RmsProp",
        "LarsRate",
        "SquaredNorm",
        "Squares",
        "SumSquares",
        "ClipFactor",
        "ScaleBy",
        "Decay",
        "Rate",
        "PutAlong",
        "GatherNdGrad",
        "Whole",
        "ReduceProdGrad",
        "PoolWindowsGrad",
        "EditDistance",
        "HSigmoidGrad",
        "BatchNormFixedGrad",
        "Adamax",
        "Adadelta",
        "DecayedAdagrad",
        "Ftrl",
        "LambDirection",
        "LambRate",
        "SignDecay",
        // The lookup that they stand for has one.
        "PullRows",
        "PushRows",
        "ServedSquares",
        "ReleaseRows",
    ];
    let unchecked: Vec<&str> =
        OpKind::KINDS.iter().copied().filter(|k| !seen.contains(k) && !without_rule.contains(k)).collect();
    assert_eq!(unchecked, [""; 0], "every kind of operation is checked here or has no rule");
}
