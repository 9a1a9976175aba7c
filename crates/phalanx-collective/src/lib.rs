//! Collective algorithms as data, what proves and prices them, and the Communicator that runs them.

pub mod plan;
