//! Programs saved for prediction: loaded, they give the same bits; damaged, they give errors.

use phalanx_core::DType;
use phalanx_graph::{
    Act, BATCH, Builder, Dim, Executor, Optimizer, Options, Program, Rule, Store, Tensor,
    ir::Var,
    layers::{BatchNormOptions, ConvOptions},
    saved::{SavedError, load, load_values, save, save_as, save_values},
};

fn network() -> Program {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(1), Dim::Fixed(8), Dim::Fixed(8)]).unwrap();
    let label = b.feed("label", DType::I64, [BATCH]).unwrap();
    let y = b.conv2d(x, ConvOptions::new(3, 3)).unwrap();
    let y = b.batch_norm(y, BatchNormOptions { act: Act::Relu, ..BatchNormOptions::default() }).unwrap();
    let y = b.dropout(y, 0.3).unwrap();
    let y = b.flatten(y).unwrap();
    let scores = b.fc(y, 4, Act::None).unwrap();
    let probabilities = b.softmax(scores).unwrap();
    b.named(probabilities, "probabilities").unwrap();
    let (losses, _) = b.softmax_with_cross_entropy(scores, label).unwrap();
    let loss = b.mean(losses).unwrap();
    let loss = b.named(loss, "loss").unwrap();
    let mut program = b.finish().unwrap();
    Optimizer::new(Rule::adam(), 0.01).minimize(&mut program, loss).unwrap();
    program
}

/// A program after some steps of training, with its store and an input.
fn trained() -> (Program, Store, Tensor) {
    let program = network();
    let mut executor = Executor::new(program.clone(), Options::default()).unwrap();
    let mut store = Store::new(4);
    let x: Vec<f32> = (0..5 * 64).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
    let x = Tensor::new(&[5, 1, 8, 8], &x).unwrap();
    let label = Tensor::new(&[5], &[0i64, 1, 2, 3, 0]).unwrap();
    for _ in 0..7 {
        executor.run(&mut store, &[("x", &x), ("label", &label)], &[]).unwrap();
    }
    (program, store, x)
}

#[test]
fn what_is_loaded_gives_exactly_what_was_saved() {
    let (program, mut store, x) = trained();
    let file = save(&program, &mut store, &["probabilities"]).unwrap();
    let label = Tensor::new(&[5], &[0i64; 5]).unwrap();
    let mut tester = Executor::new(program.clone_for_test(), Options::default()).unwrap();
    let wanted = tester.run(&mut store, &[("x", &x), ("label", &label)], &["probabilities"]).unwrap();

    let saved = load(&file).unwrap();
    assert_eq!(
        (&saved.feeds[..], &saved.fetches[..]),
        (&["x".to_string()][..], &["probabilities".to_string()][..])
    );
    assert!(
        saved.program.find("loss").is_none() && saved.program.find("label").is_none(),
        "only what is needed"
    );
    let mut executor = Executor::new(saved.program.clone(), Options::default()).unwrap();
    let mut other = Store::new(99);
    executor.prepare(&mut other).unwrap();
    saved.give(&mut other).unwrap();
    let got = executor.run(&mut other, &[("x", &x)], &["probabilities"]).unwrap();
    assert_eq!(got[0].bytes(), wanted[0].bytes(), "SAVED-1");
    assert_eq!(
        save(&saved.program, &mut other, &["probabilities"]).unwrap(),
        file,
        "saving again gives the same file"
    );
}

#[test]
fn what_cannot_be_saved_is_named() {
    let (program, mut store, _) = trained();
    let unknown = save(&program, &mut store, &["scores"]);
    assert_eq!(unknown.unwrap_err(), SavedError::UnknownFetch { var: "scores".into() });
    let empty = save(&program, &mut Store::new(0), &["probabilities"]);
    assert!(matches!(empty, Err(SavedError::NotStored { .. })));
}

#[test]
fn every_cut_and_every_changed_byte_is_noticed() {
    let (program, mut store, _) = trained();
    let file = save(&program, &mut store, &["probabilities"]).unwrap();
    for n in 0..file.len() {
        assert!(load(&file[..n]).is_err(), "SAVED-2: cut at {n} of {}", file.len());
    }
    for at in 0..file.len() {
        let mut bad = file.clone();
        bad[at] ^= 1 << (at % 8);
        assert!(load(&bad).is_err(), "SAVED-2: byte {at}");
    }
    assert_eq!(load(b"PHXGRAPx and something else long enough").unwrap_err(), SavedError::Foreign);
    let mut newer = file;
    newer[8] = 3;
    assert_eq!(load(&newer).unwrap_err(), SavedError::Version { wanted: 2, got: 3 });
}

