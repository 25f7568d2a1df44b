//! Generates sentence pairs in English and German.

use std::ops::Range;
use std::sync::Arc;

use anyhow::Result;
use arrow::array::{RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use feedline_data::random::RowRandom;

use super::rows::RowSource;

/// Number of rows in memory at a time.
const BATCH_ROWS: u64 = 8192;

/// A phrase in English and German.
type PhrasePair = (&'static str, &'static str);

/// Subjects with an article.
const SUBJECTS: [PhrasePair; 10] = [
    ("a young woman", "eine junge Frau"),
    ("an old man", "ein alter Mann"),
    ("two children", "zwei Kinder"),
    ("a brown dog", "ein brauner Hund"),
    ("the cook", "der Koch"),
    ("a group of hikers", "eine Gruppe von Wanderern"),
    ("three cyclists", "drei Radfahrer"),
    ("a street musician", "ein Straßenmusiker"),
    ("the fishermen", "die Fischer"),
    ("a girl in a red coat", "ein Mädchen in einem roten Mantel"),
];

/// Activities, in a form that fits every subject.
const ACTIVITIES: [PhrasePair; 8] = [
    ("seen from behind", "von hinten gesehen"),
    ("on the way home", "auf dem Weg nach Hause"),
    ("waiting for the bus", "beim Warten auf den Bus"),
    ("dancing to loud music", "beim Tanzen zu lauter Musik"),
    ("eating an apple", "beim Essen eines Apfels"),
    ("playing with a ball", "beim Spielen mit einem Ball"),
    ("resting for a while", "bei einer kurzen Rast"),
    ("reading a \"newspaper\"", "beim Lesen einer \u{201e}Zeitung\u{201c}"),
];

/// Places of the activity.
const PLACES: [PhrasePair; 8] = [
    ("in front of the station", "vor dem Bahnhof"),
    ("by the lake", "am See"),
    ("in a crowded market", "auf einem vollen Markt"),
    ("under a bridge", "unter einer Brücke"),
    ("on a snowy hill", "auf einem verschneiten Hügel"),
    ("at the beach", "am Strand"),
    ("in a green park", "in einem grünen Park"),
    ("between tall houses", "zwischen hohen Häusern"),
];

/// Times of the activity. Two out of three sentences do not state a time, so that lengths vary.
const TIMES: [PhrasePair; 4] = [
    ("early in the morning", "früh am Morgen"),
    ("at night", "bei Nacht"),
    ("while it rains", "bei Regen"),
    (
        "on a warm summer day, with friends watching",
        "an einem warmen Sommertag, unter den Augen von Freunden",
    ),
];

/// Generated sentence pairs in the columns `en` and `de`. Each pair is a function of the seed and the row index.
pub(super) struct GeneratedText {
    rows: u64,
    seed: u64,
}

impl GeneratedText {
    pub(super) fn new(rows: u64, seed: u64) -> Self {
        Self { rows, seed }
    }
}

impl RowSource for GeneratedText {
    fn schema(&self) -> SchemaRef {
        text_schema(["en", "de"])
    }

    fn count(&self) -> u64 {
        self.rows
    }

    fn batch_rows(&self) -> u64 {
        BATCH_ROWS
    }

    fn read(&mut self, range: Range<u64>) -> Result<RecordBatch> {
        let (en, de): (Vec<String>, Vec<String>) = range.map(|row| sentences(self.seed, row)).unzip();
        let columns: [StringArray; 2] = [en.into(), de.into()];
        Ok(RecordBatch::try_new(self.schema(), columns.map(|column| Arc::new(column) as _).to_vec())?)
    }
}

/// Returns a schema of text columns with these names.
pub(super) fn text_schema<'a>(names: impl IntoIterator<Item = &'a str>) -> SchemaRef {
    let fields: Vec<Field> = names.into_iter().map(|name| Field::new(name, DataType::Utf8, false)).collect();
    Arc::new(Schema::new(fields))
}

fn sentences(seed: u64, row: u64) -> (String, String) {
    let mut random = RowRandom::new(seed, 1, 0, row);
    let mut pick = |pairs: &[PhrasePair]| pairs[random.below(pairs.len() as u32) as usize];
    let mut phrases = vec![pick(&SUBJECTS), pick(&ACTIVITIES), pick(&PLACES)];
    if random.below(3) == 0 {
        phrases.push(TIMES[random.below(TIMES.len() as u32) as usize]);
    }
    let (en, de): (Vec<&str>, Vec<&str>) = phrases.into_iter().unzip();
    (sentence(&en), sentence(&de))
}

fn sentence(phrases: &[&str]) -> String {
    let mut sentence = phrases.join(" ");
    sentence[..1].make_ascii_uppercase();
    sentence.push('.');
    sentence
}
