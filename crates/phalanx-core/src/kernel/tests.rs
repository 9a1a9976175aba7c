//! Every kernel against plain arithmetic, and every instruction set against every other.

use super::{level::*, *};
use half::{bf16, f16};
use proptest::prelude::*;

const OPS: [ReduceOp; 4] = [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product];

/// The levels this machine can run.
fn levels() -> Vec<Level> {
    let all = [
        Level::Portable,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2,
        #[cfg(target_arch = "x86_64")]
        Level::Avx512,
    ];
    all.into_iter().filter(|level| *level <= Level::detect()).collect()
}

/// A plain generator; the same numbers in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let x = self.0 ^ (self.0 >> 32);
        x.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (x >> 29)
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }
}

/// Where the buffers of one call lie.
#[derive(Clone, Copy, Debug, Default)]
struct Layout {
    /// Bytes past an aligned address.
    offset: usize,
    /// The first destination is this source.
    alias: Option<usize>,
    n_dsts: usize,
}

/// Runs one pass and returns the destination, having checked that nothing else was written.
fn run(reduction: &ReduceKernel, srcs: &[Vec<u8>], layout: Layout) -> Vec<u8> {
    const GUARD: usize = 64;
    let n_bytes = srcs[0].len();
    let place = |bytes: &[u8], index: usize| {
        let start = GUARD + layout.offset * (index + 1);
        let mut buffer = vec![0xa5; start + n_bytes + GUARD];
        buffer[start..start + n_bytes].copy_from_slice(bytes);
        (buffer, start)
    };
    let before: Vec<_> = srcs.iter().enumerate().map(|(i, src)| place(src, i)).collect();
    let mut inputs = before.clone();
    let empty = vec![0x5a; n_bytes];
    let mut outputs: Vec<_> = (0..layout.n_dsts.max(1)).map(|i| place(&empty, i + 3)).collect();
    let fresh = outputs.clone();
    let srcs: Vec<*mut u8> =
        inputs.iter_mut().map(|(buffer, start)| buffer.as_mut_ptr().wrapping_add(*start)).collect();
    let mut dsts: Vec<*mut u8> =
        outputs.iter_mut().map(|(buffer, start)| buffer.as_mut_ptr().wrapping_add(*start)).collect();
    if let Some(alias) = layout.alias {
        dsts[0] = srcs[alias];
    }
    let srcs: Vec<*const u8> = srcs.into_iter().map(|p| p.cast_const()).collect();
    // SAFETY: every pointer has `n_bytes` bytes of its own buffer behind it; only a whole source is aliased.
    unsafe { reduction.apply_raw(&dsts, &srcs, n_bytes / reduction.dtype.size()) };

    let mut result: Option<Vec<u8>> = None;
    for (index, (now, was)) in inputs.iter().zip(&before).chain(outputs.iter().zip(&fresh)).enumerate() {
        let ((now, start), (was, _)) = (now, was);
        let end = start + n_bytes;
        assert!(
            now[..*start] == was[..*start] && now[end..] == was[end..],
            "wrote outside of buffer {index}"
        );
        let is_dst = layout.alias.map_or(index >= inputs.len(), |a| index == a || index > inputs.len());
        if !is_dst {
            assert_eq!(now, was, "wrote to buffer {index}, which is no destination");
        } else {
            let first = result.get_or_insert_with(|| now[*start..end].to_vec());
            assert_eq!(first[..], now[*start..end], "destinations differ");
        }
    }
    result.expect("there is a destination")
}

fn at(level: Level, reduction: ReduceKernel) -> ReduceKernel {
    ReduceKernel::resolve(level, reduction.dtype, reduction.op, reduction.factors)
}

fn reduction(dtype: DType, op: ReduceOp, prescale: f64, postscale: f64, n_ranks: u32) -> ReduceKernel {
    ReduceKernel::new(dtype, op, prescale, postscale, n_ranks).unwrap()
}

