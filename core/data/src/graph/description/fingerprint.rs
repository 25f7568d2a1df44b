//! Hashes of a graph: one of everything that samples depend on, and one of each feature.

use sha2::{Digest, Sha256};

use super::{GraphDescription, GraphFeature, GraphHash, StoredFile};

/// The input of a hash. Each value has a fixed length or begins with its length, so that different graphs have different
/// inputs.
struct HashInput(Sha256);

impl HashInput {
    fn new(purpose: &str) -> Self {
        let mut input = Self(Sha256::new());
        input.add_text(purpose);
        input
    }

    fn add_number(&mut self, number: u64) {
        self.0.update(number.to_le_bytes());
    }

    fn add_text(&mut self, text: &str) {
        self.add_number(text.len() as u64);
        self.0.update(text.as_bytes());
    }

    /// Adds the contents of a file, but not its name.
    fn add_file(&mut self, file: &StoredFile) {
        self.add_number(file.blocks.len() as u64);
        for block in &file.blocks {
            self.add_number(block.0);
        }
    }

    fn add_optional_file(&mut self, file: Option<&StoredFile>) {
        self.add_number(u64::from(file.is_some()));
        if let Some(file) = file {
            self.add_file(file);
        }
    }

    fn finish(self) -> GraphHash {
        let hash: [u8; 32] = self.0.finalize().into();
        let bytes = hash.first_chunk().expect("a SHA-256 has 32 bytes");
        GraphHash(u128::from_be_bytes(*bytes))
    }
}

impl GraphDescription {
    /// Returns the fingerprint of everything that sampled graphs depend on: the topology, weights, times, and the positions of
    /// nodes and edges in the user's order. Features and seeds do not affect it.
    pub fn topology_fingerprint(&self) -> GraphHash {
        let mut input = HashInput::new("feedline graph topology 1");
        input.add_number(self.nodes.len() as u64);
        for node_type in &self.nodes {
            input.add_text(&node_type.name);
            input.add_number(u64::from(node_type.count));
            input.add_optional_file(node_type.positions.as_ref());
        }
        input.add_number(self.relations.len() as u64);
        for relation in &self.relations {
            input.add_text(&relation.source);
            input.add_text(&relation.name);
            input.add_text(&relation.target);
            input.add_number(relation.edges);
            input.add_file(&relation.offsets);
            input.add_file(&relation.sources);
            input.add_optional_file(relation.weights.as_ref());
            input.add_optional_file(relation.times.as_ref());
            input.add_optional_file(relation.edge_ids.as_ref());
        }
        input.finish()
    }
}

impl GraphFeature {
    /// Returns the hash of the rows, their type and their shape. The name does not affect it, so equal features share caches.
    pub fn content_hash(&self) -> GraphHash {
        let mut input = HashInput::new("feedline graph feature 1");
        input.add_text(self.dtype.name());
        input.add_number(self.shape.len() as u64);
        for &extent in &self.shape {
            input.add_number(u64::from(extent));
        }
        // The number of rows is not part of the description of a feature, but the size of the file follows from it.
        input.add_number(self.file.bytes);
        input.add_file(&self.file);
        input.finish()
    }
}
