//! Every rank says hello and the ranks add up their numbers: `phalanx run -np 4 -- target/release/examples/hello`.

use phalanx::{Communicator, ReduceOp};

fn main() -> Result<(), phalanx::Error> {
    let mut comm = Communicator::from_env()?;
    let (rank, size) = (comm.rank().0, comm.size());
    println!(
        "hello from rank {rank} of {size}: number {} of {} on host {} of {}",
        comm.local_rank(),
        comm.local_size(),
        comm.topology().host_of(comm.rank()),
        comm.topology().n_hosts()
    );

    let mut sum = [i64::from(rank)];
    comm.allreduce(&mut sum, ReduceOp::Sum)?;
    assert_eq!(sum[0], i64::from(size) * (i64::from(size) - 1) / 2);
    if rank == 0 {
        println!("0 + ... + {} = {}", size - 1, sum[0]);
    }
    comm.barrier()
}
