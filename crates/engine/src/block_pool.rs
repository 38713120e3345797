//! [`BlockPool`]: which blocks of the KV cache are in use, by how many, and what the others still
//! hold.
//!
//! A block is free when no block table names it. A free block keeps its contents until it is handed
//! out again; if they were published, a sequence with the same prefix finds and revives it.
//!
//! ```text
//! free list   front                                           back
//!             unpublished | published, freed long ago ... freed last
//!             ^ handed out first
//! ```
//!
//! A table is freed from its tail, so of one sequence's blocks the tail is handed out first and a
//! published block never outlives the block before it.

use paceline_model::TokenId;
use std::collections::HashMap;
use std::sync::Arc;

/// The number of a block in the KV cache.
pub type BlockId = u32;

const NONE: u32 = u32::MAX;

/// What comes before a published block. A number is never used twice, so it stands for all tokens
/// from the sequence's start to the end of that block, and for the salt.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Parent {
    Root(Arc<str>),
    Prefix(u64),
}

/// What a published block holds.
#[derive(Debug)]
struct Published {
    prefix: u64,
    parent: Parent,
    /// The block before, which stays published for as long as this one.
    before: Option<BlockId>,
    tokens: Box<[TokenId]>,
    hash: u64,
}

/// A published block that was handed out again. Until somebody writes to it, it holds K and V of the
/// last block of `tokens`, all tokens from the start of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// The block.
    pub id: BlockId,
    /// What keeps the text apart from others.
    pub salt: Arc<str>,
    /// The text up to the block's end.
    pub tokens: Vec<TokenId>,
}

#[derive(Debug)]
struct Block {
    refs: u32,
    prev: u32,
    next: u32,
    published: Option<Published>,
}

/// Counts the references of every block of the KV cache.
#[derive(Debug)]
pub struct BlockPool {
    block_len: usize,
    blocks: Vec<Block>,
    head: u32,
    tail: u32,
    n_free: usize,
    /// From the hash of (parent, tokens). On a hit both are compared, so a collision costs a hit
    /// and never a wrong block.
    by_hash: HashMap<u64, BlockId>,
    next_prefix: u64,
    /// Blocks evicted since somebody asked last, if anybody asks.
    evicted: Option<Vec<Evicted>>,
}

impl BlockPool {
    /// A pool of free blocks `0..n_blocks` of `block_len` tokens.
    pub fn new(n_blocks: usize, block_len: usize) -> BlockPool {
        assert!(n_blocks < NONE as usize && block_len > 0);
        let mut pool = BlockPool {
            block_len,
            blocks: Vec::with_capacity(n_blocks),
            head: NONE,
            tail: NONE,
            n_free: 0,
            by_hash: HashMap::new(),
            next_prefix: 0,
            evicted: None,
        };
        for id in 0..n_blocks as u32 {
            pool.blocks.push(Block { refs: 0, prev: NONE, next: NONE, published: None });
            pool.link_back(id);
        }
        pool
    }

    /// Remembers evicted blocks from now on, for [`BlockPool::take_evicted`].
    pub fn watch_evictions(&mut self) {
        self.evicted.get_or_insert_default();
    }

    /// The published blocks that were handed out since the last call, in that order.
    pub fn take_evicted(&mut self) -> Vec<Evicted> {
        self.evicted.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// B.
    pub fn block_len(&self) -> usize {
        self.block_len
    }

    /// Blocks in all.
    pub fn n_blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Blocks that no table names.
    pub fn n_free(&self) -> usize {
        self.n_free
    }

    /// Blocks that some table names.
    pub fn n_used(&self) -> usize {
        self.blocks.len() - self.n_free
    }

    /// Appends `n` blocks to a table, or none and returns false. What they held is forgotten.
    pub fn alloc(&mut self, n: usize, table: &mut Vec<BlockId>) -> bool {
        if n > self.n_free {
            return false;
        }
        for _ in 0..n {
            let id = self.head;
            self.unlink(id);
            let text = self.evicted.as_ref().and_then(|_| self.text_of(id));
            if let (Some(evicted), Some((salt, tokens))) = (&mut self.evicted, text) {
                evicted.push(Evicted { id, salt, tokens });
            }
            if let Some(old) = self.blocks[id as usize].published.take() {
                self.by_hash.remove(&old.hash);
            }
            self.blocks[id as usize].refs = 1;
            table.push(id);
        }
        true
    }

    /// Cuts a table to `len` blocks, its tail first.
    pub fn truncate(&mut self, table: &mut Vec<BlockId>, len: usize) {
        while table.len() > len {
            if let Some(id) = table.pop() {
                self.release(id);
            }
        }
    }

    /// The published blocks that continue a table: `found[i]` holds
    /// `tokens[(table.len() + i) * B..][..B]`, after the table's own blocks. All blocks of the table
    /// must be published. Takes no reference: see [`BlockPool::share`].
    pub fn longest_prefix(
        &self,
        salt: &Arc<str>,
        table: &[BlockId],
        tokens: &[TokenId],
    ) -> Vec<BlockId> {
        let mut found = Vec::new();
        let Some(mut parent) = self.parent_of(salt, table.last().copied()) else { return found };
        let known = (table.len() * self.block_len).min(tokens.len());
        for tokens in tokens[known..].chunks_exact(self.block_len) {
            let Some((id, prefix)) = self.find(&parent, tokens) else { break };
            found.push(id);
            parent = Parent::Prefix(prefix);
        }
        found
    }

    /// Of these blocks, how many are free.
    pub fn count_free(&self, ids: &[BlockId]) -> usize {
        ids.iter().filter(|&&id| self.blocks[id as usize].refs == 0).count()
    }

    /// How many blocks would get free if all these tables were cut to nothing, those of `kept` aside.
    pub(crate) fn count_freed<'a>(
        &self,
        tables: impl Iterator<Item = &'a [BlockId]>,
        kept: &[BlockId],
    ) -> usize {
        let mut refs: HashMap<BlockId, u32> = HashMap::new();
        tables.flatten().for_each(|&id| *refs.entry(id).or_default() += 1);
        let freed = |&(&id, &n): &(&BlockId, &u32)| self.blocks[id as usize].refs == n;
        refs.iter().filter(freed).filter(|(id, _)| !kept.contains(id)).count()
    }

