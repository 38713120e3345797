//! Cutting text into the words that byte-pair merges stay within.
//!
//! The cuts of a [`Row`] run one after the other, each on the pieces that those before it left; text
//! between two matches is a piece as well.

use super::rows::{Cut, Row};
use regex::Regex;
use std::ops::Range;

/// A row, its patterns compiled.
#[derive(Debug)]
pub(super) struct Splitter {
    cuts: Vec<Compiled>,
}

#[derive(Debug)]
enum Compiled {
    Pattern { regex: Regex, spaces: Spaces },
    Thousands { before: bool },
}

/// What a match that is all white space and stands before a word keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spaces {
    /// All: the pattern has no such look-ahead.
    All,
    /// All but the last character.
    ButLast,
    /// The same, unless it ends in a line end: then another branch of the pattern matched.
    ButLastIfNotLineEnd,
    /// As before; and in pieces of powers of two.
    By2,
}

impl Splitter {
    pub fn new(row: &Row) -> Splitter {
        let compile = |cut: &Cut| match *cut {
            Cut::At(pattern) => Compiled::pattern(pattern, None),
            Cut::AtSpacesBy2(pattern) => Compiled::pattern(pattern, Some(Spaces::By2)),
            Cut::AfterThousands => Compiled::Thousands { before: false },
            Cut::BeforeThousands => Compiled::Thousands { before: true },
        };
        Splitter { cuts: row.cuts.iter().map(compile).collect() }
    }

    /// Hands each word of `text` to `word`, in order; together they are the text.
    pub fn split(&self, text: &str, mut word: impl FnMut(Range<usize>)) {
        if text.is_empty() {
            return;
        }
        // The last cut hands its pieces on directly: most rows have only one.
        let Some((last, cuts)) = self.cuts.split_last() else { return word(0..text.len()) };
        let (mut pieces, mut cut_pieces) = (Vec::new(), Vec::new());
        pieces.push(0..text.len());
        for cut in cuts {
            for piece in pieces.drain(..) {
                cut.split(text, piece, &mut |p| cut_pieces.push(p));
            }
            std::mem::swap(&mut pieces, &mut cut_pieces);
        }
        for piece in pieces {
            last.split(text, piece, &mut word);
        }
    }
}

impl Compiled {
    fn pattern(pattern: &str, spaces: Option<Spaces>) -> Compiled {
        let all = pattern.strip_suffix(r"|\s+").unwrap_or(pattern);
        let (pattern, look_ahead) = match all.strip_suffix(r"|\s+(?!\S)") {
            Some(rest) if rest.contains(r"|\s*[\r\n]") => {
                (format!(r"{rest}|\s+"), Spaces::ButLastIfNotLineEnd)
            }
            Some(rest) => (format!(r"{rest}|\s+"), Spaces::ButLast),
            None => (pattern.to_owned(), Spaces::All),
        };
        let regex = Regex::new(&pattern).expect("the patterns of ROWS compile: a test does it");
        Compiled::Pattern { regex, spaces: spaces.unwrap_or(look_ahead) }
    }

    fn split(&self, text: &str, piece: Range<usize>, out: &mut impl FnMut(Range<usize>)) {
        match self {
            Compiled::Pattern { regex, spaces } => {
                split_pattern(regex, *spaces, &text[piece.clone()], |p| {
                    out(piece.start + p.start..piece.start + p.end);
                });
            }
            Compiled::Thousands { before } => {
                split_thousands(*before, &text[piece.clone()], |p| {
                    out(piece.start + p.start..piece.start + p.end);
                });
            }
        }
    }
}

fn split_pattern(regex: &Regex, spaces: Spaces, text: &str, mut out: impl FnMut(Range<usize>)) {
    let mut at = 0;
    while at < text.len() {
        let Some(found) = regex.find_at(text, at).filter(|m| !m.is_empty()) else {
            return out(at..text.len());
        };
        if found.start() > at {
            out(at..found.start());
        }
        at = found.start();
        let mut end = found.end();
        let is_space = || found.as_str().chars().all(char::is_whitespace);
        let line_end = found.as_str().ends_with(['\r', '\n']);
        let before_word = end < text.len();
        let look_ahead = match spaces {
            Spaces::All => false,
            Spaces::ButLast => before_word && is_space(),
            Spaces::ButLastIfNotLineEnd => before_word && !line_end && is_space(),
            Spaces::By2 => !line_end && is_space(),
        };
        if look_ahead {
            let last = text[..end].chars().next_back().map_or(0, char::len_utf8);
            // One character alone stays: there is nothing to leave it out of.
            if before_word && end - last > at {
                end -= last;
            }
        }
        if look_ahead && spaces == Spaces::By2 {
            for part in parts_by_2(&text[at..end]) {
                out(at..at + part);
                at += part;
            }
        } else {
            out(at..end);
        }
        at = end;
    }
}

