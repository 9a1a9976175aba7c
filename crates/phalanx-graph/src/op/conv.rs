//! Convolutions of images, as matrix products of unrolled windows.

use super::{Operator, check};
use crate::{
    grad::Grad,
    ir::{Dim, GraphError, Misfit, Shape, Sig},
    kernel::{Call, Gemm, KernelError, Mat, Real, Size, real},
};
use serde::{Deserialize, Serialize};

/// Images `[n, c, h, w]` with filters `[o, c / groups, kh, kw]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conv2d {
    pub stride: [usize; 2],
    pub padding: [usize; 2],
    pub dilation: [usize; 2],
    pub groups: usize,
}

/// All sizes of one convolution.
#[derive(Clone, Copy, Debug)]
struct Geometry {
    conv: Conv2d,
    images: usize,
    /// Channels of one group, in and out.
    c: usize,
    o: usize,
    image: [usize; 2],
    kernel: [usize; 2],
    out: [usize; 2],
}

impl Conv2d {
    fn size(&self, n: usize, k: usize, side: usize) -> Option<usize> {
        let reach = self.dilation[side].checked_mul(k.checked_sub(1)?)?.checked_add(1)?;
        Some((n + 2 * self.padding[side]).checked_sub(reach)? / self.stride[side] + 1)
    }

    fn shape(&self, x: &Shape, f: &Shape) -> Result<Shape, Misfit> {
        let misfit = || Misfit::Pair { a: x.clone(), b: f.clone() };
        let (xd, fd) = (x.dims(), f.dims());
        let positive = self.groups > 0 && self.stride.iter().chain(&self.dilation).all(|&s| s > 0);
        if !positive || self.padding.iter().any(|&p| p > 1 << 20) {
            let got = format!("{self:?}");
            return Err(Misfit::Attribute {
                name: "stride, dilation, groups, padding",
                wanted: "sensible numbers",
                got,
            });
        }
        if xd.len() != 4 || fd.len() != 4 {
            return Err(misfit());
        }
        let all: Option<Vec<usize>> = xd[1..].iter().chain(fd).map(|d| d.fixed()).collect();
        let Some([c, h, w, o, fc, kh, kw]) = all.and_then(|v| <[usize; 7]>::try_from(v).ok()) else {
            return Err(misfit());
        };
        if c != fc * self.groups || o % self.groups != 0 {
            return Err(misfit());
        }
        let (oh, ow) = (self.size(h, kh, 0).ok_or_else(misfit)?, self.size(w, kw, 1).ok_or_else(misfit)?);
        Ok(Shape(vec![xd[0], Dim::Fixed(o), Dim::Fixed(oh), Dim::Fixed(ow)]))
    }

    fn geometry(&self, x: &[usize], f: &[usize]) -> Geometry {
        let size = |n, k, side| self.size(n, k, side).expect("infer has computed it");
        Geometry {
            conv: *self,
            images: x[0],
            c: f[1],
            o: f[0] / self.groups,
            image: [x[2], x[3]],
            kernel: [f[2], f[3]],
            out: [size(x[2], f[2], 0), size(x[3], f[3], 1)],
        }
    }
}

impl Geometry {
    /// Elements of one window, and number of windows of an image.
    fn window(&self) -> (usize, usize) {
        (self.c * self.kernel[0] * self.kernel[1], self.out[0] * self.out[1])
    }

    /// Whether windows are the image itself.
    fn is_plain(&self) -> bool {
        let Conv2d { stride, padding, .. } = self.conv;
        self.kernel == [1, 1] && stride == [1, 1] && padding == [0, 0]
    }

    fn scratch(&self, element: usize) -> usize {
        let (k, n) = self.window();
        if self.is_plain() { 0 } else { k * n * element }
    }

