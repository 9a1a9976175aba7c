//! One tile of a product: a few rows times two vectors of columns, held in registers while `k` runs. What the CPU has is
//! found out when the program runs. `unsafe` for the instructions, on checked slices.
//! - GEMM-1: an element of a tile is one chain of fused multiply-adds over `k` in its order, begun at zero, whatever the
//!   tile's size and the instruction set.

/// How many steps of `k` one chain has at most.
pub(super) const DEPTH: usize = 256;
/// How many steps ahead rows are fetched that lie far apart.
const AHEAD: usize = 8;
/// The largest tile of any instruction set.
pub(super) const MAX_TILE: usize = 12 * 32;

/// Where the rows of the right operand begin, for one chain.
#[derive(Debug)]
pub(super) struct Starts {
    /// Behind the last, a few more that may be prefetched.
    at: [u32; DEPTH + AHEAD],
    n: usize,
    /// The largest of them.
    reach: usize,
}

impl Starts {
    pub(super) fn new(rows: impl ExactSizeIterator<Item = usize>) -> Starts {
        let mut starts = Starts { at: [0; DEPTH + AHEAD], n: rows.len(), reach: 0 };
        for (to, at) in starts.at[..rows.len()].iter_mut().zip(rows) {
            *to = u32::try_from(at).expect("operands have less than 2^32 elements");
            starts.reach = starts.reach.max(at);
        }
        starts
    }

    /// Whether this number of columns of every row lies within the elements.
    pub(super) fn fits(&self, width: usize, n: usize) -> bool {
        self.reach + width <= n
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        self.at[..self.n].iter().map(|&at| at as usize)
    }
}

/// What a kernel is given, its bounds checked.
struct Job<T> {
    a: *const T,
    /// How far apart the rows of `a` are, where it is not packed.
    a_row: usize,
    b: *const T,
    starts: *const u32,
    k: usize,
    extra: Extra<T>,
    c: *mut T,
    c_row: usize,
    add: bool,
}

/// What a tile does in passing.
enum Extra<T> {
    Nothing,
    /// Packs its part of `b` here.
    Keep(*mut T),
    /// Fetches the same rows of another part of `b`.
    Fetch(*const T, *const u32),
}

/// The same for the compiler.
const NOTHING: u8 = 0;
const KEEP: u8 = 1;
const FETCH: u8 = 2;

type Run<T> = unsafe fn(&Job<T>);

