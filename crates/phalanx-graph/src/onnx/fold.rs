//! Computes what a model computes from shapes and constants, before it runs.

use super::{
    constants::{ConstantData, Int, Known, MOST},
    error::Fault,
    node::OnnxNode,
    shapes, tensor,
};
use phalanx_core::DType;

/// Operations that are known only where their inputs are.
pub const FOLDED: &[&str] = &["Equal", "Mod", "Range", "ReduceProd", "Where"];

/// The value of a node whose inputs are all known; `None` if it is not computed here.
pub fn fold(node: &OnnxNode<'_>, inputs: &[Known]) -> Result<Option<Known>, Fault> {
    let folded = match (node.op(), inputs) {
        ("Identity", [x]) => Some(x.clone()),
        ("Cast", [x]) => cast(node, x)?,
        ("Squeeze" | "Flatten", [x, ..]) if x.len() == 1 => Some(Known { dims: vec![], ..x.clone() }),
        ("Unsqueeze", [x, _]) if x.len() == 1 => Some(Known { dims: vec![1], ..x.clone() }),
        ("Reshape", [x, shape]) => reshape(x, shape)?,
        ("Concat", all) => concat(all),
        ("Gather", [x, at]) => gather(x, at),
        ("Slice", [x, begin, end, rest @ ..]) => slice(x, begin, end, rest.get(1)),
        ("ReduceProd", [x]) => product(x),
        ("Range", [begin, end, step]) => range(begin, end, step),
        ("ConstantOfShape", [shape]) => filled(node, shape)?,
        ("Expand", [x, shape]) => expand(x, shape),
        ("Equal", [a, b]) => equal(a, b),
        ("Where", [which, a, b]) => choose(which, a, b),
        ("Add", [a, b]) => both(a, b, Int::plus, |a, b| a + b),
        ("Sub", [a, b]) => both(a, b, |a, b| a.plus(b.times(Int::Fixed(-1))?), |a, b| a - b),
        ("Mul", [a, b]) => both(a, b, Int::times, |a, b| a * b),
        ("Div", [a, b]) => both(a, b, Int::over, |a, b| a / b),
        ("Mod", [a, b]) => both(a, b, remainder, |_, _| f64::NAN).filter(|k| k.ints().is_some()),
        ("Pow", [a, b]) => both(a, b, |_, _| None, libm::pow),
        ("Neg", [x]) => each(x, |v| v.times(Int::Fixed(-1)), |v| -v),
        ("Sqrt", [x]) => each(x, |_| None, libm::sqrt),
        ("Reciprocal", [x]) => each(x, |_| None, |v| 1.0 / v),
        _ => None,
    };
    Ok(folded.filter(|k| k.len() <= MOST))
}

fn cast(node: &OnnxNode<'_>, x: &Known) -> Result<Option<Known>, Fault> {
    let code = node.int("to", 0)?;
    let known = i32::try_from(code).ok().and_then(tensor::dtype);
    let Some(dtype) = known else {
        return Err(Fault::Attribute {
            name: "to",
            wanted: "f32, f64, i64, i32, u8 or bool",
            got: code.to_string(),
        });
    };
    Ok(converted(x, dtype))
}

/// The same numbers in another type.
pub fn converted(x: &Known, dtype: DType) -> Option<Known> {
    let data = match (&x.data, dtype) {
        (_, DType::F32 | DType::F64) => x.wide().map(ConstantData::Reals),
        (ConstantData::Ints(_), DType::I64 | DType::I32) => Some(x.data.clone()),
        (ConstantData::Reals(all), DType::I64 | DType::I32) => {
            Some(ConstantData::Ints(all.iter().map(|&v| Int::Fixed(v as i64)).collect()))
        }
        (_, DType::Bool) => {
            let truth = |all: Vec<f64>| all.iter().map(|&v| Int::Fixed(i64::from(v != 0.0))).collect();
            x.wide().map(|all| ConstantData::Ints(truth(all)))
        }
        _ => None,
    };
    let dtype = if dtype == DType::I32 { DType::I64 } else { dtype };
    data.map(|data| Known { dtype, dims: x.dims.clone(), data })
}

