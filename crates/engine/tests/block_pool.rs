//! The block pool: order of eviction, prefixes, and random use against a record of what each block
//! holds.

use paceline_engine::block_pool::{BlockId, BlockPool};
use paceline_model::TokenId;
use proptest::prelude::*;
use std::sync::Arc;

const B: usize = 2;

fn salt(s: &str) -> Arc<str> {
    s.into()
}

/// Allocates and publishes all blocks of `tokens`.
fn publish(pool: &mut BlockPool, salt: &Arc<str>, tokens: &[TokenId]) -> Vec<BlockId> {
    let mut table = Vec::new();
    assert!(pool.alloc(tokens.len() / B, &mut table));
    for (i, block) in tokens.chunks_exact(B).enumerate() {
        assert!(pool.publish(salt, &mut table, i, block));
    }
    table
}

#[test]
fn allocation_is_all_or_nothing() {
    let mut pool = BlockPool::new(4, B);
    let (mut a, mut b) = (Vec::new(), Vec::new());
    assert!(pool.alloc(3, &mut a));
    assert!(!pool.alloc(2, &mut b));
    assert!(b.is_empty() && pool.n_free() == 1 && pool.n_used() == 3);
    assert!(pool.alloc(1, &mut b) && pool.alloc(0, &mut b));
    pool.check([&a[..], &b].into_iter());
    pool.truncate(&mut a, 1);
    assert_eq!((a.len(), pool.n_free()), (1, 2));
    pool.check([&a[..], &b].into_iter());
}

#[test]
fn a_freed_prefix_is_found_until_its_blocks_are_needed() {
    let mut pool = BlockPool::new(4, B);
    let none = salt("");
    let mut table = publish(&mut pool, &none, &[1, 2, 3, 4, 5, 6]);
    let blocks = table.clone();
    pool.truncate(&mut table, 0);
    assert_eq!(pool.n_free(), 4);
    assert_eq!(pool.longest_prefix(&none, &[], &[1, 2, 3, 4, 5, 6, 7, 8]), blocks);
    assert_eq!(pool.longest_prefix(&none, &[], &[1, 2, 3, 4, 5]), blocks[..2]);
    assert_eq!(pool.longest_prefix(&none, &[], &[1, 2, 9, 4]), blocks[..1]);
    assert_eq!(pool.longest_prefix(&none, &blocks[..1], &[1, 2, 3, 4]), blocks[1..2]);
    assert_eq!(pool.longest_prefix(&none, &[], &[3, 4, 5, 6]), [0u32; 0]);
    // The block never used goes first, then the tail.
    let mut other = Vec::new();
    assert!(pool.alloc(2, &mut other));
    assert_eq!(other[1], blocks[2]);
    assert_eq!(pool.longest_prefix(&none, &[], &[1, 2, 3, 4, 5, 6]), blocks[..2]);
    // A revived prefix is as good as new; its blocks are out of reach now.
    pool.share(&blocks[..2], &mut table);
    assert_eq!(pool.n_free(), 0);
    pool.check([&table[..], &other].into_iter());
}

#[test]
fn what_was_freed_long_ago_goes_first() {
    let mut pool = BlockPool::new(4, B);
    let none = salt("");
    let mut old = publish(&mut pool, &none, &[1, 1, 1, 1]);
    let mut new = publish(&mut pool, &none, &[2, 2, 2, 2]);
    pool.truncate(&mut old, 0);
    pool.truncate(&mut new, 0);
    // Used again, so it is the newer one.
    let found = pool.longest_prefix(&none, &[], &[1, 1, 1, 1]);
    assert_eq!(pool.count_free(&found), 2);
    pool.share(&found, &mut old);
    pool.truncate(&mut old, 0);
    let mut table = Vec::new();
    assert!(pool.alloc(2, &mut table));
    assert_eq!(pool.longest_prefix(&none, &[], &[2, 2]), [0u32; 0]);
    assert_eq!(pool.longest_prefix(&none, &[], &[1, 1, 1, 1]).len(), 2);
}

#[test]
fn what_is_evicted_is_told_with_all_that_came_before_it() {
    let mut pool = BlockPool::new(4, B);
    pool.watch_evictions();
    let mut table = publish(&mut pool, &salt("a"), &[1, 2, 3, 4, 5, 6]);
    let blocks = table.clone();
    assert!(pool.take_evicted().is_empty());
    pool.truncate(&mut table, 0);
    let mut other = Vec::new();
    assert!(pool.alloc(4, &mut other));
    let evicted = pool.take_evicted();
    let told: Vec<(BlockId, usize)> = evicted.iter().map(|e| (e.id, e.tokens.len())).collect();
    assert_eq!(told, [(blocks[2], 6), (blocks[1], 4), (blocks[0], 2)]);
    for evicted in evicted {
        assert_eq!(evicted.salt, salt("a"));
        assert_eq!(evicted.tokens, [1, 2, 3, 4, 5, 6][..evicted.tokens.len()]);
    }
    assert!(pool.take_evicted().is_empty());
}

