//! The clients of Kafka clusters: one for each cluster, credentials and isolation level.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use feedline_kafka::{ClientLimits, ClientMemory, ConnectionSettings, KafkaClient};

use super::oauth::token_source;
use crate::access::ObjectAccess;
use crate::read_memory::ReadMemory;

/// The clients of Kafka clusters.
pub(crate) struct KafkaClients {
    memory: Arc<ClientMemory>,
    /// The clients that datasets use.
    clients: Mutex<HashMap<ClientKey, Weak<KafkaClient>>>,
}

/// Servers, the name of the credentials, and whether only committed records are read.
type ClientKey = (String, Option<String>, bool);

impl KafkaClients {
    /// Creates no client yet. All clients share `memory`.
    pub(crate) fn new(memory: ReadMemory) -> Self {
        let limits = ClientLimits {
            budget_bytes: memory.limits.budget_bytes(),
            block_bytes: memory.limits.kafka_block_bytes(),
            prefetch_bytes: memory.limits.kafka_prefetch_bytes(),
        };
        Self { memory: ClientMemory::new(limits, memory.used_bytes), clients: Mutex::default() }
    }

    /// Returns the client of a cluster. The client connects when it is used.
    ///
    /// # Errors
    /// Returns a message without secrets if the credentials are unknown or invalid.
    pub(crate) fn get(
        &self,
        access: &ObjectAccess,
        credentials: Option<&str>,
        servers: &str,
        is_committed: bool,
    ) -> Result<Arc<KafkaClient>, String> {
        let key = (servers.to_owned(), credentials.map(str::to_owned), is_committed);
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(&key).and_then(Weak::upgrade) {
            return Ok(client);
        }
        clients.retain(|_, client| client.strong_count() > 0);
        let options = access
            .options(credentials)
            .ok_or_else(|| format!("unknown credentials `{}`", credentials.unwrap_or_default()))?;
        let options = options.iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
        let settings = ConnectionSettings::new(servers, options);
        let (tokens, budget) = (token_source(&settings)?, access.retry_budget());
        let client = KafkaClient::new(&settings, is_committed, tokens, budget, &self.memory);
        let client = Arc::new(client.map_err(|error| error.message)?);
        clients.insert(key, Arc::downgrade(&client));
        Ok(client)
    }
}