/// The left operand of a tile.
#[derive(Clone, Copy)]
pub(super) enum Left<'a, T> {
    /// Step after step, the rows of a sliver beside each other.
    Packed(&'a [T]),
    /// Row after row, so far apart.
    There(&'a [T], usize),
}

/// The tiles of one element type on one instruction set.
#[derive(Debug)]
pub struct Tiles<T: 'static> {
    /// Columns of a vector.
    pub(super) lanes: usize,
    /// The number of rows that the packed left operand has beside each other, used or not.
    pub(super) height: usize,
    /// `[vectors - 1][rows - 1]`
    run: [&'static [Run<T>]; 2],
    /// `[rows - 1]`, of full width.
    keep: &'static [Run<T>],
    fetch: &'static [Run<T>],
    /// The same with a left operand that is not packed: `[keep][rows - 1]`, of full width.
    there: [&'static [Run<T>]; 2],
}

impl<T: Copy> Tiles<T> {
    pub(super) fn max_rows(&self) -> usize {
        self.run[0].len()
    }

    pub(super) fn max_cols(&self) -> usize {
        2 * self.lanes
    }

    /// `c = a * b`, or `c += a * b`: `rows` rows of `c`, `vectors` vectors wide, `c_row` apart. What is not packed is there in
    /// full width only.
    pub(super) fn run(
        &self,
        [rows, vectors]: [usize; 2],
        a: Left<'_, T>,
        (b, starts): (&[T], &Starts),
        c: (&mut [T], usize),
        add: bool,
    ) {
        let run = match a {
            Left::Packed(_) => self.run[vectors - 1][rows - 1],
            Left::There(..) => {
                assert_eq!(vectors, 2, "of full width");
                self.there[0][rows - 1]
            }
        };
        self.start(run, [rows, vectors], a, (b, starts), c, (add, Extra::Nothing));
    }

    /// The same in full width; the right operand is also packed, row after row.
    pub(super) fn run_and_keep(
        &self,
        rows: usize,
        a: Left<'_, T>,
        (b, starts): (&[T], &Starts),
        c: (&mut [T], usize),
        (add, kept): (bool, &mut [T]),
    ) {
        assert!(starts.n * self.max_cols() <= kept.len(), "what is kept has room");
        let extra = Extra::Keep(kept.as_mut_ptr());
        let run = match a {
            Left::Packed(_) => self.keep[rows - 1],
            Left::There(..) => self.there[1][rows - 1],
        };
        self.start(run, [rows, 2], a, (b, starts), c, (add, extra));
    }

    /// The same in full width, with a right operand that was packed; rows of the next are fetched in passing.
    pub(super) fn run_and_fetch(
        &self,
        rows: usize,
        a: &[T],
        (b, starts): (&[T], &Starts),
        c: (&mut [T], usize),
        (add, next, there): (bool, &[T], &Starts),
    ) {
        assert_eq!(starts.n, there.n, "as many rows as this one has");
        let extra = Extra::Fetch(next.as_ptr(), there.at.as_ptr());
        self.start(self.fetch[rows - 1], [rows, 2], Left::Packed(a), (b, starts), c, (add, extra));
    }

    /// `extra` is what the kernel does, and has room.
    fn start(
        &self,
        run: Run<T>,
        [rows, vectors]: [usize; 2],
        a: Left<'_, T>,
        (b, starts): (&[T], &Starts),
        (c, c_row): (&mut [T], usize),
        (add, extra): (bool, Extra<T>),
    ) {
        let (k, width) = (starts.n, vectors * self.lanes);
        assert!(k > 0 && starts.reach + width <= b.len(), "the right operand holds its rows");
        let (a, a_row, a_end) = match a {
            Left::Packed(a) => (a, 0, k * self.height),
            Left::There(a, row) => (a, row, (rows - 1) * row + k),
        };
        assert!(a_end <= a.len(), "the left operand holds the tile's rows");
        assert!((rows - 1) * c_row + width <= c.len(), "the output holds the tile");
        let job = Job {
            a: a.as_ptr(),
            a_row,
            b: b.as_ptr(),
            starts: starts.at.as_ptr(),
            k,
            extra,
            c: c.as_mut_ptr(),
            c_row,
            add,
        };
        // SAFETY: everything the kernel reads and writes lies in the slices, as just checked; `starts.at` holds `n`
        // places of at most `reach`; `c` and `kept` are borrowed mutably, so they overlap nothing else; `tiles` chose kernels whose
        // instructions this CPU has.
        unsafe { run(&job) }
    }
}

/// Element types that have tiles.
pub trait Tiled: Copy + 'static {
    #[doc(hidden)]
    fn tiles() -> &'static Tiles<Self>;
    /// The tiles of every instruction set of this CPU, worst first.
    #[cfg(test)]
    fn all() -> Vec<&'static Tiles<Self>>;
}

/// A kernel of `ROWS x VECTORS`, written once; the types and functions of an instruction set come in.
macro_rules! kernel {
    ($(#[$feature:meta])* $t:ty, $v:ty, $lanes:literal, $height:literal, $zero:expr, $load:expr, $store:expr, $splat:expr, $fma:expr, $add:expr, $fetch:expr) => {
        use super::{AHEAD, Extra, FETCH, Job, KEEP, NOTHING, Run};

        /// # Safety
        /// The CPU has the instructions; the job's pointers are good for its sizes.
        $(#[$feature])*
        unsafe fn tile<const ROWS: usize, const VECTORS: usize, const EXTRA: u8, const PACKED: bool>(job: &Job<$t>) {
            // What is written has to come first, whether it is added to or not.
            for i in 0..ROWS * VECTORS {
                $fetch(job.c.wrapping_add(i / VECTORS * job.c_row + i % VECTORS * $lanes).cast_const());
            }
            let mut sums: [[$v; VECTORS]; ROWS] = [[$zero; VECTORS]; ROWS];
            let mut a = job.a;
            // Addresses reach three rows from one place: more places than these would not fit into registers.
            let row = job.a_row;
            let mut thirds = [a, a.wrapping_add(3 * row), a.wrapping_add(6 * row), a.wrapping_add(9 * row)];
            for l in 0..job.k {
                // No closures from here on: what is called between here and an instruction has to be inlined.
                let mut b: [$v; VECTORS] = [$zero; VECTORS];
                // SAFETY: `starts` holds `k` places, each with `VECTORS` vectors of `b` behind it.
                unsafe {
                    let row = job.b.add(*job.starts.add(l) as usize);
                    for (v, b) in b.iter_mut().enumerate() {
                        *b = $load(row.add(v * $lanes));
                    }
                }
                match job.extra {
                    Extra::Keep(kept) if EXTRA == KEEP => {
                        // SAFETY: `kept` has room for `k` rows of full width, and `starts` has `AHEAD` places more than
                        // `k`; what lies there is fetched, not read, so that it need not exist.
                        unsafe {
                            let row = job.b.wrapping_add(*job.starts.add(l + AHEAD) as usize);
                            for (v, &b) in b.iter().enumerate() {
                                $store(kept.add((l * VECTORS + v) * $lanes), b);
                                $fetch(row.wrapping_add(v * $lanes));
                            }
                            $fetch(row.wrapping_add(VECTORS * $lanes - 1));
                        }
                    }
                    Extra::Fetch(next, there) if EXTRA == FETCH => {
                        // SAFETY: there are `k` places; what lies there is fetched, not read.
                        let row = next.wrapping_add(unsafe { *there.add(l) } as usize);
                        for v in 0..VECTORS {
                            $fetch(row.wrapping_add(v * $lanes));
                        }
                    }
                    _ => {}
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    // SAFETY: a packed left operand has `k` times `$height` elements, and `r` is less than that; another
                    // has `k` elements in each of its rows.
                    let x = $splat(unsafe {
                        if PACKED { *a.add(r) } else { *thirds[r / 3].add(r % 3 * row) }
                    });
                    for (sum, b) in sums.iter_mut().zip(b) {
                        *sum = $fma(x, b, *sum);
                    }
                }
                if PACKED {
                    a = a.wrapping_add($height);
                } else {
                    for third in &mut thirds {
                        *third = third.wrapping_add(1);
                    }
                }
            }
            for (r, sums) in sums.iter().enumerate() {
                for (v, &sum) in sums.iter().enumerate() {
                    // SAFETY: row `r` of the output has room for `VECTORS` vectors.
                    unsafe {
                        let c = job.c.add(r * job.c_row + v * $lanes);
                        $store(c, if job.add { $add($load(c), sum) } else { sum });
                    }
                }
            }
        }
    };
}

macro_rules! table {
    ($lanes:literal, $height:literal: $($rows:literal),*) => {
        pub(super) static TILES: super::Tiles<Element> = {
            const ONE: &[Run<Element>] = &[$(tile::<$rows, 1, NOTHING, true>),*];
            const TWO: &[Run<Element>] = &[$(tile::<$rows, 2, NOTHING, true>),*];
            const THERE: [&[Run<Element>]; 2] =
                [&[$(tile::<$rows, 2, NOTHING, false>),*], &[$(tile::<$rows, 2, KEEP, false>),*]];
            let keep: &[Run<Element>] = &[$(tile::<$rows, 2, KEEP, true>),*];
            let fetch: &[Run<Element>] = &[$(tile::<$rows, 2, FETCH, true>),*];
            super::Tiles { lanes: $lanes, height: $height, run: [ONE, TWO], keep, fetch, there: THERE }
        };
    };
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn fetch<T>(at: *const T) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: any address may be fetched; it is a hint.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
}

#[cfg(target_arch = "x86_64")]
mod avx512_f32 {
    use std::arch::x86_64::*;
    type Element = f32;
    use super::fetch;
    kernel!(
        #[target_feature(enable = "avx512f")]
        f32,
        __m512,
        16,
        12,
        _mm512_setzero_ps(),
        _mm512_loadu_ps,
        _mm512_storeu_ps,
        _mm512_set1_ps,
        _mm512_fmadd_ps,
        _mm512_add_ps,
        fetch
    );
    table!(16, 12: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12);
}

#[cfg(target_arch = "x86_64")]
mod avx512_f64 {
    use std::arch::x86_64::*;
    type Element = f64;
    use super::fetch;
    kernel!(
        #[target_feature(enable = "avx512f")]
        f64,
        __m512d,
        8,
        12,
        _mm512_setzero_pd(),
        _mm512_loadu_pd,
        _mm512_storeu_pd,
        _mm512_set1_pd,
        _mm512_fmadd_pd,
        _mm512_add_pd,
        fetch
    );
    table!(8, 12: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12);
}

#[cfg(target_arch = "x86_64")]
mod avx2_f32 {
    use std::arch::x86_64::*;
    type Element = f32;
    use super::fetch;
    kernel!(
        #[target_feature(enable = "avx2,fma")]
        f32,
        __m256,
        8,
        8,
        _mm256_setzero_ps(),
        _mm256_loadu_ps,
        _mm256_storeu_ps,
        _mm256_set1_ps,
        _mm256_fmadd_ps,
        _mm256_add_ps,
        fetch
    );
    table!(8, 8: 1, 2, 3, 4, 5, 6);
}

#[cfg(target_arch = "x86_64")]
mod avx2_f64 {
    use std::arch::x86_64::*;
    type Element = f64;
    use super::fetch;
    kernel!(
        #[target_feature(enable = "avx2,fma")]
        f64,
        __m256d,
        4,
        8,
        _mm256_setzero_pd(),
        _mm256_loadu_pd,
        _mm256_storeu_pd,
        _mm256_set1_pd,
        _mm256_fmadd_pd,
        _mm256_add_pd,
        fetch
    );
    table!(4, 8: 1, 2, 3, 4, 5, 6);
}

/// For other CPUs: fused all the same, so that the bits are the same. Slow where the CPU cannot fuse.
macro_rules! portable {
    ($module:ident, $t:ty) => {
        mod $module {
            type Element = $t;
            type V = [$t; 4];
            fn zip(a: V, b: V, c: V, f: impl Fn($t, $t, $t) -> $t) -> V {
                std::array::from_fn(|i| f(a[i], b[i], c[i]))
            }
            kernel!($t, V, 4, 4, [0.0; 4], |p: *const $t| p.cast::<V>().read_unaligned(),
                |p: *mut $t, v: V| p.cast::<V>().write_unaligned(v), |x: $t| [x; 4],
                |a, b, c| zip(a, b, c, |a, b, c| a.mul_add(b, c)), |a, b| zip(a, b, b, |a, b, _| a + b), |_: *const $t| ());
            table!(4, 4: 1, 2, 3, 4);
        }
    };
}
portable!(portable_f32, f32);
portable!(portable_f64, f64);

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    cfg!(feature = "avx512") && is_x86_feature_detected!("avx512f")
}

#[cfg(target_arch = "x86_64")]
pub(super) fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
}

macro_rules! tiled {
    ($t:ty, $avx512:ident, $avx2:ident, $portable:ident) => {
        fn tiles() -> &'static Tiles<$t> {
            #[cfg(target_arch = "x86_64")]
            {
                if has_avx512() {
                    return &$avx512::TILES;
                }
                if has_avx2() {
                    return &$avx2::TILES;
                }
            }
            &$portable::TILES
        }

        #[cfg(test)]
        fn all() -> Vec<&'static Tiles<$t>> {
            let mut all = vec![&$portable::TILES];
            #[cfg(target_arch = "x86_64")]
            {
                all.extend(has_avx2().then_some(&$avx2::TILES));
                all.extend(has_avx512().then_some(&$avx512::TILES));
            }
            all
        }
    };
}

impl Tiled for f32 {
    tiled!(f32, avx512_f32, avx2_f32, portable_f32);
}

impl Tiled for f64 {
    tiled!(f64, avx512_f64, avx2_f64, portable_f64);
}
