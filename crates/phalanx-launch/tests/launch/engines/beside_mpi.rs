//! MPI and a world in one process, in either order: both use the launcher's one session.

use super::{Site, hydra, open_mpi, slurm::Slurm};
use crate::launch::support::{Done, finish};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LAZY};
use phalanx_net::World;
use std::{env, ffi::c_void, process::Command, ptr};

type InitFn = unsafe extern "C" fn(*mut c_void, *mut c_void) -> i32;
type FinalizeFn = unsafe extern "C" fn() -> i32;

/// What a rank of these tests runs: `PHALANX_TEST_ORDER` has a letter for each step. j: joins a world, m: `MPI_Init`, f: `MPI_Finalize`.
#[test]
fn rank_beside_mpi() {
    let (Ok(order), Ok(path)) = (env::var("PHALANX_TEST_ORDER"), env::var("PHALANX_TEST_MPI")) else {
        return;
    };
    // SAFETY: the initialisers of an MPI library are meant to run in any process. Global, because its plugins look for its names.
    let mpi = unsafe { Library::open(Some(&path), RTLD_LAZY | RTLD_GLOBAL) }.expect("the MPI library loads");
    for step in order.chars() {
        let failed = match step {
            'j' => {
                let world = World::from_env().unwrap_or_else(|e| panic!("{order}: {e}"));
                println!("rank {} of {} joined", world.rank(), world.n_ranks());
                0
            }
            'm' => {
                // SAFETY: the function has this type in every MPI, and takes null for both arguments.
                let init = unsafe { mpi.get::<InitFn>(b"MPI_Init\0") }.expect("MPI has it");
                // SAFETY: as above; it is called once.
                unsafe { init(ptr::null_mut(), ptr::null_mut()) }
            }
            _ => {
                // SAFETY: the function has this type in every MPI.
                let finalize = unsafe { mpi.get::<FinalizeFn>(b"MPI_Finalize\0") }.expect("MPI has it");
                // SAFETY: as above; it is called once, after `MPI_Init`.
                unsafe { finalize() }
            }
        };
        assert_eq!(failed, 0, "{order}: {step}");
    }
    println!("did {order}");
    std::mem::forget(mpi);
}

/// Ranks that take these steps.
fn steps(mut launcher: Command, mpi: &str, order: &str) -> Done {
    launcher.env("PHALANX_TEST_ORDER", order).env("PHALANX_TEST_MPI", mpi);
    launcher.arg(env::current_exe().expect("this program has a path"));
    launcher.args(["--exact", "launch::engines::beside_mpi::rank_beside_mpi", "--nocapture"]);
    finish(&mut launcher)
}

/// All four ranks took these steps.
fn run(launcher: Command, mpi: &str, order: &str) -> Done {
    let done = steps(launcher, mpi, order);
    assert_eq!(done.code, Some(0), "{order}: {done:?}");
    assert_eq!(done.stdout.matches(&format!("did {order}")).count(), 4, "{order}: {done:?}");
    assert_eq!(
        done.stdout.matches(" of 4 joined").count(),
        4 * order.matches('j').count(),
        "{order}: {done:?}"
    );
    done
}

#[test]
fn mpich_works_before_and_after_ranks_have_met() {
    let Some(site) = Site::open("i", &hydra::NEEDS) else { return };
    for order in ["jmf", "mjf", "jjmf", "jj"] {
        run(hydra::mpiexec(&site, "10.78.0.1:2,10.78.0.2:2"), "libmpich.so.12", order);
    }
}

#[test]
fn open_mpi_works_before_and_after_ranks_have_met() {
    let Some(site) = Site::open("p", &open_mpi::NEEDS) else { return };
    for order in ["jmf", "mjf", "mjfj", "jj"] {
        let mut mpirun = open_mpi::mpirun(&site, "10.78.0.1:2,10.78.0.2:2");
        mpirun.args(["--mca", "btl_tcp_if_include", "eth0"]);
        let done = run(mpirun, "libmpi.so.40", order);
        assert!(!done.stderr.contains("exiting improperly"), "RDZV-4: {order}: {done:?}");
    }
}

#[test]
fn slurm_serves_several_libraries_by_pmix_and_one_by_pmi_2() {
    let Some(slurm) = Slurm::start("q", &[hydra::NEEDS[0], open_mpi::NEEDS[0]]) else { return };
    let srun = |mpi: &str| {
        let mut srun = slurm.command("srun");
        srun.args(["-Q", "-N2", "-n4", mpi]);
        srun
    };
    for order in ["jmf", "mjf", "jj"] {
        run(srun("--mpi=pmix"), "libmpi.so.40", order);
    }
    run(srun("--mpi=pmi2"), "libmpich.so.12", "jj");
    let mut second = srun("--mpi=pmi2");
    second.args(["sh", "-c", "exec \"$@\" 2>\"$0.$SLURM_PROCID\"", &slurm.site.words()]);
    assert_ne!(steps(second, "libmpich.so.12", "mj").code, Some(0));
    assert_eq!(slurm.site.n_said("MPI of this process has begun to use it"), 4);
}
