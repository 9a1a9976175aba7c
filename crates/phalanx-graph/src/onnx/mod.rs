//! Models from PyTorch: an ONNX file exported in training mode becomes a program; trained parameters can be written back into the file.
//!
//! Everything here can be caused by bytes from outside, so nothing here may panic, hang, or allocate much more than the
//! file is long.
//! - ONNX-1: nothing is allocated for a length before that many bytes were seen to be there, and the number of parts a
//!   file may have is limited before it is decoded.
//! - ONNX-2: operations that are not known are reported all at once, with their nodes.
//! - ONNX-3: writing back replaces the values of initializers; every other byte of the content stays as it was.
//! - ONNX-4: the batch stays symbolic from the inputs to the outputs, or the import fails.

mod constants;
mod error;
mod export;
mod fold;
mod graph;
mod import;
mod lower;
mod node;
mod proto;
mod screen;
mod shapes;
mod tensor;
mod wire;

pub use error::{Fault, InputFault, OnnxError, TensorFault, Unknown};
pub use export::{Exported, export};
pub use import::{ImportOptions, Imported, Norms, import};
pub use screen::Limits;
