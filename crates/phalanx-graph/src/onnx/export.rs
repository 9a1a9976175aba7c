//! Writes trained parameters back into the file: the values of initializers are replaced, all other bytes are copied (ONNX-3).

use super::{
    error::OnnxError,
    proto,
    screen::{Limits, screen},
    tensor::Checked,
    wire::{Content, Field, Fields, put},
};
use crate::exec::Store;
use prost::Message;

const GRAPH: u64 = 7;
const INITIALIZER: u64 = 5;
const RAW: u64 = 9;
/// Where a tensor may have its values: by type, or raw.
const VALUES: [u64; 6] = [4, 5, 7, RAW, 10, 11];

/// A model with new values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    pub bytes: Vec<u8>,
    /// Initializers whose values are now the store's: parameters and running statistics.
    pub replaced: Vec<String>,
}

/// Writes what the store has under the names of the model's initializers into the model, whatever that is.
/// `Imported::export` sees to it that nothing is left out.
pub fn export(bytes: &[u8], store: &mut Store, limits: &Limits) -> Result<Exported, OnnxError> {
    screen(bytes, limits)?;
    let mut writer = Writer { store, replaced: Vec::new(), seen: 0 };
    let mut model = Vec::with_capacity(bytes.len());
    for field in Fields::new(bytes, 0) {
        let field = field?;
        match field.content {
            Content::Bytes(graph) if field.tag == GRAPH => {
                put(&mut model, GRAPH, &writer.graph(graph, field.at)?);
            }
            _ => model.extend_from_slice(field.whole),
        }
    }
    if writer.replaced.is_empty() {
        return Err(OnnxError::NothingToWrite { n: writer.seen });
    }
    Ok(Exported { bytes: model, replaced: writer.replaced })
}

struct Writer<'a> {
    store: &'a mut Store,
    replaced: Vec<String>,
    seen: usize,
}

impl Writer<'_> {
    fn graph(&mut self, bytes: &[u8], at: usize) -> Result<Vec<u8>, OnnxError> {
        let mut graph = Vec::with_capacity(bytes.len());
        for field in Fields::new(bytes, at) {
            let field = field?;
            match field.content {
                Content::Bytes(tensor) if field.tag == INITIALIZER => {
                    match self.initializer(tensor, &field)? {
                        Some(replaced) => put(&mut graph, INITIALIZER, &replaced),
                        None => graph.extend_from_slice(field.whole),
                    }
                }
                _ => graph.extend_from_slice(field.whole),
            }
        }
        Ok(graph)
    }

    /// The initializer with the store's values, if the store has it.
    fn initializer(&mut self, bytes: &[u8], field: &Field<'_>) -> Result<Option<Vec<u8>>, OnnxError> {
        self.seen += 1;
        let proto = proto::TensorProto::decode(bytes).map_err(OnnxError::Undecodable)?;
        let Some(value) = self.store.get(&proto.name) else { return Ok(None) };
        let name = proto.name.clone();
        let checked = Checked::new(&proto).map_err(|why| OnnxError::Tensor { name: name.clone(), why })?;
        if !checked.is_real() {
            return Ok(None);
        }
        if checked.dtype != value.dtype() || checked.dims != value.dims() {
            let wanted = format!("{}{:?}", checked.dtype, checked.dims);
            let got = format!("{}{:?}", value.dtype(), value.dims());
            return Err(OnnxError::StoreMisfit { name, wanted, got });
        }
        let mut tensor = Vec::with_capacity(bytes.len());
        for part in Fields::new(bytes, field.at) {
            let part = part?;
            if !VALUES.contains(&part.tag) {
                tensor.extend_from_slice(part.whole);
            }
        }
        put(&mut tensor, RAW, &value.to_le_bytes());
        self.replaced.push(name);
        Ok(Some(tensor))
    }
}
