//! Rows that become columns, to be packed. `unsafe` for the shuffles of the CPU, on checked slices.

#[cfg(target_arch = "x86_64")]
use super::tile::has_avx2;
use std::ops::Range;

/// Element types that can be turned.
pub trait Turned: Copy {
    /// Four rows become columns beside each other: element `i` of row `r` goes to `to[i * row + r]`.
    #[doc(hidden)]
    fn weave(rows: [&[Self]; 4], to: &mut [Self], row: usize);
    /// Row `r` of `from` becomes column `r` of `to`; `rows` and `cols` are those of `from`.
    #[doc(hidden)]
    fn transpose(rows: Range<usize>, cols: usize, from: (&[Self], usize), to: (&mut [Self], usize));
}

impl Turned for f32 {
    fn weave(rows: [&[f32]; 4], to: &mut [f32], row: usize) {
        let n = rows.iter().map(|r| r.len()).min().unwrap_or(0);
        #[cfg(target_arch = "x86_64")]
        if has_avx2() && n > 0 {
            assert!((n - 1) * row + 4 <= to.len(), "the target has room for four columns");
            // SAFETY: each row has `n` elements, and the target has room for their columns, as just checked; the CPU has
            // AVX2.
            unsafe { avx2::weave(rows.map(<[f32]>::as_ptr), n / 8 * 8, to.as_mut_ptr(), row) }
            return weave_each(rows, n / 8 * 8..n, to, row);
        }
        weave_each(rows, 0..n, to, row);
    }

    fn transpose(
        rows: Range<usize>,
        cols: usize,
        (from, from_row): (&[f32], usize),
        (to, to_row): (&mut [f32], usize),
    ) {
        #[cfg(target_arch = "x86_64")]
        if has_avx2() {
            let (n, wide) = (rows.len() / 8 * 8, cols / 8 * 8);
            for r in (0..n).step_by(8) {
                let (a, b) = (&from[(rows.start + r) * from_row..], &mut to[r..]);
                let holds = wide == 0 || 7 * from_row + wide <= a.len() && (wide - 1) * to_row + 8 <= b.len();
                assert!(holds, "both hold the strip");
                // SAFETY: eight rows of `wide` elements lie in both slices, as just checked; the CPU has AVX2.
                unsafe { avx2::turn(a.as_ptr(), from_row, wide, b.as_mut_ptr(), to_row) }
            }
            turn_each(rows.start..rows.start + n, wide..cols, rows.start, (from, from_row), (to, to_row));
            return turn_each(rows.start + n..rows.end, 0..cols, rows.start, (from, from_row), (to, to_row));
        }
        let first = rows.start;
        turn_each(rows, 0..cols, first, (from, from_row), (to, to_row));
    }
}

impl Turned for f64 {
    fn weave(rows: [&[f64]; 4], to: &mut [f64], row: usize) {
        let n = rows.iter().map(|r| r.len()).min().unwrap_or(0);
        weave_each(rows, 0..n, to, row);
    }

    fn transpose(rows: Range<usize>, cols: usize, from: (&[f64], usize), to: (&mut [f64], usize)) {
        let first = rows.start;
        turn_each(rows, 0..cols, first, from, to);
    }
}

fn weave_each<T: Copy>(rows: [&[T]; 4], range: Range<usize>, to: &mut [T], row: usize) {
    for i in range {
        let to = &mut to[i * row..i * row + 4];
        (to[0], to[1], to[2], to[3]) = (rows[0][i], rows[1][i], rows[2][i], rows[3][i]);
    }
}

