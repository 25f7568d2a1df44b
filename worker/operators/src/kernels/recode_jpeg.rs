//! `recode_jpeg`: adds an index to JPEGs, so that crops can be decoded faster.

use std::sync::Arc;

use arrow::array::{Array, BinaryViewBuilder};
use feedline_data::pipeline::RecodeJpeg;

use super::{KernelContext, KernelDefinition};
use crate::arrow_types::encoded_bytes;
use crate::render::with_scratch;
use crate::{Chunk, Column, OperatorError, OperatorKernel, OutputBuffers};

impl KernelDefinition for RecodeJpeg {
    fn build(&self, _context: &KernelContext<'_>) -> Result<Arc<dyn OperatorKernel>, String> {
        Ok(Arc::new(RecodeJpegOperator { column: self.column.clone() }))
    }
}

/// Adds an index to each JPEG that can have an index. Other values are unchanged.
#[derive(Debug)]
pub(crate) struct RecodeJpegOperator {
    pub(crate) column: String,
}

impl OperatorKernel for RecodeJpegOperator {
    fn apply(&self, chunk: &mut Chunk, _buffers: &mut OutputBuffers) -> Result<(), OperatorError> {
        let encoded = chunk.arrow(&self.column)?.clone();
        let mut recoded = BinaryViewBuilder::with_capacity(encoded.len());
        for row in 0..encoded.len() {
            match encoded_bytes(&encoded, row, &self.column)? {
                None => recoded.append_null(),
                Some(bytes) => match with_scratch(|scratch| scratch.with_index(bytes)) {
                    Some(indexed) => recoded.append_value(indexed),
                    None => recoded.append_value(bytes),
                },
            }
        }
        chunk.set(&self.column, Column::Arrow(Arc::new(recoded.finish())));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, BinaryViewArray};

    use super::*;
    use crate::testing::testdata;

    #[test]
    fn jpegs_get_an_index_and_the_rest_stays() {
        let jpeg = testdata("../../jpeg/testdata/420.jpg");
        let rows: [Option<&[u8]>; 4] = [Some(&jpeg), None, Some(b"no image"), Some(&jpeg[..100])];
        let array = Arc::new(BinaryViewArray::from_iter(rows));
        let columns = vec![("image".to_owned(), Column::Arrow(array))];
        let mut chunk = Chunk::new(columns, vec![0; 4], vec![0; 4]);
        let operator = RecodeJpegOperator { column: "image".to_owned() };
        operator.apply(&mut chunk, &mut OutputBuffers::new()).unwrap();
        let recoded = chunk.arrow("image").unwrap().as_binary_view().clone();
        assert!(recoded.value(0).len() > jpeg.len() && recoded.value(0).len() < jpeg.len() * 11 / 10 + 200);
        assert!(recoded.is_null(1) && chunk.failures.is_empty());
        assert_eq!([recoded.value(2), recoded.value(3)], [b"no image".as_slice(), &jpeg[..100]]);
        let decode = |bytes: &[u8]| with_scratch(|scratch| scratch.decode(bytes)).unwrap();
        assert_eq!(decode(recoded.value(0)), decode(&jpeg));
    }
}
