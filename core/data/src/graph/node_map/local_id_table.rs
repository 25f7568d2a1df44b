//! Hash tables with open addressing that assign local ids.

/// Number of keys whose slots are loaded together.
const GROUP_KEYS: usize = 32;
/// Bits of the number of slots of a new table.
const MIN_BITS: u32 = 10;

/// The content of a slot: a key with its local id, or nothing.
pub(in crate::graph) trait IdTableEntry: Copy {
    /// The type of the key.
    type Key: Copy + PartialEq;

    /// No key. Its key differs from all other keys.
    const EMPTY: Self;

    /// Creates the entry of a key.
    fn new(key: Self::Key, local: u32) -> Self;

    /// Whether the entry contains a key.
    fn is_used(self) -> bool;

    /// The key.
    fn key(self) -> Self::Key;

    /// The local id.
    fn local(self) -> u32;

    /// The key as an integer.
    fn bits(key: Self::Key) -> u64;
}

/// A node in the upper half and its local id in the lower half. No node has the id [`u32::MAX`].
#[derive(Debug, Clone, Copy)]
pub(in crate::graph) struct NodeEntry(u64);

impl IdTableEntry for NodeEntry {
    type Key = u32;

    const EMPTY: Self = Self(u64::MAX);

    #[inline]
    fn new(key: u32, local: u32) -> Self {
        Self(u64::from(key) << 32 | u64::from(local))
    }

    #[inline]
    fn is_used(self) -> bool {
        self.0 != u64::MAX
    }

    #[inline]
    fn key(self) -> u32 {
        (self.0 >> 32) as u32
    }

    #[inline]
    fn local(self) -> u32 {
        self.0 as u32
    }

    #[inline]
    fn bits(key: u32) -> u64 {
        u64::from(key)
    }
}

/// A pair of tree and node, and its local id. No node has the id [`u32::MAX`].
#[derive(Debug, Clone, Copy)]
pub(in crate::graph) struct TreeEntry {
    tree: u32,
    node: u32,
    local: u32,
}

impl IdTableEntry for TreeEntry {
    type Key = (u32, u32);

    const EMPTY: Self = Self { tree: 0, node: u32::MAX, local: 0 };

    #[inline]
    fn new((tree, node): (u32, u32), local: u32) -> Self {
        Self { tree, node, local }
    }

    #[inline]
    fn is_used(self) -> bool {
        self.node != u32::MAX
    }

    #[inline]
    fn key(self) -> (u32, u32) {
        (self.tree, self.node)
    }

    #[inline]
    fn local(self) -> u32 {
        self.local
    }

    #[inline]
    fn bits((tree, node): (u32, u32)) -> u64 {
        u64::from(tree) << 32 | u64::from(node)
    }
}

/// A hash table. At most half of its slots are used.
#[derive(Debug)]
pub(in crate::graph) struct LocalIdTable<S> {
    /// The number of slots is a power of two.
    slots: Vec<S>,
    /// The number of used slots.
    used: usize,
}

impl<S: IdTableEntry> Default for LocalIdTable<S> {
    fn default() -> Self {
        Self { slots: vec![S::EMPTY; 1 << MIN_BITS], used: 0 }
    }
}

impl<S: IdTableEntry> LocalIdTable<S> {
    /// Removes all keys. The table keeps its size, unless the last batch used only a small part of it.
    pub(super) fn clear(&mut self) {
        let wanted = (self.used * 2).next_power_of_two().max(1 << MIN_BITS);
        let size = if wanted * 4 <= self.slots.len() { wanted } else { self.slots.len() };
        self.slots.truncate(size);
        self.slots.fill(S::EMPTY);
        self.used = 0;
    }

    /// The size of the allocated memory.
    pub(super) fn memory_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<S>()
    }

    /// Appends the local id of each key. `add` receives each new key, and returns its local id.
    pub(super) fn resolve(
        &mut self,
        mut keys: impl Iterator<Item = S::Key>,
        locals: &mut Vec<u32>,
        mut add: impl FnMut(S::Key) -> u32,
    ) {
        let Some(first) = keys.next() else { return };
        let mut group = [(first, S::EMPTY); GROUP_KEYS];
        let mut next = Some(first);
        while let Some(key) = next {
            group[0] = (key, self.slots[self.first_slot(key)]);
            let mut count = 1;
            for (entry, key) in group[1..].iter_mut().zip(&mut keys) {
                *entry = (key, self.slots[self.first_slot(key)]);
                count += 1;
            }
            for &(key, slot) in &group[..count] {
                // Another key of the group may have changed the slot, but a slot that contains the key remains valid.
                let local = if slot.key() == key { slot.local() } else { self.find_or_add(key, &mut add) };
                locals.push(local);
            }
            next = keys.next();
        }
    }

    fn find_or_add(&mut self, key: S::Key, add: &mut impl FnMut(S::Key) -> u32) -> u32 {
        if (self.used + 1) * 2 > self.slots.len() {
            self.grow();
        }
        let place = self.find(key);
        if self.slots[place].is_used() {
            return self.slots[place].local();
        }
        let local = add(key);
        self.slots[place] = S::new(key, local);
        self.used += 1;
        local
    }

    fn grow(&mut self) {
        let size = self.slots.len() * 2;
        let former = std::mem::replace(&mut self.slots, vec![S::EMPTY; size]);
        for entry in former.into_iter().filter(|entry| entry.is_used()) {
            let place = self.find(entry.key());
            self.slots[place] = entry;
        }
    }

    /// Returns the slot of a key, or the unused slot in which it belongs.
    fn find(&self, key: S::Key) -> usize {
        let mut place = self.first_slot(key);
        while self.slots[place].is_used() && self.slots[place].key() != key {
            place = (place + 1) & (self.slots.len() - 1);
        }
        place
    }

    fn first_slot(&self, key: S::Key) -> usize {
        // Fibonacci hashing: these bits of the product depend on the node and on the lower bits of the tree.
        let hash = S::bits(key).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (hash >> 32) as usize & (self.slots.len() - 1)
    }
}
