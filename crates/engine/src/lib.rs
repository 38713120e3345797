//! Many requests share one model.
#![forbid(unsafe_code)]
