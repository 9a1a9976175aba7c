//! Builds programs: the functions that users call. Each call's line is stored as the place of the operations it adds.

mod attention;
mod choose;
mod control;
pub mod draft;
mod loss;
mod network;
mod sequence;
mod written;

use crate::{
    ir::{GraphError, Init, Learn, Program, Role, Shape, Sig, Site, VarId, VarKind},
    op::{
        Arith, Binary, BoundedSoftmax, Cast, Concat, Expand, Fill, Func, MatMul, OpKind, Reduce, Reduction,
        Reshape, Slice, Transpose, Unary,
    },
};
use phalanx_core::DType;

use draft::StackLayer;
use written::LayerName;

pub use attention::AttentionOptions;
pub use control::{append_branch, append_loop};
pub use network::{BatchNormOptions, ConvOptions, EmbeddingOptions};
pub use sequence::{GruStates, LstmStates, RnnOptions};

/// What follows a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Act {
    None,
    Relu,
    Tanh,
    Sigmoid,
    Gelu,
    Softmax,
}

impl Act {
    /// As activations are named; nothing if nothing follows.
    fn name(self) -> Option<String> {
        let name = match self {
            Act::None => return None,
            Act::Relu => "relu",
            Act::Tanh => "tanh",
            Act::Sigmoid => "sigmoid",
            Act::Gelu => "gelu",
            Act::Softmax => "softmax",
        };
        Some(name.to_string())
    }
}

type Made = Result<VarId, GraphError>;

/// Adds variables and operations to a program.
#[derive(Debug)]
pub struct Builder {
    program: Program,
    dtype: DType,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder::new()
    }
}

impl Builder {
    /// Parameters are f32.
    pub fn new() -> Builder {
        Builder::with_dtype(DType::F32)
    }

    /// Parameters are of this type.
    pub fn with_dtype(dtype: DType) -> Builder {
        Builder { program: Program::new(), dtype }
    }

    /// Adds to a program that exists, such as one that was imported.
    pub fn onto(program: Program) -> Builder {
        Builder { program, dtype: DType::F32 }
    }

    pub fn program(&self) -> &Program {
        &self.program
    }

    pub fn program_mut(&mut self) -> &mut Program {
        &mut self.program
    }

    /// The program, verified.
    pub fn finish(self) -> Result<Program, GraphError> {
        self.program.verify()?;
        Ok(self.program)
    }

    fn shape(&self, x: VarId) -> Shape {
        self.program.sig(x).shape.clone()
    }

    /// What is given anew with every run.
    #[track_caller]
    pub fn feed(&mut self, name: &str, dtype: DType, shape: impl Into<Shape>) -> Made {
        self.program.declare(name, Sig::dense(dtype, shape), VarKind::Feed, Site::here())
    }

    #[track_caller]
    pub fn parameter(&mut self, name: &str, shape: impl Into<Shape>, learn: impl Into<Learn>) -> Made {
        let (name, sig) = (self.program.fresh(name), Sig::dense(self.dtype, shape));
        self.program.declare(&name, sig, VarKind::Parameter(learn.into()), Site::here())
    }

    #[track_caller]
    pub fn state(&mut self, name: &str, shape: impl Into<Shape>, init: Init) -> Made {
        let (name, sig) = (self.program.fresh(name), Sig::dense(self.dtype, shape));
        self.program.declare(&name, sig, VarKind::State(init), Site::here())
    }

    /// Any operation; its outputs are named after it.
    #[track_caller]
    pub fn op(&mut self, kind: impl Into<OpKind>, inputs: &[VarId]) -> Result<Vec<VarId>, GraphError> {
        let kind = kind.into();
        // Users' own names have no such ending.
        let name = format!("{}.tmp", kind.operator().name());
        self.program.append(kind, inputs, &name, Role::Forward, Site::here())
    }

    /// An operation of which only the first output is of interest.
    #[track_caller]
    pub fn op1(&mut self, kind: impl Into<OpKind>, inputs: &[VarId]) -> Made {
        let outputs = self.op(kind, inputs)?;
        Ok(outputs[0])
    }

    /// Gives a computed variable a name to fetch it by.
    #[track_caller]
    pub fn named(&mut self, var: VarId, name: &str) -> Made {
        if self.program.find(name).is_some() {
            return Err(GraphError::Duplicate { var: name.to_string(), site: Site::here() });
        }
        self.program.rename(var, name.to_string());
        Ok(var)
    }

    /// A number for each operation that draws random ones.
    fn stream(&mut self) -> u32 {
        self.program.n_streams += 1;
        self.program.n_streams - 1
    }

    #[track_caller]
    pub fn map(&mut self, f: Func, x: VarId) -> Made {
        self.op1(Unary(f), &[x])
    }

