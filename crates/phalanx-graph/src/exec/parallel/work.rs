//! What a task does to memory.

use super::{
    accord::Accord,
    collective::tree,
    served::Served,
    travel::{Landing, Lost, Route, Spots},
};
use crate::{
    exec::RunError,
    ir::{OpId, Program},
    kernel::{Call, Env, Float, KernelError, MemoryView, OpStep, Real, fast, real},
    op::{OpKind, PullRows, PushRows, ReleaseRows},
};
use phalanx_core::DType;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

#[derive(Clone, Debug)]
pub(super) enum What {
    Op(OpId),
    /// Fills its output with zeros.
    Zero,
    /// Adds up its inputs, each of which is an output too; the first gets the sum.
    Sum,
    /// Copies its input to all outputs.
    Copy,
    /// Puts rows of all replicas one after another.
    Gather,
    /// Starts the exchange of this number with other processes.
    Bring(usize, Route),
    /// Puts where it belongs what came back.
    Take(usize, Spots),
    /// Asks servers for what an operation wants: which desk, and which of those who ask there.
    Ask(OpId, usize, usize),
    /// Puts where it belongs what they answered.
    Answer(OpId, usize, usize),
}

impl What {
    /// For errors.
    fn title(&self) -> String {
        match self {
            What::Bring(exchange, _) => format!("bring({exchange})"),
            What::Take(exchange, _) => format!("take({exchange})"),
            other => format!("{other:?}").to_lowercase(),
        }
    }
}

/// The most blocks that a sum adds up.
const MOST_BLOCKS: usize = 255;

/// One call of a kernel.
#[derive(Clone, Debug)]
pub(super) struct Called {
    pub what: What,
    pub step: OpStep,
}

/// Whose work it is, for errors.
#[derive(Clone, Copy)]
pub(super) struct Doing<'a> {
    pub program: &'a Program,
    pub accord: &'a Accord,
    pub served: Option<&'a Arc<dyn Served>>,
    /// For tasks that are half of an exchange.
    pub landing: Option<&'a Landing>,
    pub replica: usize,
    pub check_finite: bool,
}

impl Doing<'_> {
    fn landing(&self) -> &Landing {
        self.landing.expect("a task that is half of an exchange has one")
    }
}

impl Called {
    pub(super) fn perform(&self, memory: MemoryView<'_>, env: Env, doing: Doing<'_>) -> Result<(), RunError> {
        let mut call = Call::of_task(&self.step, memory, env);
        let ended = catch_unwind(AssertUnwindSafe(|| match &self.what {
            What::Op(op) => Ok(doing.program.op(*op).kind.operator().run(&mut call)?),
            What::Zero => Ok(zero(&mut call)?),
            What::Sum => Ok(sum(&mut call)?),
            What::Copy => {
                copy(&mut call);
                Ok(())
            }
            What::Gather => {
                gather(&mut call);
                Ok(())
            }
            What::Bring(exchange, route) => {
                doing.landing().bring(*exchange, route, &mut call, doing.accord);
                Ok(())
            }
            What::Take(exchange, spots) => {
                Ok(doing.landing().take(*exchange, spots, &mut call, doing.accord)?)
            }
            What::Ask(op, desk, slot) => Ok(ask(&mut call, doing, *op, (*desk, *slot))?),
            What::Answer(op, desk, slot) => Ok(answer(&mut call, doing, *op, (*desk, *slot))?),
        }));
        match (ended, &self.what) {
            (Ok(Ok(())), What::Op(op)) if doing.check_finite => self.finite(*op, memory, env, doing),
            (Ok(Ok(())), _) => Ok(()),
            (Ok(Err(Trouble::Kernel(why))), what) => Err(self.failed(what, doing, Ok(why))),
            (Ok(Err(Trouble::Lost(Lost::Failed(error)))), _) => Err(RunError::Collective(error)),
            (Ok(Err(Trouble::Lost(Lost::Misplaced(why)))), what) => Err(self.failed(what, doing, Err(why))),
            (Err(panic), what) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
                let text = text.unwrap_or_else(|| "without a message".into());
                Err(self.failed(what, doing, Err(text)))
            }
        }
    }

    fn failed(&self, what: &What, doing: Doing<'_>, why: Result<KernelError, String>) -> RunError {
        let (What::Op(id) | What::Ask(id, ..) | What::Answer(id, ..)) = what else {
            let why = why.map_or_else(|text| text, |kernel| kernel.to_string());
            return RunError::Collectively { what: what.title(), why };
        };
        let op = doing.program.op(*id);
        let shown = op.inputs.iter().zip(self.step.inputs()).map(|(&id, operand)| {
            format!("{}: {}{:?}", doing.program.var(id).name, operand.dtype, operand.dims)
        });
        let inputs = shown.collect::<Vec<_>>().join(", ");
        let (name, site) = (op.name(), op.site.clone());
        let error = match why {
            Ok(why) => RunError::of_kernel(name, site, inputs, why),
            Err(why) => RunError::Panicked { op: name, site, inputs, why },
        };
        RunError::Replica { replica: doing.replica, error: Box::new(error) }
    }

    fn finite(&self, op: OpId, memory: MemoryView<'_>, env: Env, doing: Doing<'_>) -> Result<(), RunError> {
        let call = Call::of_task(&self.step, memory, env);
        let op = doing.program.op(op);
        for (slot, &id) in op.outputs.iter().enumerate() {
            if let Some((at, value)) = call.first_bad(slot) {
                let var = doing.program.var(id).name.clone();
                let error = RunError::NotFinite { op: op.name(), site: op.site.clone(), var, at, value };
                return Err(RunError::Replica { replica: doing.replica, error: Box::new(error) });
            }
        }
        Ok(())
    }
}

