//! Comparison of the shards of a growing source with those of the position from which a job resumes.

use std::collections::HashMap;

use super::{Manifest, ShardRef};

impl Manifest {
    /// Compares the listed shards with the shards of the position from which a job resumes. A Kafka partition continues with its
    /// recorded offsets, even if it has more records now. A file on the Hub of Hugging Face is read at its recorded commit, even if
    /// a later commit contains it too.
    ///
    /// # Errors
    /// Returns a message that names the first difference and the fix.
    pub fn check_resumable(&self, listed: &[ShardRef]) -> Result<(), String> {
        let present: HashMap<(u32, &str), &ShardRef> =
            listed.iter().map(|shard| ((shard.part, shard.url.as_str()), shard)).collect();
        for shard in &self.shards {
            let recorded = &shard.object;
            check_topic(recorded, present.get(&(recorded.part, recorded.url.as_str())).copied())?;
        }
        let is_file = |shard: &&ShardRef| shard.kafka_range().is_none();
        let files: Vec<&ShardRef> = self.shards.iter().map(|shard| &shard.object).filter(is_file).collect();
        let listed: Vec<&ShardRef> = listed.iter().filter(is_file).collect();
        let changed = files.iter().zip(&listed).find(|(recorded, listed)| is_changed(recorded, listed));
        let changed = changed.map(|(recorded, _)| recorded.url.as_str());
        let changed = changed.or_else(|| (files.len() != listed.len()).then_some("the list of files"));
        changed.map_or(Ok(()), |changed| {
            Err(format!(
                "{changed} changed since the position was saved, but a mix with a topic resumes only with the same files; restore the files"
            ))
        })
    }
}

/// Whether a file, or the values of its columns, changed.
fn is_changed(recorded: &ShardRef, listed: &ShardRef) -> bool {
    !recorded.is_same_object(listed) || recorded.values != listed.values
}

/// Checks that the topic of a recorded shard still exists, and was not deleted and created again. `listed` is the same shard in
/// the present listing, whose range does not matter.
///
/// # Errors
/// Returns a message that names the first topic and the fix.
fn check_topic(recorded: &ShardRef, listed: Option<&ShardRef>) -> Result<(), String> {
    const FIX: &str = "open a new job without a position, which reads what the topic contains now";
    let Some(expected) = recorded.kafka_range() else { return Ok(()) };
    match listed.and_then(ShardRef::kafka_range) {
        None => Err(format!("the position needs {}, which no longer exists; {FIX}", recorded.url)),
        Some(found) if found.topic_id != expected.topic_id => Err(format!(
            "the topic of {} was deleted and created again: its id was {} and is {} now; {FIX}",
            recorded.url, expected.topic_id, found.topic_id
        )),
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{Shard, ShardIndex, ShardValue};
    use crate::schema::Schema;

    fn partition(range: &str) -> ShardRef {
        ShardRef { url: "kafka://a:1/events/3".to_owned(), version: range.to_owned(), ..ShardRef::default() }
    }

    /// A file on the Hub, as listed in a commit.
    fn file(commit: &str, version: &str) -> ShardRef {
        ShardRef {
            url: format!("hf://datasets/org/name@{}/0.jsonl", commit.repeat(40)),
            size_bytes: 10,
            version: version.to_owned(),
            part: 1,
            ..ShardRef::default()
        }
    }

    #[test]
    fn a_topic_must_be_the_recorded_one() {
        let recorded = partition("x@3-10");
        assert_eq!(check_topic(&recorded, Some(&partition("x@0-99"))), Ok(()));
        let other = check_topic(&recorded, Some(&partition("y@0-99")));
        assert!(other.unwrap_err().contains("deleted and created again"));
        assert!(check_topic(&recorded, None).unwrap_err().contains("no longer exists"));
    }

    #[test]
    fn a_mix_of_a_topic_and_the_hub_resumes_in_a_later_commit_with_the_same_files() {
        let shard = |object| Shard::new(object, ShardIndex::default());
        let shards = vec![shard(partition("x@3-10")), shard(file("a", "1"))];
        let recorded = Manifest { schema: Schema::default(), shards };
        let check = |files: &[ShardRef]| {
            let topic = [partition("x@0-99")];
            recorded.check_resumable(&topic.iter().chain(files).cloned().collect::<Vec<_>>())
        };
        assert_eq!(check(&[file("a", "1")]), Ok(()));
        assert_eq!(check(&[file("b", "1")]), Ok(()), "a commit that does not change the file");
        let labelled = ShardRef { values: vec![ShardValue::int64("label", 3)].into(), ..file("b", "1") };
        for changed in [file("a", "2"), file("b", "2"), labelled] {
            let message = check(&[changed]).unwrap_err();
            assert!(message.starts_with(&file("a", "1").url), "{message}");
        }
        assert!(check(&[]).unwrap_err().starts_with("the list of files changed"));
    }
}