/// Byte lengths of the pieces of a run: each the greatest power of two of characters, up to 512
/// and without 2^1's half, that fits in what is left.
fn parts_by_2(run: &str) -> impl Iterator<Item = usize> {
    let mut left = run;
    std::iter::from_fn(move || {
        let n_left = left.chars().take(512).count();
        let n = if n_left == 0 { return None } else { 1 << n_left.ilog2() };
        let end = left.char_indices().nth(n).map_or(left.len(), |(i, _)| i);
        left = &left[end..];
        Some(end)
    })
}

/// Cuts runs of digits into groups of three from their end: before each group, or after each.
fn split_thousands(before: bool, text: &str, mut out: impl FnMut(Range<usize>)) {
    let is_digit = |c: char| if before { c.is_ascii_digit() } else { c.is_numeric() };
    let mut start = 0;
    let mut cut = |at: usize| {
        if at > start {
            out(start..at);
            start = at;
        }
    };
    let mut chars = text.char_indices().peekable();
    while let Some((run_start, c)) = chars.next() {
        if !is_digit(c) {
            continue;
        }
        let mut digits = vec![run_start];
        while let Some((i, _)) = chars.next_if(|&(_, c)| is_digit(c)) {
            digits.push(i);
        }
        digits.push(chars.peek().map_or(text.len(), |&(i, _)| i));
        let n = digits.len() - 1;
        for (i, &at) in digits.iter().enumerate() {
            let group_starts = (n - i).is_multiple_of(3);
            if group_starts && (if before { i < n } else { i > 0 }) {
                cut(at);
            }
        }
    }
    cut(text.len());
}

#[cfg(test)]
mod tests {
    use super::Splitter;
    use crate::tokenizer::rows::ROWS;

    fn words<'a>(pre: &str, text: &'a str) -> Vec<&'a str> {
        let row = ROWS.iter().find(|row| row.names.contains(&pre)).unwrap();
        let mut words = Vec::new();
        Splitter::new(row).split(text, |word| words.push(&text[word]));
        words
    }

    #[test]
    fn every_row_compiles_and_loses_nothing() {
        let text = "Hello, WORLD's 12345678½ 你好 カナ\t\t x  \n\r\n  'Re<sentinel:7>IMGIMGABZ \u{85}é\u{301}!  ";
        for row in ROWS {
            assert!(!row.names.is_empty());
            for pre in row.names {
                assert_eq!(words(pre, text).concat(), text, "{pre}");
                assert_eq!(words(pre, ""), [""; 0], "{pre}");
            }
        }
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = ROWS.iter().flat_map(|row| row.names).collect();
        let n = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), n);
    }

    #[test]
    fn white_space_leaves_its_last_character_to_a_word() {
        assert_eq!(words("gpt-2", "a  b\t\tc   "), ["a", " ", " b", "\t", "\t", "c", "   "]);
        assert_eq!(
            words("qwen2", "a  b\n\n  c \n "),
            ["a", " ", " b", "\n\n", " ", " c", " \n", " "]
        );
        assert_eq!(words("spark2_5", "a \n\nb"), ["a", " \n", "\n", "b"]);
    }

    #[test]
    fn long_white_space_is_cut_into_powers_of_two() {
        let text = " ".repeat(519) + "x";
        let lens: Vec<_> = words("jais-2", &text).iter().map(|word| word.len()).collect();
        assert_eq!(lens, [512, 4, 2, 2]);
    }

    #[test]
    fn digits_are_grouped_from_the_end() {
        assert_eq!(words("superbpe", "x1234567y12"), ["x", "1", "234", "567", "y", "12"]);
        assert_eq!(words("superbpe", "½1234"), ["½1", "234"]);
        assert_eq!(words("tiny_aya", "1234567 12345"), ["1", "234", "567", " ", "12", "345"]);
    }
}