    /// Of a table, how many first blocks are published. After them there is none that is.
    pub(crate) fn count_published(&self, table: &[BlockId]) -> usize {
        table.iter().filter(|&&id| self.blocks[id as usize].published.is_some()).count()
    }

    /// Appends blocks found by [`BlockPool::longest_prefix`] to a table.
    pub fn share(&mut self, found: &[BlockId], table: &mut Vec<BlockId>) {
        for &id in found {
            if self.blocks[id as usize].refs == 0 {
                self.unlink(id);
            }
            self.blocks[id as usize].refs += 1;
            table.push(id);
        }
    }

    /// Publishes block `i` of a table, which is full with `tokens`; the blocks before it must be
    /// published. If an equal block already is, the table gets that one in place of its own: equal
    /// prefixes have the same K and V bit for bit. Returns false if it cannot be published.
    pub fn publish(
        &mut self,
        salt: &Arc<str>,
        table: &mut [BlockId],
        i: usize,
        tokens: &[TokenId],
    ) -> bool {
        assert_eq!(tokens.len(), self.block_len);
        let own = table[i];
        if self.blocks[own as usize].published.is_some() {
            return true;
        }
        let before = i.checked_sub(1).map(|i| table[i]);
        let Some(parent) = self.parent_of(salt, before) else { return false };
        if let Some((id, _)) = self.find(&parent, tokens) {
            if self.blocks[id as usize].refs == 0 {
                self.unlink(id);
            }
            self.blocks[id as usize].refs += 1;
            self.release(own);
            table[i] = id;
            return true;
        }
        let hash = hash(&parent, tokens);
        if self.by_hash.contains_key(&hash) {
            return false;
        }
        self.by_hash.insert(hash, own);
        let prefix = self.next_prefix;
        self.next_prefix += 1;
        let tokens = tokens.into();
        self.blocks[own as usize].published =
            Some(Published { prefix, parent, before, tokens, hash });
        true
    }

    /// Salt and tokens up to the end of a block, if it is published.
    fn text_of(&self, id: BlockId) -> Option<(Arc<str>, Vec<TokenId>)> {
        let mut parts = Vec::new();
        let mut block = Some(id);
        let mut salt = None;
        while let Some(id) = block {
            let published = self.blocks[id as usize].published.as_ref()?;
            parts.push(&*published.tokens);
            if let Parent::Root(root) = &published.parent {
                salt = Some(root.clone());
            }
            block = published.before;
        }
        parts.reverse();
        Some((salt?, parts.concat()))
    }

    fn parent_of(&self, salt: &Arc<str>, before: Option<BlockId>) -> Option<Parent> {
        match before {
            None => Some(Parent::Root(salt.clone())),
            Some(id) => {
                let published = self.blocks[id as usize].published.as_ref()?;
                Some(Parent::Prefix(published.prefix))
            }
        }
    }

    fn find(&self, parent: &Parent, tokens: &[TokenId]) -> Option<(BlockId, u64)> {
        let id = *self.by_hash.get(&hash(parent, tokens))?;
        let published = self.blocks[id as usize].published.as_ref()?;
        let equal = published.parent == *parent && *published.tokens == *tokens;
        equal.then_some((id, published.prefix))
    }

    fn release(&mut self, id: BlockId) {
        let block = &mut self.blocks[id as usize];
        assert!(block.refs > 0, "block {id} is released twice");
        block.refs -= 1;
        if block.refs > 0 {
            return;
        }
        // Nobody can find an unpublished block again: it goes out first.
        if block.published.is_some() { self.link_back(id) } else { self.link_front(id) }
    }

