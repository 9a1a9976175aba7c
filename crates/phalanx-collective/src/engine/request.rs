//! Requests: the operation that a program wants on its tensors.

use super::{
    carry::InOut,
    error::{EngineError, Invalid},
    spec::{Kind, ReduceRule, Spec},
    tensor::EngineTensor,
};
use phalanx_core::{DType, Rank, ReduceOp};
use std::sync::Arc;

/// One operation, to be submitted to an engine.
///
/// ```
/// use phalanx_collective::engine::{Request, EngineTensor};
/// use phalanx_core::ReduceOp;
///
/// let gradient = EngineTensor::new(vec![0.5f32; 10]);
/// let request = Request::allreduce(gradient).name("layer1.weight").op(ReduceOp::Average);
/// # drop(request);
/// ```
#[derive(Debug)]
pub struct Request {
    pub(super) kind: Kind,
    pub(super) name: Option<String>,
    pub(super) set: u32,
    pub(super) places: Vec<InOut>,
    pub(super) grouped: bool,
    pub(super) awaited: bool,
    /// Memory that new results may take; `None` if nobody wants the inputs back.
    pub(super) memory: Option<Vec<EngineTensor>>,
    reduce: ReduceRule,
    prescale: f64,
    postscale: f64,
    root: Rank,
    wire: Option<DType>,
    device: i32,
    splits: Option<Vec<u64>>,
    note: Arc<str>,
    by_mpi: bool,
    check: Option<[f64; 2]>,
}

impl Request {
    fn new(kind: Kind, tensors: Vec<EngineTensor>, grouped: bool) -> Request {
        Request {
            kind,
            name: None,
            set: 0,
            places: tensors.into_iter().map(InOut::InPlace).collect(),
            grouped,
            awaited: false,
            memory: None,
            reduce: ReduceRule::Op(ReduceOp::Sum),
            prescale: 1.0,
            postscale: 1.0,
            root: Rank::ZERO,
            wire: None,
            device: -1,
            splits: None,
            note: Arc::default(),
            by_mpi: false,
            check: None,
        }
    }

    /// Reduces the tensor in place.
    pub fn allreduce(tensor: EngineTensor) -> Request {
        Request::new(Kind::Allreduce, vec![tensor], false)
    }

    /// Reduces all tensors in place, or none.
    pub fn grouped_allreduce(tensors: Vec<EngineTensor>) -> Request {
        Request::new(Kind::Allreduce, tensors, true)
    }

    /// Gathers every rank's rows, of which ranks may have different numbers.
    pub fn allgather(tensor: EngineTensor) -> Request {
        Request::new(Kind::Allgather, vec![tensor], false)
    }

    pub fn grouped_allgather(tensors: Vec<EngineTensor>) -> Request {
        Request::new(Kind::Allgather, tensors, true)
    }

    /// Gives every rank the tensor of `root`, which is a rank of the world, not of the process set.
    pub fn broadcast(tensor: EngineTensor, root: Rank) -> Request {
        Request { root, ..Request::new(Kind::Broadcast, vec![tensor], false) }
    }

    /// Sends rows to every rank: `splits[r]` of them to rank r; without splits, equally many.
    pub fn alltoall(tensor: EngineTensor, splits: Option<Vec<u64>>) -> Request {
        Request { splits, ..Request::new(Kind::Alltoall, vec![tensor], false) }
    }

    /// Reduces the rows and returns to each rank its share of them.
    pub fn reducescatter(tensor: EngineTensor) -> Request {
        Request::new(Kind::Reducescatter, vec![tensor], false)
    }

    /// The same with `rows[r]` rows for rank r; every rank gives the same numbers.
    pub fn reducescatter_of(tensor: EngineTensor, rows: Vec<u64>) -> Request {
        Request { splits: Some(rows), ..Request::new(Kind::Reducescatter, vec![tensor], false) }
    }

    pub fn grouped_reducescatter(tensors: Vec<EngineTensor>) -> Request {
        Request::new(Kind::Reducescatter, tensors, true)
    }

    /// Done when every rank has submitted it.
    pub fn barrier() -> Request {
        Request::new(Kind::Barrier, Vec::new(), false)
    }

    /// The name under which ranks find each other's tensors; without one, they are matched in the order of submission.
    pub fn name(self, name: impl Into<String>) -> Request {
        Request { name: Some(name.into()), ..self }
    }

    /// Promises that this thread waits for the operation at once. Where all ranks share a host, no thread of the engine is woken to run it: the
    /// one that waits does. A handle that is dropped instead takes the promise back.
    pub fn awaited(self) -> Request {
        Request { awaited: true, ..self }
    }

    pub fn op(self, op: ReduceOp) -> Request {
        Request { reduce: ReduceRule::Op(op), ..self }
    }

    pub fn adasum(self) -> Request {
        Request { reduce: ReduceRule::Adasum, ..self }
    }

    /// Factors before and after the reduction.
    pub fn scale(self, prescale: f64, postscale: f64) -> Request {
        Request { prescale, postscale, ..self }
    }

    /// MPI reduces it instead of our own algorithms: an allreduce of all ranks, without factors. Where MPI cannot be used, it fails on all ranks.
    pub fn by_mpi(self) -> Request {
        Request { by_mpi: true, ..self }
    }

    /// Says that the caller compares the result of this allreduce with a baseline afterwards, which is a matter of all ranks. The tolerances
    /// are relative and, unless negative, absolute.
    pub fn checked(self, rtol: f64, atol: f64) -> Request {
        Request { check: Some([rtol, atol]), ..self }
    }

    /// The process set; 0, all ranks, unless said otherwise.
    pub fn set(self, set: u32) -> Request {
        Request { set, ..self }
    }