/// The checksum of the format (FNV-1a), so that damage gets past it.
fn resealed(mut file: Vec<u8>) -> Vec<u8> {
    let sum = file[28..]
        .iter()
        .fold(0xcbf2_9ce4_8422_2325u64, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    file[20..28].copy_from_slice(&sum.to_le_bytes());
    file
}

#[test]
fn a_file_that_lies_under_a_right_checksum_is_a_program_or_an_error() {
    let (program, mut store, _) = trained();
    let file = save(&program, &mut store, &["probabilities"]).unwrap();
    assert_eq!(resealed(file.clone()), file);
    let head = u64::from_le_bytes(file[12..20].try_into().unwrap()) as usize;
    let mut n_programs = 0;
    for at in 28..28 + head {
        for with in [0, 1, 0x7f, 0x80, 0xff, file[at] ^ 4, file[at].wrapping_add(1)] {
            let mut bad = file.clone();
            bad[at] = with;
            let ended = std::panic::catch_unwind(|| load(&resealed(bad)).map(|saved| saved.program.verify()));
            let loaded =
                ended.unwrap_or_else(|_| panic!("SAVED-2: byte {at} as {with} (the panic is above)"));
            n_programs += usize::from(loaded.is_ok());
        }
    }
    assert!(n_programs > 0, "names and numbers may differ");
    let mut long = file;
    long[12..20].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(matches!(load(&long), Err(SavedError::Damaged { what: "length of the head", .. })), "SAVED-2");
}

#[test]
fn feeds_are_what_is_needed_in_the_order_that_was_asked_for() {
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(2)]).unwrap();
    let y = b.feed("y", DType::F32, [BATCH, Dim::Fixed(2)]).unwrap();
    b.feed("z", DType::F32, [BATCH, Dim::Fixed(2)]).unwrap();
    let (x, y) = (b.fc(x, 3, Act::None).unwrap(), b.fc(y, 3, Act::None).unwrap());
    let sum = b.add(x, y).unwrap();
    b.named(sum, "sum").unwrap();
    let program = b.finish().unwrap();
    let mut store = Store::new(1);
    Executor::new(program.clone(), Options::default()).unwrap().prepare(&mut store).unwrap();
    let mut save = |feeds: &[&str]| save_as(&program, &mut store, feeds, &["sum"], "a note");
    let file = save(&["y", "x"]).unwrap();
    let loaded = load(&file).unwrap();
    assert_eq!(
        (&loaded.feeds[..], loaded.notes.as_str()),
        (&["y".to_string(), "x".to_string()][..], "a note")
    );
    assert_eq!(save(&["y"]).unwrap_err(), SavedError::Needed { var: "x".into() });
    assert_eq!(save(&["x", "y", "z"]).unwrap_err(), SavedError::NotNeeded { var: "z".into() });
    assert_eq!(save(&["x", "y", "x"]).unwrap_err(), SavedError::NotNeeded { var: "x".into() });
    assert_eq!(save(&["x", "y", "sum"]).unwrap_err(), SavedError::NotNeeded { var: "sum".into() });
}

fn all(_: &Var) -> bool {
    true
}

#[test]
fn training_goes_on_from_a_file_with_the_same_bits() {
    let (program, mut store, x) = trained();
    let file = save_values(&program, &mut store, all).unwrap();
    let label = Tensor::new(&[5], &[3i64, 1, 0, 3, 2]).unwrap();
    let mut other = Store::new(99);
    let mut executor = Executor::new(program.clone(), Options::default()).unwrap();
    executor.prepare(&mut other).unwrap();
    let values = load_values(&file).unwrap();
    values.fits(&program, all).unwrap();
    values.give(&program, &mut other, all).unwrap();
    values.go_on(&mut other);
    for run in 0..3 {
        let feeds = [("x", &x), ("label", &label)];
        let wanted = executor.run(&mut store, &feeds, &["loss"]).unwrap();
        let got = executor.run(&mut other, &feeds, &["loss"]).unwrap();
        assert_eq!(got[0].bytes(), wanted[0].bytes(), "VALUES-1: run {run}");
    }
    let again = |store: &mut Store| save_values(&program, store, all).unwrap();
    assert_eq!(again(&mut store), again(&mut other), "VALUES-1");
}

#[test]
fn values_that_do_not_fit_are_named_all_at_once() {
    let small = |width: usize| {
        let mut b = Builder::new();
        let x = b.feed("x", DType::F32, [BATCH, Dim::Fixed(2)]).unwrap();
        let x = b.fc(x, width, Act::None).unwrap();
        b.fc(x, 2, Act::None).unwrap();
        b.finish().unwrap()
    };
    let mut store = Store::new(1);
    Executor::new(small(3), Options::default()).unwrap().prepare(&mut store).unwrap();
    let values = load_values(&save_values(&small(3), &mut store, all).unwrap()).unwrap();
    values.fits(&small(3), all).unwrap();
    let Err(SavedError::Unfit { faults }) = values.fits(&small(4), all) else { panic!("VALUES-2") };
    let n_unlike = 3; // Two of the first layer, and the weights of the second.
    assert_eq!(faults.len(), n_unlike, "VALUES-2: {faults:?}");
    let Err(SavedError::Unfit { faults }) = values.fits(&network(), all) else { panic!("VALUES-2") };
    assert!(faults.iter().any(|f| f.got.is_none()), "VALUES-2: {faults:?}");
    values.fits(&network(), |_| false).unwrap();
}

#[test]
fn every_cut_and_every_lie_in_a_file_of_values_is_noticed_or_harmless() {
    let (program, mut store, _) = trained();
    let file = save_values(&program, &mut store, all).unwrap();
    for n in 0..file.len() {
        assert!(load_values(&file[..n]).is_err(), "SAVED-2: cut at {n}");
    }
    assert_eq!(load(&file).unwrap_err(), SavedError::Foreign);
    let head = u64::from_le_bytes(file[12..20].try_into().unwrap()) as usize;
    for at in 28..28 + head {
        for with in [0, 1, 0x7f, 0x80, 0xff, file[at] ^ 4, file[at].wrapping_add(1)] {
            let mut bad = file.clone();
            bad[at] = with;
            let ended = std::panic::catch_unwind(|| load_values(&resealed(bad)).map(|_| ()));
            assert!(ended.is_ok(), "SAVED-2: byte {at} as {with} (the panic is above)");
        }
    }
}
