//! Every operation, alone and in company, once and again.

use super::{everywhere, floats, on};
use half::{bf16, f16};
use phalanx_collective::engine::{Engine, EngineTensor, Request, Sparse};
use phalanx_core::{DType, Element, Rank, ReduceOp};

fn me(engine: &Engine) -> (usize, usize) {
    (engine.rank().index(), engine.size() as usize)
}

#[test]
fn tensors_submitted_in_any_order_meet_by_name_step_after_step() {
    everywhere(|engine| {
        let (me, n) = me(engine);
        for step in 0..30 {
            // Every rank has an order of its own; sizes on both sides of every threshold.
            let sizes = [1usize, 7, 1000, 20_000, 70_000, 300_000];
            let mut handles = Vec::new();
            for k in 0..sizes.len() {
                let i = (k * 5 + me * 3 + step) % sizes.len();
                let data = vec![(me + i + step) as f32; sizes[i]];
                let request = Request::allreduce(EngineTensor::new(data)).name(format!("t{i}"));
                handles.push((i, engine.submit(request).unwrap()));
            }
            for (i, handle) in handles {
                let want = (0..n).map(|r| (r + i + step) as f32).sum::<f32>();
                let got = floats(handle);
                assert!(got.len() == sizes[i] && got.iter().all(|x| *x == want), "step {step}, tensor {i}");
            }
        }
        let counters = engine.counters();
        assert_eq!(counters.operations, 180);
        assert!(counters.replayed > 60, "steps that repeat are replayed: {counters:?}");
        assert!(counters.fused_batches > 0, "small tensors travel together: {counters:?}");
    });
}

#[test]
fn groups_come_together_or_not_at_all() {
    everywhere(|engine| {
        let (me, n) = me(engine);
        for _ in 0..5 {
            let tensors = vec![
                EngineTensor::new(vec![1.0f32; 100_000]),
                EngineTensor::new(vec![me as i64; 3]),
                EngineTensor::new(vec![2.0f64; 5]),
            ];
            let request = Request::grouped_allreduce(tensors).name("group").op(ReduceOp::Average);
            let outcome = engine.submit(request).unwrap().wait().unwrap();
            let mut tensors = outcome.tensors.into_iter();
            assert_eq!(tensors.next().and_then(EngineTensor::into_vec::<f32>), Some(vec![1.0; 100_000]));
            let sum = (n * (n - 1) / 2 / n) as i64;
            assert_eq!(tensors.next().and_then(EngineTensor::into_vec::<i64>), Some(vec![sum; 3]));
            assert_eq!(tensors.next().and_then(EngineTensor::into_vec::<f64>), Some(vec![2.0; 5]));
        }
    });
}

#[test]
fn uneven_rows_are_gathered_in_rank_order() {
    everywhere(|engine| {
        let (me, n) = me(engine);
        for wide in [1u64, 3, 50_000] {
            for round in 0..4 {
                let rows = (me as u64 + round) % 3;
                let tensor =
                    EngineTensor::shaped(vec![me as i32; (rows * wide) as usize], vec![rows, wide]).unwrap();
                let small = EngineTensor::shaped(vec![me as u8 + 1], vec![1, 1]).unwrap();
                let request = Request::grouped_allgather(vec![tensor, small]).name("gather");
                let outcome = engine.submit(request).unwrap().wait().unwrap();
                let want: Vec<i32> =
                    (0..n).flat_map(|r| vec![r as i32; ((r as u64 + round) % 3 * wide) as usize]).collect();
                assert_eq!(outcome.tensors[0].shape(), [want.len() as u64 / wide, wide]);
                assert_eq!(outcome.tensors[0].as_slice::<i32>().unwrap(), want);
                let ones: Vec<u8> = (1..=n as u8).collect();
                assert_eq!(outcome.tensors[1].as_slice::<u8>().unwrap(), ones);
            }
        }
    });
}

#[test]
fn broadcasts_of_many_types_travel_together() {
    everywhere(|engine| {
        let (me, n) = me(engine);
        let root = Rank::at(n - 1);
        for step in 0..6 {
            let mut handles = Vec::new();
            for i in 0..8u8 {
                let tensor = match i % 2 {
                    0 => EngineTensor::new(vec![me as f32 + f32::from(i); 5 + usize::from(i) * 20_000]),
                    _ => EngineTensor::new(vec![me as i8; 3]),
                };
                handles.push(engine.submit(Request::broadcast(tensor, root).name(format!("p{i}"))).unwrap());
            }
            for (i, handle) in handles.into_iter().enumerate() {
                let tensor = handle.wait().unwrap().tensor().unwrap();
                match i % 2 {
                    0 => assert!(tensor.as_slice::<f32>().unwrap().iter().all(|x| *x == (n - 1 + i) as f32)),
                    _ => assert_eq!(tensor.into_vec::<i8>().unwrap(), [n as i8 - 1; 3], "step {step}"),
                }
            }
        }
    });
}

