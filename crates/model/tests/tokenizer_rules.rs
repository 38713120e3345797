//! The rules of tokenization against their plainest form, on small vocabularies made up at random.

mod common;

use common::{byte_tokenizer, byte_tokens, vocab};
use paceline_model::file::{Array, Metadata, Value};
use paceline_model::tokenizer::TokenizerError;
use paceline_model::{Special, Tokenizer};
use proptest::prelude::*;
use std::collections::HashMap;

fn put(metadata: &mut Metadata, key: &str, value: Value) {
    metadata.insert(format!("tokenizer.ggml.{key}"), value);
}

/// Byte-pair encoding as Sennrich et al. write it: join the pair of least rank, the leftmost, again
/// and again.
fn naive_bpe(word: &str, merges: &[(String, String)]) -> Vec<String> {
    let mut symbols: Vec<String> = word.chars().map(String::from).collect();
    let rank = |pair: &[String]| merges.iter().position(|(l, r)| *l == pair[0] && *r == pair[1]);
    loop {
        let ranks = symbols.windows(2).enumerate().filter_map(|(i, pair)| Some((rank(pair)?, i)));
        let Some((_, i)) = ranks.min() else { return symbols };
        let right = symbols.remove(i + 1);
        symbols[i] += &right;
    }
}

/// SentencePiece's BPE as llama.cpp runs it: join the pair whose text is the token of highest score.
fn naive_spm(text: &str, scores: &HashMap<String, f32>) -> Vec<String> {
    let mut symbols: Vec<String> = text.chars().map(String::from).collect();
    loop {
        let mut best: Option<(f32, usize)> = None;
        for i in 1..symbols.len() {
            let score = scores.get(&format!("{}{}", symbols[i - 1], symbols[i]));
            if let Some(&score) = score
                && best.is_none_or(|(of_best, _)| score > of_best)
            {
                best = Some((score, i - 1));
            }
        }
        let Some((_, i)) = best else { return symbols };
        let right = symbols.remove(i + 1);
        symbols[i] += &right;
    }
}

/// Special tokens as llama.cpp finds them: all of the longest, then all of the next in the rest.
fn naive_split(text: &str, specials: &[&str]) -> Vec<String> {
    let mut parts = vec![(text.to_owned(), false)];
    let mut longest_first = specials.to_vec();
    longest_first.sort_by_key(|special| std::cmp::Reverse(special.len()));
    for special in longest_first {
        let mut cut = Vec::new();
        for (part, is_special) in parts {
            if is_special {
                cut.push((part, true));
                continue;
            }
            for (i, piece) in part.split(special).enumerate() {
                if i > 0 {
                    cut.push((special.to_owned(), true));
                }
                cut.push((piece.to_owned(), false));
            }
        }
        parts = cut;
    }
    parts.into_iter().filter(|(part, _)| !part.is_empty()).map(|(part, _)| part).collect()
}

