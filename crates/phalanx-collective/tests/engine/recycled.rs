//! Memory that goes round: results take that of the last time, and inputs come back.

use super::on;
use phalanx_collective::engine::{EngineTensor, Request};

#[test]
fn memory_that_is_recycled_holds_the_next_results_and_inputs_come_back() {
    for hosts in [&[3][..], &[2, 1]] {
        let answers = on(hosts, &[], |engine| {
            let me = engine.rank().index();
            let mut n_same = 0;
            let (mut given, mut memory): (Vec<f32>, Vec<EngineTensor>) = (vec![0.0; 300_000], Vec::new());
            for step in 0..3 {
                given.fill((me + step) as f32);
                let at = given.as_ptr().addr();
                let old: Vec<usize> = memory.iter().map(|t| t.address().addr()).collect();
                let request = Request::reducescatter(EngineTensor::new(given)).name("rows").recycle(memory);
                let mut outcome = engine.submit(request).unwrap().wait().unwrap();
                let sum = (0..3).map(|rank| (rank + step) as f32).sum::<f32>();
                assert_eq!(outcome.tensors[0].shape(), [100_000]);
                assert!(outcome.tensors[0].as_slice::<f32>().unwrap().iter().all(|&x| x == sum));
                n_same += usize::from(old == [outcome.tensors[0].address().addr()]);
                given = outcome.given.pop().unwrap().into_vec().unwrap();
                assert_eq!(given.as_ptr().addr(), at, "the input came back");
                memory = outcome.tensors;
            }
            // What does not fit is left alone, and nobody is asked for inputs.
            let wrong = vec![EngineTensor::new(vec![7i32; 6]), EngineTensor::new(vec![7.0f32; 5])];
            let gather = || Request::allgather(EngineTensor::new(vec![me as f32; 2])).name("all");
            let mut outcome = engine.submit(gather().recycle(wrong)).unwrap().wait().unwrap();
            assert_eq!(outcome.tensors[0].as_slice::<f32>().unwrap(), [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]);
            let shaped = EngineTensor::shaped(vec![7.0f32; 6], vec![2, 3]).unwrap();
            assert_eq!(outcome.given.pop().unwrap().into_vec::<f32>().unwrap(), [me as f32; 2]);
            let mut outcome = engine.submit(gather().recycle(vec![shaped])).unwrap().wait().unwrap();
            let gathered = outcome.tensors.pop().unwrap();
            assert_eq!(gathered.shape(), [6]);
            assert_eq!(gathered.as_slice::<f32>().unwrap()[3], 1.0);
            let plain = engine.submit(gather()).unwrap().wait().unwrap();
            assert!(plain.given.is_empty());
            let reduce = Request::allreduce(EngineTensor::new(vec![1.0f32; 2])).recycle(Vec::new());
            let reduced = engine.submit(reduce).unwrap().wait().unwrap();
            assert_eq!(
                (reduced.given.len(), reduced.tensors[0].as_slice::<f32>().unwrap()),
                (0, &[3.0, 3.0][..])
            );
            n_same
        });
        assert_eq!(answers, [2, 2, 2], "only the first step needed new memory");
    }
}
