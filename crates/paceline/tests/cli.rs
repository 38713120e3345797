//! The command as a user types it, with a model where it is in the cache.

#[path = "support/cached.rs"]
mod cached;
mod support;

use cached::cached;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, Stdio};
use support::{Home, Ran};

const COMMANDS: [&str; 7] = ["run", "chat", "serve", "pull", "list", "rm", "inspect"];

/// Flags for a small and quick engine.
const SMALL: [&str; 6] = ["--threads", "1", "--kv-memory", "64MiB", "--max-model-len", "1024"];

#[test]
fn the_help_of_each_command_fits_a_screen_and_has_an_example() {
    let home = Home::new();
    for command in COMMANDS.into_iter().chain(["bench run", "bench serve", "bench batching"]) {
        let help = home.run(command.split(' ').chain(["--help"])).succeeds().out;
        assert!(help.contains("Example: paceline"), "{command}: {help}");
        assert!(help.lines().count() <= 40, "{command}: {} lines", help.lines().count());
        let widest = help.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= 110, "{command}: a line of {widest} characters");
    }
    let help = home.run(["--help"]).succeeds().out;
    assert!(COMMANDS.iter().all(|command| help.contains(command)), "{help}");
}

#[test]
fn wrong_usage_is_one_line_that_names_it_and_code_2() {
    let home = Home::new();
    home.file("prompt.txt", "hi");
    // No such model is asked for: what is wrong is said before anybody looks for it.
    for (args, parts) in [
        (&["run"][..], &["no prompt", "stdin"][..]),
        (&["run", "a", "b", "c"], &["'c'", "paceline run --help"]),
        (&["run", "a", "b", "--model", "c"], &["--model", "twice"]),
        (&["run", "hi", "more", "--prompt-file", "x"], &["--prompt-file", "twice"]),
        (&["bench", "run", "a", "--only", "rows5"], &["'rows5'", "rows4, rows8"]),
        (&["bench", "run", "a", "--repeat", "0"], &["--repeat", "at least 1"]),
        (&["bench", "run", "a", "--speculate", "off"], &["--speculate", "bench run --help"]),
        (&["bench", "run", "a", "--threads", "0"], &["--threads is 0"]),
        (&["bench", "batching", "a", "--slots", "513"], &["--slots is 513", "at most 512 rows"]),
        (&["bench", "batching", "a", "--requests", "0"], &["--requests", "at least 1"]),
        (&["bench", "batching", "a", "--scale", "0"], &["--scale", "from 0.0001"]),
        (&["bench", "batching", "a", "--load", "11"], &["--load", "from 0 to 10"]),
        (&["bench", "batching", "a", "--threads", "0"], &["--threads is 0"]),
        (&["run", "hi", "--temprature", "1"], &["--temprature", "--temperature", "run --help"]),
        (&["run", "hi", "--temperature", "hot"], &["'hot'", "--temperature", "a number"]),
        (&["run", "hi", "--temperature", "-1"], &["--temperature is -1", "from 0 to 100"]),
        (&["run", "hi", "--temperature", "nan"], &["--temperature is NaN", "from 0 to 100"]),
        (&["run", "hi", "--temperature", "1e308"], &["--temperature is out of range"]),
        (&["run", "hi", "--temperature", "1e30"], &["--temperature is 1e30:"]),
        (&["run", "hi", "--top-k", "-2"], &["--top-k", "whole number"]),
        (&["run", "hi", "--top-p", "0"], &["--top-p is 0", "above 0"]),
        (&["run", "hi", "--min-p", "1.5"], &["--min-p is 1.5", "from 0 to 1"]),
        (&["run", "hi", "--repetition-penalty", "0"], &["--repetition-penalty is 0"]),
        (&["run", "hi", "--presence-penalty", "-3"], &["--presence-penalty is -3"]),
        (&["run", "hi", "--frequency-penalty", "3"], &["--frequency-penalty is 3"]),
        (&["run", "hi", "--logit-bias", "5"], &["--logit-bias", "ID=X"]),
        (&["run", "hi", "--logit-bias", "5=1e9"], &["--logit-bias is 1e9", "-100 to 100"]),
        (&["run", "hi", "--logprobs", "5"], &["--logprobs", "--json"]),
        (&["run", "hi", "--json", "--logprobs", "101"], &["--logprobs is 101", "at most 100"]),
        (&["run", "hi", "--json", "--prompt-logprobs", "x"], &["--prompt-logprobs", "whole"]),
        (&["run", "hi", "--max-tokens", "0"], &["--max-tokens is 0", "at least 1"]),
        (&["run", "hi", "--max-tokens", "1e3"], &["--max-tokens", "whole number"]),
        (&["run", "hi", "--max-tokens", "99999999999999999999"], &["--max-tokens", "too large"]),
        (&["run", "hi", "--max-tokens", "2", "--min-tokens", "3"], &["--min-tokens is 3"]),
        (&["run", "hi", "--stop", ""], &["--stop", "non-empty"]),
        (&["run", "hi", "--stop-token-id", "-5"], &["--stop-token-id", "whole number"]),
        (&["run", "hi", "--seed", "1.5"], &["--seed", "whole number"]),
        (&["run", "hi", "--raw", "--system", "x"], &["--system", "--raw"]),
        (&["run", "hi", "--threads", "0"], &["--threads is 0", "from 1 to 512"]),
        (&["run", "hi", "--threads", "513"], &["--threads is 513", "from 1 to 512"]),
        (&["run", "hi", "--block-size", "7"], &["--block-size", "7", "16, 32"]),
        (&["run", "hi", "--max-num-seqs", "0"], &["--max-num-seqs is 0"]),
        (&["run", "hi", "--max-num-batched-tokens", "0"], &["--max-num-batched-tokens is 0"]),
        (&["run", "hi", "--max-model-len", "0"], &["--max-model-len is 0"]),
        (&["run", "hi", "--kv-memory", "2XB"], &["--kv-memory", "2XB", "2GiB"]),
        (&["run", "hi", "--kv-memory", "1000"], &["--kv-memory is 1000", "at least"]),
        (&["run", "hi", "--kv-type-k", "q3"], &["--kv-type-k", "i16, q8_0"]),
        (&["run", "hi", "--speculate", "yes"], &["--speculate", "off, lookup"]),
        (&["chat", "nothing.gguf", "--temperature", "-1"], &["--temperature is -1"]),
        (&["chat", "nothing.gguf", "--threads", "0"], &["--threads is 0"]),
        (&["serve", "nothing.gguf", "--block-size", "7"], &["--block-size"]),
        (&["serve", "--port", "70000"], &["'70000'", "--port", "too large"]),
        (&["serve", "--max-body", "0"], &["--max-body", "at least 1"]),
        (&["serve", "--served-model-name", ""], &["--served-model-name"]),
        (
            &["bench", "serve", "--url", "http://a:65536", "--dataset", "random", "--rate", "1"],
            &["65535"],
        ),
        (&["pull", "smollm2-135m", "--sha256", "zz"], &["--sha256", "64 hexadecimal digits"]),
        (&["pull", "smollm2-135m", "--name", "x"], &["--name", "smollm2-135m has its own"]),
        (&["sing"], &["'sing'", "paceline --help"]),
        (&["rm"], &["<NAME>", "paceline rm --help"]),
    ] {
        let mut command = home.command(args);
        Ran::of(command.env("PACELINE_MODEL", "nothing.gguf").output().unwrap())
            .refused_with(parts);
    }
    let wrong = |name: &str, value: &str, parts: &[&str]| {
        let mut command = home.command(["run", "nothing.gguf", "hi"]);
        Ran::of(command.env(name, value).output().unwrap()).refused_with(parts);
    };
    wrong("PACELINE_ISA", "sse", &["'sse'", "PACELINE_ISA", "scalar, avx2, avx512"]);
    wrong("PACELINE_TOP_P", "x", &["'x'", "--top-p", "PACELINE_TOP_P", "number"]);
    // Without a word it is the help.
    let ran = home.run::<[&str; 0]>([]);
    assert!(ran.code == Some(2) && ran.err.contains("Usage: paceline"), "{ran:?}");
}