fn reshape(x: &Known, shape: &Known) -> Result<Option<Known>, Fault> {
    let Some(target) = shape.ints() else { return Ok(None) };
    let to = shapes::reshaped(&x.shape(), target, false)?;
    let dims: Option<Vec<usize>> = to.dims().iter().map(|d| d.fixed()).collect();
    Ok(dims.map(|dims| Known { dims, ..x.clone() }))
}

/// Lists, one after the other.
fn concat(all: &[Known]) -> Option<Known> {
    let dtype = all.first()?.dtype;
    if all.iter().any(|part| part.dims.len() != 1) || all.iter().map(Known::len).sum::<usize>() > MOST {
        return None;
    }
    // Factors of a size are written down in parts, too.
    if all.iter().all(|part| matches!(part.data, ConstantData::Reals(_)) && part.dtype == dtype) {
        let joined = all.iter().map(Known::wide).collect::<Option<Vec<_>>>()?.concat();
        return Some(Known::reals(dtype, vec![joined.len()], joined));
    }
    let joined = all.iter().map(Known::ints).collect::<Option<Vec<_>>>()?.concat();
    Some(Known::list(joined))
}

fn gather(x: &Known, at: &Known) -> Option<Known> {
    if x.dims.len() != 1 {
        return None;
    }
    let n = x.len() as i64;
    let places: Vec<usize> = at
        .fixed()?
        .into_iter()
        .map(|i| if i < 0 { i.saturating_add(n) } else { i })
        .map(|i| (0..n).contains(&i).then_some(i as usize))
        .collect::<Option<_>>()?;
    let data = match &x.data {
        ConstantData::Ints(all) => ConstantData::Ints(places.iter().map(|&i| all[i]).collect()),
        ConstantData::Reals(all) => ConstantData::Reals(places.iter().map(|&i| all[i]).collect()),
    };
    Some(Known { dtype: x.dtype, dims: at.dims.clone(), data })
}

/// A piece of a list, forwards.
fn slice(x: &Known, begin: &Known, end: &Known, step: Option<&Known>) -> Option<Known> {
    let one = |k: &Known| k.fixed().filter(|v| v.len() == 1).map(|v| v[0]);
    if x.dims.len() != 1 || step.is_some_and(|s| one(s) != Some(1)) {
        return None;
    }
    let all = x.ints()?;
    let piece = match shapes::range(one(begin)?, one(end)?, all.len()) {
        Some((begin, end)) => all[begin..end].to_vec(),
        None => Vec::new(),
    };
    Some(Known::list(piece))
}

fn product(x: &Known) -> Option<Known> {
    let all = x.ints()?.iter().try_fold(Int::Fixed(1), |all, &v| all.times(v))?;
    Some(Known { dims: vec![], data: ConstantData::Ints(vec![all]), ..x.clone() })
}

fn range(begin: &Known, end: &Known, step: &Known) -> Option<Known> {
    let one = |k: &Known| k.fixed().filter(|v| v.len() == 1).map(|v| v[0]);
    let (begin, end, step) = (one(begin)?, one(end)?, one(step)?);
    if step != 1 || end.checked_sub(begin)? > MOST as i64 {
        return None;
    }
    Some(Known::list((begin..end).map(Int::Fixed).collect()))
}

/// A single value, repeated.
fn expand(x: &Known, shape: &Known) -> Option<Known> {
    let dims: Vec<usize> =
        shape.fixed()?.into_iter().map(|d| usize::try_from(d).ok()).collect::<Option<_>>()?;
    let n = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).filter(|&n| n <= MOST)?;
    if x.len() != 1 || x.dims.len() > dims.len() {
        return None;
    }
    let data = match &x.data {
        ConstantData::Ints(one) => ConstantData::Ints(vec![one[0]; n]),
        ConstantData::Reals(one) => ConstantData::Reals(vec![one[0]; n]),
    };
    Some(Known { dtype: x.dtype, dims, data })
}

