//! Bytes between ranks and who the ranks are.

pub mod frame;
pub mod secret;