#[test]
fn what_http_accepts_is_accepted() {
    let home = Home::new();
    for args in [
        &["--top-k", "-1"][..],
        &["--top-k", "0"],
        &["--seed", "-7"],
        &["--seed", "18446744073709551615"],
        &["--presence-penalty", "-2"],
        &["--temperature", "100"],
        &["--logit-bias", "5=-100"],
        &["--threads", "512"],
        &["--kv-memory", "64KiB"],
    ] {
        let args = ["run", "nothing.gguf", "hi"].iter().chain(args);
        home.run(args).fails_with(&["nothing.gguf", "no such file"]);
    }
}

#[test]
fn a_variable_that_is_empty_is_not_set() {
    let home = Home::new();
    for command in [&["run", "nothing.gguf", "hi"][..], &["serve", "nothing.gguf", "--port", "0"]] {
        let mut command = home.command(command);
        for name in ["THREADS", "ISA", "STOP", "MODEL", "KV_MEMORY", "TEMPERATURE", "KV_TYPE_K"] {
            command.env(format!("PACELINE_{name}"), "");
        }
        command.env("PACELINE_RAW", "").env("PACELINE_CATALOGUE", "");
        Ran::of(command.output().unwrap()).fails_with(&["nothing.gguf", "no such file"]);
    }
}

