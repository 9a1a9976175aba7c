//! The library under its own launcher, Open MPI's and MPICH's: every type and reduction against a serial one. Both are skipped, loudly, where absent.

use half::{bf16, f16};
use phalanx_core::{DType, Rank, ReduceOp};
use phalanx_mpi::{Mpi, MpiError, TierPlace};
use std::{
    env,
    process::{Command, Output},
    sync::Arc,
    time::Duration,
};

const LIMIT: Duration = Duration::from_secs(50);

/// One number as an element of this type; every type holds it exactly.
fn element(dtype: DType, x: i64) -> Vec<u8> {
    match dtype {
        DType::U8 => vec![x as u8],
        DType::I8 => vec![x as i8 as u8],
        DType::Bool => vec![u8::from(x != 0)],
        DType::U16 => (x as u16).to_ne_bytes().to_vec(),
        DType::I16 => (x as i16).to_ne_bytes().to_vec(),
        DType::I32 => (x as i32).to_ne_bytes().to_vec(),
        DType::I64 => x.to_ne_bytes().to_vec(),
        DType::F16 => f16::from_f64(x as f64).to_ne_bytes().to_vec(),
        DType::BF16 => bf16::from_f64(x as f64).to_ne_bytes().to_vec(),
        DType::F32 => (x as f32).to_ne_bytes().to_vec(),
        DType::F64 => (x as f64).to_ne_bytes().to_vec(),
    }
}

/// What rank `r` of 4 brings at place `i`: sums are multiples of 4, so that averages are whole.
fn brought(r: u32, i: usize) -> i64 {
    (i % 3) as i64 + if r.is_multiple_of(2) { 1 } else { 3 }
}

fn reduced(dtype: DType, op: ReduceOp, n: u32, i: usize) -> i64 {
    let all =
        (0..n).map(|r| if dtype == DType::Bool { i64::from(brought(r, i) != 0) } else { brought(r, i) });
    match op {
        ReduceOp::Sum if dtype == DType::Bool => all.max(),
        ReduceOp::Sum => Some(all.sum()),
        ReduceOp::Average => Some(all.sum::<i64>() / i64::from(n)),
        ReduceOp::Min => all.min(),
        ReduceOp::Max => all.max(),
        ReduceOp::Product => Some(all.product()),
    }
    .expect("there are ranks")
}

fn load() -> Result<Mpi, MpiError> {
    Mpi::load(None, Arc::new(|waited| waited < LIMIT))
}

/// What a rank of these tests runs; `PHALANX_TEST_MPI` says what.
#[test]
fn rank_under_mpi() {
    let Ok(what) = env::var("PHALANX_TEST_MPI") else { return };
    let number = |names: [&str; 2]| names.iter().find_map(|name| env::var(name).ok()?.parse().ok());
    let rank: u32 = number(["OMPI_COMM_WORLD_RANK", "PMI_RANK"]).expect("the launcher says it");
    let n: u32 = number(["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"]).expect("the launcher says it");
    let mut mpi = load().expect("the launcher's library is there");
    if what == "other" {
        println!("says: {}", mpi.begin(Rank(rank), n + 1).unwrap_err());
        return;
    }
    mpi.begin(Rank(rank), n).expect("MPI begins");
    mpi.separate().expect("all ranks have begun");
    println!("version: {}", mpi.version());
    // A shape of 2x2: neighbours, then those with the same place.
    let tiers = [(rank / 2, rank % 2), (rank % 2, rank / 2)];
    mpi.lay(tiers.map(|(color, place)| TierPlace { color, place }).to_vec()).expect("groups");
    let mut n_compared = 0;
    for dtype in DType::ALL {
        for op in ReduceOp::ALL {
            for len in [0, 1, 7, 12, 1003] {
                let mut data: Vec<u8> = (0..len).flat_map(|i| element(dtype, brought(rank, i))).collect();
                if op.check(dtype, 1.0, 1.0).is_err() {
                    assert!(matches!(mpi.allreduce(&mut data, dtype, op), Err(MpiError::Op(_))));
                    continue;
                }
                let want: Vec<u8> = (0..len).flat_map(|i| element(dtype, reduced(dtype, op, n, i))).collect();
                let mut along = data.clone();
                mpi.allreduce(&mut data, dtype, op).expect("MPI reduces");
                mpi.allreduce_along(&mut along, dtype, op).expect("MPI reduces along tiers");
                assert_eq!(data, want, "MPI-3: {op} of {len} {dtype}");
                assert_eq!(along, want, "MPI-3: {op} of {len} {dtype} along tiers");
                n_compared += 1;
            }
        }
    }
    drop(mpi);
    // MPI-2: it was begun here, so it is over now, and says so.
    let again = load().expect("it is loaded").begin(Rank(rank), n).unwrap_err();
    println!("compared {n_compared}; then: {again}");
}

fn run(launcher: &str, args: &[&str], package: &str, what: &str) -> Option<Output> {
    if !env::split_paths(&env::var_os("PATH").unwrap_or_default()).any(|dir| dir.join(launcher).exists()) {
        eprintln!("SKIPPED: there is no {launcher} here; `apt-get install {package}` brings it");
        return None;
    }
    let mut command = Command::new(launcher);
    command.args(args).arg(env::current_exe().expect("this program has a path"));
    command.args(["--exact", "rank_under_mpi", "--nocapture"]).env("PHALANX_TEST_MPI", what);
    Some(command.output().expect("the launcher starts"))
}

fn check(launcher: &str, args: &[&str], package: &str, version: &str, library: &str) {
    let Some(done) = run(launcher, args, package, "reduce") else { return };
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{done:?}");
    assert_eq!(said.matches(version).count(), 4, "{said}");
    // 54 pairs of type and reduction, five lengths.
    let after = "compared 270; then: MPI of this process has been finalised, and cannot start again";
    assert_eq!(said.matches(after).count(), 4, "{said}");
    let other = run(launcher, args, package, "other").expect("it was there");
    let said = String::from_utf8_lossy(&other.stdout);
    for rank in 0..4 {
        let says = format!(
            "says: MPI has other ranks: this process is rank {rank} of 4 there, but rank {rank} of 5 here; start all ranks with one mpirun of {library}"
        );
        assert!(said.contains(&says), "MPI-2: {said}");
    }
}

/// MPI-2, MPI-3.
#[test]
fn open_mpi_reduces_every_type_as_we_do() {
    let args = ["--allow-run-as-root", "--oversubscribe", "-n", "4"];
    check("mpirun.openmpi", &args, "openmpi-bin", "version: Open MPI", "libmpi.so.40");
}

/// MPI-2, MPI-3.
#[test]
fn mpich_reduces_every_type_as_we_do() {
    check("mpiexec.hydra", &["-n", "4"], "mpich", "version: MPICH Version", "libmpich.so.12");
}
