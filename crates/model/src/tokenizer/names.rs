//! Tokens that are known by name, since files often say too little of them.

/// Texts that end a turn or a document whatever the file calls them.
pub(super) const ENDS: &[&str] = &[
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<turn|>",
    "<｜end▁of▁sentence｜>",
];
/// Texts that end a turn only where the file makes them control tokens: elsewhere they are words.
pub(super) const ENDS_IF_CONTROL: &[&str] =
    &["</s>", "<eos>", "[EOS]", "<EOT>", "_<EOT>", "[EOT]", "[e~["];
/// Texts that llama.cpp parses as control tokens whatever the file calls them, beside the above.
pub(super) const CONTROLS: &[&str] = &[
    "<|flush|>",
    "<|calls|>",
    "<|tool_response>",
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<｜fim▁begin｜>",
    "<PRE>",
    "▁<PRE>",
    "<|code_prefix|>",
    "<|prefix|>",
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<｜fim▁hole｜>",
    "<SUF>",
    "▁<SUF>",
    "<|code_suffix|>",
    "<|suffix|>",
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<｜fim▁end｜>",
    "<MID>",
    "▁<MID>",
    "<|code_middle|>",
    "<|middle|>",
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
];
/// Texts of gpt-oss that are never control tokens.
pub(super) const ADDED: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];