#[test]
fn with_a_prompt_file_the_word_is_the_model() {
    let home = Home::new();
    home.file("prompt.txt", "hi");
    let args = ["run", "--prompt-file", "prompt.txt", "Why is the sky blue?"];
    home.run(args).refused_with(&["--prompt-file", "MODEL", "\"Why is the sky blue?\""]);
    let args = ["run", "--prompt-file", "prompt.txt", "--model", "nothing.gguf"];
    home.run(args).fails_with(&["nothing.gguf", "no such file"]);
}

#[test]
fn what_is_no_model_is_named() {
    let home = Home::new();
    std::fs::create_dir(home.path("folder")).unwrap();
    home.file("notes.txt", "these are notes, and long enough for a header of anything");
    home.file("empty.gguf", "");
    home.file("cut.gguf", b"GGUF\x03\0\0\0\xff\xff\xff\xff\xff\xff\xff\x7f");
    for (model, parts) in [
        ("nothing.gguf", &["nothing.gguf", "no such file", "paceline list"][..]),
        ("folder", &["folder", "config.json"]),
        ("notes.txt", &["notes.txt"]),
        ("empty.gguf", &["empty.gguf"]),
        ("cut.gguf", &["cut.gguf"]),
    ] {
        home.run(["run", model, "hi"]).fails_with(parts);
        home.run(["inspect", model]).fails_with(parts);
    }
    home.run(["run", "two\nlines\u{1b}[2J", "hi"]).fails_with(&["two lines [2J", "no such file"]);
    home.run(["run", "hi", "--top-p", "two\nlines"]).refused_with(&["'two lines'", "--top-p"]);
    home.run(["run", "--prompt-file", "absent.txt"]).fails_with(&["absent.txt"]);
    home.file("latin1.txt", b"caf\xe9");
    home.run(["run", "--prompt-file", "latin1.txt"]).fails_with(&["latin1.txt", "UTF-8"]);
}

#[test]
fn an_address_that_is_taken_is_named() {
    let home = Home::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    home.run(["serve", "nothing.gguf", "--port", &port]).fails_with(&[&port, "--port"]);
    home.run(["serve", "nothing.gguf", "--host", "192.0.2.1"]).fails_with(&["192.0.2.1", "--host"]);
}

fn json(ran: Ran) -> Value {
    let ran = ran.succeeds();
    assert_eq!(ran.out.lines().count(), 1, "one object and nothing else: {ran:?}");
    serde_json::from_str(&ran.out).unwrap()
}

/// `paceline run MODEL PROMPT ARGS`
fn run(home: &Home, model: &str, prompt: &str, args: &[&str]) -> Ran {
    home.run(["run", model, prompt].iter().chain(&SMALL).chain(args))
}

