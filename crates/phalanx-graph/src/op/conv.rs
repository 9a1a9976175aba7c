//! Convolutions of images, as matrix products: with the image itself, moved (`taps`), or with its windows, unrolled
//! (`windows`, `runs`). Filters that see one channel each have loops of their own (`depthwise`, `lanes`).

mod depthwise;
mod lanes;
mod runs;
mod taps;
mod windows;

use super::{Operator, check};
use crate::{
    grad::Grad,
    ir::{Dim, GraphError, Misfit, Shape, Sig},
    kernel::{Call, Gemm, KernelError, Size, real},
};
use depthwise::Depthwise;
use lanes::Lanes;
use serde::{Deserialize, Serialize};
use taps::Moved;
use windows::Windows;

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
                wanted: "positive numbers, and padding up to 1048576",
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

    /// Elements of one image's group of channels.
    fn volume(&self) -> usize {
        self.c * self.image[0] * self.image[1]
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
        let geo = self.geometry(dims[0], dims[1]);
        in_bytes(element, |e| match Way::of(geo) {
            Way::Depthwise(each) => each.scratch(),
            Way::Lanes(lanes) => lanes.scratch(),
            Way::Moved(moved) => moved.scratch(e),
            Way::Windows => Windows(geo).scratch(e),
        })
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let geo = self.geometry(call.dims(0), call.dims(1));
        real!(call.dtype(0), T => {
            let (x, f, y) = (call.input::<T>(0), call.input::<T>(1), call.output::<T>(0));
            let scratch = call.workspace::<T>();
            match Way::of(geo) {
                Way::Depthwise(each) => each.forward(x, f, y, scratch),
                Way::Lanes(lanes) => lanes.forward(x, f, y, scratch),
                Way::Moved(moved) => moved.forward(x, f, y, scratch),
                Way::Windows => Windows(geo).forward(x, f, y, scratch),
            }
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
        let geo = Geometry { images: dims[1][0], ..self.conv.geometry(&self.shape.at(1), dims[0]) };
        in_bytes(element, |e| match Way::back(geo) {
            Way::Depthwise(each) => each.scratch(),
            Way::Lanes(lanes) => lanes.scratch(),
            Way::Moved(moved) => moved.turned_scratch(e),
            Way::Windows => Windows(geo).scratch(e),
        })
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let geo = self.conv.geometry(call.out_dims(0), call.dims(0));
        real!(call.dtype(0), T => {
            let (f, dy, dx) = (call.input::<T>(0), call.input::<T>(1), call.output::<T>(0));
            let scratch = call.workspace::<T>();
            match Way::back(geo) {
                Way::Depthwise(each) => each.turned(dy, f, dx, scratch),
                Way::Lanes(lanes) => lanes.input_grad(f, dy, dx, scratch),
                Way::Moved(moved) => moved.turned(dy, f, dx, scratch),
                Way::Windows => Windows(geo).input_grad(f, dy, dx, scratch),
            }
        });
        Ok(())
    }

    /// It is linear in both, and what a transposed convolution computes.
    fn grad(&self, grad: &mut Grad<'_>) -> Result<bool, GraphError> {
        let (f, x, dy) = (grad.x(0), grad.x(1), grad.dy(0));
        let shape = grad.sig(f).shape.clone();
        grad.give(0, Conv2dFilterGrad { conv: self.conv, shape }, &[dy, x])?;
        grad.give(1, self.conv, &[dy, f])
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
        let geo = self.conv.geometry(dims[0], &self.shape.at(1));
        in_bytes(element, |e| match Way::of(geo) {
            Way::Depthwise(each) => each.scratch(),
            Way::Lanes(lanes) => lanes.scratch(),
            Way::Moved(moved) => moved.filter_scratch(e),
            Way::Windows => Windows(geo).scratch(e),
        })
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let geo = self.conv.geometry(call.dims(0), call.out_dims(0));
        real!(call.dtype(0), T => {
            let (x, dy, df) = (call.input::<T>(0), call.input::<T>(1), call.output::<T>(0));
            let scratch = call.workspace::<T>();
            match Way::of(geo) {
                Way::Depthwise(each) => each.filter_grad(x, dy, df, scratch),
                Way::Lanes(lanes) => lanes.filter_grad(x, dy, df, scratch),
                Way::Moved(moved) => moved.filter_grad(x, dy, df, scratch),
                Way::Windows => Windows(geo).filter_grad(x, dy, df, scratch),
            }
        });
        Ok(())
    }
}

/// How a convolution is computed.
#[derive(Clone, Copy, Debug)]
enum Way {
    Depthwise(Depthwise),
    Lanes(Lanes),
    Moved(Moved),
    Windows,
}

impl Way {
    /// The image as it is, where that is possible and windows are not better.
    fn of(geo: Geometry) -> Way {
        Way::new(Moved::new(geo), &geo)
    }

    /// The same from the gradient of the output to that of the input.
    fn back(geo: Geometry) -> Way {
        Way::new(Moved::backwards(geo), &geo)
    }

    fn new(moved: Option<Moved>, geo: &Geometry) -> Way {
        let moved = moved.filter(|_| !Windows::are_worth(geo));
        if let Some(each) = moved.and_then(Depthwise::new) {
            return Way::Depthwise(each);
        }
        match (Lanes::new(geo), moved) {
            (Some(lanes), _) => Way::Lanes(lanes),
            (None, Some(moved)) => Way::Moved(moved),
            (None, None) => Way::Windows,
        }
    }
}

/// How much scratch memory a product wants, for an element type that is known by its size.
type Wanted = fn(Size) -> usize;

fn in_bytes(element: usize, elements: impl Fn(Wanted) -> usize) -> usize {
    element * elements(if element == size_of::<f32>() { f32::scratch } else { f64::scratch })
}

#[cfg(test)]
mod tests;
