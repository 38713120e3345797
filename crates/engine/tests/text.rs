//! Text streams against the whole text.

use paceline_engine::text::TextStream;
use proptest::prelude::*;

/// Pushes pieces; returns what came out, what was flushed and which stop string was hit.
fn stream(pieces: &[&[u8]], stops: &[&str], include: bool) -> (String, String, Option<usize>) {
    let stops: Vec<String> = stops.iter().map(|s| s.to_string()).collect();
    let mut stream = TextStream::new(&stops, include);
    let mut text = String::new();
    for piece in pieces {
        let (new, stop) = stream.push(piece, true);
        text += &new;
        if stop.is_some() {
            return (text, String::new(), stop);
        }
    }
    (text, stream.finish(), None)
}

#[test]
fn characters_are_never_split() {
    let euro = "€".as_bytes();
    let mut stream = TextStream::new(&[], false);
    assert_eq!(stream.push(&euro[..1], true).0, "");
    assert_eq!(stream.push(&euro[1..2], true).0, "");
    assert_eq!(stream.push(&[euro[2], b'!'], true).0, "€!");
    assert_eq!(stream.push(&euro[..2], true).0, "");
    assert_eq!(stream.finish(), "\u{fffd}");
    assert_eq!(stream.finish(), "");
}

#[test]
fn stop_strings_are_found_across_pieces_and_never_shown() {
    let pieces: [&[u8]; 4] = [b"one\n", b"\nHu", b"man", b": two"];
    let (text, rest, stop) = stream(&pieces, &["###", "\n\nHuman:"], false);
    assert_eq!((text.as_str(), rest.as_str(), stop), ("one", "", Some(1)));
    let (text, _, stop) = stream(&pieces, &["###", "\n\nHuman:"], true);
    assert_eq!((text.as_str(), stop), ("one\n\nHuman:", Some(1)));
    // What turned out not to be one is shown in the end.
    let (text, rest, stop) = stream(&pieces[..3], &["\n\nHuman:"], false);
    assert_eq!((text.as_str(), rest.as_str(), stop), ("one", "\n\nHuman", None));
}

#[test]
fn the_first_complete_stop_string_wins() {
    // "bc" is complete before "abcd" could be.
    assert_eq!(stream(&[b"xabcd"], &["abcd", "bc"], false), ("xa".into(), "".into(), Some(1)));
    // Both are complete at once: the one that began first.
    assert_eq!(stream(&[b"xabc"], &["c", "abc"], false), ("x".into(), "".into(), Some(1)));
}

#[test]
fn text_is_not_searched_before_it_may_stop() {
    let mut stream = TextStream::new(&["ab".to_string()], false);
    assert_eq!(stream.push(b"abab", false), ("abab".into(), None));
    assert_eq!(stream.push(b"xa", true), ("x".into(), None));
    assert_eq!(stream.push(b"b", true), ("".into(), Some(0)));
}

/// Cuts bytes into pieces of the given lengths, the last one taking the rest.
fn cut<'a>(mut bytes: &'a [u8], lens: &[usize]) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    for &len in lens {
        let (piece, rest) = bytes.split_at(len.min(bytes.len()));
        pieces.push(piece);
        bytes = rest;
    }
    pieces.push(bytes);
    pieces
}

/// Bytes that are often parts of characters.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        4 => prop::sample::select("aé€😀".as_bytes().to_vec()),
        1 => any::<u8>(),
    ];
    let chars = prop::collection::vec(prop::sample::select(vec!["a", "b", "é", "€", "😀"]), 0..20);
    let whole = chars.prop_map(|chars| chars.concat().into_bytes());
    prop_oneof![prop::collection::vec(byte, 0..40), whole]
}

proptest! {
    #[test]
    fn the_pieces_are_the_whole(
        bytes in bytes(),
        lens in prop::collection::vec(0usize..6, 0..30),
    ) {
        let (text, rest, _) = stream(&cut(&bytes, &lens), &[], false);
        prop_assert_eq!(text + &rest, String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn stops_do_not_depend_on_the_pieces(
        text in prop::collection::vec(prop::sample::select(vec!["a", "b", "é"]), 0..30),
        stops in prop::collection::vec("[abé]{1,4}", 1..4),
        lens in prop::collection::vec(0usize..6, 0..30),
        include in any::<bool>(),
    ) {
        let text = text.concat();
        let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
        // Character by character: the first end at which any stop string is a tail.
        let ends = (0..=text.len()).filter(|&i| text.is_char_boundary(i));
        let mut ends = ends.map(|end| &text[..end]);
        let hit = ends.find(|head| stops.iter().any(|stop| head.ends_with(stop)));
        let got = stream(&cut(text.as_bytes(), &lens), &stops, include);
        match hit {
            None => {
                prop_assert_eq!(got.0 + &got.1, text);
                prop_assert_eq!(got.2, None);
            }
            Some(head) => {
                let longest = stops.iter().filter(|stop| head.ends_with(**stop)).map(|s| s.len()).max();
                let shown = if include { head } else { &head[..head.len() - longest.unwrap()] };
                prop_assert_eq!(got.0, shown);
                prop_assert!(head.ends_with(stops[got.2.unwrap()]));
            }
        }
    }

    #[test]
    fn no_more_is_held_back_than_needed(
        text in prop::collection::vec(prop::sample::select(vec!["a", "b", "é"]), 0..30),
        stops in prop::collection::vec("[abé]{2,5}", 1..4),
    ) {
        let stops: Vec<String> = stops;
        let mut stream = TextStream::new(&stops, false);
        let (mut all, mut shown) = (String::new(), String::new());
        for piece in text {
            all += piece;
            let (new, stop) = stream.push(piece.as_bytes(), true);
            shown += &new;
            if stop.is_some() {
                break;
            }
            let tails = (0..=all.len()).filter(|&i| all.is_char_boundary(i));
            let held = tails
                .map(|i| &all[i..])
                .find(|tail| stops.iter().any(|stop| stop.starts_with(tail)))
                .unwrap();
            prop_assert_eq!(format!("{shown}{held}"), &*all);
        }
    }
}
