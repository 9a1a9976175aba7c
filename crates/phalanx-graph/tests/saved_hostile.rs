//! SAVED-2, further on: what a file that lies under a right checksum is loaded as can be run, or is an error.

use phalanx_core::DType;
use phalanx_graph::{
    Act, BATCH, Builder, Dim, Executor, Options, Program, RunError, Store, Tensor, VarKind,
    kernel::Stream,
    layers::{BatchNormOptions, ConvOptions, EmbeddingOptions},
    op::{Pool, Reduction},
    saved::{Saved, load, save},
};

/// Inputs in one run. With optimisation there is time for more.
const N_INPUTS: u64 = if cfg!(debug_assertions) { 10_000 } else { 100_000 };
const PREFIX: usize = 28;

/// Most kinds of operations that a program for prediction has.
fn network() -> Program {
    let d = Dim::Fixed;
    let mut b = Builder::new();
    let x = b.feed("x", DType::F32, [BATCH, d(4), d(8), d(8)]).unwrap();
    let y = b.conv2d(x, ConvOptions { groups: 2, act: Act::Relu, ..ConvOptions::new(4, 3) }).unwrap();
    let y = b.batch_norm(y, BatchNormOptions::default()).unwrap();
    let y = b.pool2d(y, Pool::Max, 2, 2).unwrap();
    let y = b.flatten(y).unwrap();
    let y = b.fc(y, 12, Act::Gelu).unwrap();
    let y = b.layer_norm(y, 1).unwrap();
    let ids = b.feed("ids", DType::I64, [BATCH, d(3)]).unwrap();
    let e = b.embedding(ids, 9, 4, EmbeddingOptions::default()).unwrap();
    let e = b.transpose(e, &[0, 2, 1]).unwrap();
    let e = b.reshape(e, [BATCH, d(12)]).unwrap();
    let y = b.concat(&[y, e], 1).unwrap();
    let part = b.slice(y, 1, 2, 22).unwrap();
    let top = b.reduce(Reduction::Max, part, &[1], true).unwrap();
    let y = b.sub(part, top).unwrap();
    let y = b.softmax(y).unwrap();
    b.named(y, "out").unwrap();
    b.finish().unwrap()
}

fn file() -> Vec<u8> {
    let program = network();
    let mut store = Store::new(2);
    Executor::new(program.clone(), Options::default()).unwrap().prepare(&mut store).unwrap();
    save(&program, &mut store, &["out"]).unwrap()
}

/// The head with one to three bytes changed, under the checksum of the format (FNV-1a).
fn tampered(valid: &[u8], seed: u64) -> Vec<u8> {
    let dice = Stream::new(seed, 0, 0);
    let mut file = valid.to_vec();
    let head = u64::from_le_bytes(file[12..20].try_into().unwrap());
    for i in 0..1 + dice.bits(0) % 3 {
        let at = PREFIX + (dice.bits(3 * i + 1) % head) as usize;
        let drawn = dice.bits(3 * i + 2);
        file[at] = match drawn % 4 {
            0 => file[at] ^ (1 << (drawn >> 8 & 7)),
            1 => file[at].wrapping_add(1),
            2 => [0, 1, 0x7f, 0x80, 0xff][(drawn >> 8) as usize % 5],
            _ => (drawn >> 8) as u8,
        };
    }
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    let sum = file[PREFIX..].iter().fold(0xcbf2_9ce4_8422_2325, step);
    file[20..28].copy_from_slice(&sum.to_le_bytes());
    file
}

/// Runs what was loaded on two samples of everything, if it is small; says whether it ran.
fn runs(saved: &Saved) -> bool {
    let program = &saved.program;
    program.verify().unwrap();
    let bytes = program.vars().fold(0usize, |sum, (_, var)| sum.saturating_add(var.sig.bytes(2)));
    let Ok(mut executor) = Executor::new(program.clone(), Options::default()) else { return false };
    if bytes > 16 << 20 {
        return false;
    }
    let mut store = Store::new(0);
    let ready = executor.prepare(&mut store).and_then(|()| saved.give(&mut store));
    let feeds: Vec<(String, Tensor)> = program
        .vars()
        .filter(|(_, var)| var.kind == VarKind::Feed)
        .map(|(_, var)| (var.name.clone(), Tensor::zeros(var.sig.dtype, &var.sig.shape.at(2))))
        .collect();
    let feeds: Vec<(&str, &Tensor)> = feeds.iter().map(|(name, value)| (name.as_str(), value)).collect();
    let fetches: Vec<&str> = saved.fetches.iter().map(String::as_str).collect();
    let ended = ready.and_then(|()| executor.run(&mut store, &feeds, &fetches));
    assert!(!matches!(ended, Err(RunError::Panicked { .. })), "{}", ended.unwrap_err());
    ended.is_ok()
}

#[test]
fn tampered_files_become_programs_that_run_or_errors() {
    let valid = file();
    assert!(runs(&load(&valid).unwrap()));
    let (mut n_loaded, mut n_ran) = (0, 0);
    for seed in 0..N_INPUTS {
        let bytes = tampered(&valid, seed);
        let tried = || load(&bytes).ok().map(|saved| runs(&saved));
        let ended = std::panic::catch_unwind(tried);
        let ran = ended.unwrap_or_else(|_| panic!("SAVED-2: seed {seed} (the panic is above)"));
        n_loaded += u64::from(ran.is_some());
        n_ran += u64::from(ran == Some(true));
    }
    // Otherwise nothing behind the decoder was tried.
    assert!(
        n_loaded > N_INPUTS / 100 && n_ran > n_loaded / 4,
        "{n_loaded} of {N_INPUTS} loaded, {n_ran} ran"
    );
}
