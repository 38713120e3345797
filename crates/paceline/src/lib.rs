//! paceline runs and serves large language models on the machine at hand.