#[test]
fn a_model_answers() {
    let Some(model) = cached("smollm2-135m") else { return };
    let model = model.to_str().unwrap();
    let home = Home::new();
    let prompt = "What is 2+2?";
    let args = ["--json", "--max-tokens", "24", "--temperature", "0", "--logprobs", "2"];
    let mut answer = json(run(&home, model, prompt, &args));
    let mut keys: Vec<&str> = answer.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    let expected =
        ["finish_reason", "logprobs", "prompt_token_ids", "text", "timings", "token_ids", "usage"];
    assert_eq!(keys, expected);
    let text = answer["text"].as_str().unwrap().to_owned();
    assert!(text.contains('4'), "{answer}");
    let n = answer["token_ids"].as_array().unwrap().len();
    assert_eq!(answer["usage"]["completion_tokens"], n);
    assert_eq!(answer["logprobs"].as_array().unwrap().len(), n);
    assert_eq!(answer["finish_reason"], "stop");
    // The end token is there, and its text is not.
    assert_eq!(answer["logprobs"][n - 1]["token"], "<|im_end|>");
    assert!(!text.contains("<|im_end|>"));
    for timing in [
        "load_ms",
        "time_to_first_token_ms",
        "prefill_tokens_per_second",
        "decode_tokens_per_second",
    ] {
        assert!(answer["timings"][timing].as_f64().unwrap() > 0.0, "{answer}");
    }

    // The text alone is the same, and so it is without a cache, with drafts, and from elsewhere.
    let plain = run(&home, model, prompt, &["--max-tokens", "24", "--temperature", "0"]).succeeds();
    assert_eq!(plain.out.trim_end(), text.trim_end());
    assert_eq!(plain.err.lines().count(), 1, "{plain:?}");
    assert!(plain.err.contains("tokens/s") && plain.err.contains("first token"), "{plain:?}");
    answer["timings"] = Value::Null;
    home.file("prompt.txt", prompt);
    let variants: [&[&str]; 4] = [
        &["--no-kv-cache"],
        &["--speculate", "lookup"],
        &["--block-size", "32", "--max-num-batched-tokens", "7"],
        &["--no-prefix-cache", "--max-num-seqs", "1"],
    ];
    for extra in variants {
        let args: Vec<&str> = args.iter().chain(extra).copied().collect();
        let mut other = json(run(&home, model, prompt, &args));
        other["timings"] = Value::Null;
        assert_eq!(other, answer, "{extra:?}");
    }
    let args = args.iter().chain(&SMALL);
    let mut other =
        json(home.run(
            ["run", "--model", model, "--prompt-file", "prompt.txt"].iter().chain(args.clone()),
        ));
    other["timings"] = Value::Null;
    assert_eq!(other, answer);
    let mut child = home
        .command(["run", model, "-"].iter().chain(args))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(prompt.as_bytes()).unwrap();
    let mut other = json(Ran::of(child.wait_with_output().unwrap()));
    other["timings"] = Value::Null;
    assert_eq!(other, answer);
}

#[test]
fn a_raw_prompt_is_continued_with_the_flags_from_the_environment() {
    let Some(model) = cached("smollm2-135m") else { return };
    let home = Home::new();
    let mut command = home.command(["run", "One, two, three, four,"]);
    command.args(SMALL).envs([
        ("PACELINE_MODEL", model.to_str().unwrap()),
        ("PACELINE_RAW", "1"),
        ("PACELINE_JSON", "true"),
        ("PACELINE_MAX_TOKENS", "6"),
        ("PACELINE_TEMPERATURE", "0"),
        ("PACELINE_PROMPT_LOGPROBS", "1"),
    ]);
    let answer = json(Ran::of(command.output().unwrap()));
    assert!(answer["text"].as_str().unwrap().contains("five"), "{answer}");
    assert_eq!(answer["finish_reason"], "length");
    assert!(answer["logprobs"].is_null());
    let prompt = answer["prompt_logprobs"].as_array().unwrap();
    assert_eq!(prompt.len(), answer["prompt_token_ids"].as_array().unwrap().len());
    assert!(prompt[0].is_null() && prompt[1]["logprob"].as_f64().unwrap() < 0.0);
    for (entry, id) in prompt.iter().zip(answer["prompt_token_ids"].as_array().unwrap()).skip(1) {
        assert_eq!(entry["token_id"], *id);
    }
}