#[test]
fn rows_are_swapped_with_splits_and_without() {
    everywhere(|engine| {
        let (me, n) = me(engine);
        for wide in [1u64, 9000] {
            // Rank p sends q rows to rank q, and keeps one that nobody gets.
            let rows = (0..n as u64).sum::<u64>() + 1;
            let data = (0..rows * wide).map(|i| (me as u64 * 1000 + i / wide) as i64).collect::<Vec<_>>();
            let tensor = EngineTensor::shaped(data, vec![rows, wide]).unwrap();
            let splits = Some((0..n as u64).collect());
            let outcome =
                engine.submit(Request::alltoall(tensor, splits).name("swap")).unwrap().wait().unwrap();
            assert_eq!(outcome.received, vec![me as u64; n]);
            let begin: u64 = (0..me as u64).sum();
            let row = |r: u64, k: u64| vec![(r * 1000 + begin + k) as i64; wide as usize];
            let want: Vec<i64> =
                (0..n as u64).flat_map(|r| (0..me as u64).flat_map(move |k| row(r, k))).collect();
            assert_eq!(outcome.tensor().and_then(EngineTensor::into_vec::<i64>), Some(want));
        }
        let tensor = EngineTensor::shaped(vec![me as f32; 2 * n], vec![2 * n as u64]).unwrap();
        let got = floats(engine.submit(Request::alltoall(tensor, None)).unwrap());
        assert_eq!(got, (0..n).flat_map(|r| [r as f32; 2]).collect::<Vec<_>>());
    });
}

#[test]
fn rows_are_reduced_and_scattered_with_more_for_the_first() {
    everywhere(|engine| {
        let (me, n) = me(engine);
        for (rows, wide) in [(5u64, 3u64), (1, 2), (n as u64 * 2, 40_000)] {
            let data: Vec<f32> = (0..rows * wide).map(|i| (i / wide) as f32 + me as f32).collect();
            let tensors = vec![
                EngineTensor::shaped(data, vec![rows, wide]).unwrap(),
                EngineTensor::shaped(vec![1i32; n], vec![n as u64]).unwrap(),
                EngineTensor::shaped(vec![0.5f32; n * 2], vec![n as u64, 2]).unwrap(),
            ];
            let request = Request::grouped_reducescatter(tensors).name("scatter").scale(2.0, 0.5);
            let outcome = engine.submit(request).unwrap().wait().unwrap();
            let share = |r: u64| rows / n as u64 + u64::from(r < rows % n as u64);
            let first: u64 = (0..me as u64).map(share).sum();
            let ranks: f32 = (0..n).map(|r| r as f32).sum();
            let want: Vec<f32> = (first * wide..(first + share(me as u64)) * wide)
                .map(|i| n as f32 * (i / wide) as f32 + ranks)
                .collect();
            assert_eq!(outcome.tensors[0].as_slice::<f32>().unwrap(), want);
            assert_eq!(outcome.tensors[1].as_slice::<i32>().unwrap(), [n as i32]);
            assert_eq!(outcome.tensors[2].as_slice::<f32>().unwrap(), [0.5 * n as f32; 2]);
        }
    });
}

#[test]
fn rows_are_reduced_and_scattered_as_they_are_counted() {
    everywhere(|engine| {
        let (me, n) = me(engine);
        // The last rank gets most, and rank 0 nothing; small enough to be packed with others, and large.
        for wide in [3u64, 40_000] {
            let counts: Vec<u64> = (0..n as u64).collect();
            let rows: u64 = counts.iter().sum();
            let data: Vec<f32> = (0..rows * wide).map(|i| (i / wide) as f32 + me as f32).collect();
            let request = |name: &str| {
                let tensor = EngineTensor::shaped(data.clone(), vec![rows, wide]).unwrap();
                Request::reducescatter_of(tensor, counts.clone()).name(name)
            };
            let handles = ["one", "other"].map(|name| engine.submit(request(name)).unwrap());
            let first: u64 = counts[..me].iter().sum();
            let ranks: f32 = (0..n).map(|r| r as f32).sum();
            let want: Vec<f32> = (first * wide..(first + counts[me]) * wide)
                .map(|i| n as f32 * (i / wide) as f32 + ranks)
                .collect();
            for handle in handles {
                let outcome = handle.wait().unwrap();
                assert_eq!(outcome.tensors[0].as_slice::<f32>().unwrap(), want);
            }
        }
        let tensor = EngineTensor::shaped(vec![0f32; n + 1], vec![n as u64 + 1]).unwrap();
        let short = engine.submit(Request::reducescatter_of(tensor, vec![1; n])).unwrap_err();
        assert!(short.to_string().contains(&format!("splits add up to {n} rows")), "{short}");
    });
}

