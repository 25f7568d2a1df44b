//! A batch as Python gets it.

use std::sync::{Arc, PoisonError};

use arrow::array::{Array, RecordBatch, StructArray};
use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use feedline_client::{Batch as ClientBatch, BatchInfo};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

use crate::column::{to_dense, to_numpy};
use crate::errors::FeedlineError;
use crate::job::SharedOrigins;

/// One batch: its columns, and what it is made of.
#[pyclass(frozen, module = "feedline._native")]
pub(crate) struct Batch {
    records: RecordBatch,
    info: BatchInfo,
    /// Where its consumer stands once it has it: the next undelivered row of each slot, as `(slot, epoch, row)`.
    places: Vec<(u32, u32, u64)>,
    origins: SharedOrigins,
    /// Columns of lists that have one length in each batch.
    dense: Arc<[String]>,
}

impl Batch {
    pub(crate) fn new(
        batch: ClientBatch,
        places: Vec<(u32, u32, u64)>,
        origins: SharedOrigins,
        dense: Arc<[String]>,
    ) -> Self {
        Self { records: batch.records, info: batch.info, places, origins, dense }
    }
}

#[pymethods]
impl Batch {
    /// The columns as NumPy arrays, by name: views where they can be.
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let columns = PyDict::new(py);
        let schema = self.records.schema_ref();
        for (field, column) in schema.fields().iter().zip(self.records.columns()) {
            let is_dense = self.dense.contains(field.name());
            let array = if is_dense { to_dense(py, field, column)? } else { to_numpy(py, field, column)? };
            columns.set_item(field.name(), array)?;
        }
        Ok(columns)
    }

    /// Arrow's PyCapsule interface: any Arrow library takes the batch without a copy.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        // The interface lets a producer give what it has where another schema is asked for.
        drop(requested_schema);
        let schema = FFI_ArrowSchema::try_from(self.records.schema_ref().as_ref())
            .map_err(|error| FeedlineError::new_err(error.to_string()))?;
        let array = FFI_ArrowArray::new(&StructArray::from(self.records.clone()).to_data());
        Ok((
            PyCapsule::new_with_value(py, schema, c"arrow_schema")?,
            PyCapsule::new_with_value(py, array, c"arrow_array")?,
        ))
    }

    fn __len__(&self) -> usize {
        self.records.num_rows()
    }

    /// Epoch of its first row, from 0.
    #[getter]
    fn epoch(&self) -> u32 {
        self.info.epoch
    }

    /// Slot (virtual consumer) that it belongs to; 0 in relaxed mode.
    #[getter]
    fn slot(&self) -> u32 {
        self.info.stream
    }

    /// Where its consumer stands once it has it: the next undelivered row of each slot, as `(slot, epoch, row)`.
    #[getter]
    fn places(&self) -> Vec<(u32, u32, u64)> {
        self.places.clone()
    }

    /// Step of its epoch, from 0; `None` where only its rows tell.
    #[getter]
    fn step(&self) -> Option<u64> {
        self.info.step
    }

    /// Its part of the rows of its step over all slots.
    #[getter]
    fn weight(&self) -> f64 {
        self.info.weight
    }

    /// Bytes of its columns.
    #[getter]
    fn nbytes(&self) -> usize {
        self.records.columns().iter().map(|column| column.get_array_memory_size()).sum()
    }

    /// Rows that failed since the batch before: `(shard, offset, reason)`.
    #[getter]
    fn skipped(&self) -> Vec<(String, u64, String)> {
        let skipped = self.info.skipped.iter();
        skipped.map(|row| (row.shard.clone(), row.offset, row.reason.clone())).collect()
    }

    /// Where its rows come from, in order: `(shard, row in the shard)`. `None` before the job has learned its origins.
    fn rows(&self, py: Python<'_>) -> Option<Vec<(String, u64)>> {
        py.detach(|| {
            let mut origins = self.origins.lock().unwrap_or_else(PoisonError::into_inner);
            let origins = origins.as_mut()?;
            let rows = origins.rows(&self.info);
            let shard = |shard: u32| origins.shards()[shard as usize].clone();
            Some(rows.iter().map(|origin| (shard(origin.shard), origin.row)).collect())
        })
    }
}
