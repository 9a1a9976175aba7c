//! Resizing: each axis by itself, from the one or two elements of the input that an element of the output lies between.

use super::super::{
    constants::Int,
    error::Fault,
    import::{Import, Value},
    node::OnnxNode,
    shapes,
};
use crate::{
    exec::Tensor,
    ir::{Dim, VarId},
    op::{Arith, Binary, Gather, Transpose},
};
use phalanx_core::DType;

/// No axis becomes longer.
const LONGEST: usize = 1 << 16;

/// How places of the output become places of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coordinates {
    HalfPixel,
    /// The same, but one element lies at the beginning.
    PyTorchHalfPixel,
    AlignCorners,
    Asymmetric,
}

/// Which element is the nearest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nearest {
    RoundPreferFloor,
    RoundPreferCeil,
    Floor,
    Ceil,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Between {
    Nearest(Nearest),
    Linear,
}

/// How one axis is resized.
#[derive(Clone, Copy, Debug)]
struct Axis {
    from: usize,
    to: usize,
    scale: f64,
}

/// The elements on both sides of each place, and how much of the second one counts.
#[derive(Clone, Debug, PartialEq)]
struct Places {
    low: Vec<i64>,
    high: Vec<i64>,
    share: Vec<f64>,
}

pub fn resize<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>) -> Result<(), Fault> {
    let (coordinates, between) = (coordinates(node)?, between(node)?);
    if node.flag("antialias", false)? {
        return Err(Fault::Attribute { name: "antialias", wanted: "0", got: "1".into() });
    }
    if !matches!(node.text("keep_aspect_ratio_policy", "stretch")?, "stretch" | "") {
        let got = node.text("keep_aspect_ratio_policy", "")?.chars().take(32).collect();
        return Err(Fault::Attribute { name: "keep_aspect_ratio_policy", wanted: "stretch", got });
    }
    let mut x = im.var(node, 0)?;
    for (axis, form) in wanted(im, node, x)? {
        if form.from == form.to && form.scale == 1.0 {
            continue;
        }
        x = along(im, node, x, axis, &places(form, coordinates, between))?;
    }
    im.bind(node, 0, Value::Var(x))
}

fn coordinates(node: &OnnxNode<'_>) -> Result<Coordinates, Fault> {
    let name = "coordinate_transformation_mode";
    Ok(match node.text(name, "half_pixel")? {
        "half_pixel" => Coordinates::HalfPixel,
        "pytorch_half_pixel" => Coordinates::PyTorchHalfPixel,
        "align_corners" => Coordinates::AlignCorners,
        "asymmetric" => Coordinates::Asymmetric,
        got => {
            let got = got.chars().take(32).collect();
            let wanted = "half_pixel, pytorch_half_pixel, align_corners or asymmetric";
            return Err(Fault::Attribute { name, wanted, got });
        }
    })
}

fn between(node: &OnnxNode<'_>) -> Result<Between, Fault> {
    match node.text("mode", "nearest")? {
        "nearest" => {}
        "linear" => return Ok(Between::Linear),
        got => {
            let got = got.chars().take(32).collect();
            return Err(Fault::Attribute { name: "mode", wanted: "nearest or linear", got });
        }
    }
    Ok(Between::Nearest(match node.text("nearest_mode", "round_prefer_floor")? {
        "round_prefer_floor" => Nearest::RoundPreferFloor,
        "round_prefer_ceil" => Nearest::RoundPreferCeil,
        "floor" => Nearest::Floor,
        "ceil" => Nearest::Ceil,
        got => {
            let got = got.chars().take(32).collect();
            return Err(Fault::Attribute { name: "nearest_mode", wanted: "a known one", got });
        }
    }))
}

/// The axes that change, from sizes or from scales.
fn wanted<'a>(im: &mut Import<'a>, node: &OnnxNode<'a>, x: VarId) -> Result<Vec<(usize, Axis)>, Fault> {
    let dims = im.program.sig(x).shape.dims().to_vec();
    let axes = match node.ints("axes") {
        Some(all) => shapes::axes(all, dims.len(), "axes")?,
        None => (0..dims.len()).collect(),
    };
    let by_size = im.has(node, 3);
    let slot = if by_size { 3 } else { 2 };
    let known = im.setting(node, slot)?;
    let wrong = |wanted, got: String| Fault::Input { slot, wanted, got };
    if known.len() != axes.len() {
        return Err(wrong("a number for each axis", known.len().to_string()));
    }
    let (ints, reals) = (known.ints().unwrap_or_default(), known.wide().unwrap_or_default());
    let mut found = Vec::new();
    for (i, &axis) in axes.iter().enumerate() {
        let Dim::Fixed(from) = dims[axis] else {
            // Samples stay as many as they are, and only that can be said of them.
            let stays =
                if by_size { ints.get(i) == Some(&Int::of(dims[axis])) } else { reals.get(i) == Some(&1.0) };
            if stays {
                continue;
            }
            return Err(Fault::Batch("resizing it"));
        };
        let (to, scale) = if by_size {
            let to = ints.get(i).and_then(|n| usize::try_from(n.fixed()?).ok()).unwrap_or(0);
            (to, to as f64 / from as f64)
        } else {
            let scale = reals.get(i).copied().filter(|s| s.is_finite() && *s > 0.0).unwrap_or(0.0);
            (libm::floor(from as f64 * scale) as usize, scale)
        };
        if to == 0 || to > LONGEST {
            return Err(wrong("a length from 1 to 65536 for each axis", to.to_string()));
        }
        found.push((axis, Axis { from, to, scale }));
    }
    Ok(found)
}