fn texts(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
    let text = |&id: &u32| String::from_utf8(tokenizer.token_bytes(id).to_vec()).unwrap();
    ids.iter().map(text).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn byte_pairs_join_by_rank(
        pairs in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..24),
        text in "[abc]{0,40}",
    ) {
        let mut symbols: Vec<String> = ["a", "b", "c"].map(String::from).to_vec();
        let mut merges = Vec::new();
        for (left, right) in pairs {
            let (left, right) = (left.get(&symbols).clone(), right.get(&symbols).clone());
            let joined = format!("{left}{right}");
            if !symbols.contains(&joined) && joined.len() < 12 {
                symbols.push(joined);
            }
            merges.push((left, right));
        }
        merges.retain(|(l, r)| symbols.contains(&format!("{l}{r}")));
        let mut tokens = byte_tokens();
        tokens.extend(symbols[3..].iter().map(|symbol| (symbol.clone(), 1, 0.0)));
        let written: Vec<_> = merges.iter().map(|(l, r)| format!("{l} {r}")).collect();
        let tokenizer = Tokenizer::from_gguf(&vocab("gpt2", &tokens, &written)).unwrap();
        let ids = tokenizer.encode(&text, Special::Plain, false);
        prop_assert_eq!(texts(&tokenizer, &ids), naive_bpe(&text, &merges));
    }

    #[test]
    fn sentence_pieces_join_by_score(
        pieces in prop::collection::hash_map("[ab▁]{1,4}", -4i8..4, 1..24),
        text in "[ab c]{0,40}",
    ) {
        let mut tokens = vec![("<unk>".to_owned(), 2, 0.0), ("<s>".to_owned(), 3, 0.0), ("</s>".to_owned(), 3, 0.0)];
        tokens.extend((0..=255).map(|b| (format!("<0x{b:02X}>"), 6, -9.0)));
        let mut pieces: Vec<_> = pieces.into_iter().collect();
        pieces.sort();
        tokens.extend(pieces.iter().map(|(piece, score)| (piece.clone(), 1, f32::from(*score))));
        let mut metadata = vocab("llama", &tokens, &[]);
        put(&mut metadata, "add_space_prefix", Value::Bool(false));
        let tokenizer = Tokenizer::from_gguf(&metadata).unwrap();
        let scores = tokens.iter().map(|(piece, _, score)| (piece.clone(), *score)).collect();
        let id = |piece: &str| tokens.iter().position(|t| t.0 == piece).map(|id| id as u32);
        let mut expected = Vec::new();
        for piece in naive_spm(&text.replace(' ', "▁"), &scores) {
            match id(&piece) {
                Some(id) => expected.push(id),
                None => expected.extend(piece.bytes().map(|b| u32::from(b) + 3)),
            }
        }
        let ids = tokenizer.encode(&text, Special::Plain, false);
        prop_assert_eq!(&ids, &expected);
        // Where U+2581 is no token its three bytes are: they do not say that they were a space.
        prop_assert_eq!(tokenizer.decode(&ids).replace('▁', " "), text);
    }

    #[test]
    fn special_tokens_are_found_longest_first(text in "[<ab>]{0,30}") {
        let specials = ["<a>", "<ab>", "b>", "<a><", "ab>a", "<<"];
        let with_types: Vec<_> = specials.iter().map(|text| (*text, 3)).collect();
        let tokenizer = byte_tokenizer(&with_types);
        let ids = tokenizer.encode(&text, Special::Parse, false);
        let mut expected = Vec::new();
        for part in naive_split(&text, &specials) {
            match specials.iter().position(|special| *special == part) {
                Some(i) => expected.push(256 + i as u32),
                None => expected.extend(part.bytes().map(u32::from)),
            }
        }
        prop_assert_eq!(ids, expected);
        let plain: Vec<u32> = text.bytes().map(u32::from).collect();
        prop_assert_eq!(tokenizer.encode(&text, Special::Plain, false), plain);
    }

    #[test]
    fn any_text_comes_back(text in any::<String>(), parse in any::<bool>()) {
        let tokenizer = byte_tokenizer(&[("<s>", 3), ("</s>", 3), ("<x>", 4)]);
        let special = if parse { Special::Parse } else { Special::Plain };
        prop_assert_eq!(tokenizer.decode(&tokenizer.encode(&text, special, false)), text);
    }
}

#[test]
fn a_space_comes_before_text_that_begins_or_follows_a_special_token() {
    let pieces = ["<unk>", "<s>", "</s>", "▁", "a", "▁a", "b"];
    let types = [2, 3, 3, 1, 1, 1, 1];
    let tokens: Vec<_> = pieces.iter().zip(types).map(|(p, t)| ((*p).to_owned(), t, 0.0)).collect();
    let tokenizer = Tokenizer::from_gguf(&vocab("llama", &tokens, &[])).unwrap();
    assert_eq!(tokenizer.encode("ab", Special::Parse, true), [1, 5, 6]);
    assert_eq!(tokenizer.encode("a</s>b<s>", Special::Parse, false), [5, 2, 3, 6, 1]);
    assert_eq!(tokenizer.encode("", Special::Parse, true), [1]);
    // Defaults of the format: BOS 1, EOS 2, unknown 0 for what has no bytes either.
    assert_eq!((tokenizer.bos_id(), tokenizer.eos_ids()), (Some(1), &[2][..]));
    assert!(tokenizer.add_bos() && !tokenizer.add_eos());
    assert_eq!(tokenizer.encode("é", Special::Plain, false), [3, 0, 0]);
    assert_eq!(tokenizer.decode(&[5, 6, 3, 2]), " ab </s>");
}

