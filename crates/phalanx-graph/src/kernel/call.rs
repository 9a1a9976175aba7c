//! The operands of one operation while it runs: the only place where planned memory becomes slices.
//! - MEMPLAN-1: of two operands of one step whose bytes overlap both are only read, or they are exactly the same
//!   bytes: an input and the output that takes its place.
//! - MEMPLAN-2: no two steps that run at the same time touch the same bytes, unless both only read them.
//! - MEMPLAN-6: the steps of a body write only to the workspace of the step they belong to, and read only that and its
//!   inputs.

use super::{
    inner::{BodySlot, Inner},
    raw_memory::RawMemory,
};
use crate::ir::{ALIGN, MAX_OUTPUTS, Storage};
use bytemuck::Pod;
use phalanx_core::DType;
use std::{ops::Range, sync::Arc};

/// Which memory a buffer lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemorySpace {
    /// The replica's arena.
    Arena,
    /// The arena that the replicas of a process have in common: gradients and what is made of them.
    Shared,
    /// A buffer of the store.
    Store(usize),
}

/// One buffer of a step, with everything a kernel wants to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operand {
    pub place: MemorySpace,
    pub offset: usize,
    pub bytes: usize,
    pub dtype: DType,
    pub dims: Vec<usize>,
    pub form: Storage,
}

impl Operand {
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.bytes
    }

    pub fn overlaps(&self, other: &Operand) -> bool {
        self.place == other.place
            && self.bytes > 0
            && other.bytes > 0
            && self.offset < other.offset + other.bytes
            && other.offset < self.offset + self.bytes
    }

    /// Whether all of it lies in the other.
    fn lies_in(&self, other: &Operand) -> bool {
        let (own, around) = (self.range(), other.range());
        own.is_empty() || self.place == other.place && around.start <= own.start && own.end <= around.end
    }

    fn is_same(&self, other: &Operand) -> bool {
        self.place == other.place && self.range() == other.range()
    }

    pub fn volume(&self) -> usize {
        self.dims.iter().product()
    }
}

/// What one operation touches when it runs.
#[derive(Clone, Debug)]
pub struct OpStep {
    inputs: Vec<Operand>,
    outputs: Vec<Operand>,
    scratch: Operand,
    bodies: Arc<[Inner]>,
}

impl OpStep {
    /// # Panics
    /// If the plan broke MEMPLAN-1.
    pub fn new(
        inputs: Vec<Operand>,
        outputs: Vec<Operand>,
        place: MemorySpace,
        workspace: Range<usize>,
    ) -> OpStep {
        let scratch = Operand {
            place,
            offset: workspace.start,
            bytes: workspace.len(),
            dtype: DType::U8,
            dims: vec![workspace.len()],
            form: Storage::Dense,
        };
        for (o, out) in outputs.iter().enumerate() {
            let apart = outputs[..o].iter().chain([&scratch]).all(|b| !out.overlaps(b));
            let once = inputs.iter().filter(|i| i.overlaps(out)).count() <= 1;
            let same = inputs.iter().all(|i| !i.overlaps(out) || i.is_same(out));
            assert!(apart && once && same, "MEMPLAN-1: output {o} lies over another operand");
        }
        assert!(inputs.iter().all(|i| !i.overlaps(&scratch)), "MEMPLAN-1: workspace lies over an input");
        assert!(outputs.len() <= MAX_OUTPUTS, "outputs are counted by bits");
        OpStep { inputs, outputs, scratch, bodies: Arc::new([]) }
    }

    /// The same step with bodies, which share its workspace: one of them runs at a time.
    ///
    /// # Panics
    /// If the plan broke MEMPLAN-6.
    pub fn with_bodies(mut self, bodies: Vec<Inner>) -> OpStep {
        let is_ours = |o: &Operand| o.lies_in(&self.scratch);
        let is_read = |o: &Operand| is_ours(o) || self.inputs.iter().any(|i| o.lies_in(i));
        for inner in &bodies {
            let mut steps = inner.steps.iter();
            let within = steps
                .all(|s| s.outputs.iter().chain([&s.scratch]).all(is_ours) && s.inputs.iter().all(is_read));
            let around = inner.takes.iter().all(is_read) && inner.gives.iter().all(is_ours);
            assert!(within && around, "MEMPLAN-6: a body reaches beyond its operation");
        }
        self.bodies = bodies.into();
        self
    }

