//! AGAIN-1: checkpoints change memory, not bits.

use super::models::{assert_same, bits, digits, on, train};
use phalanx_core::DType;
use phalanx_graph::{
    Act, BATCH, Builder, Dim, Feed, Optimizer, ParallelExecutor, Program, Rule, Setup, Store, VarId,
    layers::BatchNormOptions, recompute,
};

/// A deep network with dropout and batch norm, and its checkpoints.
fn deep(norm: bool) -> (Program, Vec<VarId>) {
    let mut b = Builder::new();
    let image = b.feed("image", DType::F32, [BATCH, Dim::Fixed(64)]).unwrap();
    let label = b.feed("label", DType::I64, [BATCH]).unwrap();
    let (mut h, mut checkpoints) = (image, Vec::new());
    for layer in 0..12 {
        h = b.fc(h, 48, Act::Tanh).unwrap();
        if norm && layer == 4 {
            h = b.batch_norm(h, BatchNormOptions::default()).unwrap();
        }
        h = b.dropout(h, 0.1).unwrap();
        if layer % 4 == 3 {
            checkpoints.push(h);
        }
    }
    let scores = b.fc(h, 10, Act::None).unwrap();
    let (losses, _) = b.softmax_with_cross_entropy(scores, label).unwrap();
    let loss = b.mean(losses).unwrap();
    let loss = b.named(loss, "loss").unwrap();
    let mut program = b.finish().unwrap();
    Optimizer::new(Rule::adam(), 1e-3).minimize(&mut program, loss).unwrap();
    (program, checkpoints)
}

#[test]
fn what_is_computed_again_has_the_same_bits_and_needs_less_memory() {
    for norm in [false, true] {
        let (plain, checkpoints) = deep(norm);
        let mut less = plain.clone();
        let n = recompute(&mut less, &checkpoints).unwrap();
        assert!(n >= 16, "{n} operations again");
        assert_eq!(less.ops().count(), plain.ops().count() + n);
        let (losses, mut store) = train(&plain, on(2), 6, 20);
        let (other, mut others) = train(&less, on(2), 6, 20);
        assert_eq!(bits(&losses), bits(&other), "AGAIN-1");
        assert_same(&mut store, &mut others, "AGAIN-1");
        let bytes = |program: &Program| {
            let mut exe =
                ParallelExecutor::new(program, Some("loss"), Setup { replicas: Some(1), ..Setup::default() })
                    .unwrap();
            let (x, y) = digits(512, 0);
            let feeds = [("image", Feed::Split(&x)), ("label", Feed::Split(&y))];
            exe.run(&mut Store::new(0), &feeds, &[]).unwrap();
            exe.arena_bytes()
        };
        let (with, without) = (bytes(&less), bytes(&plain));
        assert!(with * 4 < without * 3, "{with} against {without} bytes");
    }
    let (mut program, _) = deep(false);
    let before = program.clone();
    assert_eq!(recompute(&mut program, &[]).unwrap(), 0);
    assert_eq!(program, before, "without checkpoints nothing changes");
}