fn turn_each<T: Copy>(
    rows: Range<usize>,
    cols: Range<usize>,
    first: usize,
    (from, from_row): (&[T], usize),
    (to, to_row): (&mut [T], usize),
) {
    for r in rows {
        for c in cols.clone() {
            to[c * to_row + r - first] = from[r * from_row + c];
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    /// `n` elements of each of four rows; `n` is a multiple of eight.
    ///
    /// # Safety
    /// The CPU has AVX2; `n` elements lie behind each of `rows`, and `n` times four, `to_row` apart, behind `to`.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn weave(rows: [*const f32; 4], n: usize, to: *mut f32, to_row: usize) {
        let [a, b, c, d] = rows;
        let mut i = 0;
        while i < n {
            // SAFETY: eight of the caller's elements, and their places.
            unsafe { weave8([a.add(i), b.add(i), c.add(i), d.add(i)], to.add(i * to_row), to_row) }
            i += 8;
        }
    }

    /// # Safety
    /// As `weave` with `n` = 8.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn weave8(rows: [*const f32; 4], to: *mut f32, to_row: usize) {
        let [a, b, c, d] = rows;
        // SAFETY: eight elements lie behind each.
        let [a, b, c, d] =
            unsafe { [_mm256_loadu_ps(a), _mm256_loadu_ps(b), _mm256_loadu_ps(c), _mm256_loadu_ps(d)] };
        let (ab, cd) = (_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d));
        let (ab_high, cd_high) = (_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c, d));
        let columns = [
            _mm256_shuffle_ps::<0x44>(ab, cd),
            _mm256_shuffle_ps::<0xee>(ab, cd),
            _mm256_shuffle_ps::<0x44>(ab_high, cd_high),
            _mm256_shuffle_ps::<0xee>(ab_high, cd_high),
        ];
        for (i, column) in columns.into_iter().enumerate() {
            // SAFETY: places `i` and `i + 4` of the target have four elements.
            unsafe {
                _mm_storeu_ps(to.add(i * to_row), _mm256_castps256_ps128(column));
                _mm_storeu_ps(to.add((i + 4) * to_row), _mm256_extractf128_ps::<1>(column));
            }
        }
    }

    /// Eight rows of `n` elements become columns; `n` is a multiple of eight.
    ///
    /// # Safety
    /// The CPU has AVX2; eight rows of `n` elements lie behind `from`, and `n` rows of eight behind `to`, so far apart.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn turn(from: *const f32, from_row: usize, n: usize, to: *mut f32, to_row: usize) {
        let mut i = 0;
        while i < n {
            // SAFETY: eight of the caller's columns, and their places.
            unsafe { turn8(from.add(i), from_row, to.add(i * to_row), to_row) }
            i += 8;
        }
    }

    /// Four elements of a row and of the one `high` further on, side by side: then everything stays within 128 bits.
    ///
    /// # Safety
    /// The CPU has AVX2; both have four elements.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn half(row: *const f32, high: usize) -> __m256 {
        // SAFETY: as the caller promised.
        unsafe {
            let low = _mm256_castps128_ps256(_mm_loadu_ps(row));
            _mm256_insertf128_ps::<1>(low, _mm_loadu_ps(row.add(high)))
        }
    }

    /// # Safety
    /// As `turn` with `n` = 8.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn turn8(from: *const f32, from_row: usize, to: *mut f32, to_row: usize) {
        for at in [0, 4] {
            // SAFETY: rows `r` and `r + 4` have eight elements each.
            let [a, b, c, d] = unsafe {
                [
                    half(from.add(at), 4 * from_row),
                    half(from.add(at + from_row), 4 * from_row),
                    half(from.add(at + 2 * from_row), 4 * from_row),
                    half(from.add(at + 3 * from_row), 4 * from_row),
                ]
            };
            let (ab, cd) = (_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d));
            let (ab_high, cd_high) = (_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c, d));
            let columns = [
                _mm256_shuffle_ps::<0x44>(ab, cd),
                _mm256_shuffle_ps::<0xee>(ab, cd),
                _mm256_shuffle_ps::<0x44>(ab_high, cd_high),
                _mm256_shuffle_ps::<0xee>(ab_high, cd_high),
            ];
            for (i, column) in columns.into_iter().enumerate() {
                // SAFETY: row `at + i` of the target has eight elements.
                unsafe { _mm256_storeu_ps(to.add((at + i) * to_row), column) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turned_and_woven_elements_are_where_they_belong() {
        for (rows, cols) in [(1, 1), (3, 17), (8, 8), (9, 23), (32, 5), (20, 40)] {
            let from: Vec<f32> = (0..rows * cols).map(|i| i as f32).collect();
            let wide: Vec<f64> = from.iter().map(|&v| v.into()).collect();
            let (mut to, mut to_wide) = (vec![-1.0; rows * cols], vec![-1.0; rows * cols]);
            f32::transpose(0..rows, cols, (&from, cols), (&mut to, rows));
            f64::transpose(0..rows, cols, (&wide, cols), (&mut to_wide, rows));
            for i in 0..rows * cols {
                assert_eq!(to[i], from[i % rows * cols + i / rows], "{rows}x{cols}, element {i}");
                assert_eq!(to_wide[i], f64::from(to[i]));
            }
            let four = [0, 1, 2, 3].map(|r| &from[r.min(rows - 1) * cols..][..cols]);
            let mut woven = vec![-1.0; (cols - 1) * 6 + 4];
            f32::weave(four, &mut woven, 6);
            for (i, at) in (0..cols).flat_map(|c| (0..4).map(move |r| (r * cols + c, c * 6 + r))) {
                assert_eq!(woven[at], four[i / cols][i % cols]);
            }
            assert!(
                woven.iter().enumerate().all(|(i, &v)| (i % 6 < 4) != (v == -1.0)),
                "what lies between is left alone"
            );
        }
    }
}
