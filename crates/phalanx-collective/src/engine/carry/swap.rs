//! Alltoall: rows from every rank to every rank.

use super::Load;
use crate::{
    communicator::Communicator,
    engine::tensor::EngineTensor,
    error::Error,
    invoke::{Ask, Hands},
    plan::step::{CollectiveOp, Layout},
};

pub fn alltoall(comm: &mut Communicator, load: &mut Load) -> Result<(), Error> {
    let (n, me) = (comm.size() as usize, comm.rank().index());
    let form = &load.agreed.spec.forms[0];
    // A rank that has joined sends nothing; what others send to it goes nowhere.
    let rows =
        |from: usize, to: usize| load.agreed.rows.get(from).and_then(|r| r.get(to)).copied().unwrap_or(0);
    let wide = form.row_elements();
    let matrix: Vec<u64> = (0..n * n).map(|i| rows(i / n, i % n) * wide).collect();
    let received: Vec<u64> = (0..n).map(|from| rows(from, me)).collect();
    let mut shape = form.shape.clone();
    shape[0] = received.iter().sum();
    let mut output = EngineTensor::zeros(form.dtype, shape);
    // Rows beyond the splits stay where they are.
    let n_bytes = (0..n).map(|to| rows(me, to)).sum::<u64>() * wide * form.dtype.size() as u64;
    let input = load.places.as_ref().map_or(&[][..], |p| &p[0].input().bytes()[..n_bytes as usize]);
    let layout = Layout::Matrix { n_ranks: n as u32, matrix };
    let ask = Ask { op: CollectiveOp::Alltoall, layout, dtype: form.dtype, reduce: None };
    comm.call(ask, Hands::Apart { input, output: output.bytes_mut() })?;
    load.made.push(output);
    load.received = received;
    Ok(())
}
