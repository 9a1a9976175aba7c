//! IBM DDL's functions: `phalanx run -np 4 -- target/release/examples/ddl "-mode n:4"`; on 3 hosts of 4 ranks, "-mode n:4x3".

use phalanx::{
    ReduceOp,
    ddl::{Ddl, DdlError, Manner, Tolerance},
};

fn main() -> Result<(), DdlError> {
    let options = std::env::args().nth(1).unwrap_or_default();
    let mut ddl = Ddl::init(None, &options)?;
    let (rank, size) = (ddl.rank().0, ddl.size());

    let mut weights = vec![rank as f32; 1000];
    ddl.bcast("weights", &mut weights)?;
    assert!(weights.iter().all(|w| *w == 0.0), "rank 0's values are everybody's");

    let checked = Manner { check: Some(Tolerance { rtol: 1e-6, atol: None }), ..Manner::default() };
    let mut gradients = vec![rank as f32 + 1.0; 100_000];
    ddl.allreduce("gradients", &mut gradients, ReduceOp::Average, checked)?;
    assert_eq!(gradients[0], (size + 1) as f32 / 2.0);

    let (mut a, mut b) = (vec![1.0f64; 10], vec![2.0f64; 20]);
    ddl.allreduce_n("small", &mut [&mut a, &mut b], ReduceOp::Sum, Manner::default())?;
    assert_eq!((a[0], b[0]), (f64::from(size), 2.0 * f64::from(size)));

    if rank == 0 {
        let shape = ddl.grid().tiers();
        println!("{size} ranks as {shape}: all results are right");
    }
    ddl.finalize()
}
