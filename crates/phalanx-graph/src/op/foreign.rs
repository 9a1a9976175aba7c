//! A function from outside of this crate as an operation: Python's, for `py_func`.
//!
//! A program that is written down keeps the operation without its function. One that was read refuses to run it.

use super::{Fill, Operator, layout::by_width};
use crate::{
    grad::Grad,
    ir::{GraphError, Misfit, Sig},
    kernel::{Call, KernelError},
};
use phalanx_core::DType;
use serde::{Deserialize, Serialize};
use std::{fmt, sync::Arc};

/// An operand as the function reads it.
#[derive(Clone, Copy, Debug)]
pub struct ForeignInput<'a> {
    pub dtype: DType,
    pub dims: &'a [usize],
    pub bytes: &'a [u8],
}

/// An operand that the function fills.
#[derive(Debug)]
pub struct ForeignOutput<'a> {
    pub dtype: DType,
    pub dims: &'a [usize],
    pub bytes: &'a mut [u8],
}

type Body = dyn Fn(&[ForeignInput<'_>], &mut [ForeignOutput<'_>]) -> Result<(), String> + Send + Sync;

/// What runs. Copies of a program share it.
#[derive(Clone, Default)]
pub struct ForeignFunction(Option<Arc<Body>>);

impl ForeignFunction {
    pub fn new(
        body: impl Fn(&[ForeignInput<'_>], &mut [ForeignOutput<'_>]) -> Result<(), String> + Send + Sync + 'static,
    ) -> ForeignFunction {
        ForeignFunction(Some(Arc::new(body)))
    }
}

impl fmt::Debug for ForeignFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "function" } else { "nothing" })
    }
}

impl PartialEq for ForeignFunction {
    fn eq(&self, other: &ForeignFunction) -> bool {
        match (&self.0, &other.0) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (None, None) => true,
            _ => false,
        }
    }
}

/// What computes the gradients of the inputs that are real, in their order: it takes the inputs and the outputs that it asks
/// for, then the gradients of all outputs that are real.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForeignBackward {
    pub inputs: Vec<bool>,
    pub outputs: Vec<bool>,
    #[serde(skip)]
    pub function: ForeignFunction,
}

/// Calls a function with all inputs; it fills outputs of these types and shapes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Foreign {
    /// What errors call it.
    pub title: String,
    pub gives: Vec<Sig>,
    pub backward: Option<ForeignBackward>,
    #[serde(skip)]
    pub function: ForeignFunction,
}

fn is_real(sig: &Sig) -> bool {
    matches!(sig.dtype, DType::F32 | DType::F64)
}

impl Operator for Foreign {
    fn name(&self) -> &'static str {
        "py_func"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        for slot in 0..inputs.len() {
            super::check::dense(inputs, slot)?;
        }
        Ok(self.gives.clone())
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let fault = |why: String| KernelError::Foreign { title: self.title.clone(), why };
        let Some(function) = &self.function.0 else {
            let why =
                "its function is not here, because the program was read from a file; build the program again";
            return Err(fault(why.into()));
        };
        let mut inputs = Vec::with_capacity(call.n_inputs());
        for slot in 0..call.n_inputs() {
            let (dtype, dims) = (call.dtype(slot), call.dims(slot));
            let bytes: &[u8] = by_width!(dtype, T => bytemuck::cast_slice(call.input::<T>(slot)));
            inputs.push(ForeignInput { dtype, dims, bytes });
        }
        let mut outputs = Vec::with_capacity(call.n_outputs());
        for slot in 0..call.n_outputs() {
            let (dtype, dims) = (call.out_dtype(slot), call.out_dims(slot));
            let bytes: &mut [u8] = by_width!(dtype, T => bytemuck::cast_slice_mut(call.output::<T>(slot)));
            outputs.push(ForeignOutput { dtype, dims, bytes });
        }
        function(&inputs, &mut outputs).map_err(fault)
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        let Some(backward) = &self.backward else { return Ok(false) };
        let mut takes = Vec::new();
        takes.extend((0..backward.inputs.len()).filter(|&i| backward.inputs[i]).map(|i| grad.x(i)));
        takes.extend((0..backward.outputs.len()).filter(|&i| backward.outputs[i]).map(|i| grad.y(i)));
        for (slot, sig) in self.gives.iter().enumerate().filter(|(_, sig)| is_real(sig)) {
            let zeros = Fill { dtype: sig.dtype, shape: sig.shape.clone(), value: 0.0 };
            takes.push(if grad.has_dy(slot) { grad.dy(slot) } else { grad.emit(zeros, &[])? });
        }
        let real: Vec<usize> = (0..grad.n_inputs()).filter(|&i| is_real(grad.sig(grad.x(i)))).collect();
        let kind = Foreign {
            title: format!("the gradient of {}", self.title),
            gives: real.iter().map(|&i| grad.sig(grad.x(i)).clone()).collect(),
            backward: None,
            function: backward.function.clone(),
        };
        let found = grad.emit_all(kind, &takes)?;
        for (slot, d) in real.into_iter().zip(found) {
            grad.pass(slot, d)?;
        }
        Ok(true)
    }
}