#[test]
fn tokens_stand_for_bytes() {
    let tokens = [("<unk>", 2), ("<0xF0>", 6), ("<0x0a>", 6), ("▁x▁▁", 1), ("<0x41>", 1), ("▁", 4)];
    let tokens: Vec<_> = tokens.iter().map(|(p, t)| ((*p).to_owned(), *t, 0.0)).collect();
    let tokenizer = Tokenizer::from_gguf(&vocab("llama", &tokens, &[])).unwrap();
    let bytes: Vec<_> = (0..7).map(|id| tokenizer.token_bytes(id)).collect();
    assert_eq!(
        bytes,
        [b"<unk>".as_slice(), b"\xf0", b"\n", b" x  ", b"<0x41>", "▁".as_bytes(), b""]
    );
    assert_eq!(
        (tokenizer.is_control(0), tokenizer.is_control(3), tokenizer.is_control(9)),
        (true, false, false)
    );

    let tokenizer = byte_tokenizer(&[("<s>", 3), ("</s>", 3), ("Ġ", 4), ("中", 1)]);
    for byte in 0..=255 {
        assert_eq!(tokenizer.token_bytes(u32::from(byte)), [byte]);
    }
    let bytes: Vec<_> = (256..260).map(|id| tokenizer.token_bytes(id)).collect();
    assert_eq!(bytes, [b"<s>".as_slice(), b"</s>", "Ġ".as_bytes(), "中".as_bytes()]);
}

#[test]
fn ends_come_from_the_file_and_from_names() {
    let names = [
        ("<s>", 3),
        ("</s>", 3),
        ("<|eot_id|>", 3),
        ("<|eom_id|>", 3),
        ("<end_of_turn>", 1),
        ("[EOS]", 1),
        ("<|end|>", 3),
        ("<|stop|>", 3),
    ];
    assert_eq!(byte_tokenizer(&names).eos_ids(), [257, 258, 259, 260, 262]);
    // A message of gpt-oss ends with <|end|>, its turn with the two others.
    let names = [("<s>", 3), ("</s>", 3), ("<|end|>", 3), ("<|return|>", 3), ("<|call|>", 3)];
    let tokenizer = byte_tokenizer(&names);
    assert_eq!(tokenizer.eos_ids(), [257, 259, 260]);
    assert_eq!(tokenizer.encode("<|end|>", Special::Plain, false), [258]);
}

#[test]
fn long_runs_take_no_time_and_no_stack() {
    let mut tokens = byte_tokens();
    let mut merges = Vec::new();
    for symbol in ["a", "Ġ", "aa", "ĠĠ", "aaaa", "ĠĠĠĠ"] {
        tokens.push((format!("{symbol}{symbol}"), 1, 0.0));
        merges.push(format!("{symbol} {symbol}"));
    }
    let bpe = Tokenizer::from_gguf(&vocab("gpt2", &tokens, &merges)).unwrap();
    let pieces = ["<unk>", "<s>", "</s>", "▁", "a", "▁▁", "aa", "▁▁▁▁", "aaaa", "▁a"];
    let pieces: Vec<_> = pieces.iter().map(|p| ((*p).to_owned(), 1, p.len() as f32)).collect();
    let spm = Tokenizer::from_gguf(&vocab("llama", &pieces, &[])).unwrap();
    const N: usize = 100_000;
    assert_eq!(bpe.encode(&"a".repeat(N), Special::Plain, false).len(), N / 8);
    assert_eq!(bpe.encode(&" ".repeat(N), Special::Plain, false).len(), N / 8);
    // The first a goes with the space before it.
    assert_eq!(spm.encode(&"a".repeat(N), Special::Plain, false).len(), N / 4 + 2);
    assert_eq!(spm.encode(&" ".repeat(N - 1), Special::Plain, false).len(), N / 4);
    assert_eq!(spm.encode(&" a".repeat(N), Special::Plain, false).len(), N + 1);
}

