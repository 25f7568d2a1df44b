//! The folder of a graph, in a store or on a local disk: its description, and reads of its files. Every block that is read is
//! compared with its hash.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use arrow::buffer::{Buffer, MutableBuffer};
use bytes::Bytes;
use feedline_data::graph::description::{
    ArrayLayout, BlockHash, DESCRIPTION_FILE, DescribedFile, GraphDescription, HASH_BLOCK_BYTES,
};
use feedline_data::tenants::TenantReads;
use feedline_memory::PrivateFile;
use feedline_sources::{MAX_HEADER_END, NpyArrayHeader, StoreFile, Stores};
use futures::{StreamExt, TryStreamExt};

use crate::block_hasher::hash_block;
use crate::error::GraphError;

/// Maximum size of `graph.json`. A terabyte of features has 3 MB of hashes.
const MAX_DESCRIPTION_BYTES: u64 = 256 << 20;
/// Number of blocks of an array that are read at the same time.
const CONCURRENT_BLOCKS: usize = 8;
/// Maximum size of the blocks that are read at the same time, in addition to the array.
pub const LOAD_BUFFER_BYTES: u64 = CONCURRENT_BLOCKS as u64 * HASH_BLOCK_BYTES;

/// The stores, credentials and permissions with which the folder of a graph is read.
#[derive(Debug, Clone)]
pub struct GraphAccess {
    /// The stores.
    pub stores: Arc<Stores>,
    /// The name of the credentials; `None` uses those of the environment.
    pub credentials: Option<String>,
    /// The permissions of the tenant.
    pub tenant: TenantReads,
}

/// A graph in a store or on a local disk.
#[derive(Debug, Clone)]
pub struct GraphFolder {
    access: GraphAccess,
    /// The URL without a slash at the end.
    url: String,
    is_local: bool,
    description: GraphDescription,
}

/// A file of the folder, open for reading.
#[derive(Debug)]
pub(crate) struct FolderFile {
    file: StoreFile,
    url: String,
    header_bytes: u64,
    hashes: Vec<BlockHash>,
}

impl GraphFolder {
    /// Reads the description of the graph at `url`, which may be a local path.
    ///
    /// # Errors
    /// Returns an error if the description is missing or invalid, or the store fails.
    pub async fn open(access: GraphAccess, url: &str) -> Result<Self, GraphError> {
        let url = url.trim_end_matches('/').to_owned();
        let file_url = format!("{url}/{DESCRIPTION_FILE}");
        let file = open(&access, &file_url).await?;
        let (size, is_local) = (file.size_bytes(), file.is_local());
        if size > MAX_DESCRIPTION_BYTES {
            let reason = format!(
                "the description is {size} bytes long; the limit is {MAX_DESCRIPTION_BYTES} bytes: check that it belongs to a graph"
            );
            return Err(GraphError::file(file_url, reason));
        }
        let json = file.read(0..size).await?;
        // A long description takes a while.
        let parsed = tokio::task::spawn_blocking(move || GraphDescription::parse(&json)).await;
        let parsed = parsed.map_err(|error| GraphError::file(&file_url, error.to_string()))?;
        let description = parsed.map_err(|reason| GraphError::file(file_url, reason))?;
        Ok(Self { access, url, is_local, description })
    }

    /// The description of the graph.
    pub fn description(&self) -> &GraphDescription {
        &self.description
    }

    /// The URL of the graph, without a slash at the end.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Whether the folder is on a local disk.
    pub fn is_local(&self) -> bool {
        self.is_local
    }

    /// Opens a file. Compares its size and header with the description.
    pub(crate) async fn open_file(&self, described: &DescribedFile<'_>) -> Result<FolderFile, GraphError> {
        let url = format!("{}/{}", self.url, described.file.path);
        let file = open(&self.access, &url).await?;
        let (expected, size) = (described.file.bytes, file.size_bytes());
        if size != expected {
            let reason = format!(
                "the file has {size} bytes, but {DESCRIPTION_FILE} lists {expected}: copy the folder again, or build the graph again"
            );
            return Err(GraphError::corrupt(url, size.min(expected), reason));
        }
        let header_bytes = described.header_bytes().unwrap_or(0);
        if let Some(array) = &described.array {
            let start = file.read(0..size.min(MAX_HEADER_END)).await?;
            check_header(&url, &start, array, header_bytes)?;
        }
        Ok(FolderFile { file, url, header_bytes, hashes: described.file.blocks.clone() })
    }
}