    pub fn inputs(&self) -> &[Operand] {
        &self.inputs
    }

    pub fn outputs(&self) -> &[Operand] {
        &self.outputs
    }

    /// The memory that only this step uses.
    pub fn scratch(&self) -> &Operand {
        &self.scratch
    }
}

/// What a run tells its kernels beside their operands.
#[derive(Clone, Copy, Debug)]
pub struct Env {
    pub seed: u64,
    /// How many runs the store has seen: random numbers differ from run to run.
    pub run: u64,
    /// Where this replica's samples begin in the whole batch: random numbers do not depend on the split.
    pub first_sample: usize,
    /// What the gradient of the loss begins with.
    pub loss_scale: f64,
    /// Whether operations with bodies look for NaN and infinity after each operation within them.
    pub check_finite: bool,
}

/// All memory a step can reach.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryView<'a> {
    arena: &'a RawMemory,
    shared: Option<&'a RawMemory>,
    store: &'a [RawMemory],
}

impl<'a> MemoryView<'a> {
    /// Exclusive access, from which steps take their slices one after another.
    pub(crate) fn new(arena: &'a mut RawMemory, store: &'a mut [RawMemory]) -> MemoryView<'a> {
        MemoryView { arena, shared: None, store }
    }

    /// Access that several workers have at once. The caller runs a schedule that was proved to keep MEMPLAN-2:
    /// LOWER-1 says that every schedule is, before its first run.
    pub(crate) fn common(
        arena: &'a RawMemory,
        shared: &'a RawMemory,
        store: &'a [RawMemory],
    ) -> MemoryView<'a> {
        MemoryView { arena, shared: Some(shared), store }
    }
}

/// One operation at work.
#[derive(Debug)]
pub struct Call<'a> {
    step: &'a OpStep,
    memory: MemoryView<'a>,
    /// Outputs that were handed out, one bit each; the last bit is the workspace.
    taken: [u64; N_WORDS],
    pub env: Env,
}

/// An input and the output that may lie in its place.
#[derive(Debug)]
pub enum Pair<'a, T> {
    Same(&'a mut [T]),
    Apart(&'a [T], &'a mut [T]),
}

/// Its bit, behind those of all outputs.
const WORKSPACE: usize = MAX_OUTPUTS;
const N_WORDS: usize = (MAX_OUTPUTS + 1).div_ceil(64);

impl<'a> Call<'a> {
    /// One step of a run that owns its memory; the mutable borrow keeps steps after one another (MEMPLAN-2).
    pub(crate) fn new<'m: 'a>(step: &'a OpStep, memory: &'a mut MemoryView<'m>, env: Env) -> Call<'a> {
        Call { step, memory: *memory, taken: [0; N_WORDS], env }
    }

    /// One task of a schedule, while others run (MEMPLAN-2).
    pub(crate) fn of_task(step: &'a OpStep, memory: MemoryView<'a>, env: Env) -> Call<'a> {
        Call { step, memory, taken: [0; N_WORDS], env }
    }