#[test]
fn a_seed_gives_the_same_text_again() {
    let Some(model) = cached("smollm2-135m") else { return };
    let model = model.to_str().unwrap();
    let home = Home::new();
    let run = |seed: &str| {
        let args = ["--temperature", "1.2", "--max-tokens", "12", "--seed", seed];
        run(&home, model, "Tell me a story", &args).succeeds()
    };
    let (first, again, other) = (run("1"), run("1"), run("2"));
    assert_eq!(first.out, again.out);
    assert_ne!(first.out, other.out);
    assert!(first.err.contains("seed 1") && first.err.contains("cut at --max-tokens"), "{first:?}");
}

#[test]
fn what_a_model_cannot_do_is_named() {
    let Some(model) = cached("smollm2-135m") else { return };
    let model = model.to_str().unwrap();
    let home = Home::new();
    let run = |prompt: &str, args: &[&str]| home.run(["run", model, prompt].iter().chain(args));
    for (args, parts) in [
        (&["--max-tokens", "100000"][..], &["--max-tokens is 100000", "8192"][..]),
        (&["--max-tokens", "99", "--max-model-len", "99"], &["--max-tokens is 99", "99 tokens"]),
        (&["--min-tokens", "9000"], &["--min-tokens is 9000", "at most 8191"]),
        (&["--stop-token-id", "999999"], &["--stop-token-id is 999999", "49152"]),
        (&["--logit-bias", "999999=1"], &["--logit-bias is 999999", "49152"]),
        (&["--max-model-len", "99999999"], &["--max-model-len is 99999999", "8192"]),
        (&["--kv-memory", "100KiB"], &["--kv-memory 102400", "block"]),
        (&["--kv-memory", "400KiB"], &["--kv-memory"]),
        (&["--max-model-len", "16"], &["prompt", "16"]),
        (&["--max-model-len", "60", "--max-tokens", "50"], &["prompt", "(--max-tokens)", "60"]),
    ] {
        run("Hello there, how are you today?", args).refused_with(parts);
    }
    home.run([
        "serve",
        model,
        "--port",
        "0",
        "--max-model-len",
        "99999999",
        "--log-level",
        "error",
    ])
    .refused_with(&["--max-model-len is 99999999", "8192"]);
    let long = "word ".repeat(9_000);
    home.file("long.txt", &long);
    home.run(["run", model, "--prompt-file", "long.txt"]).refused_with(&["prompt", "8192"]);
    run("", &["--raw"]).refused_with(&["prompt is empty"]);
}

#[test]
fn a_base_model_runs_raw_with_a_notice_and_does_not_chat() {
    let Some(model) = cached("gemma3-270m") else { return };
    let model = model.to_str().unwrap();
    let home = Home::new();
    let ran = run(&home, model, "The capital of France is", &["--max-tokens", "8"]).succeeds();
    assert!(ran.out.contains("France"), "{ran:?}");
    assert_eq!(ran.err.lines().count(), 2, "{ran:?}");
    assert!(ran.err.contains("no chat template"), "{ran:?}");
    home.run(["chat", model].iter().chain(&SMALL))
        .fails_with(&["no chat template", "paceline run"]);
    let args = ["run", model, "Hi", "--system", "Be brief."];
    home.run(args.iter().chain(&SMALL)).fails_with(&["no chat template", "--system"]);
}

#[test]
fn a_conversation_goes_on_from_what_was_said() {
    let Some(model) = cached("smollm2-135m") else { return };
    let home = Home::new();
    let mut child = home
        .command(["chat", model.to_str().unwrap(), "--max-tokens", "30"].iter().chain(&SMALL))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = b"What is 2+2?\n\ncaf\xe9\nAnd 3+3?\n/nonsense\n/help\n/reset\nHi\n/system Be brief.\nHi\n/exit\nnever\n";
    child.stdin.take().unwrap().write_all(lines).unwrap();
    let ran = Ran::of(child.wait_with_output().unwrap()).succeeds();
    assert!(ran.out.contains('4'), "{ran:?}");
    assert!(!ran.out.contains("never"));
    assert!(
        ran.err.contains("no command /nonsense") && ran.err.contains("/system TEXT"),
        "{ran:?}"
    );
    assert_eq!(ran.err.matches("not UTF-8").count(), 1, "{ran:?}");
    let figures: Vec<&str> = ran.err.lines().filter(|line| line.contains("cached")).collect();
    assert_eq!(figures.len(), 4, "{ran:?}");
    assert!(figures[0].contains("(0 cached)"));
    // The second turn reuses the blocks of the first.
    let cached = figures[1].split('(').nth(1).unwrap().split(' ').next().unwrap();
    assert!(cached.parse::<usize>().unwrap() >= 32, "{ran:?}");
}

