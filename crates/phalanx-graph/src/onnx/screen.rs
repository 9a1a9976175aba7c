//! Looks through a file before anything is allocated for it (ONNX-1): every length fits, and there are not too many parts.

use super::{
    error::OnnxError,
    wire::{Content, Fields},
};

/// How much a file may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the file.
    pub bytes: usize,
    /// Fields of all messages: nodes, names, attributes, dimensions. Decoding needs some hundred bytes for each at most,
    /// beside a small multiple of the file's length.
    pub fields: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        // Messages of this encoding have at most 2 GiB.
        Limits { bytes: 1 << 31, fields: 1 << 20 }
    }
}

/// Which message a field's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Model,
    Graph,
    Node,
    Attribute,
    Tensor,
    ValueInfo,
    Type,
    TensorType,
    Shape,
    Dimension,
    Opset,
}

impl Part {
    /// The message in a field of this one. No part contains itself: the walk is never deeper than this table.
    fn inside(self, tag: u64) -> Option<Part> {
        match (self, tag) {
            (Part::Model, 7) => Some(Part::Graph),
            (Part::Model, 8) => Some(Part::Opset),
            (Part::Graph, 1) => Some(Part::Node),
            (Part::Graph, 5) => Some(Part::Tensor),
            (Part::Graph, 11 | 12) => Some(Part::ValueInfo),
            (Part::Node, 5) => Some(Part::Attribute),
            (Part::Attribute, 5) => Some(Part::Tensor),
            (Part::ValueInfo, 2) => Some(Part::Type),
            (Part::Type, 1) => Some(Part::TensorType),
            (Part::TensorType, 2) => Some(Part::Shape),
            (Part::Shape, 1) => Some(Part::Dimension),
            _ => None,
        }
    }
}

pub fn screen(bytes: &[u8], limits: &Limits) -> Result<(), OnnxError> {
    if bytes.len() > limits.bytes {
        return Err(OnnxError::TooLarge { what: "bytes", got: bytes.len(), limit: limits.bytes });
    }
    let mut left = limits.fields;
    walk(Part::Model, bytes, 0, &mut left, limits.fields)
}

fn walk(part: Part, message: &[u8], at: usize, left: &mut usize, limit: usize) -> Result<(), OnnxError> {
    for field in Fields::new(message, at) {
        let field = field?;
        *left = left.checked_sub(1).ok_or(OnnxError::TooLarge {
            what: "fields",
            got: limit.saturating_add(1),
            limit,
        })?;
        if let (Some(inside), Content::Bytes(bytes)) = (part.inside(field.tag), field.content) {
            walk(inside, bytes, field.at, left, limit)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::wire::put;
    use super::*;

    #[test]
    fn many_empty_parts_are_too_many() {
        let mut graph = Vec::new();
        for _ in 0..100 {
            put(&mut graph, 1, &[]);
        }
        let mut model = Vec::new();
        put(&mut model, 7, &graph);
        let limits = Limits { fields: 101, ..Limits::default() };
        assert_eq!(screen(&model, &limits), Ok(()));
        let fewer = Limits { fields: 100, ..limits };
        assert_eq!(
            screen(&model, &fewer),
            Err(OnnxError::TooLarge { what: "fields", got: 101, limit: 100 }),
            "ONNX-1"
        );
        assert!(matches!(screen(&model, &Limits { bytes: 10, ..limits }), Err(OnnxError::TooLarge { .. })));
    }
}