#[test]
fn a_salt_keeps_prefixes_apart() {
    let mut pool = BlockPool::new(8, B);
    publish(&mut pool, &salt("a"), &[1, 2, 3, 4]);
    assert_eq!(pool.longest_prefix(&salt("b"), &[], &[1, 2, 3, 4]), [0u32; 0]);
    assert_eq!(pool.longest_prefix(&salt("a"), &[], &[1, 2, 3, 4]).len(), 2);
}

#[test]
fn equal_blocks_become_one() {
    let mut pool = BlockPool::new(8, B);
    let a = publish(&mut pool, &salt(""), &[1, 2, 3, 4]);
    let b = publish(&mut pool, &salt(""), &[1, 2, 3, 4]);
    assert_eq!(a, b);
    assert_eq!(pool.n_used(), 2);
    pool.check([&a[..], &b].into_iter());
}

#[derive(Clone, Debug)]
enum Op {
    /// A new sequence of so many tokens from a tiny alphabet, under one of two salts.
    Start {
        tokens: Vec<TokenId>,
        salt: bool,
    },
    Publish {
        which: usize,
    },
    Truncate {
        which: usize,
        len: usize,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let tokens = prop::collection::vec(0u32..2, 0..14);
    prop_oneof![
        (tokens, any::<bool>()).prop_map(|(tokens, salt)| Op::Start { tokens, salt }),
        any::<usize>().prop_map(|which| Op::Publish { which }),
        (any::<usize>(), 0usize..7).prop_map(|(which, len)| Op::Truncate { which, len }),
    ]
}

proptest! {
    #[test]
    fn random_use_keeps_every_invariant(ops in prop::collection::vec(op(), 1..80)) {
        let mut pool = BlockPool::new(12, B);
        pool.watch_evictions();
        /// A sequence: table, published blocks, tokens, salt.
        struct Holder(Vec<BlockId>, usize, Vec<TokenId>, Arc<str>);
        let mut holders: Vec<Holder> = Vec::new();
        // What was written to each block: all tokens up to its end, and the salt.
        let mut contents = vec![None; 12];
        for op in ops {
            match op {
                Op::Start { tokens, salt: s } => {
                    let salt = salt(if s { "s" } else { "" });
                    let found = pool.longest_prefix(&salt, &[], &tokens);
                    for (i, &id) in found.iter().enumerate() {
                        let expected = (tokens[..(i + 1) * B].to_vec(), salt.clone());
                        prop_assert_eq!(contents[id as usize].as_ref(), Some(&expected));
                    }
                    let mut table = Vec::new();
                    pool.share(&found, &mut table);
                    let rest = tokens.len() / B - found.len();
                    if !pool.alloc(rest, &mut table) {
                        prop_assert!(pool.n_free() < rest);
                        pool.truncate(&mut table, 0);
                    }
                    for evicted in pool.take_evicted() {
                        let expected = (evicted.tokens, evicted.salt);
                        prop_assert_eq!(contents[evicted.id as usize].as_ref(), Some(&expected));
                    }
                    for (i, &id) in table.iter().enumerate() {
                        contents[id as usize] = Some((tokens[..(i + 1) * B].to_vec(), salt.clone()));
                    }
                    holders.push(Holder(table, found.len(), tokens, salt));
                }
                Op::Publish { which } if !holders.is_empty() => {
                    let n = holders.len();
                    let Holder(table, published, tokens, salt) = &mut holders[which % n];
                    if *published < table.len() {
                        let i = *published;
                        let block = tokens[i * B..][..B].to_vec();
                        prop_assert!(pool.publish(salt, table, i, &block));
                        *published += 1;
                    }
                }
                Op::Truncate { which, len } if !holders.is_empty() => {
                    let n = holders.len();
                    let Holder(table, published, ..) = &mut holders[which % n];
                    pool.truncate(table, len);
                    *published = (*published).min(len);
                    if table.is_empty() {
                        holders.swap_remove(which % n);
                    }
                }
                _ => {}
            }
            pool.check(holders.iter().map(|holder| &holder.0[..]));
        }
        for holder in &mut holders {
            pool.truncate(&mut holder.0, 0);
        }
        prop_assert_eq!(pool.n_used(), 0);
        pool.check(std::iter::empty());
    }
}