    /// Visits every row of the unrolled windows: its place there, its channel, and for each output row the row of the
    /// image it comes from, if any.
    fn rows(&self, mut f: impl FnMut(usize, usize, Option<usize>)) {
        let [kh, kw] = self.kernel;
        for c in 0..self.c {
            for ky in 0..kh {
                for kx in 0..kw {
                    let row = (c * kh + ky) * kw + kx;
                    for oy in 0..self.out[0] {
                        let y = (oy * self.conv.stride[0] + ky * self.conv.dilation[0])
                            .checked_sub(self.conv.padding[0]);
                        let y = y.filter(|&y| y < self.image[0]);
                        f(
                            (row * self.out[0] + oy) * self.out[1],
                            kx,
                            y.map(|y| (c * self.image[0] + y) * self.image[1]),
                        );
                    }
                }
            }
        }
    }

    /// Which output columns of a row see the image through this column of the kernel, and where the first looks.
    fn columns(&self, kx: usize) -> (usize, usize, usize) {
        let (stride, pad, at) = (self.conv.stride[1], self.conv.padding[1], kx * self.conv.dilation[1]);
        let begin = pad.saturating_sub(at).div_ceil(stride).min(self.out[1]);
        let end = (self.image[1] + pad).saturating_sub(at).div_ceil(stride).clamp(begin, self.out[1]);
        (begin, end, (begin * stride + at).saturating_sub(pad))
    }

    fn unroll<T: Real>(&self, image: &[T], windows: &mut [T]) {
        let (width, stride) = (self.out[1], self.conv.stride[1]);
        self.rows(|at, kx, from| {
            let out = &mut windows[at..at + width];
            let Some(from) = from else { return out.fill(T::ZERO) };
            let (begin, end, x) = self.columns(kx);
            out[..begin].fill(T::ZERO);
            out[end..].fill(T::ZERO);
            if begin < end {
                let line = &image[from + x..from + self.image[1]];
                match stride {
                    1 => out[begin..end].copy_from_slice(&line[..end - begin]),
                    _ => {
                        out[begin..end]
                            .iter_mut()
                            .zip(line.iter().step_by(stride))
                            .for_each(|(o, &v)| *o = v);
                    }
                }
            }
        });
    }

    /// Adds windows back to where they came from.
    fn roll<T: Real>(&self, windows: &[T], image: &mut [T]) {
        let (width, stride) = (self.out[1], self.conv.stride[1]);
        self.rows(|at, kx, to| {
            let Some(to) = to else { return };
            let (begin, end, x) = self.columns(kx);
            if begin < end {
                let line = &mut image[to + x..to + self.image[1]];
                let from = &windows[at..at + width][begin..end];
                match stride {
                    1 => line.iter_mut().zip(from).for_each(|(o, &v)| *o += v),
                    _ => line.iter_mut().step_by(stride).zip(from).for_each(|(o, &v)| *o += v),
                }
            }
        });
    }

    /// Pieces of image, filter and output for each image and group.
    fn each(&self, mut f: impl FnMut([usize; 3])) {
        let (k, n) = self.window();
        let (image, out) = (self.c * self.image[0] * self.image[1], self.o * n);
        for i in 0..self.images {
            for g in 0..self.conv.groups {
                let at = i * self.conv.groups + g;
                f([at * image, g * self.o * k, at * out]);
            }
        }
    }
}

impl Operator for Conv2d {
    fn name(&self) -> &'static str {
        "conv2d"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 2)?;
        let (x, f) = (check::real(inputs, 0)?, check::real(inputs, 1)?);
        if x.dtype != f.dtype {
            return Err(Misfit::DType { slot: 1, wanted: x.dtype.name(), got: f.dtype });
        }
        Ok(vec![Sig::dense(x.dtype, self.shape(&x.shape, &f.shape)?)])
    }

    fn workspace(&self, dims: &[&[usize]], element: usize) -> usize {
        self.geometry(dims[0], dims[1]).scratch(element)
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let geo = self.geometry(call.dims(0), call.dims(1));
        let (k, n) = geo.window();
        let image = geo.c * geo.image[0] * geo.image[1];
        real!(call.dtype(0), T => {
            let (x, f, y) = (call.input::<T>(0), call.input::<T>(1), call.output::<T>(0));
            let scratch = call.workspace::<T>();
            geo.each(|[xi, fi, yi]| {
                let x = &x[xi..xi + image];
                let windows = if geo.is_plain() { x } else { geo.unroll(x, scratch); &*scratch };
                let y = &mut y[yi..yi + geo.o * n];
                T::gemm(Size { m: geo.o, n, k }, Mat::new(&f[fi..fi + geo.o * k], k), Mat::new(windows, n), y, false);
            });
        });
        Ok(())
    }

    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        let (x, f, dy) = (grad.x(0), grad.x(1), grad.dy(0));
        let (x_shape, f_shape) = (grad.sig(x).shape.clone(), grad.sig(f).shape.clone());
        grad.give(0, Conv2dInputGrad { conv: *self, shape: x_shape }, &[f, dy])?;
        grad.give(1, Conv2dFilterGrad { conv: *self, shape: f_shape }, &[x, dy])
    }
}