    pub fn dims(&self, input: usize) -> &'a [usize] {
        &self.step.inputs[input].dims
    }

    pub fn out_dims(&self, output: usize) -> &'a [usize] {
        &self.step.outputs[output].dims
    }

    pub fn dtype(&self, input: usize) -> DType {
        self.step.inputs[input].dtype
    }

    pub fn out_dtype(&self, output: usize) -> DType {
        self.step.outputs[output].dtype
    }

    pub fn n_inputs(&self) -> usize {
        self.step.inputs.len()
    }

    pub fn n_outputs(&self) -> usize {
        self.step.outputs.len()
    }

    pub fn is_sparse(&self, input: usize) -> bool {
        self.step.inputs[input].form != Storage::Dense
    }

    fn arena(&self, place: MemorySpace) -> &'a RawMemory {
        match place {
            MemorySpace::Arena => self.memory.arena,
            MemorySpace::Shared => self.memory.shared.expect("only plans for several replicas name it"),
            MemorySpace::Store(i) => &self.memory.store[i],
        }
    }

    fn take(&mut self, bit: usize) {
        let (word, bit) = (bit / 64, 1 << (bit % 64));
        assert!(self.taken[word] & bit == 0, "a kernel takes each output once");
        self.taken[word] |= bit;
    }

    /// The elements of an input that no output takes the place of.
    pub fn input<T: Pod>(&self, input: usize) -> &'a [T] {
        let operand = &self.step.inputs[input];
        assert!(self.step.outputs.iter().all(|o| !o.overlaps(operand)), "declared as shared: use `pair`");
        self.values(operand)
    }

    fn values<T: Pod>(&self, operand: &Operand) -> &'a [T] {
        assert_eq!(size_of::<T>(), operand.dtype.size(), "a kernel reads the type it was chosen for");
        let (begin, n) = extent(operand);
        // SAFETY: no output of this step lies here, or its kernel has ended (the callers see to that), and no step that
        // runs meanwhile writes here (MEMPLAN-2).
        unsafe { self.arena(operand.place).part(begin, n) }
    }

    /// The elements of an output. What they are before the kernel writes is unspecified.
    pub fn output<T: Pod>(&mut self, output: usize) -> &'a mut [T] {
        let operand = &self.step.outputs[output];
        assert!(self.step.inputs.iter().all(|i| !i.overlaps(operand)), "declared as shared: use `pair`");
        self.values_mut(output)
    }

    fn values_mut<T: Pod>(&mut self, output: usize) -> &'a mut [T] {
        let operand = &self.step.outputs[output];
        assert_eq!(size_of::<T>(), operand.dtype.size(), "a kernel writes the type it was chosen for");
        self.take(output);
        let (begin, n) = extent(operand);
        // SAFETY: handed out once (`take`); no other operand of the step is given out over it: `input` and `output`
        // refuse, `pair` gives only this slice, and MEMPLAN-1 says nothing else overlaps; no other step touches it
        // meanwhile (MEMPLAN-2).
        unsafe { self.arena(operand.place).part_mut(begin, n) }
    }

    /// An input and an output of the same size that the plan may have put in the same place.
    pub fn pair<T: Pod>(&mut self, input: usize, output: usize) -> Pair<'a, T> {
        let (i, o) = (&self.step.inputs[input], &self.step.outputs[output]);
        if i.overlaps(o) {
            return Pair::Same(self.values_mut(output));
        }
        assert!(self.step.inputs.iter().all(|i| !i.overlaps(o)), "only this input may share this output");
        Pair::Apart(self.input(input), self.values_mut(output))
    }

    /// What an output holds after the kernel has ended.
    pub(crate) fn result<T: Pod>(&self, output: usize) -> &'a [T] {
        self.values(&self.step.outputs[output])
    }

    /// An output that already holds the input's value.
    pub fn update<T: Pod>(&mut self, input: usize, output: usize) -> &'a mut [T] {
        match self.pair(input, output) {
            Pair::Same(out) => out,
            Pair::Apart(input, out) => {
                out.copy_from_slice(input);
                out
            }
        }
    }

    /// Row numbers and values of a sparse input.
    pub fn rows<T: Pod>(&self, input: usize) -> (&'a [i64], &'a [T]) {
        let operand = &self.step.inputs[input];
        assert!(operand.form != Storage::Dense, "dense operands have no rows");
        let n = operand.dims[0];
        let values = self.input(input);
        // SAFETY: as in `values`; the row numbers lie in the same operand, before its values.
        (unsafe { self.arena(operand.place).part(operand.offset, n) }, values)
    }

    /// Row numbers and values of a sparse output.
    pub fn rows_out<T: Pod>(&mut self, output: usize) -> (&'a mut [i64], &'a mut [T]) {
        let values = self.output(output);
        let operand = &self.step.outputs[output];
        assert!(operand.form != Storage::Dense, "dense operands have no rows");
        let n = operand.dims[0];
        // SAFETY: as in `values_mut`; the row numbers end before the values begin, and both are handed out together.
        (unsafe { self.arena(operand.place).part_mut(operand.offset, n) }, values)
    }

    /// An operation of a body at work. While it is, this call gives out nothing else.
    pub(crate) fn inner(&mut self, body: usize, at: usize, env: Env) -> Call<'_> {
        // What it may touch is the workspace, which `workspace` keeps from this kernel, and inputs, which are only read
        // (MEMPLAN-6): slices that were given out before lie elsewhere or are read, too.
        Call { step: &self.step.bodies[body].steps[at], memory: self.memory, taken: [0; N_WORDS], env }
    }

    pub(crate) fn operands(&self) -> &'a [Operand] {
        &self.step.inputs
    }

    /// Where a variable of this step or of its bodies lies.
    pub fn spot(&self, spot: BodySlot) -> &'a Operand {
        match spot {
            BodySlot::Input(slot) => &self.step.inputs[slot],
            BodySlot::Output(slot) => &self.step.outputs[slot],
            BodySlot::Take(body, slot) => &self.step.bodies[body].takes[slot],
            BodySlot::Give(body, slot) => &self.step.bodies[body].gives[slot],
        }
    }

    /// Where these bytes of a variable lie, if they may be read, or written, between the runs of bodies.
    fn part_of(&self, spot: BodySlot, bytes: Range<usize>, write: bool) -> (&'a RawMemory, usize, usize) {
        let operand = self.spot(spot);
        assert!(bytes.start <= bytes.end && bytes.end <= operand.bytes, "inside the variable");
        let is_free = match spot {
            BodySlot::Input(_) => !write,
            BodySlot::Output(slot) => {
                let is_taken = self.taken[slot / 64] >> (slot % 64) & 1 == 1;
                !is_taken && self.step.inputs.iter().all(|i| !i.overlaps(operand))
            }
            BodySlot::Take(..) | BodySlot::Give(..) => !write || operand.lies_in(&self.step.scratch),
        };
        assert!(is_free, "nobody else has or reads what a kernel writes");
        (self.arena(operand.place), operand.offset + bytes.start, bytes.len())
    }

    pub(super) fn bytes_of(&self, spot: BodySlot, bytes: Range<usize>) -> &[u8] {
        let (arena, begin, n) = self.part_of(spot, bytes, false);
        // SAFETY: an input, which nobody writes; or what `bytes_at` could write, which needs this call for itself.
        unsafe { arena.part(begin, n) }
    }

    pub(super) fn bytes_at(&mut self, spot: BodySlot, bytes: Range<usize>) -> &mut [u8] {
        let (arena, begin, n) = self.part_of(spot, bytes, true);
        // SAFETY: an output that was not handed out, or the workspace, which a step with bodies never hands out; no
        // input lies there (MEMPLAN-1), no other step touches it meanwhile (MEMPLAN-2), and as long as the slice lives
        // this call is borrowed.
        unsafe { arena.part_mut(begin, n) }
    }

    /// Bytes to read and bytes to write.
    pub(super) fn between(
        &mut self,
        from: (BodySlot, Range<usize>),
        to: (BodySlot, Range<usize>),
    ) -> (&[u8], &mut [u8]) {
        let apart = !self.spot(from.0).overlaps(self.spot(to.0));
        assert!(apart, "a variable is moved to another one");
        let (arena, begin, n) = self.part_of(from.0, from.1, false);
        // SAFETY: as in `bytes_at`; all workers only read an input. What is written below lies elsewhere.
        let from = unsafe { arena.part(begin, n) };
        let (arena, begin, n) = self.part_of(to.0, to.1, true);
        // SAFETY: as in `bytes_at`, and apart from what is read, as was checked.
        (from, unsafe { arena.part_mut(begin, n) })
    }

    /// The scratch memory that the operation asked for.
    pub fn workspace<T: Pod>(&mut self) -> &'a mut [T] {
        assert!(self.step.bodies.is_empty(), "the workspace of an operation with bodies is theirs");
        self.take(WORKSPACE);
        let scratch = &self.step.scratch;
        // SAFETY: handed out once; no operand of this step lies here (MEMPLAN-1), no other step uses it meanwhile
        // (MEMPLAN-2).
        unsafe { self.arena(scratch.place).part_mut(scratch.offset, scratch.bytes / size_of::<T>()) }
    }
}

/// Where the values of an operand begin, and how many there are.
fn extent(operand: &Operand) -> (usize, usize) {
    let skip = match operand.form {
        Storage::Dense => 0,
        Storage::Rows { .. } => (operand.dims[0] * size_of::<i64>()).next_multiple_of(ALIGN),
    };
    (operand.offset + skip, operand.volume())
}