    #[track_caller]
    pub fn act(&mut self, x: VarId, act: Act) -> Made {
        match act {
            Act::None => Ok(x),
            Act::Relu => self.map(Func::Relu, x),
            Act::Tanh => self.map(Func::Tanh, x),
            Act::Sigmoid => self.map(Func::Sigmoid, x),
            Act::Gelu => self.map(Func::Gelu, x),
            Act::Softmax => self.softmax(x),
        }
    }

    /// `x op y`; `y` is stretched over the last dimensions of `x`.
    #[track_caller]
    pub fn arith(&mut self, op: Arith, x: VarId, y: VarId) -> Made {
        let axis = self.shape(x).rank().saturating_sub(self.shape(y).rank());
        self.op1(Binary { op, axis }, &[x, y])
    }

    #[track_caller]
    pub fn add(&mut self, x: VarId, y: VarId) -> Made {
        self.arith(Arith::Add, x, y)
    }

    #[track_caller]
    pub fn sub(&mut self, x: VarId, y: VarId) -> Made {
        self.arith(Arith::Sub, x, y)
    }

    #[track_caller]
    pub fn mul(&mut self, x: VarId, y: VarId) -> Made {
        self.arith(Arith::Mul, x, y)
    }

    #[track_caller]
    pub fn div(&mut self, x: VarId, y: VarId) -> Made {
        self.arith(Arith::Div, x, y)
    }

    #[track_caller]
    pub fn scale(&mut self, x: VarId, a: f64, b: f64) -> Made {
        self.map(Func::Scale { a, b }, x)
    }

    #[track_caller]
    pub fn matmul(&mut self, a: VarId, b: VarId, trans_a: bool, trans_b: bool) -> Made {
        self.op1(MatMul { trans_a, trans_b }, &[a, b])
    }

    #[track_caller]
    pub fn reduce(&mut self, op: Reduction, x: VarId, axes: &[usize], keep: bool) -> Made {
        self.op1(Reduce { op, axes: axes.to_vec(), keep }, &[x])
    }

    /// The mean of all elements.
    #[track_caller]
    pub fn mean(&mut self, x: VarId) -> Made {
        self.reduce(Reduction::Mean, x, &[], false)
    }

    /// Probabilities, none of them zero: a score more than 64 below the largest counts as if it were 64 below it, as in
    /// Paddle, so that a loss of the right class stays finite and has a slope.
    #[track_caller]
    pub fn softmax(&mut self, x: VarId) -> Made {
        self.op1(BoundedSoftmax, &[x])
    }

    #[track_caller]
    pub fn reshape(&mut self, x: VarId, shape: impl Into<Shape>) -> Made {
        self.op1(Reshape { shape: shape.into() }, &[x])
    }

    /// All dimensions but the first as one.
    #[track_caller]
    pub fn flatten(&mut self, x: VarId) -> Made {
        let shape = self.shape(x);
        let (first, rest) =
            shape.dims().split_first().map_or((1.into(), Vec::new()), |(f, r)| (*f, r.to_vec()));
        let rest = Shape(rest).volume().unwrap_or(1.into());
        self.reshape(x, [first, rest])
    }

    #[track_caller]
    pub fn transpose(&mut self, x: VarId, order: &[usize]) -> Made {
        self.op1(Transpose { order: order.to_vec() }, &[x])
    }

    #[track_caller]
    pub fn concat(&mut self, xs: &[VarId], axis: usize) -> Made {
        self.op1(Concat { axis }, xs)
    }

    /// Equals along a new first axis after `axis` others.
    #[track_caller]
    pub fn stack(&mut self, xs: &[VarId], axis: usize) -> Made {
        let layer = StackLayer { axis };
        self.layer1(LayerName::same("stack"), layer, xs)
    }

    #[track_caller]
    pub fn slice(&mut self, x: VarId, axis: usize, begin: usize, end: usize) -> Made {
        self.op1(Slice { axis, begin, end }, &[x])
    }

    /// Pieces of an axis, of these sizes.
    #[track_caller]
    pub fn split(&mut self, x: VarId, axis: usize, sizes: &[usize]) -> Result<Vec<VarId>, GraphError> {
        let mut pieces = Vec::with_capacity(sizes.len());
        let mut begin = 0;
        for &n in sizes {
            pieces.push(self.slice(x, axis, begin, begin + n)?);
            begin += n;
        }
        Ok(pieces)
    }

    #[track_caller]
    pub fn expand(&mut self, x: VarId, shape: impl Into<Shape>) -> Made {
        let shape = shape.into();
        let axis = shape.rank().saturating_sub(self.shape(x).rank());
        self.op1(Expand { shape, axis }, &[x])
    }

    #[track_caller]
    pub fn cast(&mut self, x: VarId, to: DType) -> Made {
        self.op1(Cast { to }, &[x])
    }

    #[track_caller]
    pub fn fill(&mut self, dtype: DType, shape: impl Into<Shape>, value: f64) -> Made {
        self.op1(Fill { dtype, shape: shape.into(), value }, &[])
    }
}