/// Comes to a desk; the last one there calls the servers.
fn ask(
    call: &mut Call<'_>,
    doing: Doing<'_>,
    op: OpId,
    (desk, slot): (usize, usize),
) -> Result<(), KernelError> {
    let visit = doing.landing().visit(desk);
    match (&doing.program.op(op).kind, doing.served) {
        (OpKind::PullRows(pull), Some(served)) => visit.pull(slot, call, pull, &**served),
        (OpKind::PushRows(push), Some(served)) => {
            visit.push(call, push, served);
            Ok(())
        }
        (OpKind::ServedSquares(squares), Some(served)) => {
            visit.squares(squares, &**served);
            Ok(())
        }
        (OpKind::ReleaseRows(release), Some(served)) => {
            visit.release(call, release, served);
            Ok(())
        }
        (
            OpKind::PullRows(PullRows { table, .. })
            | OpKind::PushRows(PushRows { table, .. })
            | OpKind::ReleaseRows(ReleaseRows { table, .. }),
            None,
        ) => Err(KernelError::Served { table: table.clone() }),
        _ => Ok(()),
    }
}

fn answer(call: &mut Call<'_>, doing: Doing<'_>, op: OpId, at: (usize, usize)) -> Result<(), Lost> {
    match &doing.program.op(op).kind {
        OpKind::PullRows(pull) => doing.landing().put_rows(at, call, pull),
        OpKind::ServedSquares(_) => doing.landing().put_number(at.0, call),
        _ => doing.landing().put_whole(at.0, call),
    }
}

enum Trouble {
    Kernel(KernelError),
    Lost(Lost),
}

impl From<KernelError> for Trouble {
    fn from(error: KernelError) -> Trouble {
        Trouble::Kernel(error)
    }
}

impl From<Lost> for Trouble {
    fn from(lost: Lost) -> Trouble {
        Trouble::Lost(lost)
    }
}

fn zero(call: &mut Call<'_>) -> Result<(), KernelError> {
    real!(call.out_dtype(0), T => call.output::<T>(0).fill(T::ZERO));
    Ok(())
}

fn copy(call: &mut Call<'_>) {
    let from = call.input::<u8>(0);
    (0..call.n_outputs()).for_each(|slot| call.output::<u8>(slot).copy_from_slice(from));
}

/// In the one order that all sums over replicas have (SUM-1).
fn sum(call: &mut Call<'_>) -> Result<(), KernelError> {
    real!(call.dtype(0), T => {
        let n = call.n_inputs();
        let mut blocks: [&mut [T]; MOST_BLOCKS] = std::array::from_fn(|_| &mut [][..]);
        for (i, block) in blocks[..n].iter_mut().enumerate() {
            *block = call.update::<T>(i, i);
        }
        for (to, from) in tree(n) {
            let (left, right) = blocks.split_at_mut(from);
            let (a, b) = (&mut *left[to], &*right[0]);
            fast(#[inline(always)] || a.iter_mut().zip(b).for_each(|(a, &b)| *a += b));
        }
    });
    Ok(())
}

fn gather(call: &mut Call<'_>) {
    match call.dtype(0) {
        DType::F64 => gather_rows::<f64>(call),
        _ => gather_rows::<f32>(call),
    }
}

fn gather_rows<T: Real>(call: &mut Call<'_>) {
    let (rows, values) = call.rows_out::<T>(0);
    let (mut row, mut value) = (0, 0);
    for slot in 0..call.n_inputs() {
        let (r, v) = call.rows::<T>(slot);
        rows[row..row + r.len()].copy_from_slice(r);
        values[value..value + v.len()].copy_from_slice(v);
        (row, value) = (row + r.len(), value + v.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        exec::parallel::Alone,
        kernel::{MemorySpace, RawMemory},
        layers::Builder,
        op::Func,
    };

    #[test]
    fn a_kernel_that_panics_is_an_error_with_its_name_and_place() {
        let mut b = Builder::new();
        let x = b.feed("x", DType::F32, [2]).unwrap();
        b.map(Func::Relu, x).unwrap();
        let program = b.finish().unwrap();
        // A step without operands: the kernel reaches for one that is not there.
        let step = OpStep::new(Vec::new(), Vec::new(), MemorySpace::Arena, 0..0);
        let called = Called { what: What::Op(program.ops().next().unwrap().0), step };
        let arena = RawMemory::new(64);
        let env = Env { seed: 0, run: 0, first_sample: 0, loss_scale: 1.0, check_finite: false };
        let accord = Accord::new(Arc::new(Alone), "", 0, 0);
        let doing = Doing {
            program: &program,
            accord: &accord,
            served: None,
            landing: None,
            replica: 5,
            check_finite: false,
        };
        let error = called.perform(MemoryView::common(&arena, &arena, &[]), env, doing).unwrap_err();
        let RunError::Replica { replica: 5, error } = error else { panic!("{error}") };
        assert!(matches!(&*error, RunError::Panicked { op: "relu", .. }), "{error}");
        assert!(error.to_string().contains("work.rs:"), "{error}");
    }
}
