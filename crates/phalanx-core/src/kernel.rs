//! Element kernels.
