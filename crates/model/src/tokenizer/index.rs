//! [`Index`]: byte strings that are found by their content.

use crate::file::Strings;
use foldhash::fast::RandomState;
use hashbrown::HashTable;
use std::hash::BuildHasher;

/// Byte strings and where each is. Empty ones are never found.
#[derive(Clone, Debug)]
pub(crate) struct Index {
    strings: Strings,
    table: HashTable<u32>,
    hasher: RandomState,
}

impl Index {
    /// Indexes `strings`; of two equal ones the later is found, as in llama.cpp.
    pub fn new(strings: Strings) -> Index {
        let hasher = RandomState::default();
        let hash = |&j: &u32| hasher.hash_one(strings.get(j as usize).unwrap_or_default());
        let mut table = HashTable::with_capacity(strings.len());
        for (i, string) in strings.iter().enumerate() {
            let i = i as u32;
            if string.is_empty() {
                continue;
            }
            let same = |&j: &u32| strings.get(j as usize) == Some(string);
            *table.entry(hasher.hash_one(string), same, hash).or_insert(i).into_mut() = i;
        }
        Index { strings, table, hasher }
    }

    /// Adds a string and returns its number.
    pub fn push(&mut self, string: &[u8]) -> u32 {
        let i = self.strings.len() as u32;
        self.strings.push(string);
        let strings = &self.strings;
        self.table.insert_unique(self.hasher.hash_one(string), i, |&j| {
            self.hasher.hash_one(strings.get(j as usize).unwrap_or_default())
        });
        i
    }

    /// String `i`.
    pub fn get(&self, i: u32) -> Option<&[u8]> {
        self.strings.get(i as usize)
    }

    pub fn find(&self, string: &[u8]) -> Option<u32> {
        let same = |&j: &u32| self.strings.get(j as usize) == Some(string);
        self.table.find(self.hasher.hash_one(string), same).copied()
    }
}
