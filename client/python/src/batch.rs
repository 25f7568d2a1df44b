//! A batch as a Python object.

use std::sync::Arc;

use arrow::array::{Array, RecordBatch, StructArray};
use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use feedline_client::{Batch as ClientBatch, BatchInfo};
use feedline_data::growth::Growth;
use feedline_proto::batch::GRAPH_KEY;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

use crate::column::{to_dense, to_list_values, to_numpy, to_slab};
use crate::errors::FeedlineError;
use crate::origins::SharedOrigins;

/// The next undelivered row of a slot: `(slot, epoch, row)`.
pub(crate) type SlotPositionTuple = (u32, u32, u64);

/// The recorded segments of an unbounded job.
#[pyclass(frozen, module = "feedline._native")]
pub(crate) struct RecordedGrowth(Arc<Growth>);

#[pymethods]
impl RecordedGrowth {
    /// Returns the part that a position needs whose first row is in this round, as JSON.
    fn json(&self, first_round: u64) -> PyResult<String> {
        let mut growth = (*self.0).clone();
        growth.trim(first_round);
        serde_json::to_string(&growth).map_err(|error| FeedlineError::new_err(error.to_string()))
    }
}

/// Returns the rows that failed as `(shard, offset, reason)`.
pub(crate) fn skipped_rows(info: &BatchInfo) -> Vec<(String, u64, String)> {
    info.skipped.iter().map(|row| (row.shard.clone(), row.offset, row.reason.clone())).collect()
}

/// One batch: its columns and their origin.
#[pyclass(frozen, module = "feedline._native")]
pub(crate) struct Batch {
    records: RecordBatch,
    info: BatchInfo,
    /// The position of the consumer after this batch.
    positions: Vec<SlotPositionTuple>,
    origins: SharedOrigins,
    /// List columns that are padded to one length per batch.
    dense_columns: Arc<[String]>,
}

impl Batch {
    pub(crate) fn new(
        batch: ClientBatch,
        positions: Vec<SlotPositionTuple>,
        origins: SharedOrigins,
        dense_columns: Arc<[String]>,
    ) -> Self {
        Self { records: batch.records, info: batch.info, positions, origins, dense_columns }
    }
}

#[pymethods]
impl Batch {
    /// Returns a dict of NumPy arrays. The arrays are views of the receive buffer if possible. The columns of a sampled graph are its
    /// arrays, without the row that contains them.
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let columns = PyDict::new(py);
        let schema = self.records.schema_ref();
        let is_graph = self.graph().is_some();
        for (field, column) in schema.fields().iter().zip(self.records.columns()) {
            let array = if is_graph {
                to_list_values(py, field, column)?
            } else if self.dense_columns.contains(field.name()) {
                to_dense(py, field, column)?
            } else {
                to_numpy(py, field, column)?
            };
            columns.set_item(field.name(), array)?;
        }
        Ok(columns)
    }

    /// Returns the memory of all columns as one array of bytes. `None` if it is not contiguous.
    fn slab<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        to_slab(py, self.records.columns())
    }

    /// The layout, the node types and the relations of a sampled graph, as JSON. `None` for other batches.
    #[getter]
    fn graph(&self) -> Option<&str> {
        self.records.schema_ref().metadata().get(GRAPH_KEY).map(String::as_str)
    }

    /// Implements Arrow's PyCapsule interface, so that Arrow libraries can import the batch without a copy.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        // The interface allows a producer to ignore the requested schema.
        drop(requested_schema);
        let schema = FFI_ArrowSchema::try_from(self.records.schema_ref().as_ref())
            .map_err(|error| FeedlineError::new_err(error.to_string()))?;
        let array = FFI_ArrowArray::new(&StructArray::from(self.records.clone()).to_data());
        Ok((
            PyCapsule::new_with_value(py, schema, c"arrow_schema")?,
            PyCapsule::new_with_value(py, array, c"arrow_array")?,
        ))
    }

    /// Number of rows. Of an indivisible batch, the number of rows that it was formed from.
    fn __len__(&self) -> usize {
        self.info.rows as usize
    }

    /// Epoch of the first row, from 0.
    #[getter]
    fn epoch(&self) -> u32 {
        self.info.epoch
    }

    /// Slot (virtual consumer) of the batch. 0 in relaxed mode.
    #[getter]
    fn slot(&self) -> u32 {
        self.info.stream
    }

    /// The recorded segments of an unbounded job after this batch; `None` if the job has an end.
    #[getter]
    fn growth(&self) -> Option<RecordedGrowth> {
        self.info.growth.clone().map(RecordedGrowth)
    }

    /// The position of the consumer after this batch, which is the next undelivered row of each slot, as `(slot, epoch, row)`.
    #[getter]
    fn positions(&self) -> Vec<SlotPositionTuple> {
        self.positions.clone()
    }

    /// Step within the epoch, from 0. `None` if it depends on the rows.
    #[getter]
    fn step(&self) -> Option<u64> {
        self.info.step
    }

    /// The batch's share of the rows of all slots in this step.
    #[getter]
    fn weight(&self) -> f64 {
        self.info.weight
    }

    /// Size of the columns in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.records.columns().iter().map(|column| column.get_array_memory_size()).sum()
    }

    /// Rows that failed since the previous batch: `(shard, offset, reason)`.
    #[getter]
    fn skipped(&self) -> Vec<(String, u64, String)> {
        skipped_rows(&self.info)
    }

    /// Returns the origin of each row, in order, as `(shard, index in the shard)`. `None` until `Job.load_origins` was called.
    fn rows(&self, py: Python<'_>) -> Option<Vec<(String, u64)>> {
        py.detach(|| {
            let mut origins = self.origins.lock();
            let origins = origins.as_mut()?;
            let rows = origins.rows(&self.info);
            let shard = |shard: u32| origins.shards()[shard as usize].clone();
            Some(rows.iter().map(|origin| (shard(origin.shard), origin.row)).collect())
        })
    }
}
