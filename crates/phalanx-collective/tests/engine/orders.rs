//! Random orders of submission against what one thread computes.

use super::{floats, on};
use phalanx_collective::engine::{EngineTensor, Request};

/// A small generator of its own for every rank: xorshift.
struct Chance(u64);

impl Chance {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }
}

fn random_orders(hosts: &'static [u32], n_orders: usize) {
    on(hosts, &[("PHALANX_FUSION_BYTES", "4096")], move |engine| {
        let (me, n) = (engine.rank().index(), engine.size() as usize);
        let mut chance = Chance(0x9e37_79b9 + me as u64 * 77);
        let mut common = Chance(12345);
        for order in 0..n_orders {
            // Which tensors there are is the same on all ranks; the order in which they come is not.
            let n_tensors = 1 + common.below(6);
            let mut todo: Vec<usize> = (0..n_tensors).map(|_| common.below(9)).collect();
            todo.sort_unstable();
            todo.dedup();
            let names = todo.clone();
            let mut handles = Vec::new();
            while !todo.is_empty() {
                let i = todo.swap_remove(chance.below(todo.len()));
                let data = vec![(me * 10 + i + order % 7) as f32; 1 + i * 40];
                let request = Request::allreduce(EngineTensor::new(data)).name(format!("t{i}"));
                handles.push((i, engine.submit(request).unwrap()));
            }
            assert_eq!(handles.len(), names.len());
            for (i, handle) in handles {
                let want: f32 = (0..n).map(|r| (r * 10 + i + order % 7) as f32).sum();
                assert_eq!(floats(handle), vec![want; 1 + i * 40], "order {order}, tensor {i}");
            }
        }
    });
}

#[test]
fn ten_thousand_random_orders_equal_a_serial_oracle() {
    random_orders(&[4], 10_000);
}

#[test]
fn random_orders_across_hosts_equal_a_serial_oracle() {
    random_orders(&[2, 2], 1_000);
}

#[test]
fn an_operation_may_wait_while_later_ones_run() {
    on(&[2], &[], |engine| {
        let late =
            || engine.submit(Request::allreduce(EngineTensor::new(vec![1.0f32])).name("late")).unwrap();
        for _ in 0..20 {
            let early = (engine.rank().0 == 0).then(late);
            engine.submit(Request::barrier().name("between")).unwrap().wait().unwrap();
            assert_eq!(floats(early.unwrap_or_else(late)), [2.0]);
        }
    });
}