    /// Elements travel as this type and come back as their own.
    pub fn compress(self, wire: DType) -> Request {
        Request { wire: Some(wire), ..self }
    }

    /// The device from which the tensor came, -1 for the CPU; all ranks must have it on the same kind.
    pub fn device(self, device: i32) -> Request {
        Request { device, ..self }
    }

    /// What the operation is a part of, such as a list of gradients. Where ranks say different things under one name, all of them hear both.
    pub fn note(self, note: impl Into<Arc<str>>) -> Request {
        Request { note: note.into(), ..self }
    }

    /// Leaves the inputs alone and writes the results to these tensors.
    pub fn into(mut self, mut outputs: Vec<EngineTensor>) -> Result<Request, EngineError> {
        let (have, want) = (outputs.len(), self.places.len());
        let fits = outputs.iter().zip(&self.places).all(|(o, p)| o.form() == p.input().form());
        if have != want || !fits {
            return Err(self.invalid(Invalid::Outputs { have, want }));
        }
        outputs.iter_mut().for_each(EngineTensor::prefer_large_pages);
        let pairs = self.places.drain(..).zip(outputs);
        self.places =
            pairs.map(|(place, output)| InOut::Apart { input: place.into_output(), output }).collect();
        Ok(self)
    }

    /// Where results are new tensors, they may take this memory, whatever is in it, if type and size fit; and the outcome gives the inputs back.
    /// A program that does the same again and again needs no new memory then.
    pub fn recycle(self, memory: Vec<EngineTensor>) -> Request {
        Request { memory: Some(memory), ..self }
    }

    fn invalid(&self, why: Invalid) -> EngineError {
        let name = self.name.clone().unwrap_or_else(|| self.kind.to_string());
        EngineError::Invalid { name, why }
    }

    /// What other ranks are told, or what this rank alone can see to be wrong.
    pub(super) fn spec(&self, members: &[Rank]) -> Result<Spec, EngineError> {
        let mut spec = Spec::new(self.kind, self.places.iter().map(|p| p.input().form().clone()).collect());
        (spec.prescale, spec.postscale, spec.device) = (self.prescale, self.postscale, self.device);
        spec.note = self.note.clone();
        if spec.forms.is_empty() && self.kind != Kind::Barrier {
            return Err(self.invalid(Invalid::EmptyGroup));
        }
        match self.kind {
            Kind::Allreduce | Kind::Reducescatter => {
                self.check_reduction(&spec)?;
                (spec.reduce, spec.wire) = (self.reduce, self.wire);
                (spec.by_mpi, spec.check) = (self.by_mpi, self.check);
                if self.splits.is_some() {
                    spec.splits = self.rows_for_each(&spec, members.len())?;
                    let (have, want) = (spec.splits.iter().sum::<u64>(), spec.forms[0].n_rows());
                    if have != want {
                        return Err(self.invalid(Invalid::Rows { have, want }));
                    }
                }
            }
            Kind::Broadcast => {
                let place = members.iter().position(|r| *r == self.root);
                let members = || members.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                let invalid = || self.invalid(Invalid::Root { root: self.root, members: members() });
                spec.root = place.ok_or_else(invalid)? as u32;
            }
            Kind::Alltoall => spec.splits = self.rows_for_each(&spec, members.len())?,
            _ => {}
        }
        Ok(spec)
    }

    fn check_reduction(&self, spec: &Spec) -> Result<(), EngineError> {
        let is_plain = matches!(self.reduce, ReduceRule::Op(_))
            && (self.prescale, self.postscale, self.wire, self.set) == (1.0, 1.0, None, 0);
        if self.by_mpi && !(is_plain && self.kind == Kind::Allreduce) {
            return Err(self.invalid(Invalid::ByMpi));
        }
        for form in &spec.forms {
            match self.reduce {
                ReduceRule::Op(op) => op.check(form.dtype, self.prescale, self.postscale)?,
                ReduceRule::Adasum if !form.dtype.is_float() => {
                    return Err(self.invalid(Invalid::Adasum { dtype: form.dtype }));
                }
                ReduceRule::Adasum => {}
            }
            if let Some(wire) = self.wire {
                let narrow = matches!(wire, DType::F16 | DType::BF16) && form.dtype.is_float();
                if !narrow && wire != form.dtype {
                    return Err(self.invalid(Invalid::Wire { dtype: form.dtype, wire }));
                }
            }
            if self.kind == Kind::Reducescatter && form.shape.is_empty() {
                return Err(self.invalid(Invalid::Scalar));
            }
        }
        let allowed = matches!(self.reduce, ReduceRule::Op(ReduceOp::Sum | ReduceOp::Average));
        if self.kind == Kind::Reducescatter && !allowed {
            return Err(self.invalid(Invalid::Reduction { op: self.reduce.to_string() }));
        }
        Ok(())
    }

    fn rows_for_each(&self, spec: &Spec, n: usize) -> Result<Vec<u64>, EngineError> {
        let rows = spec.forms[0].n_rows();
        match &self.splits {
            Some(splits) if splits.len() != n => {
                Err(self.invalid(Invalid::Splits { have: splits.len(), want: n }))
            }
            Some(splits) => {
                // Rows that nobody gets are allowed; rows that do not exist are not.
                let have = splits.iter().try_fold(0u64, |sum, s| sum.checked_add(*s)).unwrap_or(u64::MAX);
                if have > rows {
                    Err(self.invalid(Invalid::Rows { have, want: rows }))
                } else {
                    Ok(splits.clone())
                }
            }
            None if !rows.is_multiple_of(n as u64) => Err(self.invalid(Invalid::Uneven { rows, n })),
            None => Ok(vec![rows / n as u64; n]),
        }
    }
}
