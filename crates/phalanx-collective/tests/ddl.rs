//! DDL's functions on ranks of several hosts: what `check` finds, what differs between ranks, what is refused.

use crate::support::run_owners;
use half::{bf16, f16};
use phalanx_collective::{
    Communicator, Scale,
    ddl::{CheckError, Ddl, DdlError, DdlWish, Manner, Tolerance, UsedWays, wire},
    engine::{Engine, EngineTensor, Request},
};
use phalanx_core::{DType, Element, Rank, ReduceOp};
use std::path::PathBuf;

fn wish(options: &str) -> DdlWish<'_> {
    DdlWish { options, ..DdlWish::default() }
}

/// A number that depends on nothing but its place in a sequence.
fn mixed(seed: u64, i: u64) -> u64 {
    let mut x = (seed << 32 | i).wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("phalanx-ddl-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&path).expect("the folder of a test");
    path
}

fn checked(rtol: f64) -> Manner {
    Manner { check: Some(Tolerance { rtol, atol: None }), ..Manner::default() }
}

fn fault(result: Result<(), DdlError>) -> CheckError {
    match result.expect_err("a wrong result is an error") {
        DdlError::Check(error) => error,
        other => panic!("{other}"),
    }
}

/// JUDGE-2: whichever rank, message and bit it is, on the way up or down.
#[test]
fn a_bit_that_is_turned_on_one_ranks_wire_is_found_by_all_ranks_100_times_of_100() {
    let (dumps, seed) = (folder("bits"), 16);
    let into = dumps.clone();
    let found = run_owners(&[2, 2], &[("PHALANX_ENCRYPT", "never")], move |mut comm| {
        let (fault_at, me) = (comm.wire_fault(), comm.rank());
        let mut ddl = Ddl::over(comm, &wish("-mode n:2x2")).unwrap();
        ddl.dump_into(into.clone());
        let path = into.join(format!("ddl.dump{:03}", me.0));
        (0..100u64)
            .map(|turn| {
                // Sums of small integers are exact in any order: any other bit is wrong.
                let mut data: Vec<i32> = (0..5000).map(|i| i % 100 + me.0 as i32).collect();
                let _ = std::fs::remove_file(&path);
                if mixed(seed, turn) % 4 == u64::from(me.0) {
                    fault_at.turn(mixed(seed, 1000 + turn) % (1 << 40));
                }
                let error = fault(ddl.allreduce(&format!("t{turn}"), &mut data, ReduceOp::Sum, checked(0.0)));
                assert!(fault_at.is_done());
                let dump = std::fs::read_to_string(&path).expect("every rank writes a dump");
                let tensor = format!("\"tensor\":\"t{turn}\"");
                assert!(dump.lines().next().is_some_and(|line| line.contains(&tensor)), "{dump}");
                // What was wrong is over; the next one is right.
                let mut next = vec![1i32; 5000];
                ddl.allreduce("next", &mut next, ReduceOp::Sum, checked(0.0)).unwrap();
                assert_eq!(next[4999], 4);
                error
            })
            .collect::<Vec<CheckError>>()
    });
    assert!(found.iter().all(|all| *all == found[0]), "seed {seed}");
    assert_eq!(found[0].len(), 100);
    std::fs::remove_dir_all(dumps).expect("the folder of the test");
}

#[test]
fn zeros_pass_nan_names_its_rank_and_a_dump_that_cannot_be_written_changes_nothing() {
    let errors = run_owners(&[2, 1], &[], |comm| {
        let me = comm.rank().0;
        let mut ddl = Ddl::over(comm, &wish("-mode r:3")).unwrap();
        ddl.dump_into("/proc/no/such/folder");
        let mut zeros = [0.0f32; 9];
        ddl.allreduce("zeros", &mut zeros, ReduceOp::Average, checked(1e-9)).unwrap();
        let said = ddl.report().baseline.expect("a check has run");
        assert!(
            said.starts_with("all inputs gathered and reduced as f64 in rank order; not MPI: "),
            "{said}"
        );
        let mut data = [1.0f32, if me == 2 { f32::NAN } else { 2.0 }];
        let error = fault(ddl.allreduce("bad", &mut data, ReduceOp::Sum, checked(0.5)));
        ddl.finalize().unwrap();
        (error.index, error.nan_from, error.rank)
    });
    assert_eq!(errors, vec![(1, Some(Rank(2)), Rank(0)); 3], "JUDGE-2");
}

/// A check that only some ranks ask for must not leave them waiting for the others.
#[test]
fn a_check_on_one_rank_only_is_an_error_on_all_and_the_world_goes_on() {
    let said = run_owners(&[2, 1], &[], |comm| {
        let me = comm.rank().0;
        let mut ddl = Ddl::over(comm, &wish("")).unwrap();
        let manner = if me == 1 { checked(0.17) } else { Manner::default() };
        let wrong = ddl.allreduce("w", &mut [1.0f32; 4], ReduceOp::Sum, manner).unwrap_err().to_string();
        let mut data = [1.0f32; 4];
        ddl.allreduce("w", &mut data, ReduceOp::Sum, checked(0.17)).unwrap();
        (wrong, data[3])
    });
    for (wrong, sum) in said {
        assert_eq!(sum, 3.0);
        assert_eq!(
            wrong,
            "ddl.allreduce.w: Mismatched checks: rank 0 has no check, but rank 1 has check 0.17",
        );
    }
}

/// ENTER-1.
#[test]
fn mpi_that_is_not_there_is_refused_on_all_ranks_and_the_world_goes_on() {
    let refused = |settings: &[(&'static str, &str)]| {
        run_owners(&[2, 1], settings, |mut comm| {
            let mode = wire(&mut comm, &wish("-mode m:3")).unwrap_err().to_string();
            let mut ddl = Ddl::over(comm, &wish("")).unwrap();
            let manner = Manner { mpi: true, ..Manner::default() };
            let call = ddl.allreduce("w", &mut [1i64; 2], ReduceOp::Sum, manner).unwrap_err().to_string();
            let mut data = [1i64; 2];
            ddl.allreduce("w", &mut data, ReduceOp::Sum, Manner::default()).unwrap();
            assert_eq!(data, [3; 2]);
            (mode, call)
        })
    };
    let not_mpi = "libm.so.6 is not an MPI library: it has no MPI_Get_library_version. \
                   Name libmpi.so.40 of Open MPI or libmpich.so.12 of MPICH in PHALANX_MPI_LIB";
    let no_launcher = "no MPI started this process: start it with mpirun of Open MPI or mpiexec of MPICH, \
                       or name the library in PHALANX_MPI_LIB";
    for (settings, why) in [(&[("PHALANX_MPI_LIB", "libm.so.6")][..], not_mpi), (&[], no_launcher)] {
        for (mode, call) in refused(settings) {
            assert_eq!(mode, format!("-mode m needs MPI: MPI cannot be used: {why} (rank 0)"));
            assert_eq!(call, format!("Manner {{ mpi: true }} needs MPI: MPI cannot be used: {why} (rank 0)"));
        }
    }
}

/// A world of one enters MPI without its launcher. What one Init asked of MPI does not stay for the next.
#[test]
fn another_shape_on_the_same_communicator_is_not_mpis_any_more() {
    run_owners(&[1], &[("PHALANX_MPI_LIB", "libmpich.so.12")], |mut comm| {
        let used = |comm: &mut Communicator, options: &str| {
            let (_, wiring) = wire(comm, &wish(options))?;
            Ok::<_, DdlError>(UsedWays::new(comm, &wiring).now())
        };
        match used(&mut comm, "-mode m:1") {
            Err(why) if why.to_string().contains("libmpich.so.12 cannot be loaded") => {
                eprintln!("SKIPPED: there is no libmpich.so.12 here; `apt-get install mpich` brings it");
                return;
            }
            first => assert_eq!(first.unwrap(), ["mpi"]),
        }
        assert_eq!(used(&mut comm, "-mode r:1").unwrap(), ["ring"]);
        assert_eq!(used(&mut comm, "-mode m:1x1").unwrap(), ["mpi", "mpi"]);
        comm.unwire();
        assert!(!comm.climbs_by_mpi(), "neither after its end");
        // Factors and a narrower type on the way are applied around MPI's call.
        wire(&mut comm, &wish("-mode m:1")).unwrap();
        let engine = Engine::start(comm).unwrap();
        let request =
            Request::allreduce(EngineTensor::new(vec![1.0f32, 1.0 / 3.0])).name("w").op(ReduceOp::Sum);
        let request = request.scale(0.5, 8.0).compress(DType::F16);
        let sum = engine.submit(request).unwrap().wait().unwrap().tensor().unwrap();
        let third = f16::from_f32(f16::from_f32(1.0 / 3.0).to_f32() / 2.0).to_f32() * 8.0;
        assert_eq!(sum.as_slice::<f32>().unwrap(), [4.0, third]);
        engine.shutdown().unwrap();
    });
}

#[test]
fn a_new_init_counts_anew_and_reports_show_what_is_used() {
    run_owners(&[2, 2, 2], &[], |mut comm| {
        let reduce = |comm: &mut Communicator| {
            comm.allreduce(&mut [1.0f32; 60_000], ReduceOp::Sum).unwrap();
            comm.traffic().iter().map(|t| t.bytes).sum::<u64>()
        };
        for (options, used) in [
            ("-mode n:2x3", "arena,ring"),
            ("-mode n:3x2", "ring,ring"),
            ("-mode c:2x3", "halving,ring"),
            ("-mode b:2x3", "arena,ring"),
            ("", "ring"),
        ] {
            let (_, wiring) = wire(&mut comm, &wish(options)).unwrap();
            assert_eq!(UsedWays::new(&comm, &wiring).now().join(","), used, "{options}");
            assert_eq!(
                comm.traffic().iter().map(|t| t.bytes).sum::<u64>(),
                0,
                "{options}: counts since init"
            );
            let (once, twice) = (reduce(&mut comm), reduce(&mut comm));
            assert!(once > 0 && twice == 2 * once, "{options}");
        }
    });
}

#[test]
fn on_one_host_rings_that_were_asked_for_go_over_links() {
    run_owners(&[4], &[], |mut comm| {
        for (options, plan, used, over_links) in [
            ("", "arena-split", "arena", false),
            ("-mode n:2x2", "arena-split", "arena,arena", false),
            ("-mode r:4", "tiers", "ring", true),
            ("-mode c:2x2", "tiers", "halving,halving", true),
        ] {
            let (_, wiring) = wire(&mut comm, &wish(options)).unwrap();
            assert_eq!(UsedWays::new(&comm, &wiring).now().join(","), used, "{options}");
            // Memory of the host and of its own: both are refused by nothing.
            let mut shared = comm.alloc::<f32>(50_000).unwrap();
            let mut own = vec![1.0f32; 50_000];
            shared.fill(1.0);
            let data: &mut [f32] = if comm.rank().0 == 0 { &mut shared } else { &mut own };
            comm.allreduce(data, ReduceOp::Sum).unwrap();
            assert_eq!((data[0], data[49_999]), (4.0, 4.0), "{options}");
            assert_eq!(comm.last_plan(), plan, "{options}");
            assert_eq!(comm.traffic()[0].bytes > 0, over_links, "{options}");
        }
    });
}

/// A recorded algorithm, and one that autotuning would try, do not replace a shape.
#[test]
fn autotuning_leaves_a_shape_alone() {
    let log = folder("tune").join("log.csv");
    let text = "sample,fusion_bytes,segment_bytes,algorithm,steps,bytes_per_us,best\n\
                settled,8388608,131072,halving,12,1.0,1\n";
    std::fs::write(&log, text).unwrap();
    let path = log.to_str().expect("the name of a temporary file");
    run_owners(&[2, 2], &[("PHALANX_AUTOTUNE", path), ("PHALANX_TIERS", "2x2")], |comm| {
        let meter = comm.meter();
        let engine = Engine::start(comm).unwrap();
        let before = meter.read()[1].bytes;
        for step in 0..3 {
            let tensor = EngineTensor::new(vec![1.0f32; 100_000]);
            let request = Request::allreduce(tensor).name(format!("t{step}")).op(ReduceOp::Sum);
            engine.submit(request).unwrap().wait().unwrap();
        }
        // Each rank sends its half of the vector's half and the sum of the other: half of the vector, between hosts.
        assert_eq!(meter.read()[1].bytes - before, 3 * 100_000 * 4 / 2);
        engine.shutdown().unwrap();
    });
    std::fs::remove_dir_all(log.parent().unwrap()).expect("the folder of the test");
}

/// Where every element is added in the order of ranks, others may cut sums as they like.
#[test]
fn a_shape_that_ddl_was_given_adds_in_an_order_of_its_own() {
    let said = run_owners(&[4], &[], |comm| {
        let engine = Engine::start(comm).unwrap();
        let plain = engine.sums_by_rank();
        let mut comm = engine.shutdown().unwrap();
        wire(&mut comm, &wish("-mode r:4")).unwrap();
        let engine = Engine::start(comm).unwrap();
        let shaped = engine.sums_by_rank();
        engine.shutdown().unwrap();
        (plain, shaped)
    });
    assert_eq!(said, [(true, false); 4]);
}

fn element(dtype: DType, x: f64) -> Vec<u8> {
    match dtype {
        DType::U8 => vec![x as u8],
        DType::I8 => vec![x as i8 as u8],
        DType::Bool => vec![u8::from(x != 0.0)],
        DType::U16 => (x as u16).to_ne_bytes().to_vec(),
        DType::I16 => (x as i16).to_ne_bytes().to_vec(),
        DType::I32 => (x as i32).to_ne_bytes().to_vec(),
        DType::I64 => (x as i64).to_ne_bytes().to_vec(),
        DType::F16 => f16::from_f64(x).to_ne_bytes().to_vec(),
        DType::BF16 => bf16::from_f64(x).to_ne_bytes().to_vec(),
        DType::F32 => (x as f32).to_ne_bytes().to_vec(),
        DType::F64 => x.to_ne_bytes().to_vec(),
    }
}

/// Values whose reductions every type holds exactly, so that the reference in `f64` is exact, too.
#[test]
fn every_type_and_size_gives_what_f64_gives() {
    let brought = |r: u32, i: usize| ((i * 7 + r as usize * 5) % 3 + 1) as f64;
    run_owners(&[2, 2], &[], move |mut comm| {
        wire(&mut comm, &wish("-mode n:2x2")).unwrap();
        let me = comm.rank().0;
        for dtype in DType::ALL {
            for len in [0, 1, 7, 12, 1_000_003] {
                for op in ReduceOp::ALL {
                    let is_long = len > 12 && !matches!(op, ReduceOp::Sum | ReduceOp::Max);
                    if is_long || op.check(dtype, 1.0, 1.0).is_err() {
                        continue;
                    }
                    let want = |i: usize| {
                        let all = (0..4).map(|r| if dtype == DType::Bool { 1.0 } else { brought(r, i) });
                        match op {
                            ReduceOp::Sum => all.sum(),
                            ReduceOp::Average if dtype.is_float() => all.sum::<f64>() / 4.0,
                            ReduceOp::Average => (all.sum::<f64>() / 4.0).trunc(),
                            ReduceOp::Min => all.fold(f64::INFINITY, f64::min),
                            ReduceOp::Max => all.fold(0.0, f64::max),
                            ReduceOp::Product => all.product(),
                        }
                    };
                    // Every third element is the same.
                    let all = |of: &dyn Fn(usize) -> f64| -> Vec<u8> {
                        let three: Vec<u8> = (0..3).flat_map(|i| element(dtype, of(i))).collect();
                        three.iter().copied().cycle().take(len * dtype.size()).collect()
                    };
                    let mut data = all(&|i| brought(me, i));
                    comm.allreduce_bytes(&mut data, dtype, op, Scale::default()).unwrap();
                    assert!(data == all(&want), "{op} of {len} {dtype}");
                }
            }
        }
    });
}

fn in_any_order<T: Element>(seed: u64, tensors: &[T]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    for i in (1..order.len()).rev() {
        order.swap(i, (mixed(seed, i as u64) % (i as u64 + 1)) as usize);
    }
    order
}

#[test]
fn two_hundred_ragged_tensors_at_once_equal_two_hundred_calls_in_any_order() {
    let equal = run_owners(&[2, 2], &[], |mut comm| {
        wire(&mut comm, &wish("-mode n:2x2")).unwrap();
        let me = comm.rank().0;
        let engine = Engine::start(comm).unwrap();
        let value = |t: usize, i: usize| ((t * 31 + i * 7 + me as usize * 3) % 64) as f32;
        let length = |t: usize| (t * t * 13) % 3001;
        let vector = |t: usize| EngineTensor::new((0..length(t)).map(|i| value(t, i)).collect::<Vec<f32>>());
        let together =
            Request::grouped_allreduce((0..200).map(vector).collect()).name("all").op(ReduceOp::Sum);
        let together = engine.submit(together).unwrap().wait().unwrap().tensors;
        // Every rank in an order of its own.
        let order = in_any_order(u64::from(me), &[0u8; 200]);
        let handles: Vec<_> = order
            .iter()
            .map(|&t| {
                let request = Request::allreduce(vector(t)).name(format!("t{t}")).op(ReduceOp::Sum);
                (t, engine.submit(request).unwrap())
            })
            .collect();
        let n_equal = handles
            .into_iter()
            .map(|(t, handle)| (t, handle.wait().unwrap().tensor().unwrap()))
            .filter(|(t, alone)| alone.bytes() == together[*t].bytes())
            .count();
        engine.shutdown().unwrap();
        n_equal
    });
    assert_eq!(equal, vec![200; 4]);
}
