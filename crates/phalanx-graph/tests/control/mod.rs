//! Loops and branches on one replica.

mod oracle;
mod refusing;
mod running;
