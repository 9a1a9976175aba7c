//! Handwritten digits, learned by replicas that wait for nobody (HOGWILD-1).

use crate::digits::Digits;
use phalanx_core::DType;
use phalanx_graph::{
    Act, BATCH, Builder, Dim, ExecutionStrategy, Feed, Fetch, Hogwild, Optimizer, ParallelExecutor, Program,
    Rule, Schedule, Setup, Store, exec::NamedFeeds, kernel::Stream, layers::ConvOptions, op::Pool,
};
use std::path::Path;

const SAMPLES: usize = 20;
const PASSES: usize = 8;
/// As many as Paddle's test of the same has.
const ITERATIONS: usize = 10;

fn network() -> Program {
    let mut b = Builder::new();
    let mut build = || {
        let image = b.feed("image", DType::F32, [BATCH, Dim::Fixed(1), Dim::Fixed(28), Dim::Fixed(28)])?;
        let label = b.feed("label", DType::I64, [BATCH])?;
        let x = b.conv2d(image, ConvOptions { act: Act::Relu, ..ConvOptions::new(8, 5) })?;
        let x = b.pool2d(x, Pool::Max, 2, 2)?;
        let x = b.conv2d(x, ConvOptions { act: Act::Relu, ..ConvOptions::new(16, 5) })?;
        let x = b.pool2d(x, Pool::Max, 2, 2)?;
        let x = b.flatten(x)?;
        let x = b.fc(x, 64, Act::Relu)?;
        let scores = b.fc(x, 10, Act::None)?;
        let (losses, _) = b.softmax_with_cross_entropy(scores, label)?;
        let loss = b.mean(losses)?;
        let accuracy = b.accuracy(scores, label, 1)?;
        b.named(accuracy, "accuracy")?;
        b.named(loss, "loss")
    };
    let loss = build().expect("the network is right");
    let mut program = b.finish().expect("the network is right");
    // To small steps at the end: what is left then is not the noise of single batches.
    let rate = Schedule::Exponential { rate: 3e-3, decay: 0.1, every: 1600.0, stairs: false };
    let optimizer = Optimizer { rate, ..Optimizer::new(Rule::adam(), 0.0) };
    optimizer.minimize(&mut program, loss).expect("it has gradients");
    program
}

/// All digits in an order of their own for each pass, a batch at a time, moved a little.
fn batches(digits: &Digits) -> impl Iterator<Item = NamedFeeds> + Send {
    (0..PASSES as u64).flat_map(move |pass| {
        let dice = Stream::new(7, pass, 0);
        let mut order: Vec<usize> = (0..digits.len()).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, (dice.bits(i as u64) % (i as u64 + 1)) as usize);
        }
        let dice = Stream::new(8, pass, 0);
        let moved = move |i| {
            let bits = dice.bits(i as u64);
            ((bits % 3) as isize - 1, (bits / 3 % 3) as isize - 1)
        };
        let batch = move |which: &[usize]| {
            let (image, label) = digits.pick_moved(which, moved).expect("digits are there");
            vec![("image".to_string(), image), ("label".to_string(), label)]
        };
        let all: Vec<Vec<usize>> = order.chunks_exact(SAMPLES).map(<[usize]>::to_vec).collect();
        all.into_iter().map(move |which| batch(&which))
    })
}

#[test]
fn digits_are_learned_by_any_number_of_replicas_each_with_its_share() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data");
    let train = Digits::read(&folder, "train").expect("the digits of the project");
    let (image, label) =
        Digits::read(&folder, "t10k").expect("the digits of the project").all().expect("all");
    let program = network();
    let n_batches = PASSES * (train.len() / SAMPLES);
    for replicas in [1, 2, 4] {
        let exec = ExecutionStrategy { num_iteration_per_run: ITERATIONS, ..ExecutionStrategy::default() };
        let setup = Setup { replicas: Some(replicas), exec, ..Setup::default() };
        let mut hogwild = Hogwild::new(&program, "loss", setup).expect("the setup is right");
        let mut store = Store::new(1);
        let mut reader = phalanx_graph::exec::each(batches(&train));
        let (mut updates, mut n_runs) = (Vec::new(), 0);
        loop {
            let before = updates.len();
            hogwild.run_into(&mut store, &mut reader, &mut updates).expect("a run");
            n_runs += 1;
            if updates.len() - before < replicas * ITERATIONS {
                break;
            }
        }
        assert_eq!(updates.len(), n_batches, "HOGWILD-1: {replicas} replicas");
        assert_eq!(n_runs, n_batches / (replicas * ITERATIONS) + 1, "runs fall with replicas");
        for replica in 0..replicas {
            let own = updates.iter().filter(|u| u.replica == replica).count();
            assert!(own.abs_diff(n_batches / replicas) <= ITERATIONS, "{own} of {n_batches} in {replica}");
        }
        assert_eq!(store.get("@STEP@").expect("a counter").to_f64(), [n_batches as f64]);
        let test = Setup { replicas: Some(2), ..Setup::default() };
        let mut tester = ParallelExecutor::new(&program.clone_for_test(), None, test).expect("for tests");
        let feeds = [("image", Feed::Split(&image)), ("label", Feed::Split(&label))];
        let out = tester.run(&mut store, &feeds, &[Fetch::mean("accuracy")]).expect("a test");
        let accuracy = out[0].one().to_f64()[0];
        // How old the values are that an update began with depends on what else the machine does: alone it is 0.97.
        assert!(accuracy > 0.94, "{replicas} replicas: {accuracy} of the test digits are right");
    }
}
