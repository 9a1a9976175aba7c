//! Operations that run others within themselves: planned bodies, and what goes in and out of them.

use super::{
    call::{Call, OpStep, Operand},
    number::Real,
};
use phalanx_core::DType;
use std::ops::Range;

/// A body as it was planned: a step for each of its operations, and where what it takes and gives lies.
#[derive(Clone, Debug)]
pub struct Inner {
    pub steps: Vec<OpStep>,
    pub takes: Vec<Operand>,
    pub gives: Vec<Operand>,
}

/// A variable that an operation with bodies moves values from or to; bodies are counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodySlot {
    Input(usize),
    Output(usize),
    Take(usize, usize),
    Give(usize, usize),
}

impl Call<'_> {
    /// All bytes of one variable become those of another.
    pub fn transfer(&mut self, from: BodySlot, to: BodySlot) {
        let n = self.spot(from).bytes;
        self.transfer_part((from, 0..n), (to, 0..n));
    }

    pub fn transfer_part(&mut self, from: (BodySlot, Range<usize>), to: (BodySlot, Range<usize>)) {
        let (from, to) = self.between(from, to);
        to.copy_from_slice(from);
    }

    /// Adds the elements of one variable to those of another.
    pub fn add_up(&mut self, from: BodySlot, to: BodySlot) {
        let (n, dtype) = (self.spot(from).bytes, self.spot(from).dtype);
        let (from, to) = self.between((from, 0..n), (to, 0..n));
        match dtype {
            DType::F64 => add::<f64>(from, to),
            _ => add::<f32>(from, to),
        }
    }

    /// The first byte of a variable: all of a condition.
    pub fn byte_at(&self, from: BodySlot) -> u8 {
        self.bytes_of(from, 0..1)[0]
    }

    /// Every byte becomes this one.
    pub fn fill_bytes(&mut self, to: BodySlot, byte: u8) {
        let n = self.spot(to).bytes;
        self.bytes_at(to, 0..n).fill(byte);
    }

    /// Where the first number of an output is that is not finite, after its kernel has ended.
    pub(crate) fn first_bad(&self, output: usize) -> Option<(usize, f64)> {
        fn bad<T: Real>(all: &[T]) -> Option<(usize, f64)> {
            let at = all.iter().position(|v| !v.is_finite())?;
            Some((at, all[at].wide()))
        }
        match self.out_dtype(output) {
            DType::F32 => bad(self.result::<f32>(output)),
            DType::F64 => bad(self.result::<f64>(output)),
            _ => None,
        }
    }
}

fn add<T: Real>(from: &[u8], to: &mut [u8]) {
    let (from, to) = (bytemuck::cast_slice::<u8, T>(from), bytemuck::cast_slice_mut::<u8, T>(to));
    to.iter_mut().zip(from).for_each(|(t, &f)| *t += f);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ir::Storage,
        kernel::{Env, MemorySpace, MemoryView, RawMemory},
    };
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn operand(offset: usize, bytes: usize) -> Operand {
        let dims = vec![bytes];
        Operand { place: MemorySpace::Arena, offset, bytes, dtype: DType::U8, dims, form: Storage::Dense }
    }

    fn is_refused<T>(work: impl FnOnce() -> T) -> bool {
        catch_unwind(AssertUnwindSafe(work)).is_err()
    }

    /// An input at 0, an output at 64 and a workspace from 128 to 256; its body goes from one place to another.
    fn step(from: Operand, to: Operand, takes: Vec<Operand>) -> OpStep {
        let inner = OpStep::new(vec![from], vec![to.clone()], MemorySpace::Arena, 128..128);
        let inner = Inner { steps: vec![inner], takes, gives: vec![to] };
        OpStep::new(vec![operand(0, 64)], vec![operand(64, 64)], MemorySpace::Arena, 128..256)
            .with_bodies(vec![inner])
    }

    #[test]
    fn a_body_that_reaches_beyond_its_operation_is_no_plan() {
        step(operand(128, 8), operand(192, 8), vec![operand(0, 8)]);
        step(operand(8, 8), operand(192, 8), vec![operand(128, 8)]);
        // MEMPLAN-6: writes its operation's input, its output, and what is nobody's; reads the output.
        for to in [8, 64, 256, 250] {
            assert!(is_refused(|| step(operand(128, 8), operand(to, 8), vec![])), "{to}");
        }
        assert!(is_refused(|| step(operand(72, 8), operand(192, 8), vec![])));
        assert!(is_refused(|| step(operand(128, 8), operand(192, 8), vec![operand(64, 8)])));
    }

    #[test]
    fn values_move_only_to_where_nobody_else_has_them() {
        let step = step(operand(128, 8), operand(192, 8), vec![operand(0, 8), operand(128, 8)]);
        let mut arena = RawMemory::new(256);
        arena.as_slice::<u8>().iter_mut().enumerate().for_each(|(i, b)| *b = i as u8);
        let mut memory = MemoryView::new(&mut arena, &mut []);
        let env = Env { seed: 0, run: 0, first_sample: 0, loss_scale: 1.0, check_finite: false };
        let mut call = Call::new(&step, &mut memory, env);
        call.transfer(BodySlot::Take(0, 0), BodySlot::Take(0, 1));
        assert_eq!(call.byte_at(BodySlot::Take(0, 1)), 0);
        call.transfer_part((BodySlot::Give(0, 0), 0..4), (BodySlot::Output(0), 60..64));
        assert!(
            is_refused(|| call.transfer(BodySlot::Give(0, 0), BodySlot::Take(0, 0))),
            "captured values are the input's"
        );
        assert!(is_refused(|| call.transfer_part((BodySlot::Give(0, 0), 0..4), (BodySlot::Input(0), 0..4))));
        assert!(
            is_refused(|| call.transfer_part((BodySlot::Give(0, 0), 0..4), (BodySlot::Give(0, 0), 4..8)))
        );
        assert!(is_refused(|| call.transfer_part((BodySlot::Give(0, 0), 0..9), (BodySlot::Output(0), 0..9))));
        assert!(is_refused(|| call.workspace::<u8>().len()), "the workspace is the body's");
        let taken = call.output::<u8>(0);
        assert_eq!(taken[60..], [192, 193, 194, 195]);
        assert!(is_refused(|| call.transfer_part((BodySlot::Give(0, 0), 0..4), (BodySlot::Output(0), 0..4))));
    }
}
