//! Adasum: gradients that point the same way are averaged, orthogonal ones are added, so that many ranks need no other learning rate.
//!
//! Two vectors become `(1 - ab / 2aa) a + (1 - ab / 2bb) b`. With a power of two of ranks, pairs at distance 1, 2, 4, ... combine, each rank
//! holding half as much after every level (a pair's dot products are summed over all ranks that hold a part of the two vectors); then the
//! halves are gathered back. Of `n` ranks beyond the largest power of two `p`, rank `p + i` first combines with rank `i`, and gets the result at the end.
//! - ADA-1: the result is the same on every rank, to the bit, and one rank's own vector if it is alone.

use super::Load;
use crate::{
    communicator::{Communicator, Scale},
    engine::tensor::EngineTensor,
    error::Error,
};
use half::{bf16, f16};
use phalanx_core::DType;
use std::ops::Range;

pub fn allreduce(comm: &mut Communicator, loads: &mut [Load], scale: Scale) -> Result<(), Error> {
    for load in loads {
        let forms = load.agreed.spec.forms.clone();
        for (i, form) in forms.iter().enumerate() {
            let mut spare;
            let tensor = match &mut load.places {
                Some(places) => {
                    if let super::InOut::Apart { input, output } = &mut places[i] {
                        output.bytes_mut().copy_from_slice(input.bytes());
                    }
                    places[i].output_mut()
                }
                None => {
                    spare = EngineTensor::zeros(form.dtype, form.shape.clone());
                    &mut spare
                }
            };
            // Combined in f64 (f32 for what is narrower would lose the dot products of long vectors).
            let mut vector = widen(tensor);
            vector.iter_mut().for_each(|x| *x *= scale.pre);
            combine_all(comm, &mut vector)?;
            vector.iter_mut().for_each(|x| *x *= scale.post);
            narrow(tensor, &vector);
        }
    }
    Ok(())
}

fn combine_all(comm: &mut Communicator, vector: &mut [f64]) -> Result<(), Error> {
    let (n, me) = (comm.size() as usize, comm.rank().index());
    let p = 1 << n.ilog2();
    let whole = 0..vector.len();
    // The ranks beyond the power of two give theirs away.
    let giver = |r: usize| (r >= p).then(|| r - p);
    let received = exchange(comm, vector, |from, to| (giver(from) == Some(to)).then(|| whole.clone()))?;
    if let Some((_, theirs)) = received.into_iter().next() {
        let dots = dot(vector, &theirs);
        blend(vector, &theirs, dots);
    }
    let mut distance = 1;
    while distance < p {
        let received = exchange(comm, vector, |from, to| {
            (from < p && to == from ^ distance).then(|| held(&whole, to, distance * 2))
        })?;
        let mine = held(&whole, me, distance * 2);
        let theirs = received.into_iter().next().map(|r| r.1).unwrap_or_default();
        // (aa, ab, bb) with a the vector of the lower side; every rank of the block adds the same parts in the same order.
        let low = me & distance == 0;
        let mut part = [0.0; 3];
        if me < p {
            let [own, both, other] = dot(&vector[mine.clone()], &theirs);
            part = if low { [own, both, other] } else { [other, both, own] };
        }
        let mut parts = vec![0.0; 3 * n];
        comm.allgather(&part, &mut parts, &vec![3; n])?;
        if me < p {
            let block = me / (distance * 2) * (distance * 2);
            let mut sums = [0.0; 3];
            for rank in block..block + distance * 2 {
                (0..3).for_each(|i| sums[i] += parts[rank * 3 + i]);
            }
            let dots = if low { sums } else { [sums[2], sums[1], sums[0]] };
            blend(&mut vector[mine.clone()], &theirs, dots);
        }
        distance *= 2;
    }
    gather_back(comm, vector, &whole, p)?;
    // And to those who gave theirs away.
    let received = exchange(comm, vector, |from, to| (giver(to) == Some(from)).then(|| whole.clone()))?;
    if let Some((_, result)) = received.into_iter().next() {
        vector.copy_from_slice(&result);
    }
    Ok(())
}

/// What a rank holds after the levels below `distance`: of a pair, the lower rank keeps the lower half.
fn held(whole: &Range<usize>, rank: usize, distance: usize) -> Range<usize> {
    let mut range = whole.clone();
    let mut d = 1;
    while d < distance {
        let middle = range.start + range.len() / 2;
        range = if rank & d == 0 { range.start..middle } else { middle..range.end };
        d *= 2;
    }
    range
}

