//! Matrix products into given memory, on one thread.

/// A matrix inside a slice.
#[derive(Clone, Copy, Debug)]
pub struct Mat<'a, T> {
    pub data: &'a [T],
    pub row: usize,
    pub col: usize,
}

impl<'a, T> Mat<'a, T> {
    /// Row after row, `width` elements each.
    pub fn new(data: &'a [T], width: usize) -> Mat<'a, T> {
        Mat { data, row: width, col: 1 }
    }

    /// The same memory, rows and columns swapped.
    pub fn t(self) -> Mat<'a, T> {
        Mat { data: self.data, row: self.col, col: self.row }
    }

    pub fn t_if(self, transposed: bool) -> Mat<'a, T> {
        if transposed { self.t() } else { self }
    }

    fn spans(&self, rows: usize, cols: usize) -> bool {
        rows == 0 || cols == 0 || (rows - 1) * self.row + (cols - 1) * self.col < self.data.len()
    }
}

/// The sizes of a product: `m x k` times `k x n`.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub m: usize,
    pub n: usize,
    pub k: usize,
}

/// Who multiplies matrices of this element type.
pub trait Gemm: Sized {
    /// `c = a * b`, or `c += a * b`; `c` lies row after row.
    fn gemm(size: Size, a: Mat<'_, Self>, b: Mat<'_, Self>, c: &mut [Self], accumulate: bool);
}

macro_rules! on_gemm {
    ($($t:ty),*) => {$(
        impl Gemm for $t {
            fn gemm(size: Size, a: Mat<'_, $t>, b: Mat<'_, $t>, c: &mut [$t], accumulate: bool) {
                let Size { m, n, k } = size;
                assert!(a.spans(m, k) && b.spans(k, n) && c.len() >= m * n, "operands hold their matrices");
                // SAFETY: every element the strides can reach lies in its slice, as just checked; `c` is borrowed
                // mutably, so it overlaps neither `a` nor `b`.
                unsafe {
                    gemm::gemm(
                        m, n, k,
                        c.as_mut_ptr(), 1, n as isize,
                        accumulate,
                        a.data.as_ptr(), a.col as isize, a.row as isize,
                        b.data.as_ptr(), b.col as isize, b.row as isize,
                        1.0, 1.0,
                        false, false, false,
                        gemm::Parallelism::None,
                    );
                }
            }
        }
    )*};
}
on_gemm!(f32, f64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_all_orientations_are_right() {
        for (m, n, k) in [(1, 1, 1), (2, 3, 4), (17, 5, 33), (64, 10, 200), (0, 3, 2), (3, 2, 0)] {
            let a: Vec<f64> = (0..m * k).map(|i| (i % 7) as f64 - 3.0).collect();
            let b: Vec<f64> = (0..k * n).map(|i| (i % 5) as f64 - 2.0).collect();
            for (ta, tb, accumulate) in
                [(false, false, false), (true, false, true), (false, true, false), (true, true, true)]
            {
                let left = |i: usize, l: usize| if ta { a[l * m + i] } else { a[i * k + l] };
                let right = |l: usize, j: usize| if tb { b[j * k + l] } else { b[l * n + j] };
                let mut c = vec![1.0; m * n];
                let am = Mat::new(&a, if ta { m } else { k }).t_if(ta);
                let bm = Mat::new(&b, if tb { k } else { n }).t_if(tb);
                f64::gemm(Size { m, n, k }, am, bm, &mut c, accumulate);
                for i in 0..m {
                    for j in 0..n {
                        let sum: f64 = (0..k).map(|l| left(i, l) * right(l, j)).sum();
                        assert_eq!(c[i * n + j], sum + if accumulate { 1.0 } else { 0.0 });
                    }
                }
            }
        }
    }
}