fn places(axis: Axis, coordinates: Coordinates, between: Between) -> Places {
    let Axis { from, to, scale } = axis;
    let last = (from - 1) as f64;
    let mut found = Places { low: Vec::new(), high: Vec::new(), share: Vec::new() };
    for at in 0..to {
        let at = at as f64;
        let place = match coordinates {
            Coordinates::PyTorchHalfPixel if to == 1 => 0.0,
            Coordinates::HalfPixel | Coordinates::PyTorchHalfPixel => (at + 0.5) / scale - 0.5,
            Coordinates::AlignCorners if to == 1 => 0.0,
            Coordinates::AlignCorners => at * last / (to - 1) as f64,
            Coordinates::Asymmetric => at / scale,
        };
        let (low, high, share) = match between {
            Between::Linear => {
                let place = place.clamp(0.0, last);
                let low = libm::floor(place);
                (low, (low + 1.0).min(last), place - low)
            }
            Between::Nearest(rule) => {
                let one = match rule {
                    Nearest::Floor => libm::floor(place),
                    Nearest::Ceil => libm::ceil(place),
                    Nearest::RoundPreferFloor => libm::ceil(place - 0.5),
                    Nearest::RoundPreferCeil => libm::floor(place + 0.5),
                };
                let one = one.clamp(0.0, last);
                (one, one, 0.0)
            }
        };
        found.low.push(low as i64);
        found.high.push(high as i64);
        found.share.push(share);
    }
    found
}

/// The elements of an axis in these places.
fn along<'a>(
    im: &mut Import<'a>,
    node: &OnnxNode<'a>,
    x: VarId,
    axis: usize,
    places: &Places,
) -> Result<VarId, Fault> {
    let sig = im.program.sig(x).clone();
    let mut order: Vec<usize> = (0..sig.shape.rank()).collect();
    order.swap(0, axis);
    let rows = im.emit(node, Transpose { order: order.clone() }, &[x])?;
    let n = places.low.len();
    let whole = |numbers: &[i64]| Tensor::new(&[n], numbers).expect("as many numbers as it says");
    let low = im.constant(node, whole(&places.low))?;
    let mut y = im.emit(node, Gather, &[rows, low])?;
    if places.share.iter().any(|&s| s != 0.0) {
        let high = im.constant(node, whole(&places.high))?;
        let other = im.emit(node, Gather, &[rows, high])?;
        let rest: Vec<f64> = places.share.iter().map(|s| 1.0 - s).collect();
        let mut weighted = |part: VarId, shares: &[f64]| {
            let shares = im.constant(node, reals(sig.dtype, shares))?;
            im.emit(node, Binary { op: Arith::Mul, axis: 0 }, &[part, shares])
        };
        let (a, b) = (weighted(y, &rest)?, weighted(other, &places.share)?);
        y = im.emit(node, Binary::same(Arith::Add), &[a, b])?;
    }
    im.emit(node, Transpose { order }, &[y])
}

fn reals(dtype: DType, numbers: &[f64]) -> Tensor {
    let made = match dtype {
        DType::F64 => Tensor::new(&[numbers.len()], numbers),
        _ => Tensor::new(&[numbers.len()], &numbers.iter().map(|&v| v as f32).collect::<Vec<f32>>()),
    };
    made.expect("as many numbers as it says")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Golden values of PyTorch's `interpolate`, computed by hand for 2 to 4 and 3 to 2.
    #[test]
    fn places_between_elements() {
        let twice = Axis { from: 2, to: 4, scale: 2.0 };
        let made = places(twice, Coordinates::HalfPixel, Between::Linear);
        assert_eq!((made.low, made.high), (vec![0, 0, 0, 1], vec![1, 1, 1, 1]));
        assert_eq!(made.share, [0.0, 0.25, 0.75, 0.0]);
        let corners = places(twice, Coordinates::AlignCorners, Between::Linear);
        assert_eq!(corners.low, [0, 0, 0, 1]);
        assert!((corners.share[1] - 1.0 / 3.0).abs() < 1e-12);
        let nearest = Between::Nearest(Nearest::Floor);
        assert_eq!(places(twice, Coordinates::Asymmetric, nearest).low, [0, 0, 1, 1]);
        let fewer = Axis { from: 3, to: 2, scale: 2.0 / 3.0 };
        let half = Between::Nearest(Nearest::RoundPreferFloor);
        assert_eq!(places(fewer, Coordinates::HalfPixel, half).low, [0, 2]);
        let half = Between::Nearest(Nearest::RoundPreferCeil);
        assert_eq!(places(fewer, Coordinates::Asymmetric, half).low, [0, 2]);
    }
}