#[test]
fn inspect_shows_what_a_file_holds() {
    let Some(model) = cached("smollm2-135m") else { return };
    let model = model.to_str().unwrap();
    let home = Home::new();
    let text = home.run(["inspect", model]).succeeds().out;
    for part in
        ["llama", "30 layers", "Q4_1", "general.architecture", "<|im_start|>", "1000 tokens"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let ran = home.run(["inspect", model, "--json"]).succeeds();
    let facts: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(facts["n_layers"], 30);
    assert_eq!(facts["tensors"].as_array().unwrap().len(), 272);
    // 30 layers, 3 heads of 64, K and V, two bytes each.
    assert_eq!(facts["kv_bytes_per_1000_tokens"]["i16"], 30 * 3 * (64 * 2 + 4) * 2 * 1000);
}

#[test]
fn inspect_refuses_what_cannot_run() {
    let home = Home::new();
    let config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 3,
        "max_position_embeddings": 64,
    });
    home.file("model/config.json", config.to_string());
    let safetensors = |header: &str, data: &[u8]| {
        let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat();
        home.file("model/model.safetensors", bytes);
    };
    safetensors("{}", b"");
    home.run(["inspect", "model"]).fails_with(&["model", "without a tensor"]);
    safetensors(r#"{"t": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}"#, &[0; 4]);
    home.run(["inspect", "model"]).fails_with(&["model/tokenizer.json"]);
    home.file("model/tokenizer.json", "{\"model\":");
    home.run(["inspect", "model"]).fails_with(&["model/tokenizer.json"]);
    home.file("model/tokenizer.json", "{}");
    home.run(["inspect", "model", "--json"]).fails_with(&["model/tokenizer.json"]);
    let tokenizer =
        r#"{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}}"#;
    home.file("model/tokenizer.json", tokenizer);
    home.file("model/tokenizer_config.json", "[");
    home.run(["inspect", "model"]).fails_with(&["model/tokenizer_config.json"]);
    home.file("model/tokenizer_config.json", r#"{"chat_template": "{% for %}"}"#);
    home.run(["inspect", "model"]).fails_with(&["model", "chat template"]);
    home.file("model/tokenizer_config.json", "{}");
    let shown = home.run(["inspect", "model"]).succeeds().out;
    assert!(shown.contains("1 layers"), "{shown}");
}

/// `paceline serve` on a free port, with its address and what it said before.
fn serve(home: &Home, model: &str) -> (Child, String, String) {
    let mut child = home
        .command(["serve", model, "--port", "0", "--served-model-name", "it"].iter().chain(&SMALL))
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut banner = String::new();
    let address = loop {
        let line = lines.next().expect("it listens").unwrap();
        match line.split_once("listening on ") {
            Some((_, address)) => break address.to_owned(),
            None => banner += &(line + "\n"),
        }
    };
    // So that it never waits for somebody to read.
    std::thread::spawn(move || lines.for_each(drop));
    (child, address, banner)
}

#[test]
fn what_the_server_needs_is_checked_before_the_model() {
    let home = Home::new();
    home.file("empty.txt", "# nobody yet");
    home.file("keys.txt", "sk-one alice\nsk-one bob");
    home.file("cert.pem", "no certificate");
    let serve = |args: &[&str]| home.run(["serve", "nothing.gguf"].iter().chain(args));
    serve(&["--api-key-file", "none.txt"]).fails_with(&["--api-key-file", "none.txt"]);
    serve(&["--api-key-file", "empty.txt"]).fails_with(&["empty.txt", "no key"]);
    serve(&["--api-key-file", "keys.txt"]).fails_with(&["keys.txt", "line 2", "line 1"]);
    serve(&["--tls-cert", "cert.pem", "--tls-key", "cert.pem"]).fails_with(&["cert.pem"]);
    serve(&["--tls-cert", "cert.pem"]).refused_with(&["--tls-key"]);
    serve(&["--tls-key", "cert.pem"]).refused_with(&["--tls-cert"]);
    serve(&["--log-format", "xml"]).refused_with(&["--log-format", "xml"]);
    serve(&["--log-level", "loud"]).refused_with(&["--log-level", "loud"]);
    serve(&["--max-connections", "0"]).refused_with(&["--max-connections", "at least 1"]);
}

#[cfg(unix)]
#[test]
fn the_log_is_for_programs_where_that_is_asked_for() {
    let Some(model) = cached("smollm2-135m") else { return };
    let home = Home::new();
    let args = ["--port", "0", "--host", "0.0.0.0", "--log-format", "json"];
    let command = ["serve", model.to_str().unwrap()];
    let args = command.iter().chain(&args).chain(&SMALL);
    let mut child = home.command(args).stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut warned = false;
    for line in BufReader::new(child.stderr.take().unwrap()).lines() {
        let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let message = line["message"].as_str().unwrap();
        warned |= line["level"] == "WARN" && message.contains("--api-key-file");
        if message.starts_with("listening on http://0.0.0.0:") {
            let killed = std::process::Command::new("kill").arg(child.id().to_string()).status();
            assert!(killed.unwrap().success());
        }
    }
    assert!(warned, "it listens to everybody without a word");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[cfg(unix)]
#[test]
fn a_model_is_served_until_the_signal() {
    let Some(model) = cached("smollm2-135m") else { return };
    let model = model.to_str().unwrap();
    let home = Home::new();
    let (mut child, address, banner) = serve(&home, model);
    assert!(banner.contains("speculation off") && banner.contains("K i16, V i16"), "{banner}");
    let ask = |body: Value| {
        let mut response =
            ureq::post(format!("{address}/v1/chat/completions")).send(body.to_string()).unwrap();
        let text = response.body_mut().read_to_string().unwrap();
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let prompt = "What is 2+2?";
    let answer = ask(serde_json::json!({
        "model": "it", "temperature": 0, "max_tokens": 24,
        "messages": [{"role": "user", "content": prompt}],
    }));
    let args = ["--max-tokens", "24", "--temperature", "0"];
    let alone = run(&home, model, prompt, &args).succeeds().out;
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(text.trim_end(), alone.trim_end());

    let killed = std::process::Command::new("kill").arg(child.id().to_string()).status();
    assert!(killed.unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// What is measured is not judged here; that it is what was asked for is.
#[test]
fn a_bench_measures_what_is_asked_for() {
    let Some(path) = cached("smollm2-135m") else { return };
    let home = Home::new();
    let bench = |args: &[&str]| {
        let usual = ["bench", "run", path.to_str().unwrap(), "--repeat", "1"];
        home.run(usual.iter().chain(args))
    };
    let figures = json(bench(&["--json", "--threads", "1", "--only", "rows4,decode@128"]));
    let names: Vec<&str> = figures["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["decode@128", "rows4"]);
    assert_eq!(figures["threads"], 1);
    for row in figures["rows"].as_array().unwrap() {
        let [speed, limit, fraction] =
            ["tokens_per_second", "limit_tokens_per_second", "limit_fraction"]
                .map(|field| row[field].as_f64().unwrap());
        assert!(speed > 0.0 && limit > 0.0 && fraction > 0.0, "{row}");
    }
    let profile = bench(&["--profile", "--only", "decode@128"]).succeeds().out;
    assert!(["attention", "linear 576 to 960", "all else"].iter().all(|op| profile.contains(op)));
    let refused = bench(&["--context", "100000", "--only", "decode@100000"]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.err.contains("the context of"), "{}", refused.err);
    let peer = home.file("not-llama-bench", "");
    let refused = bench(&["--only", "decode@128", "--vs", peer.to_str().unwrap()]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.err.contains("not-llama-bench"), "{}", refused.err);
}

#[cfg(unix)]
#[test]
fn peers_are_measured_in_their_own_words() {
    use std::os::unix::fs::PermissionsExt;
    let Some(path) = cached("smollm2-135m") else { return };
    let home = Home::new();
    let bench = |args: &[&str]| {
        let usual = ["bench", "run", path.to_str().unwrap(), "--repeat", "1"];
        home.run(usual.iter().chain(args))
    };
    let peer = |name: &str, help: &str, context: &str, speed: u32| {
        let script = format!(
            "#!/bin/sh\n\
             case \"$*\" in\n\
             --help) echo '{help}' ;;\n\
             *' {context} '*) echo '[{{\"avg_ts\": {speed}}}]' ;;\n\
             *) echo \"what is $*\" >&2; exit 1 ;;\n\
             esac\n"
        );
        let path = home.file(name, &script);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        path
    };
    let llama = peer("llama-bench", "-d", "-d 128", 2);
    let ik = peer("ik-llama-bench", "-rtr, --run-time-repack", "-gp 128,48", 3);
    let vs = ["--vs", llama.to_str().unwrap(), "--vs", ik.to_str().unwrap()];
    let only = ["--json", "--threads", "1", "--only", "decode@128"];
    let figures = json(bench(&[&only[..], &vs].concat()));
    let peers = serde_json::json!({"llama.cpp": 2.0, "ik_llama.cpp": 3.0});
    assert_eq!(figures["rows"][0]["peers"], peers);
    let twice = bench(&[&only[..], &vs, &vs[..2]].concat());
    assert_eq!(twice.code, Some(1));
    assert!(twice.err.contains("--vs names the same engine twice"), "{}", twice.err);
}

#[test]
fn a_bench_of_batching_serves_the_same_requests_in_every_way() {
    let Some(path) = cached("smollm2-135m") else { return };
    let home = Home::new();
    let bench = |args: &[&str]| {
        let usual = ["bench", "batching", path.to_str().unwrap(), "--threads", "1"];
        home.run(
            usual.iter().chain(&["--requests", "7", "--slots", "3", "--scale", "0.02"]).chain(args),
        )
    };
    let report = json(bench(&["--json", "--load", "2", "--html", "report.html"]));
    assert_eq!((&report["requests"], &report["slots"]), (&7.into(), &3.into()));
    let tokens = report["output_tokens"].as_f64().unwrap();
    let check = |way: &Value| {
        let of = |field: &str| way[field].as_f64().unwrap_or_else(|| panic!("{field}: {way}"));
        assert!((of("output_tokens_per_second") * of("seconds") / tokens - 1.0).abs() < 1e-9);
        assert!(0.0 < of("useful_rows") && of("useful_rows") <= 1.0, "{way}");
        assert!(way["e2e_ms"]["p99"].as_f64() >= way["e2e_ms"]["p50"].as_f64(), "{way}");
    };
    for way in ["sequential", "static_padded", "static_ragged", "continuous"] {
        check(&report[way]);
        assert_eq!(report[way]["useful_rows"].as_f64() < Some(1.0), way == "static_padded");
    }
    let arriving = &report["under_load"];
    ["static_ragged", "continuous"].iter().for_each(|way| check(&arriving[way]));
    let rows: Vec<_> = report["steps"]["decode"].as_array().unwrap().iter().collect();
    assert!(rows.iter().map(|step| &step["rows"]).eq([1, 3]));
    assert!(report["predicted_output_tokens_per_second"].as_f64().unwrap() > 0.0);
    let page = std::fs::read_to_string(home.path("report.html")).unwrap();
    assert!(page.matches("<svg").count() == 6 && !page.contains("<script"), "{page}");
    // A bar for each answer in each of four ways, and the legends.
    assert_eq!(page.matches("class=\"write\"").count(), 4 * 7 + 4);

    let out = bench(&["--load", "0"]).succeeds().out;
    for part in ["one by one", "static, padded", "as its steps predict", "a step in ms", "█"] {
        assert!(out.contains(part), "{part}: {out}");
    }
    assert!(!out.contains("arriving at random"), "{out}");
    let long = ["bench", "batching", path.to_str().unwrap(), "--scale", "100"];
    home.run(long).fails_with(&["smollm2-135m", "context of 8192"]);
}
