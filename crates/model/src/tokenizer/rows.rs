//! The pre-tokenizers of llama.cpp: `tokenizer.ggml.pre` names a row of [`ROWS`].
//!
//! The patterns come from the models' own `tokenizer.json`, in the form in which llama.cpp runs them.

/// One pre-tokenizer.
#[derive(Debug)]
pub(super) struct Row {
    /// What `tokenizer.ggml.pre` may say for it.
    pub names: &'static [&'static str],
    /// What is done, in order.
    pub cuts: &'static [Cut],
    /// A word that is a token is that token, whatever the merges make of it.
    pub whole_words: bool,
    /// BOS comes in front where the file does not say.
    pub add_bos: bool,
    /// Tokens are written as they are, a space as U+2581, rather than in GPT-2's byte alphabet.
    pub raw: bool,
}

/// One cut of a row.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cut {
    /// The pieces are the matches of a pattern. The ending `|\s+(?!\S)`, with or without `|\s+`
    /// after it, is understood (white space before a word leaves its last character to the word);
    /// no other look-ahead is.
    At(&'static str),
    /// The same with a run of white space in pieces of 512, 256, ... 4, 2 and 1 characters.
    AtSpacesBy2(&'static str),
    /// After each group of three digits, counted from the end of a run of digits.
    AfterThousands,
    /// Before each of these groups, ASCII digits only.
    BeforeThousands,
}
use Cut::{AfterThousands, At, AtSpacesBy2, BeforeThousands};

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";

/// `'s` and its kin in any case. ASCII case only: `(?i)` would take a long s for an s.
macro_rules! contraction {
    () => {
        r"'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])"
    };
}

/// Words with one character before them, numbers up to `$digits`, other runs with line ends.
macro_rules! words {
    ($digits:literal) => {
        concat!(
            contraction!(),
            r"|[^\r\n\p{L}\p{N}]?\p{L}+|",
            $digits,
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
    };
}

/// Words cut where lower case begins, after `$letter` with an end `$end`; numbers `$digits`.
macro_rules! cased_words {
    ($upper:literal, $lower:literal, $end:expr, $digits:literal) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?",
            $upper,
            "*",
            $lower,
            "+",
            $end,
            r"|[^\r\n\p{L}\p{N}]?",
            $upper,
            "+",
            $lower,
            "*",
            $end,
            "|",
            $digits,
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
    };
}

/// An ASCII sign joined to a word, words with marks, signs; the last step of DeepSeek 3 and others.
macro_rules! signed_words {
    ($line_ends:literal) => {
        concat!(
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
            r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+",
            $line_ends,
            r"|\s+(?!\S)|\s+"
        )
    };
}

const LLAMA3: &str = words!(r"\p{N}{1,3}");
const QWEN2: &str = words!(r"\p{N}");
const CHINESE_AND_KANA: &str = r"[\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+";
/// White space is outside the range for llama.cpp, as it is below for the signs of DeepSeek LLM.
const CHINESE_TO_KOREAN: &str = r"[[\x{0800}-\x{9fa5}\x{ac00}-\x{d7ff}]--\s]+";
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
const LINES: &str = r"[^\n]+|\n+";
/// The cased letters that DeepSeek LLM names one by one.
const DEEPSEEK_LETTERS: &str = concat!(
    r"\s?[A-Za-z\x{b5}\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{1ba}\x{1bc}-\x{1bf}\x{1c4}-\x{293}",
    r"\x{295}-\x{2af}\x{370}-\x{373}\x{376}\x{377}\x{37b}-\x{37d}\x{37f}\x{386}",
    r"\x{388}-\x{38a}\x{38c}\x{38e}-\x{3a1}\x{3a3}-\x{3f5}\x{3f7}-\x{481}\x{48a}-\x{52f}",
    r"\x{531}-\x{556}\x{10a0}-\x{10c5}\x{13a0}-\x{13f5}\x{13f8}-\x{13fd}\x{1c90}-\x{1cba}",
    r"\x{1cbd}-\x{1cbf}\x{1d00}-\x{1d2b}\x{1d6b}-\x{1d77}\x{1d79}-\x{1d9a}",
    r"\x{1e00}-\x{1f15}\x{1f18}-\x{1f1d}\x{1f20}-\x{1f45}\x{1f48}-\x{1f4d}",
    r"\x{1f50}-\x{1f57}\x{1f59}\x{1f5b}\x{1f5d}\x{1f5f}-\x{1f7d}\x{1f80}-\x{1fb4}",
    r"\x{1fb6}-\x{1fbc}\x{1fbe}\x{1fc2}-\x{1fc4}\x{1fc6}-\x{1fcc}\x{1fd0}-\x{1fd3}",
    r"\x{1fd6}-\x{1fdb}\x{1fe0}-\x{1fec}\x{1ff2}-\x{1ff4}\x{1ff6}-\x{1ffc}\x{2102}\x{2107}",
    r"\x{210a}-\x{2113}\x{2115}\x{2119}-\x{211d}\x{2124}\x{2126}\x{2128}\x{212a}-\x{212d}",
    r"\x{212f}-\x{2134}\x{2139}\x{213c}-\x{213f}\x{2145}-\x{2149}\x{214e}\x{2183}\x{2184}",
    r"\x{2c00}-\x{2c7b}\x{2c7e}-\x{2ce4}\x{2ceb}-\x{2cee}\x{2cf2}\x{2cf3}\x{a640}-\x{a66d}",
    r"\x{a680}-\x{a69b}\x{a722}-\x{a76f}\x{a771}-\x{a787}\x{a78b}-\x{a78e}",
    r"\x{ab70}-\x{abbf}\x{fb00}-\x{fb06}\x{fb13}-\x{fb17}\x{ff21}-\x{ff3a}",
    r"\x{ff41}-\x{ff5a}\x{10400}-\x{1044f}\x{104b0}-\x{104d3}\x{104d8}-\x{104fb}",
    r"\x{10c80}-\x{10cb2}\x{10cc0}-\x{10cf2}\x{118a0}-\x{118df}\x{1e900}-\x{1e943}]+",
);

const ROW: Row = Row { names: &[], cuts: &[], whole_words: false, add_bos: false, raw: false };

/// The pre-tokenizers, as llama.cpp names and defines them.
pub(super) static ROWS: &[Row] = &[
    Row {
        names: &["default"],
        cuts: &[At(r"[\p{P}$+<=>^~|]+"), At(GPT2), At(r"\p{N}+"), At("[0-9][0-9][0-9]")],
        ..ROW
    },
    Row {
        names: &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "gigachat",
            "jina-v2-es",
            "jina-v2-de",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "jina-v1-en",
            "jina-v2-code",
            "roberta-bpe",
            "exaone4",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
        ],
        cuts: &[At(GPT2)],
        ..ROW
    },
    Row {
        names: &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        cuts: &[At(r"\p{N}"), At(GPT2)],
        ..ROW
    },
    Row {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        cuts: &[At(LLAMA3)],
        whole_words: true,
        add_bos: true,
        ..ROW
    },
    Row { names: &["dbrx", "smaug-bpe", "chatglm-bpe"], cuts: &[At(LLAMA3)], ..ROW },
    Row { names: &["glm4", "glm5"], cuts: &[At(LLAMA3)], whole_words: true, ..ROW },
    Row {
        names: &[
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        cuts: &[At(QWEN2)],
        ..ROW
    },
    Row {
        names: &["qwen35"],
        cuts: &[At(concat!(
            contraction!(),
            r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
            r"|\s*[\r\n]+|\s+(?!\S)|\s+"
        ))],
        ..ROW
    },
    Row { names: &["laguna"], cuts: &[At(LINES), At(QWEN2)], ..ROW },
    Row {
        names: &["ufakzeka"],
        cuts: &[At(concat!(
            r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*",
            r"|\s*[\r\n]+|\s+(?!\S)|\s+"
        ))],
        ..ROW
    },
    Row {
        names: &["minicpm5"],
        cuts: &[At(r"\p{N}{1,3}"), At(words!(r"\p{N}+"))],
        whole_words: true,
        ..ROW
    },
    Row {
        names: &["seed-coder"],
        cuts: &[At(concat!(
            contraction!(),
            r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
        ))],
        ..ROW
    },
    Row {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        cuts: &[At(concat!(
            contraction!(),
            r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
        ))],
        ..ROW
    },
    Row {
        names: &["exaone-moe"],
        cuts: &[At(concat!(
            contraction!(),
            r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?",
            r"|\s*[\r\n]|\s+(?!\S)|\s+"
        ))],
        ..ROW
    },
    Row { names: &["jais-2"], cuts: &[AtSpacesBy2(LLAMA3)], ..ROW },
    Row {
        names: &["falcon"],
        cuts: &[At(r"[\p{P}$+<=>^~|`]+"), At(GPT2), At("[0-9][0-9][0-9]")],
        ..ROW
    },
    Row {
        names: &["deepseek-llm"],
        cuts: &[
            At(r"[\r\n]"),
            At(DEEPSEEK_LETTERS),
            At(r"\s?[!-/:-~！-／：-～‘-‟\x{3001}-。]+"),
            At(r"\s+$"),
            At(CHINESE_TO_KOREAN),
            At(r"\p{N}+"),
        ],
        ..ROW
    },
    Row {
        names: &["deepseek-coder"],
        cuts: &[
            At(r"[\r\n]"),
            At(r"\s?\p{L}+"),
            At(r"\s?\p{P}+"),
            At(CHINESE_TO_KOREAN),
            At(r"\p{N}"),
        ],
        ..ROW
    },
    Row {
        names: &["deepseek-v3", "hunyuan-dense", "hy_v4", "joyai-llm"],
        cuts: &[At(r"\p{N}{1,3}"), At(CHINESE_AND_KANA), At(signed_words!(r"[\r\n]*|\s*[\r\n]+"))],
        ..ROW
    },
    Row {
        names: &["spark2_5"],
        cuts: &[
            At(r"\p{N}{1,3}"),
            At(CHINESE_AND_KANA),
            At(signed_words!(r"|[\r\n]")),
            At(r"\p{N}"),
        ],
        ..ROW
    },
    Row {
        names: &["youtu"],
        cuts: &[
            At(concat!(
                r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-\x{303f}\x{fe30}-\x{fe4f}]+|[ㄅ-ㄯ]+",
                r"|[\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+"
            )),
            At(cased_words!(
                r"[\p{L}\p{M}]",
                r"[\p{L}\p{M}]",
                concat!("(?:", contraction!(), ")?"),
                r"\p{N}"
            )),
        ],
        whole_words: true,
        ..ROW
    },
    Row { names: &["poro-chat", "bloom", "gpt3-finnish"], cuts: &[At(BLOOM)], ..ROW },
    Row { names: &["viking"], cuts: &[At(BLOOM), At(r"\p{N}")], ..ROW },
    Row {
        names: &["tekken"],
        cuts: &[At(cased_words!(r"[\p{L}--a-z]", r"[\p{L}--A-Z]", "", r"\p{N}"))],
        whole_words: true,
        add_bos: true,
        ..ROW
    },
    Row {
        names: &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
        cuts: &[At(cased_words!(
            r"[\p{L}--a-z]",
            r"[\p{L}--A-Z]",
            concat!("(?:", contraction!(), ")?"),
            r"\p{N}{1,3}"
        ))],
        ..ROW
    },
    Row {
        names: &["granite-embed-multi-97m"],
        cuts: &[At(cased_words!(
            r"[\p{L}\p{M}--a-z]",
            r"[\p{L}\p{M}--A-Z]",
            concat!("(?:", contraction!(), ")?"),
            r"\p{N}{1,3}"
        ))],
        whole_words: true,
        ..ROW
    },
    Row {
        names: &["tiny_aya", "cohere2moe"],
        cuts: &[
            AfterThousands,
            At(cased_words!(
                r"[\p{L}\p{M}]",
                r"[\p{L}\p{M}]",
                concat!("(?:", contraction!(), ")?"),
                r"\p{N}{1,3}"
            )),
        ],
        ..ROW
    },
    Row { names: &["superbpe"], cuts: &[At(r"\p{N}+"), BeforeThousands], ..ROW },
    Row {
        names: &["kimi-k2"],
        cuts: &[At(concat!(
            r"[\x{3400}-\x{4dbf}\x{4e00}-\x{9fff}\x{f900}-\x{faff}\x{20000}-\x{2a6df}\x{2a700}-\x{2ebef}\x{2f800}-\x{2fa1f}]+",
            r"|[^\r\n\p{L}\p{N}]?[\p{L}--[\x{3400}-\x{4dbf}\x{4e00}-\x{9fff}\x{f900}-\x{faff}\x{20000}-\x{2a6df}\x{2a700}-\x{2ebef}\x{2f800}-\x{2fa1f}]]+(?:",
            contraction!(),
            r")?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        ))],
        ..ROW
    },
    Row {
        names: &["afmoe"],
        cuts: &[
            AfterThousands,
            At(concat!(
                r"[\x{4e00}-\x{9fff}\x{3400}-\x{4dbf}\x{8c48}-\x{faff}\x{3040}-\x{309f}\x{30a0}-\x{30ff}",
                r"\x{ff65}-\x{ff9f}\x{2f00}-\x{2fdf}\x{0e40}-\x{0e7f}\x{0e80}-\x{0eff}\x{1780}-\x{17ff}",
                r"\x{1000}-\x{109f}\x{aa60}-\x{aa7f}\x{a9e0}-\x{a9ff}\x{ac00}-\x{d7af}\x{1100}-\x{11ff}]+"
            )),
            At(signed_words!(r"[\r\n]*|\s*[\r\n]+")),
        ],
        ..ROW
    },
    Row {
        names: &["chameleon"],
        cuts: &[
            At("<sentinel:[0-9]+>"),
            At("IMGIMG[A-I]{1,4}Z"),
            At(r"[\t\n]|    |  "),
            At(r"\p{N}"),
            At(r"[\p{P}!-/:-@\[-`{-~]"),
            At(GPT2),
        ],
        add_bos: true,
        ..ROW
    },
    Row {
        names: &["gemma4", "granite-embed-multi-311m"],
        cuts: &[At(LINES)],
        add_bos: true,
        raw: true,
        ..ROW
    },
];