fn filled(node: &OnnxNode<'_>, shape: &Known) -> Result<Option<Known>, Fault> {
    let Some(dims) = shape.fixed() else { return Ok(None) };
    let dims: Option<Vec<usize>> = dims.into_iter().map(|d| usize::try_from(d).ok()).collect();
    let n = dims.as_ref().and_then(|d| d.iter().try_fold(1usize, |n, &d| n.checked_mul(d)));
    let (Some(dims), Some(n)) = (dims, n.filter(|&n| n <= MOST)) else { return Ok(None) };
    let value = match node.tensor("value")? {
        Some(value) => value.known(),
        None => Some(Known::reals(DType::F32, vec![1], vec![0.0])),
    };
    let Some(value) = value.filter(|v| v.len() == 1) else { return Ok(None) };
    let data = match &value.data {
        ConstantData::Ints(one) => ConstantData::Ints(vec![one[0]; n]),
        ConstantData::Reals(one) => ConstantData::Reals(vec![one[0]; n]),
    };
    Ok(Some(Known { dtype: value.dtype, dims, data }))
}

/// With the sign of the divisor.
fn remainder(a: Int, b: Int) -> Option<Int> {
    let (a, b) = (a.fixed()?, b.fixed()?);
    a.checked_rem(b)?.checked_add(b)?.checked_rem(b).map(Int::Fixed)
}

fn equal(a: &Known, b: &Known) -> Option<Known> {
    let truth = |a: Int, b: Int| Some(Int::Fixed(i64::from(a == b)));
    let same = both(a, b, truth, |_, _| f64::NAN)?;
    same.ints()?;
    Some(Known { dtype: DType::Bool, ..same })
}

fn choose(which: &Known, a: &Known, b: &Known) -> Option<Known> {
    let (which, a_all, b_all) = (which.fixed()?, a.ints()?, b.ints()?);
    let n = which.len();
    let fits = |m: usize| m == n || m == 1;
    if !fits(a_all.len()) || !fits(b_all.len()) {
        return None;
    }
    let at = |all: &[Int], i: usize| if all.len() == 1 { all[0] } else { all[i] };
    let all = (0..n).map(|i| if which[i] != 0 { at(a_all, i) } else { at(b_all, i) }).collect();
    Some(Known::list(all))
}

fn each(x: &Known, int: impl Fn(Int) -> Option<Int>, real: impl Fn(f64) -> f64) -> Option<Known> {
    let data = match &x.data {
        ConstantData::Ints(all) => ConstantData::Ints(all.iter().map(|&v| int(v)).collect::<Option<_>>()?),
        ConstantData::Reals(all) => ConstantData::Reals(all.iter().map(|&v| real(v)).collect()),
    };
    Some(Known { data, ..x.clone() })
}

/// Two of the same shape, or one of them a single value.
fn both(
    a: &Known,
    b: &Known,
    int: impl Fn(Int, Int) -> Option<Int>,
    real: impl Fn(f64, f64) -> f64,
) -> Option<Known> {
    let single = |k: &Known| k.len() == 1;
    let like = match () {
        () if a.dims == b.dims || (single(b) && !single(a)) => a,
        () if single(a) && !single(b) => b,
        () if single(a) && single(b) => {
            if a.dims.len() > b.dims.len() {
                a
            } else {
                b
            }
        }
        () => return None,
    };
    let n = like.len();
    let data = match (&a.data, &b.data) {
        (ConstantData::Ints(a), ConstantData::Ints(b)) => {
            let pairs = (0..n).map(|i| int(pick(a, i), pick(b, i)));
            ConstantData::Ints(pairs.collect::<Option<_>>()?)
        }
        (ConstantData::Reals(a), ConstantData::Reals(b)) => {
            ConstantData::Reals((0..n).map(|i| real(pick(a, i), pick(b, i))).collect())
        }
        _ => return None,
    };
    Some(Known { dtype: a.dtype, dims: like.dims.clone(), data })
}

fn pick<T: Copy>(all: &[T], i: usize) -> T {
    if all.len() == 1 { all[0] } else { all[i] }
}