    fn link_back(&mut self, id: BlockId) {
        let last = self.tail;
        self.blocks[id as usize].prev = last;
        self.blocks[id as usize].next = NONE;
        match last {
            NONE => self.head = id,
            last => self.blocks[last as usize].next = id,
        }
        self.tail = id;
        self.n_free += 1;
    }

    fn link_front(&mut self, id: BlockId) {
        let first = self.head;
        self.blocks[id as usize].prev = NONE;
        self.blocks[id as usize].next = first;
        match first {
            NONE => self.tail = id,
            first => self.blocks[first as usize].prev = id,
        }
        self.head = id;
        self.n_free += 1;
    }

    fn unlink(&mut self, id: BlockId) {
        let (prev, next) = (self.blocks[id as usize].prev, self.blocks[id as usize].next);
        match prev {
            NONE => self.head = next,
            prev => self.blocks[prev as usize].next = next,
        }
        match next {
            NONE => self.tail = prev,
            next => self.blocks[next as usize].prev = prev,
        }
        self.n_free -= 1;
    }

    /// Verifies every invariant against all block tables there are.
    ///
    /// # Panics
    /// If one is broken.
    pub fn check<'a>(&self, tables: impl Iterator<Item = &'a [BlockId]>) {
        let mut refs = vec![0; self.blocks.len()];
        for table in tables {
            for &id in table {
                refs[id as usize] += 1;
            }
        }
        for (id, block) in self.blocks.iter().enumerate() {
            assert_eq!(block.refs, refs[id], "block {id}: references and tables differ");
        }

        let mut order = vec![None; self.blocks.len()];
        let (mut id, mut prev, mut n) = (self.head, NONE, 0);
        while id != NONE {
            let block = &self.blocks[id as usize];
            assert_eq!(block.refs, 0, "block {id} is used and on the free list");
            assert_eq!(block.prev, prev, "block {id}: the free list is torn");
            assert_eq!(order[id as usize], None, "block {id} is twice on the free list");
            order[id as usize] = Some(n);
            n += 1;
            (prev, id) = (id, block.next);
        }
        assert_eq!(self.tail, prev, "the free list's end is wrong");
        assert_eq!(self.n_free, n, "the free list's length is wrong");
        let unused = self.blocks.iter().filter(|block| block.refs == 0).count();
        assert_eq!(n, unused, "a block is neither used nor free");

        let mut by_prefix = HashMap::new();
        for (id, block) in self.blocks.iter().enumerate() {
            let Some(published) = &block.published else { continue };
            assert_eq!(published.tokens.len(), self.block_len);
            assert_eq!(published.hash, hash(&published.parent, &published.tokens));
            assert_eq!(self.by_hash.get(&published.hash), Some(&(id as u32)));
            assert_eq!(by_prefix.insert(published.prefix, id), None, "a prefix is there twice");
        }
        assert_eq!(self.by_hash.len(), by_prefix.len(), "a hash leads to no block");
        for (id, block) in self.blocks.iter().enumerate() {
            let Some(Published { parent: Parent::Prefix(parent), before, .. }) = &block.published
            else {
                continue;
            };
            let parent = by_prefix.get(parent).expect("a published block has lost its prefix");
            assert_eq!(*before, Some(*parent as BlockId), "block {id} follows another block");
            match (order[id], order[*parent]) {
                (None, parent) => assert_eq!(parent, None, "block {id} is used, its prefix is not"),
                (Some(own), Some(parent)) => {
                    assert!(own < parent, "block {id} outlives its prefix")
                }
                (Some(_), None) => {}
            }
        }
    }
}

/// 64 bits of (parent, tokens).
fn hash(parent: &Parent, tokens: &[TokenId]) -> u64 {
    let start = match parent {
        Parent::Root(salt) => salt.bytes().fold(mix(0, 0), |state, byte| mix(state, byte as u64)),
        Parent::Prefix(prefix) => mix(mix(0, 1), *prefix),
    };
    tokens.iter().fold(start, |state, &token| mix(state, token as u64))
}

/// Adds a word to a hash: the output function of SplitMix64 (Steele et al., OOPSLA 2014).
pub(crate) fn mix(state: u64, word: u64) -> u64 {
    let mut z = (state ^ word).wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collision_of_hashes_costs_a_hit_and_nothing_else() {
        let mut pool = BlockPool::new(4, 2);
        let (a, b) = (Arc::from("a"), Arc::from("b"));
        let mut table = Vec::new();
        assert!(pool.alloc(1, &mut table) && pool.publish(&a, &mut table, 0, &[1, 2]));
        // As if the same tokens under another salt, and other tokens, had the same hash.
        for (salt, tokens) in [(&b, [1, 2]), (&a, [3, 4])] {
            pool.by_hash.insert(hash(&Parent::Root(salt.clone()), &tokens), table[0]);
            assert!(pool.longest_prefix(salt, &[], &tokens).is_empty());
            let mut own = Vec::new();
            assert!(pool.alloc(1, &mut own) && !pool.publish(salt, &mut own, 0, &tokens));
        }
        assert_eq!(pool.longest_prefix(&a, &[], &[1, 2]), table);
    }
}