/// From filter and gradient of the output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conv2dInputGrad {
    pub conv: Conv2d,
    /// Of the images.
    pub shape: Shape,
}

impl Operator for Conv2dInputGrad {
    fn name(&self) -> &'static str {
        "conv2d_input_grad"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 2)?;
        let f = check::real(inputs, 0)?;
        check::shaped(inputs, 1, f.dtype, &self.conv.shape(&self.shape, &f.shape)?)?;
        Ok(vec![Sig::dense(f.dtype, self.shape.clone())])
    }

    fn workspace(&self, dims: &[&[usize]], element: usize) -> usize {
        // One image is unrolled at a time, so that their number does not matter.
        let x = self.shape.at(1);
        self.conv.geometry(&x, dims[0]).scratch(element)
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let geo = self.conv.geometry(call.out_dims(0), call.dims(0));
        let (k, n) = geo.window();
        let image = geo.c * geo.image[0] * geo.image[1];
        real!(call.dtype(0), T => {
            let (f, dy, dx) = (call.input::<T>(0), call.input::<T>(1), call.output::<T>(0));
            let scratch = call.workspace::<T>();
            geo.each(|[xi, fi, yi]| {
                let dx = &mut dx[xi..xi + image];
                let f = Mat::new(&f[fi..fi + geo.o * k], k).t();
                let dy = Mat::new(&dy[yi..yi + geo.o * n], n);
                let size = Size { m: k, n, k: geo.o };
                if geo.is_plain() {
                    T::gemm(size, f, dy, dx, false);
                } else {
                    T::gemm(size, f, dy, scratch, false);
                    dx.fill(T::ZERO);
                    geo.roll(scratch, dx);
                }
            });
        });
        Ok(())
    }
}

/// From images and gradient of the output: image after image, in their order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conv2dFilterGrad {
    pub conv: Conv2d,
    /// Of the filters.
    pub shape: Shape,
}

impl Operator for Conv2dFilterGrad {
    fn name(&self) -> &'static str {
        "conv2d_filter_grad"
    }

    fn infer(&self, inputs: &[Sig]) -> Result<Vec<Sig>, Misfit> {
        check::count(inputs, 2)?;
        let x = check::real(inputs, 0)?;
        check::shaped(inputs, 1, x.dtype, &self.conv.shape(&x.shape, &self.shape)?)?;
        Ok(vec![Sig::dense(x.dtype, self.shape.clone())])
    }

    fn workspace(&self, dims: &[&[usize]], element: usize) -> usize {
        self.conv.geometry(dims[0], &self.shape.at(1)).scratch(element)
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let geo = self.conv.geometry(call.dims(0), call.out_dims(0));
        let (k, n) = geo.window();
        let image = geo.c * geo.image[0] * geo.image[1];
        real!(call.dtype(0), T => {
            let (x, dy, df) = (call.input::<T>(0), call.input::<T>(1), call.output::<T>(0));
            let scratch = call.workspace::<T>();
            df.fill(T::ZERO);
            geo.each(|[xi, fi, yi]| {
                let x = &x[xi..xi + image];
                let windows = if geo.is_plain() { x } else { geo.unroll(x, scratch); &*scratch };
                let dy = Mat::new(&dy[yi..yi + geo.o * n], n);
                let df = &mut df[fi..fi + geo.o * k];
                T::gemm(Size { m: geo.o, n: k, k: n }, dy, Mat::new(windows, n).t(), df, true);
            });
        });
        Ok(())
    }
}