async fn open(access: &GraphAccess, url: &str) -> Result<StoreFile, GraphError> {
    Ok(StoreFile::open(&access.stores, url, access.credentials.as_deref(), &access.tenant).await?)
}

/// Compares the header of an array with the description.
fn check_header(url: &str, start: &[u8], array: &ArrayLayout, header_bytes: u64) -> Result<(), GraphError> {
    let header = NpyArrayHeader::parse(start).map_err(|error| GraphError::header(url, error))?;
    let is_equal = header.scalar == array.dtype
        && header.shape == array.shape
        && header.data_start == header_bytes
        && !header.is_big_endian
        && (!header.is_fortran || array.shape.len() < 2);
    if is_equal {
        return Ok(());
    }
    let reason = format!(
        "the header describes an array of `{}` with the shape {:?}, but {DESCRIPTION_FILE} lists {} with the shape {:?} in C order: \
         build the graph again",
        header.descr,
        header.shape,
        array.dtype.name(),
        array.shape
    );
    Err(GraphError::corrupt(url, 0, reason))
}

impl FolderFile {
    /// The URL of the file.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The number of bytes before the first block.
    pub(crate) fn header_bytes(&self) -> u64 {
        self.header_bytes
    }

    /// The size of the file with its header.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.file.size_bytes()
    }

    /// Whether the file is on a local disk.
    pub(crate) fn is_local(&self) -> bool {
        self.file.is_local()
    }

    /// The number of blocks that are hashed.
    fn blocks(&self) -> usize {
        self.hashes.len()
    }

    /// The number of bytes after the header.
    pub(crate) fn data_bytes(&self) -> u64 {
        self.file.size_bytes() - self.header_bytes
    }

    /// Reads a range without comparing hashes. Fails if the file has changed since it was opened.
    pub(crate) async fn read(&self, range: Range<u64>) -> Result<Bytes, GraphError> {
        Ok(self.file.read(range).await?)
    }

    /// Reads a block, and compares it with its hash.
    pub(crate) async fn read_block(&self, block: usize) -> Result<Bytes, GraphError> {
        let start = self.header_bytes + block as u64 * HASH_BLOCK_BYTES;
        let end = self.file.size_bytes().min(start + HASH_BLOCK_BYTES);
        let bytes = self.file.read(start..end).await?;
        let hashed = bytes.clone();
        let hash = tokio::task::spawn_blocking(move || hash_block(&hashed)).await;
        let hash = hash.map_err(|error| GraphError::file(&self.url, error.to_string()))?;
        if hash == self.hashes[block] {
            return Ok(bytes);
        }
        let reason = format!(
            "the {} bytes from here have the hash {hash}, but {DESCRIPTION_FILE} lists {}: copy the folder again, or build the graph \
             again",
            end - start,
            self.hashes[block]
        );
        Err(GraphError::corrupt(&self.url, start, reason))
    }

    /// Reads all data after the header into memory with 64-byte alignment. Blocks are read concurrently.
    pub(crate) async fn load(&self) -> Result<Buffer, GraphError> {
        self.load_first(self.data_bytes()).await
    }

    /// Reads the first `bytes` after the header, as [`load`](Self::load) does. The file has them.
    pub(crate) async fn load_first(&self, bytes: u64) -> Result<Buffer, GraphError> {
        let mut data = MutableBuffer::from_len_zeroed(bytes as usize);
        let blocks = bytes.div_ceil(HASH_BLOCK_BYTES) as usize;
        let reads = (0..blocks).map(|block| async move {
            let bytes = self.read_block(block).await?;
            Ok::<_, GraphError>((block, bytes))
        });
        let mut reads = futures::stream::iter(reads).buffer_unordered(CONCURRENT_BLOCKS);
        while let Some((block, bytes)) = reads.try_next().await? {
            let target = &mut data.as_slice_mut()[block * HASH_BLOCK_BYTES as usize..];
            let length = target.len().min(bytes.len());
            target[..length].copy_from_slice(&bytes[..length]);
        }
        Ok(data.into())
    }

    /// Copies all data after the header to a file on the disk of a directory, and maps the copy to memory. Blocks are read
    /// concurrently, and compared with their hashes.
    pub(crate) async fn load_mapped(&self, folder: &Path) -> Result<Buffer, GraphError> {
        let bytes = self.data_bytes();
        if bytes == 0 {
            return Ok(MutableBuffer::from_len_zeroed(0).into());
        }
        let failed = |error: io::Error| GraphError::io("write", folder, &error);
        let file = Arc::new(PrivateFile::create(folder, bytes).map_err(failed)?);
        let copies = (0..self.blocks()).map(|block| {
            let file = Arc::clone(&file);
            async move {
                let bytes = self.read_block(block).await?;
                let write = move || file.write_at(&bytes, block as u64 * HASH_BLOCK_BYTES);
                let written = tokio::task::spawn_blocking(write).await;
                written.map_err(|error| GraphError::file(&self.url, error.to_string()))?.map_err(failed)
            }
        });
        let copies = futures::stream::iter(copies).buffer_unordered(CONCURRENT_BLOCKS);
        copies.try_for_each(|()| futures::future::ready(Ok(()))).await?;
        let file = Arc::try_unwrap(file)
            .map_err(|_| GraphError::file(&self.url, "the copy is still being written"))?;
        let mapped = file.map().map_err(failed)?;
        Ok(Buffer::from(Bytes::from_owner(mapped)))
    }

    /// Reads rows of `row_bytes` bytes each, in the order of `rows`, which is ascending. Reads each block that contains a row once.
    pub(crate) async fn read_rows(&self, row_bytes: u64, rows: &[u32]) -> Result<Vec<u8>, GraphError> {
        let range = |row: u32| {
            let start = u64::from(row) * row_bytes;
            start..start + row_bytes
        };
        let blocks = rows.iter().flat_map(|row| {
            let Range { start, end } = range(*row);
            (start / HASH_BLOCK_BYTES) as usize..end.div_ceil(HASH_BLOCK_BYTES) as usize
        });
        let mut blocks: Vec<usize> = blocks.collect();
        blocks.sort_unstable();
        blocks.dedup();
        let mut data = vec![0; rows.len() * row_bytes as usize];
        let reads = blocks.into_iter().map(|block| async move {
            let bytes = self.read_block(block).await?;
            Ok::<_, GraphError>((block as u64 * HASH_BLOCK_BYTES, bytes))
        });
        let mut reads = futures::stream::iter(reads).buffer_unordered(CONCURRENT_BLOCKS);
        while let Some((start, bytes)) = reads.try_next().await? {
            let end = start + bytes.len() as u64;
            let first = rows.partition_point(|row| range(*row).end <= start);
            for (index, row) in rows.iter().enumerate().skip(first) {
                let row = range(*row);
                if row.start >= end {
                    break;
                }
                // A row may continue in the next block.
                let (from, to) = (row.start.max(start), row.end.min(end));
                let target = index * row_bytes as usize + (from - row.start) as usize;
                let source = &bytes[(from - start) as usize..(to - start) as usize];
                data[target..target + source.len()].copy_from_slice(source);
            }
        }
        Ok(data)
    }

    /// Reads all data after the header, and compares it with the hashes.
    pub(crate) async fn verify(&self) -> Result<(), GraphError> {
        self.verify_from(0).await
    }

    /// Reads a block and all after it, and compares them with the hashes.
    pub(crate) async fn verify_from(&self, first_block: usize) -> Result<(), GraphError> {
        let reads = (first_block..self.blocks()).map(|block| self.read_block(block));
        let reads = futures::stream::iter(reads).buffer_unordered(CONCURRENT_BLOCKS);
        reads.try_for_each(|_| futures::future::ready(Ok(()))).await
    }
}
