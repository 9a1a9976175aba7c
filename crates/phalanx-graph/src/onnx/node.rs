//! A node of the graph: its attributes, asked for by name and type.

use super::{error::Fault, proto, tensor::Checked};
use crate::ir::Site;

/// A number from an attribute that is no size of anything real is a mistake or an attack.
const LARGEST: i64 = 1 << 20;

#[derive(Clone, Debug)]
pub struct OnnxNode<'a> {
    pub proto: &'a proto::NodeProto,
    /// Where errors of the program point to.
    pub site: Site,
}

impl<'a> OnnxNode<'a> {
    pub fn new(proto: &'a proto::NodeProto, index: usize) -> OnnxNode<'a> {
        OnnxNode { proto, site: Site::new(format!("onnx:{}", name(proto)), index as u32) }
    }

    pub fn op(&self) -> &'a str {
        &self.proto.op
    }

    fn find(&self, name: &str) -> Option<&'a proto::Attribute> {
        self.proto.attributes.iter().find(|a| a.name == name)
    }

    pub fn int(&self, name: &'static str, default: i64) -> Result<i64, Fault> {
        match self.find(name) {
            None => Ok(default),
            // A zero need not be written down.
            Some(a) => Ok(a.int.unwrap_or(0)),
        }
    }

    pub fn flag(&self, name: &'static str, default: bool) -> Result<bool, Fault> {
        match self.int(name, i64::from(default))? {
            0 => Ok(false),
            1 => Ok(true),
            got => Err(Fault::Attribute { name, wanted: "0 or 1", got: got.to_string() }),
        }
    }

    pub fn float(&self, name: &'static str, default: f64) -> Result<f64, Fault> {
        match self.find(name) {
            None => Ok(default),
            Some(a) => match f64::from(a.float.unwrap_or(0.0)) {
                value if value.is_finite() => Ok(value),
                got => Err(Fault::Attribute { name, wanted: "a finite number", got: got.to_string() }),
            },
        }
    }

    pub fn text(&self, name: &'static str, default: &'static str) -> Result<&'a str, Fault> {
        match self.find(name) {
            None => Ok(default),
            Some(a) => std::str::from_utf8(a.text.as_deref().unwrap_or_default()).map_err(|_| {
                Fault::Attribute { name, wanted: "a text", got: "bytes that are not UTF-8".into() }
            }),
        }
    }

    /// A list of texts; what is not UTF-8 is shown as it can be.
    pub fn texts(&self, name: &'static str) -> Vec<String> {
        let all = self.find(name).map(|a| &a.texts[..]).unwrap_or_default();
        all.iter().map(|text| String::from_utf8_lossy(text).chars().take(32).collect()).collect()
    }

    pub fn ints(&self, name: &'static str) -> Option<&'a [i64]> {
        self.find(name).map(|a| &a.ints[..])
    }

    pub fn floats(&self, name: &'static str) -> Option<&'a [f32]> {
        self.find(name).map(|a| &a.floats[..])
    }

    pub fn has(&self, name: &'static str) -> bool {
        self.find(name).is_some()
    }

    pub fn tensor(&self, name: &'static str) -> Result<Option<Checked<'a>>, Fault> {
        let tensor = self.find(name).and_then(|a| a.tensor.as_deref());
        Ok(tensor.map(Checked::new).transpose()?)
    }

    /// A number of sizes of windows, strides or paddings.
    pub fn sizes<const N: usize>(
        &self,
        name: &'static str,
        default: [usize; N],
    ) -> Result<[usize; N], Fault> {
        let Some(all) = self.ints(name).filter(|all| !all.is_empty()) else { return Ok(default) };
        let sizes: Vec<usize> =
            all.iter().filter(|n| (0..=LARGEST).contains(*n)).map(|&n| n as usize).collect();
        sizes.try_into().map_err(|_| Fault::Attribute {
            name,
            wanted: match N {
                1 => "one size",
                2 => "two sizes (images have height and width, lines two ends)",
                _ => "four sizes",
            },
            got: format!("{:?}", &all[..all.len().min(8)]),
        })
    }
}

/// Its name, or that of what it gives, for people to find it.
pub fn name(proto: &proto::NodeProto) -> &str {
    let output = proto.outputs.first().map_or("", |o| o);
    if proto.name.is_empty() { output } else { &proto.name }
}
