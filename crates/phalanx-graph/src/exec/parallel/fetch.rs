//! The results of a run, and how the values of replicas are merged.

use super::lower::Source;
use crate::{
    exec::Tensor,
    ir::{Dim, Sig},
    kernel::{Operand, Real},
};
use phalanx_core::DType;

/// How the values of replicas become one. What all replicas have alike (parameters, reduced gradients, rates) is given
/// once by all of these but `Unmerged`. Where no replica of this process has samples, the sum of a scalar is zero, and its other merges
/// are not a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// One after another along the batch, or along the first axis; scalars become a vector.
    Concat,
    /// All of them.
    Unmerged,
    /// Their mean, each counting as much as it has samples.
    Mean,
    Sum,
    /// That of the first replica that has samples.
    First,
}

/// A variable to fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetch<'a> {
    pub name: &'a str,
    pub merge: Merge,
}

impl<'a> Fetch<'a> {
    pub fn concat(name: &'a str) -> Fetch<'a> {
        Fetch { name, merge: Merge::Concat }
    }

    pub fn unmerged(name: &'a str) -> Fetch<'a> {
        Fetch { name, merge: Merge::Unmerged }
    }

    pub fn mean(name: &'a str) -> Fetch<'a> {
        Fetch { name, merge: Merge::Mean }
    }

    pub fn sum(name: &'a str) -> Fetch<'a> {
        Fetch { name, merge: Merge::Sum }
    }

    pub fn first(name: &'a str) -> Fetch<'a> {
        Fetch { name, merge: Merge::First }
    }
}

/// What was fetched.
#[derive(Clone, Debug, PartialEq)]
pub enum Fetched {
    One(Tensor),
    /// Of each replica that had samples, in their order.
    Each(Vec<Tensor>),
}

impl Fetched {
    /// The merged value.
    ///
    /// # Panics
    /// If it was fetched unmerged.
    pub fn one(&self) -> &Tensor {
        match self {
            Fetched::One(tensor) => tensor,
            Fetched::Each(_) => panic!("fetched unmerged: use `each`"),
        }
    }

    /// All values; a merged one is alone.
    pub fn each(&self) -> &[Tensor] {
        match self {
            Fetched::One(tensor) => std::slice::from_ref(tensor),
            Fetched::Each(all) => all,
        }
    }
}

/// Shows the bytes that a replica has of an operand.
pub(super) type Read<'a> = dyn FnMut(usize, &Operand, &mut dyn FnMut(&[u8])) + 'a;

/// What merging wants to know.
pub(super) struct Merging<'a> {
    pub sig: &'a Sig,
    pub source: &'a Source,
    pub merge: Merge,
    /// Samples of each replica.
    pub sizes: &'a [usize],
}

impl Merging<'_> {
    /// Puts the value into `out`, whose memory is used again where it fits.
    pub(super) fn put(&self, read: &mut Read<'_>, out: &mut Fetched) {
        let have = || self.source.each.iter().enumerate().filter_map(|(r, o)| Some((r, o.as_ref()?)));
        if self.merge == Merge::Unmerged {
            let n = have().count();
            if !matches!(out, Fetched::Each(all) if all.len() == n) {
                *out = Fetched::Each(vec![Tensor::zeros(DType::U8, &[0]); n]);
            }
            let Fetched::Each(all) = out else { unreachable!("made so above") };
            for (to, (r, operand)) in all.iter_mut().zip(have()) {
                to.reform(operand.dtype, &operand.dims);
                read(r, operand, &mut |bytes| to.bytes_mut().copy_from_slice(bytes));
            }
            return;
        }
        if !matches!(out, Fetched::One(_)) {
            *out = Fetched::One(Tensor::zeros(DType::U8, &[0]));
        }
        let Fetched::One(out) = out else { unreachable!("made so above") };
        let Some((first, operand)) = have().next() else {
            return self.nothing(out);
        };
        match self.merge {
            _ if self.source.same || self.merge == Merge::First => {
                out.reform(operand.dtype, &operand.dims);
                read(first, operand, &mut |bytes| out.bytes_mut().copy_from_slice(bytes));
            }
            Merge::Concat => self.concat(read, out),
            _ if self.sig.dtype == DType::F64 => self.add::<f64>(read, out),
            _ => self.add::<f32>(read, out),
        }
    }

    /// The value of no samples: a sum is zero, anything else is not a number, where there is room for one. Not what an earlier run left.
    fn nothing(&self, out: &mut Tensor) {
        out.reform(self.sig.dtype, &self.sig.shape.at(0));
        match (self.merge, self.sig.dtype) {
            (Merge::Sum, _) => out.bytes_mut().fill(0),
            (_, DType::F32) => bytemuck::cast_slice_mut(out.bytes_mut()).fill(f32::NAN),
            (_, DType::F64) => bytemuck::cast_slice_mut(out.bytes_mut()).fill(f64::NAN),
            (..) => out.bytes_mut().fill(0),
        }
    }

    fn concat(&self, read: &mut Read<'_>, out: &mut Tensor) {
        let have = || self.source.each.iter().enumerate().filter_map(|(r, o)| Some((r, o.as_ref()?)));
        let axis = self.sig.shape.dims().iter().position(|d| matches!(d, Dim::Batch(_))).unwrap_or(0);
        let like = &have().next().expect("there is one").1.dims;
        let rows: usize = have().map(|(_, o)| o.dims.get(axis).copied().unwrap_or(1)).sum();
        // On the stack: a run that was planned allocates nothing.
        let mut dims = [rows; crate::ir::MAX_RANK];
        for (i, d) in like.iter().enumerate().filter(|(i, _)| *i != axis) {
            dims[i] = *d;
        }
        out.reform(self.sig.dtype, &dims[..like.len().max(1)]);
        let outer: usize = like[..axis.min(like.len())].iter().product();
        let inner = like.iter().skip(axis + 1).product::<usize>() * self.sig.dtype.size();
        let mut at = 0;
        for (r, operand) in have() {
            let own = operand.dims.get(axis).copied().unwrap_or(1) * inner;
            read(r, operand, &mut |from| {
                for i in 0..outer {
                    let begin = i * rows * inner + at;
                    out.bytes_mut()[begin..begin + own].copy_from_slice(&from[i * own..][..own]);
                }
            });
            at += own;
        }
    }

    fn add<T: Real>(&self, read: &mut Read<'_>, out: &mut Tensor) {
        let have = || self.source.each.iter().enumerate().filter_map(|(r, o)| Some((r, o.as_ref()?)));
        let (_, operand) = have().next().expect("there is one");
        out.reform(operand.dtype, &operand.dims);
        out.bytes_mut().fill(0);
        let samples: usize = have().map(|(r, _)| self.sizes[r]).sum();
        let n = have().count();
        for (r, operand) in have() {
            let weight = T::of(match self.merge {
                Merge::Mean if samples > 0 => self.sizes[r] as f64 / samples as f64,
                Merge::Mean => 1.0 / n as f64,
                _ => 1.0,
            });
            read(r, operand, &mut |bytes| {
                let to: &mut [T] = bytemuck::cast_slice_mut(out.bytes_mut());
                let from: &[T] = bytemuck::cast_slice(bytes);
                to.iter_mut().zip(from).for_each(|(o, &v)| *o += v * weight);
            });
        }
    }
}
