//! Copies of blocks of features on a local disk, for features in a store that do not fit in memory. A block is verified before it
//! is written. The blocks that were not used for the longest time are removed when the copies exceed their limit.

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use feedline_data::graph::description::GraphHash;
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;

use crate::error::GraphError;

/// A feature, and the index of a block in its file.
pub(crate) type CopiedBlockKey = (GraphHash, u64);

/// The copies of blocks of one worker.
#[derive(Debug)]
pub struct CopiedBlocks {
    folder: PathBuf,
    limit_bytes: u64,
    state: Mutex<CacheState>,
}

#[derive(Debug, Default)]
struct CacheState {
    blocks: HashMap<CopiedBlockKey, CachedBlock>,
    /// The blocks by the number of their last use.
    order: BTreeMap<u64, CopiedBlockKey>,
    uses: u64,
    writes: u64,
    /// The size of all blocks on the disk, and of those that are being written.
    bytes: u64,
}

#[derive(Debug)]
struct CachedBlock {
    last_use: u64,
    /// The file of the block. `None` until it is on the disk.
    file: Option<BlockFile>,
    /// Set when the block is on the disk. Tasks that need the same block wait for one of them to fetch it.
    stored: Arc<OnceCell<()>>,
}

/// A block on the disk. Each write has a new number, so that the removal of a block does not affect a later copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BlockFile {
    number: u64,
    bytes: u64,
}

/// Room for a block that is being written.
struct Room<'a> {
    cache: &'a CopiedBlocks,
    file: BlockFile,
    is_used: bool,
}

impl CopiedBlocks {
    /// Creates an empty cache in a directory that belongs to this cache alone. Everything in it is removed first.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be created, or old blocks cannot be removed.
    pub fn create(folder: &Path, limit_bytes: u64) -> Result<Arc<Self>, GraphError> {
        let removed = match std::fs::remove_dir_all(folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed,
        };
        let created = removed.and_then(|()| std::fs::create_dir_all(folder));
        created.map_err(|error| GraphError::io("create", folder, &error))?;
        Ok(Arc::new(Self { folder: folder.to_owned(), limit_bytes, state: Mutex::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, file: BlockFile) -> PathBuf {
        self.folder.join(format!("{}.block", file.number))
    }

    /// Reads a range of a block. `fetch` returns the verified block if it is not on the disk. Returns also whether it was fetched.
    pub(crate) async fn read<F: Future<Output = Result<Bytes, GraphError>>>(
        &self,
        key: CopiedBlockKey,
        range: Range<u64>,
        fetch: impl Fn() -> F,
    ) -> Result<(Bytes, bool), GraphError> {
        let stored = self.lock().use_block(key);
        let mut fetched = None;
        let store = async {
            let bytes = fetch().await?;
            self.write(key, bytes.clone()).await?;
            fetched = Some(bytes);
            Ok::<(), GraphError>(())
        };
        stored.get_or_try_init(|| store).await?;
        let slice = |bytes: &Bytes| bytes.slice(range.start as usize..range.end as usize);
        if let Some(bytes) = fetched {
            return Ok((slice(&bytes), true));
        }
        let file = self.lock().blocks.get(&key).and_then(|block| block.file);
        if let Some(file) = file {
            let (path, wanted) = (self.path(file), range.clone());
            match run_blocking(move || read_range(&path, wanted)).await {
                Ok(bytes) => return Ok((bytes, false)),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(GraphError::io("read", &self.path(file), &error)),
            }
        }
        // The block was removed in the meantime.
        Ok((slice(&fetch().await?), true))
    }

    /// Writes a block, and removes others until all fit.
    async fn write(&self, key: CopiedBlockKey, bytes: Bytes) -> Result<(), GraphError> {
        let (file, removed) = self.lock().make_room(bytes.len() as u64, self.limit_bytes);
        let mut room = Room { cache: self, file, is_used: false };
        let removed: Vec<PathBuf> = removed.into_iter().map(|file| self.path(file)).collect();
        let path = self.path(file);
        let target = path.clone();
        let write = move || {
            for path in removed {
                // Nothing else removes the file, and a file that remains is removed with the directory.
                let _ = std::fs::remove_file(path);
            }
            let created =
                OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&target);
            created.and_then(|mut file| file.write_all(&bytes)).inspect_err(|_| {
                // A full disk leaves a part of the block.
                let _ = std::fs::remove_file(&target);
            })
        };
        run_blocking(write).await.map_err(|error| GraphError::io("write", &path, &error))?;
        room.is_used = self.lock().finish(key, file);
        Ok(())
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        if !self.is_used {
            self.cache.lock().bytes -= self.file.bytes;
        }
    }
}

impl Drop for CopiedBlocks {
    fn drop(&mut self) {
        // Blocks that remain are removed by the next worker with this directory.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl CacheState {
    /// Records a use of a block, and returns its cell.
    fn use_block(&mut self, key: CopiedBlockKey) -> Arc<OnceCell<()>> {
        self.uses += 1;
        let last_use = self.uses;
        let new = || CachedBlock { last_use, file: None, stored: Arc::default() };
        let block = self.blocks.entry(key).or_insert_with(new);
        self.order.remove(&block.last_use);
        block.last_use = last_use;
        self.order.insert(last_use, key);
        Arc::clone(&block.stored)
    }

    /// Takes room for a block of `bytes`. Forgets blocks on the disk, the least recently used first, until all fit in the limit.
    /// Returns the file of the new block, and the files to remove.
    fn make_room(&mut self, bytes: u64, limit_bytes: u64) -> (BlockFile, Vec<BlockFile>) {
        // The room is taken before the block is written, so that blocks that are written at the same time fit together.
        self.bytes += bytes;
        let (mut keys, mut files) = (Vec::new(), Vec::new());
        for key in self.order.values() {
            if self.bytes <= limit_bytes {
                break;
            }
            if let Some(file) = self.blocks.get(key).and_then(|block| block.file) {
                self.bytes -= file.bytes;
                keys.push(*key);
                files.push(file);
            }
        }
        for key in keys {
            if let Some(block) = self.blocks.remove(&key) {
                self.order.remove(&block.last_use);
            }
        }
        self.writes += 1;
        (BlockFile { number: self.writes, bytes }, files)
    }

    /// Records that a block is on the disk. Returns whether it is still wanted there.
    fn finish(&mut self, key: CopiedBlockKey, file: BlockFile) -> bool {
        let block = self.blocks.get_mut(&key);
        block.map(|block| block.file = Some(file)).is_some()
    }
}

fn read_range(path: &Path, range: Range<u64>) -> io::Result<Bytes> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    File::open(path)?.read_exact_at(&mut bytes, range.start)?;
    Ok(bytes.into())
}

async fn run_blocking<T: Send + 'static>(
    call: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    spawn_blocking(call).await.unwrap_or_else(|error| Err(io::Error::other(error.to_string())))
}

#[cfg(test)]
mod tests;