#[test]
fn every_element_type_is_reduced() {
    fn check<T: Element + PartialEq + std::fmt::Debug>(engine: &Engine, one: T, n: T) {
        let name = format!("all {}", T::DTYPE);
        let handle = engine.submit(Request::allreduce(EngineTensor::new(vec![one; 9])).name(name)).unwrap();
        assert_eq!(handle.wait().unwrap().tensor().and_then(EngineTensor::into_vec::<T>), Some(vec![n; 9]));
    }
    on(&[3], &[], |engine| {
        check(engine, 1u8, 3);
        check(engine, 1i8, 3);
        check(engine, 1u16, 3);
        check(engine, 1i16, 3);
        check(engine, 1i32, 3);
        check(engine, 1i64, 3);
        check(engine, f16::ONE, f16::from_f32(3.0));
        check(engine, bf16::ONE, bf16::from_f32(3.0));
        check(engine, 1f32, 3.0);
        check(engine, 1f64, 3.0);
        check(engine, true, true);
    });
}

#[test]
fn compressed_tensors_come_back_in_their_own_type() {
    everywhere(|engine| {
        let (me, n) = me(engine);
        for wire in [DType::F16, DType::BF16] {
            for len in [3usize, 100_000] {
                let data = vec![me as f32 + 0.5; len];
                let request = Request::allreduce(EngineTensor::new(data))
                    .name("narrow")
                    .compress(wire)
                    .op(ReduceOp::Average);
                let want = (0..n).map(|r| r as f32 + 0.5).sum::<f32>() / n as f32;
                let got = floats(engine.submit(request).unwrap());
                assert!(got.iter().all(|x| (x - want).abs() <= want / 128.0), "{} is not {want}", got[0]);
            }
        }
    });
}

#[test]
fn a_large_tensor_alone_is_never_copied_to_travel() {
    on(&[2], &[], |engine| {
        for _ in 0..6 {
            let request = Request::allreduce(EngineTensor::new(vec![1.0f32; 1 << 18])).name("large");
            assert_eq!(floats(engine.submit(request).unwrap())[0], 2.0);
        }
        assert_eq!(engine.counters().packed_bytes, 0);
    });
}

#[test]
fn inputs_may_be_left_alone() {
    on(&[2], &[], |engine| {
        for len in [4usize, 200_000] {
            let request = Request::allreduce(EngineTensor::new(vec![1.0f32; len])).name("apart");
            let request = request.into(vec![EngineTensor::new(vec![0.0f32; len])]).unwrap();
            assert_eq!(floats(engine.submit(request).unwrap()), vec![2.0; len]);
        }
    });
}

#[test]
fn sparse_rows_are_added_by_index() {
    everywhere(|engine| {
        let (me, n) = me(engine);
        let sparse = Sparse {
            indices: EngineTensor::new(vec![5i64, me as i64]),
            values: EngineTensor::shaped(vec![1.0f32, 2.0, 3.0, 4.0], vec![2, 2]).unwrap(),
        };
        let merged = engine.sparse_allreduce("rows", sparse, ReduceOp::Sum, 0).unwrap().wait().unwrap();
        let indices: Vec<i64> = (0..n as i64).chain([5]).collect();
        assert_eq!(merged.indices.into_vec::<i64>().unwrap(), indices);
        let values = merged.values.into_vec::<f32>().unwrap();
        assert_eq!(values[..2], [3.0, 4.0]);
        assert_eq!(values[2 * n..], [n as f32, 2.0 * n as f32]);
    });
}

/// What Adasum is, computed on one rank: pairs at growing distance, those beyond the power of two folded in first.
fn adasum(mut vectors: Vec<Vec<f64>>) -> Vec<f64> {
    fn blend(a: &[f64], b: &[f64]) -> Vec<f64> {
        let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
        let (aa, ab, bb) = (dot(a, a), dot(a, b), dot(b, b));
        a.iter().zip(b).map(|(x, y)| (1.0 - ab / (2.0 * aa)) * x + (1.0 - ab / (2.0 * bb)) * y).collect()
    }
    let p = 1 << vectors.len().ilog2();
    for i in p..vectors.len() {
        vectors[i - p] = blend(&vectors[i - p], &vectors[i]);
    }
    vectors.truncate(p);
    while vectors.len() > 1 {
        vectors = vectors.chunks(2).map(|pair| blend(&pair[0], &pair[1])).collect();
    }
    vectors.swap_remove(0)
}

#[test]
fn adasum_works_for_any_number_of_ranks() {
    for n in 1..=7u32 {
        let results = on(&[n], &[], |engine| {
            let (me, n) = me(engine);
            let vector =
                |r: usize| (0..11).map(|i| ((r * 7 + i * 3) % 5) as f64 + 0.25).collect::<Vec<f64>>();
            let want = adasum((0..n).map(vector).collect());
            let request = Request::allreduce(EngineTensor::new(vector(me))).name("ada").adasum();
            let got: Vec<f64> =
                engine.submit(request).unwrap().wait().unwrap().tensor().unwrap().into_vec().unwrap();
            let close = got.iter().zip(&want).all(|(g, w)| (g - w).abs() < 1e-9);
            assert!(close, "n = {n}: {got:?} is not {want:?}");
            got
        });
        assert!(results.iter().all(|r| r == &results[0]), "ADA-1");
    }
}
