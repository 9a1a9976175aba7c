//! Reducescatter: reduced rows, each rank's share of them.

use super::{Carrier, Load};
use crate::{
    communicator::{Communicator, Scale},
    engine::spec::{Form, ReduceRule, Spec},
    error::Error,
    invoke::{Ask, Hands},
    plan::step::{CollectiveOp, Layout},
};
use phalanx_core::{DType, ReduceOp};

/// Rows of each rank: equal shares, and one more for the first few.
pub fn share(rows: u64, n: u64, rank: u64) -> u64 {
    rows / n + u64::from(rank < rows % n)
}

/// Rows of one rank: what was agreed, or its share.
fn rows(spec: &Spec, form: &Form, n: usize, rank: usize) -> u64 {
    let shared = || share(form.n_rows(), n as u64, rank as u64);
    spec.splits.get(rank).copied().unwrap_or_else(shared)
}

/// Elements of each rank.
fn counts(spec: &Spec, form: &Form, n: usize) -> Vec<u64> {
    (0..n).map(|rank| rows(spec, form, n, rank) * form.row_elements()).collect()
}

impl Carrier {
    pub(super) fn reducescatter(&mut self, comm: &mut Communicator, loads: &mut [Load]) -> Result<(), Error> {
        let (n, me) = (comm.size() as usize, comm.rank().index());
        let spec = &loads[0].agreed.spec;
        let op = match spec.reduce {
            ReduceRule::Op(op) => op,
            ReduceRule::Adasum => ReduceOp::Sum, // Refused at submission.
        };
        let scale = Scale { pre: spec.prescale, post: spec.postscale };
        let mut types: Vec<DType> = Vec::new();
        for load in loads.iter_mut() {
            let agreed = load.agreed.clone();
            for form in &agreed.spec.forms {
                let mut shape = form.shape.clone();
                shape[0] = rows(&agreed.spec, form, n, me);
                load.make(form.dtype, shape);
                if !types.contains(&form.dtype) {
                    types.push(form.dtype);
                }
            }
        }
        for dtype in types {
            let mut small = Vec::new();
            for (l, load) in loads.iter_mut().enumerate() {
                for (i, form) in load.agreed.spec.forms.iter().enumerate().filter(|(_, f)| f.dtype == dtype) {
                    let n_bytes = form.n_bytes() as usize;
                    if n_bytes < self.direct_bytes {
                        small.push((l, i, counts(&load.agreed.spec, form, n)));
                        continue;
                    }
                    let counts = counts(&load.agreed.spec, form, n);
                    let (ask, output) = (asking(counts, dtype, op, scale), load.made[i].bytes_mut());
                    match &load.places {
                        Some(places) => {
                            comm.call(ask, Hands::Apart { input: places[i].input().bytes(), output })?;
                        }
                        None => comm.call(ask, Hands::Apart { input: self.spare(n_bytes), output })?,
                    }
                }
            }
            if !small.is_empty() {
                self.scatter_packed(comm, loads, &small, (dtype, op, scale))?;
            }
        }
        Ok(())
    }

    fn scatter_packed(
        &mut self,
        comm: &mut Communicator,
        loads: &mut [Load],
        pieces: &[(usize, usize, Vec<u64>)],
        (dtype, op, scale): (DType, ReduceOp, Scale),
    ) -> Result<(), Error> {
        let (n, me, size) = (comm.size() as usize, comm.rank().index(), dtype.size());
        let totals: Vec<u64> = (0..n).map(|r| pieces.iter().map(|p| p.2[r]).sum()).collect();
        let n_in = totals.iter().sum::<u64>() as usize * size;
        let n_out = totals[me] as usize * size;
        let room = super::aligned(n_in);
        let (input, output) = self.fusion(comm, room + n_out)?[..room + n_out].split_at_mut(room);
        let mut at = 0;
        let mut begins = vec![0; pieces.len()];
        for rank in 0..n {
            for ((load, index, counts), begin) in pieces.iter().zip(&mut begins) {
                let n_bytes = counts[rank] as usize * size;
                let to = &mut input[at..at + n_bytes];
                match &loads[*load].places {
                    Some(places) => {
                        to.copy_from_slice(&places[*index].input().bytes()[*begin..*begin + n_bytes]);
                    }
                    None => to.fill(0),
                }
                *begin += n_bytes;
                at += n_bytes;
            }
        }
        let ask = asking(totals, dtype, op, scale);
        comm.call(ask, Hands::Apart { input: &input[..n_in], output: &mut output[..n_out] })?;
        at = 0;
        for (load, index, counts) in pieces {
            let n_bytes = counts[me] as usize * size;
            loads[*load].made[*index].bytes_mut().copy_from_slice(&output[at..at + n_bytes]);
            at += n_bytes;
        }
        Ok(())
    }
}

fn asking(counts: Vec<u64>, dtype: DType, op: ReduceOp, scale: Scale) -> Ask {
    Ask {
        op: CollectiveOp::ReduceScatter,
        layout: Layout::Counts { counts },
        dtype,
        reduce: Some((op, scale)),
    }
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn the_first_ranks_take_the_rows_that_are_left_over() {
        assert_eq!((0..4).map(|r| share(10, 4, r)).collect::<Vec<_>>(), [3, 3, 2, 2]);
        assert_eq!((0..4).map(|r| share(2, 4, r)).collect::<Vec<_>>(), [1, 1, 0, 0]);
    }
}