/// Undoes the halving, the last level first.
fn gather_back(
    comm: &mut Communicator,
    vector: &mut [f64],
    whole: &Range<usize>,
    p: usize,
) -> Result<(), Error> {
    let mut distance = p / 2;
    while distance >= 1 {
        let received = exchange(comm, vector, |from, to| {
            (from < p && to == from ^ distance).then(|| held(whole, from, distance * 2))
        })?;
        for (from, part) in received {
            vector[held(whole, from, distance * 2)].copy_from_slice(&part);
        }
        distance /= 2;
    }
    Ok(())
}

/// Sends ranges of each rank's vector as `what(from, to)` says, the same on every rank; returns what came, by sender.
fn exchange(
    comm: &mut Communicator,
    vector: &[f64],
    what: impl Fn(usize, usize) -> Option<Range<usize>>,
) -> Result<Vec<(usize, Vec<f64>)>, Error> {
    let (n, me) = (comm.size() as usize, comm.rank().index());
    let matrix: Vec<u64> = (0..n * n).map(|i| what(i / n, i % n).map_or(0, |r| r.len() as u64)).collect();
    if matrix.iter().all(|c| *c == 0) {
        return Ok(Vec::new());
    }
    let input: Vec<f64> =
        (0..n).filter_map(|to| what(me, to)).flat_map(|r| vector[r].iter().copied()).collect();
    let mut output = vec![0.0; (0..n).map(|from| matrix[from * n + me]).sum::<u64>() as usize];
    comm.alltoall(&input, &mut output, &matrix)?;
    let mut at = 0;
    let mut all = Vec::new();
    for from in (0..n).filter(|from| what(*from, me).is_some()) {
        let len = matrix[from * n + me] as usize;
        all.push((from, output[at..at + len].to_vec()));
        at += len;
    }
    Ok(all)
}

/// aa, ab, bb.
fn dot(a: &[f64], b: &[f64]) -> [f64; 3] {
    a.iter().zip(b).fold([0.0; 3], |[aa, ab, bb], (x, y)| [aa + x * x, ab + x * y, bb + y * y])
}

fn blend(a: &mut [f64], b: &[f64], [aa, ab, bb]: [f64; 3]) {
    let factor = |own: f64| if own > 0.0 { 1.0 - ab / (2.0 * own) } else { 1.0 };
    let (of_a, of_b) = (factor(aa), factor(bb));
    a.iter_mut().zip(b).for_each(|(x, y)| *x = of_a * *x + of_b * y);
}

fn widen(tensor: &EngineTensor) -> Vec<f64> {
    let aligned = "submitted tensors are aligned";
    match tensor.dtype() {
        DType::F32 => tensor.as_slice::<f32>().expect(aligned).iter().map(|x| f64::from(*x)).collect(),
        DType::F64 => tensor.as_slice::<f64>().expect(aligned).to_vec(),
        DType::F16 => tensor.as_slice::<f16>().expect(aligned).iter().map(|x| x.to_f64()).collect(),
        DType::BF16 => tensor.as_slice::<bf16>().expect(aligned).iter().map(|x| x.to_f64()).collect(),
        other => unreachable!("submission refuses adasum of {other}"),
    }
}

fn narrow(tensor: &mut EngineTensor, from: &[f64]) {
    let dtype = tensor.dtype();
    let bytes = tensor.bytes_mut();
    match dtype {
        DType::F32 => bytemuck::cast_slice_mut(bytes).iter_mut().zip(from).for_each(|(t, x)| *t = *x as f32),
        DType::F64 => bytemuck::cast_slice_mut(bytes).copy_from_slice(from),
        DType::F16 => {
            bytemuck::cast_slice_mut(bytes).iter_mut().zip(from).for_each(|(t, x)| *t = f16::from_f64(*x));
        }
        DType::BF16 => {
            bytemuck::cast_slice_mut(bytes).iter_mut().zip(from).for_each(|(t, x)| *t = bf16::from_f64(*x));
        }
        other => unreachable!("submission refuses adasum of {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parallel_vectors_are_averaged_and_orthogonal_ones_added() {
        let blended = |a: [f64; 2], b: [f64; 2]| {
            let mut sum = a;
            blend(&mut sum, &b, dot(&a, &b));
            sum
        };
        assert_eq!(blended([2.0, 0.0], [2.0, 0.0]), [2.0, 0.0]);
        assert_eq!(blended([2.0, 0.0], [0.0, 3.0]), [2.0, 3.0]);
        assert_eq!(blended([2.0, 0.0], [0.0, 0.0]), [2.0, 0.0]);
    }
}