/// One reduction of single elements, the same on all levels and at both ends of a longer vector.
fn single<T: bytemuck::Pod>(reduction: ReduceKernel, values: &[T]) -> T {
    let mut results = Vec::new();
    for level in levels() {
        for n in [1, 300] {
            let srcs: Vec<_> = values.iter().map(|v| bytemuck::bytes_of(v).repeat(n)).collect();
            let bytes = run(&at(level, reduction), &srcs, Layout::default());
            results.extend(bytes.chunks(size_of::<T>()).map(|c| c.to_vec()));
        }
    }
    results.dedup();
    assert_eq!(results.len(), 1, "levels or positions differ: {results:?}");
    bytemuck::pod_read_unaligned(&results[0])
}

/// Elements for which the reference is exact in `f64`, and in the type itself.
fn exact_elements(dtype: DType, op: ReduceOp, n: usize, random: &mut Random) -> Vec<u8> {
    if !dtype.is_float() {
        return random
            .bytes(n * dtype.size())
            .into_iter()
            .map(|b| if b % 3 == 0 { b & 1 } else { b })
            .collect();
    }
    let mut number = || match op {
        ReduceOp::Product => [-2.0, -1.0, -0.5, 0.5, 1.0, 2.0][random.next() as usize % 6],
        _ => (random.next() % 65) as f64 / 4.0 - 8.0,
    };
    (0..n).flat_map(|_| encode(dtype, number())).collect()
}

fn encode(dtype: DType, x: f64) -> Vec<u8> {
    match dtype {
        DType::F16 => f16::from_f64(x).to_le_bytes().to_vec(),
        DType::BF16 => bf16::from_f64(x).to_le_bytes().to_vec(),
        DType::F32 => (x as f32).to_le_bytes().to_vec(),
        _ => x.to_le_bytes().to_vec(),
    }
}

fn decode(dtype: DType, bytes: &[u8]) -> f64 {
    match dtype {
        DType::F16 => f16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
        DType::BF16 => bf16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
        DType::F32 => f32::from_le_bytes(bytes.try_into().unwrap()).into(),
        _ => f64::from_le_bytes(bytes.try_into().unwrap()),
    }
}

fn decode_int(dtype: DType, bytes: &[u8]) -> i128 {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let wide = i64::from_le_bytes(wide);
    match dtype {
        DType::I8 => (wide as i8).into(),
        DType::I16 => (wide as i16).into(),
        DType::I32 => (wide as i32).into(),
        DType::Bool => (wide != 0).into(),
        _ => wide.into(),
    }
}

/// One element by plain arithmetic: integers in `i128`, floats in `f64`.
fn reference(dtype: DType, op: ReduceOp, elements: &[&[u8]]) -> Vec<u8> {
    if dtype.is_float() {
        let numbers = elements.iter().map(|bytes| decode(dtype, bytes));
        let join = |a: f64, b: f64| match op {
            ReduceOp::Min => a.min(b),
            ReduceOp::Max => a.max(b),
            ReduceOp::Product => a * b,
            _ => a + b,
        };
        return encode(dtype, numbers.reduce(join).unwrap());
    }
    let numbers = elements.iter().map(|bytes| decode_int(dtype, bytes));
    let join = |a: i128, b: i128| match op {
        ReduceOp::Min => a.min(b),
        ReduceOp::Max => a.max(b),
        ReduceOp::Product if dtype == DType::I64 => (a as i64).wrapping_mul(b as i64).into(),
        ReduceOp::Product => (a * b) as i64 as i128,
        ReduceOp::Sum if dtype == DType::Bool => a | b,
        _ => a + b,
    };
    (numbers.reduce(join).unwrap() as i64).to_le_bytes()[..dtype.size()].to_vec()
}

