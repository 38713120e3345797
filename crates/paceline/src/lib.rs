//! paceline runs and serves large language models on the machine at hand.

pub mod cache;
pub mod catalogue;
pub mod fetch;
pub mod units;