#[test]
fn vocabularies_that_cannot_be_used_say_why() {
    let error = |metadata: &Metadata| Tokenizer::from_gguf(metadata).unwrap_err().to_string();
    let with = |key: &str, value: Value| {
        let tokens = byte_tokens();
        let mut metadata = Metadata::default();
        put(&mut metadata, key, value);
        for (key, value) in vocab("gpt2", &tokens, &[]).iter() {
            metadata.insert(key.to_owned(), value.clone());
        }
        error(&metadata)
    };
    assert_eq!(error(&Metadata::default()), "key tokenizer.ggml.model is missing");
    assert_eq!(
        with("model", Value::String("bert".into())),
        "tokenizer model `bert` is not supported: it must be one of gpt2, llama, gemma4"
    );
    let unknown = with("pre", Value::String("new\none".into()));
    assert!(unknown.starts_with("pre-tokenizer `new\\none` is not supported: it must be one of "));
    assert!(
        ["smollm", "qwen2", "llama-bpe", "gpt-2", "default"]
            .iter()
            .all(|pre| unknown.contains(pre))
    );
    let few = with("token_type", Value::Array(Array::I32(vec![1; 3])));
    assert_eq!(few, "tokenizer.ggml.token_type has 3 entries for 256 tokens: the file is damaged");
    let none = with("tokens", Value::Array(Array::Strings(Default::default())));
    assert_eq!(none, "the vocabulary has 0 tokens: there must be between 1 and 2^31 - 1");
    assert!(with("merges", Value::U32(1)).starts_with("key tokenizer.ggml.merges is "));
    for merge in ["a", "", " ", " a", "a ", "ab\n"] {
        let merges = ["a b", merge].iter().collect();
        assert_eq!(
            with("merges", Value::Array(Array::Strings(merges))),
            format!(
                "tokenizer.ggml.merges[1] is \"{}\", not two symbols with a space between: the file is damaged",
                merge.escape_debug()
            )
        );
    }
    for id in ["bos", "eos", "eot", "eom", "unknown", "padding", "seperator", "mask", "fim_pre"] {
        let key = format!("{id}_token_id");
        let problem = "the vocabulary has 256 tokens";
        assert_eq!(
            with(&key, Value::U32(256)),
            format!("key tokenizer.ggml.{key} is 256: {problem}")
        );
        let negative = with(&key, Value::I32(-1));
        assert!(negative.contains(&key) && negative.contains("int32 -1"), "{negative}");
    }
    let tokens = [("a".to_owned(), 1, 0.0), ("b".to_owned(), 1, f32::NAN)];
    assert_eq!(
        error(&vocab("llama", &tokens, &[])),
        "tokenizer.ggml.scores[1] is not a number: the file is damaged"
    );
    assert!(matches!(
        Tokenizer::from_directory(std::path::Path::new("/nowhere")),
        Err(TokenizerError::File { .. })
    ));
}

#[test]
fn odd_metadata_are_survived() {
    // Duplicate and empty tokens, endless scores, merges that name nothing.
    let mut tokens = byte_tokens();
    tokens.extend([
        ("".to_owned(), 3, f32::INFINITY),
        ("a".to_owned(), 1, f32::NEG_INFINITY),
        ("<s>".to_owned(), 9, 0.0),
    ]);
    let merges = ["a  b", "  b", "x y", "中 文", "a b c"].map(String::from);
    for model in ["gpt2", "llama", "gemma4"] {
        let tokenizer = Tokenizer::from_gguf(&vocab(model, &tokens, &merges)).unwrap();
        let n = tokenizer.vocab_len() as u32;
        for text in ["", "abc xy 中文 <s> \u{fdd0}", "\0\n"] {
            for special in [Special::Parse, Special::Plain] {
                assert!(tokenizer.encode(text, special, true).iter().all(|&id| id < n));
            }
        }
    }
}