/// KER-4: the destination is also each of the sources in turn.
#[test]
fn every_type_op_shape_and_level_agrees_with_plain_arithmetic() {
    let mut random = Random(1);
    for (dtype, op) in DType::ALL.into_iter().flat_map(|dtype| OPS.map(|op| (dtype, op))) {
        for n_srcs in [1, 2, 3, 4, 5, 8] {
            for n in [0, 1, 3, 7, 31, 64, 65, 1000] {
                let srcs: Vec<_> = (0..n_srcs).map(|_| exact_elements(dtype, op, n, &mut random)).collect();
                let element = |i: usize| {
                    let range = i * dtype.size()..(i + 1) * dtype.size();
                    let parts: Vec<_> = srcs.iter().map(|src| &src[range.clone()]).collect();
                    reference(dtype, op, &parts)
                };
                let want: Vec<u8> = (0..n).flat_map(element).collect();
                for level in levels() {
                    let reduction = at(level, reduction(dtype, op, 1.0, 1.0, 1));
                    for alias in [None].into_iter().chain((0..n_srcs).map(Some)) {
                        let layout = Layout { offset: n % 4, alias, n_dsts: 1 + n_srcs % 2 };
                        let got = run(&reduction, &srcs, layout);
                        assert!(got == want, "{dtype} {op} of {n_srcs} x {n} at {level:?}, {layout:?}");
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]
    /// KER-1, for any bits at all: NaN, infinity and subnormals among them.
    #[test]
    fn results_do_not_depend_on_level_or_layout(
        dtype in prop::sample::select(&DType::ALL[..]),
        op in prop::sample::select(&ReduceOp::ALL[..]),
        factors in prop::sample::select(vec![(1.0, 1.0), (0.3, 1.0), (1.0, -7.5), (1e3, 1e-3), (1e300, 0.5)]),
        n_ranks in 1u32..9,
        n_srcs in 1usize..7,
        n in 0usize..400,
        n_dsts in 1usize..4,
        offset in 0usize..9,
        seed: u64,
    ) {
        let Ok(whole) = ReduceKernel::new(dtype, op, factors.0, factors.1, n_ranks) else { return Ok(()) };
        let mut random = Random(seed);
        let srcs: Vec<_> = (0..n_srcs).map(|_| random.bytes(n * dtype.size())).collect();
        let want = run(&at(Level::Portable, whole), &srcs, Layout::default());
        for level in levels() {
            let alias = random.next().is_multiple_of(2).then(|| random.next() as usize % n_srcs);
            let got = run(&at(level, whole), &srcs, Layout { offset, alias, n_dsts });
            prop_assert!(got == want, "{level:?}");
        }
        let mut safe = vec![0; n * dtype.size()];
        whole.apply(&mut safe, &srcs.iter().map(|s| &s[..]).collect::<Vec<_>>());
        prop_assert!(safe == want);
    }

    /// KER-2 and KER-3.
    #[test]
    fn two_sources_commute_to_the_bit(
        dtype in prop::sample::select(&DType::ALL[..]),
        op in prop::sample::select(&OPS[..]),
        seed: u64,
    ) {
        let (whole, mut random) = (reduction(dtype, op, 1.0, 1.0, 1), Random(seed));
        let (a, b) = (random.bytes(200 * dtype.size()), random.bytes(200 * dtype.size()));
        let forth = run(&whole, &[a.clone(), b.clone()], Layout::default());
        prop_assert_eq!(forth, run(&whole, &[b, a], Layout::default()));
    }
}

#[test]
fn min_and_max_order_zeros_and_keep_nan() {
    let of = |op, values: [f32; 2]| {
        let narrow = single(reduction(DType::F32, op, 1.0, 1.0, 1), &values).to_bits();
        let wide = single(reduction(DType::F64, op, 1.0, 1.0, 1), &values.map(f64::from));
        let half =
            single(reduction(DType::F16, op, 1.0, 1.0, 1), &values.map(|v| f16::from_f32(v).to_bits()));
        let brain =
            single(reduction(DType::BF16, op, 1.0, 1.0, 1), &values.map(|v| bf16::from_f32(v).to_bits()));
        assert_eq!((wide as f32).to_bits(), narrow);
        assert_eq!(f16::from_bits(half).to_f32().to_bits(), narrow);
        assert_eq!(bf16::from_bits(brain).to_f32().to_bits(), narrow);
        narrow
    };
    let other_nan = f32::from_bits(0xffe0_0000);
    for pair in [[0.0, -0.0], [-0.0, 0.0]] {
        assert_eq!(of(ReduceOp::Min, pair), (-0.0f32).to_bits());
        assert_eq!(of(ReduceOp::Max, pair), 0);
    }
    for op in OPS {
        for x in [1.0, -1.0, 0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            assert_eq!(of(op, [other_nan, x]), f32::NAN.to_bits(), "{op} {x}");
            assert_eq!(of(op, [x, other_nan]), f32::NAN.to_bits(), "{op} {x}");
        }
    }
    assert_eq!(of(ReduceOp::Sum, [f32::INFINITY, f32::NEG_INFINITY]), f32::NAN.to_bits());
}

#[test]
fn half_conversions_round_to_nearest_even_on_every_level() {
    let mut singles = Vec::new();
    for bits in 0..=u16::MAX {
        let (half, brain) = (f16::from_bits(bits), bf16::from_bits(bits));
        // The numbers themselves, the ties above them, and the neighbours of both.
        let ties = [half.to_f32().to_bits() + 0x1000, brain.to_f32().to_bits().wrapping_add(0x8000)];
        for middle in [half.to_f32().to_bits(), brain.to_f32().to_bits()].into_iter().chain(ties) {
            singles.extend([-1i32, 0, 1].map(|d| f32::from_bits(middle.wrapping_add_signed(d))));
        }
        let widened = Portable.widen(&[bits])[0];
        assert!(
            widened.to_bits() == half.to_f32().to_bits() || widened.is_nan() && half.is_nan(),
            "{bits:#x}"
        );
    }
    singles.retain(|x| !x.is_nan());
    // The ties of `f16` subnormals: halves of its smallest number.
    singles.extend((0..4096).map(|n| n as f32 / (1 << 26) as f32));
    for block in singles.as_chunks::<32>().0 {
        check_narrow(Portable, block);
        #[cfg(target_arch = "x86_64")]
        if Level::detect() >= Level::Avx2 {
            // SAFETY: just detected.
            check_narrow(unsafe { Avx2::new() }, block);
        }
        #[cfg(target_arch = "x86_64")]
        if Level::detect() >= Level::Avx512 {
            // SAFETY: just detected.
            check_narrow(unsafe { Avx512::new() }, block);
        }
    }
}

fn check_narrow(cpu: impl Cpu, block: &[f32; 32]) {
    let mut halves = [0; 32];
    // SAFETY: the array is as long as the block.
    unsafe { cpu.narrow(block, halves.as_mut_ptr()) };
    assert_eq!(halves, block.map(|x| f16::from_f32_const(x).to_bits()), "{block:?}");
    // `bf16_narrow` expects the even elements first.
    let brains = block.map(|x| bf16::from_f32(x).to_bits());
    let ordered: [u16; 32] = std::array::from_fn(|i| brains[i / 2 + i % 2 * 16]);
    assert_eq!(cpu.bf16_narrow(block), ordered, "{block:?}");
}

/// KER-5.
#[test]
fn halves_are_rounded_once_per_pass() {
    let sum = |dtype| reduction(dtype, ReduceOp::Sum, 1.0, 1.0, 1);
    let halves = [2048.0, 1.0, 1.0].map(|x| f16::from_f32(x).to_bits());
    assert_eq!(f16::from_bits(single(sum(DType::F16), &halves)).to_f32(), 2050.0);
    let brains = [256.0, 1.0, 1.0].map(|x| bf16::from_f32(x).to_bits());
    assert_eq!(bf16::from_bits(single(sum(DType::BF16), &brains)).to_f32(), 258.0);
}

#[test]
fn average_divides_truly() {
    let average = |dtype, n_ranks| reduction(dtype, ReduceOp::Average, 1.0, 1.0, n_ranks);
    for n in 1..40u32 {
        let values = [0.1f32, 1e-40, 5.0 * n as f32];
        assert_eq!(single(average(DType::F32, n), &values), values.iter().sum::<f32>() / n as f32);
        let values = [0.1f64, 1e-310, 5.0 * f64::from(n)];
        assert_eq!(single(average(DType::F64, n), &values), values.iter().sum::<f64>() / f64::from(n));
    }
    assert_eq!(single(average(DType::I64, 3), &[i64::MAX - 1, 1, -2]), (i64::MAX - 2) / 3);
    assert_eq!(single(average(DType::I32, 2), &[-3i32, -4]), -3, "toward zero");
    let mut random = Random(2);
    for _ in 0..500 {
        let values: [i32; 3] = std::array::from_fn(|_| random.next() as i32 | 0x7000_0000);
        let want = values.iter().map(|v| i64::from(*v)).sum::<i64>() / 3;
        assert_eq!(i64::from(single(average(DType::I32, 3), &values)), want);
    }
}

#[test]
fn integer_average_overflows_only_between_passes() {
    let average = reduction(DType::U8, ReduceOp::Average, 1.0, 1.0, 3);
    assert_eq!(single(average, &[255u8, 255, 255]), 255);
    assert_eq!(
        single(reduction(DType::I16, ReduceOp::Average, 1.0, 1.0, 2), &[i16::MIN, i16::MIN]),
        i16::MIN
    );
    let partial = single(average.only(true, false), &[255u8, 255]);
    assert_eq!((partial, single(average.only(false, true), &[partial, 255])), (254, 169));
}

#[test]
fn factors_scale_each_contribution_then_the_result() {
    let scaled = |dtype, op| reduction(dtype, op, 2.0, 0.5, 1);
    assert_eq!(single(scaled(DType::F32, ReduceOp::Product), &[3.0f32, 5.0]), 30.0);
    assert_eq!(
        single(scaled(DType::I8, ReduceOp::Max), &[100i8, -100]),
        63,
        "the prescale saturates, then 127 / 2"
    );
    assert_eq!(single(scaled(DType::U8, ReduceOp::Sum), &[100u8, 100]), 72, "200 + 200 wraps to 144");
    assert_eq!(
        single(reduction(DType::I32, ReduceOp::Sum, -0.5, 1.0, 1), &[7i32, -7]),
        0,
        "toward zero, each"
    );
    let exact = reduction(DType::I64, ReduceOp::Min, 1.0, 1.0, 1);
    assert_eq!(single(exact, &[i64::MAX, i64::MAX]), i64::MAX, "a factor of 1 does not pass through f64");
    let all = reduction(DType::F32, ReduceOp::Average, 0.1, 0.7, 3);
    assert_eq!(single(all, &[1.5f32, 2.5]), (1.5f32 * 0.1 + 2.5 * 0.1) / 3.0 * 0.7);
}

#[test]
fn only_keeps_the_wanted_factors() {
    let all = reduction(DType::F32, ReduceOp::Average, 2.0, 3.0, 4);
    assert_eq!(all.only(true, true), all);
    assert_eq!(all.only(true, false), reduction(DType::F32, ReduceOp::Sum, 2.0, 1.0, 1));
    assert_eq!(all.only(false, true), reduction(DType::F32, ReduceOp::Average, 1.0, 3.0, 4));
    assert!(all.only(false, false).is_plain() && !all.is_plain());
    assert_eq!(all.dtype(), DType::F32);
    assert!(ReduceKernel::new(DType::Bool, ReduceOp::Average, 1.0, 1.0, 4).is_err());
}
