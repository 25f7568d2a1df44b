//! Round trips and damage of batches.
