//! Prompt lookup against a plain search, and the depth of drafts.

use paceline_engine::draft::{Depth, Drafter, Lookup};
use paceline_model::TokenId;
use proptest::prelude::*;

/// Looks for the last 3, 2, 1 tokens from the end backwards and copies on, over the end if need be.
fn search(tokens: &[TokenId], max: usize) -> Vec<TokenId> {
    for n in (1..=3).rev().filter(|&n| n < tokens.len()) {
        let tail = &tokens[tokens.len() - n..];
        let mut starts = (0..tokens.len() - n).rev();
        if let Some(start) = starts.find(|&start| &tokens[start..start + n] == tail) {
            let mut all = tokens.to_vec();
            for i in 0..max {
                all.push(all[start + n + i]);
            }
            return all[tokens.len()..].to_vec();
        }
    }
    Vec::new()
}

proptest! {
    #[test]
    fn lookup_equals_a_plain_search(
        tokens in prop::collection::vec(0u32..6, 1..60),
        steps in prop::collection::vec(1usize..5, 1..40),
        max in 1usize..8,
    ) {
        let mut lookup = Lookup::new();
        let mut len = 0;
        for step in steps {
            len = (len + step).min(tokens.len());
            let mut drafts = Vec::new();
            lookup.draft(&tokens[..len], max, &mut drafts);
            prop_assert_eq!(drafts, search(&tokens[..len], max));
        }
    }
}

#[test]
fn lookup_continues_a_repetition() {
    let mut drafts = vec![9];
    Lookup::new().draft(&[7, 1, 2, 3, 1, 2, 3, 1], 7, &mut drafts);
    assert_eq!(drafts, [9, 2, 3, 1, 2, 3, 1, 2]);
}

#[test]
fn depth_follows_acceptance_down_to_none() {
    let mut depth = Depth::new(8);
    assert_eq!(depth.n_drafts(), 8);
    depth.learn(8, 3);
    assert_eq!(depth.n_drafts(), 3);
    depth.learn(3, 3);
    assert_eq!(depth.n_drafts(), 5);
    // When nothing is accepted, one draft in ever longer intervals.
    let mut proposed = 0;
    for _ in 0..1000 {
        let n = depth.n_drafts();
        depth.learn(n, 0);
        proposed += n;
    }
    assert!(proposed < 30, "{proposed}");
    // It comes back.
    while depth.n_drafts() == 0 {}
    depth.learn(1, 1);
    for n in [3, 5, 7, 8, 8] {
        assert_eq!(depth.n_drafts(), n);
        depth.learn(n, n);
    }
}
