//! A list whose clones share its memory until one of them changes.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A list for values that exist in many copies, such as the columns of each shard of a dataset.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SharedVec<T>(Arc<Vec<T>>);

impl<T> Default for SharedVec<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T: PartialEq> SharedVec<T> {
    /// Makes equal lists that follow each other share their memory, for example after they were decoded.
    pub fn share<'a>(lists: impl IntoIterator<Item = &'a mut Self>)
    where
        T: 'a,
    {
        let mut last: Option<Self> = None;
        for list in lists {
            match &last {
                Some(earlier) if earlier.0 == list.0 => list.0 = Arc::clone(&earlier.0),
                _ => last = Some(Self(Arc::clone(&list.0))),
            }
        }
    }
}

impl<T> Deref for SharedVec<T> {
    type Target = Vec<T>;

    fn deref(&self) -> &Vec<T> {
        &self.0
    }
}

impl<T: Clone> DerefMut for SharedVec<T> {
    fn deref_mut(&mut self) -> &mut Vec<T> {
        Arc::make_mut(&mut self.0)
    }
}

impl<T> From<Vec<T>> for SharedVec<T> {
    fn from(items: Vec<T>) -> Self {
        Self(Arc::new(items))
    }
}

impl<T: Clone> From<SharedVec<T>> for Vec<T> {
    fn from(items: SharedVec<T>) -> Self {
        Arc::unwrap_or_clone(items.0)
    }
}

impl<T> FromIterator<T> for SharedVec<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        items.into_iter().collect::<Vec<_>>().into()
    }
}

impl<T: Clone> IntoIterator for SharedVec<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        Vec::from(self).into_iter()
    }
}

impl<'a, T> IntoIterator for &'a SharedVec<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a, T: Clone> IntoIterator for &'a mut SharedVec<T> {
    type Item = &'a mut T;
    type IntoIter = std::slice::IterMut<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

impl<T: fmt::Debug> fmt::Debug for SharedVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: Serialize> Serialize for SharedVec<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.as_slice().serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for SharedVec<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_a_clone_does_not_affect_the_original() {
        let original = SharedVec::from(vec![1, 2]);
        let mut changed = original.clone();
        assert!(std::ptr::eq(&*original, &*changed));
        changed.push(3);
        assert_eq!((original.as_slice(), changed.as_slice()), (&[1, 2][..], &[1, 2, 3][..]));
    }

    #[test]
    fn equal_lists_are_shared_and_stored_as_lists() {
        let mut lists = [vec![1], vec![1], vec![2]].map(SharedVec::from);
        SharedVec::share(&mut lists);
        assert!(std::ptr::eq(&*lists[0], &*lists[1]));
        assert_eq!(lists.clone().map(Vec::from), [vec![1], vec![1], vec![2]]);
        let text = serde_json::to_string(&lists).unwrap();
        assert_eq!(text, "[[1],[1],[2]]");
        assert_eq!(serde_json::from_str::<Vec<SharedVec<i32>>>(&text).unwrap(), lists);
    }
}
