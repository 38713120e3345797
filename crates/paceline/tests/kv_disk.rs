//! The KV cache on disk, from outside: what it saves, that it changes no text, and that nothing that
//! happens to the process or to the disk does.
#![cfg(all(feature = "cli", feature = "server"))]

#[path = "support/cached.rs"]
mod cached;
#[path = "support/fake.rs"]
mod fake;
#[path = "support/server.rs"]
mod server;
mod support;

use cached::cached;
use fake::FakeText;
use paceline::server::ServerConfig;
use paceline::{Builder, Completion, KvDisk, Llm, LlmConfig, SamplingParams};
use serde_json::{Value, json};
use server::{COMPLETIONS, Server};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use support::Home;

fn fake(folder: &Path, model: &str) -> Llm {
    let (folder, model) = (folder.to_owned(), model.to_owned());
    let kv_disk = Some(KvDisk { folder, bytes: 1 << 20, model });
    let config = LlmConfig { kv_disk, ..LlmConfig::default() };
    fake::build(Duration::ZERO, FakeText::new(true), config)
}

fn sampled(max_tokens: usize) -> SamplingParams {
    SamplingParams {
        temperature: 0.8,
        seed: Some(7),
        max_tokens: Some(max_tokens),
        ignore_eos: true,
        logprobs: Some(3),
        ..SamplingParams::default()
    }
}

fn ask(llm: &Llm, prompt: &str, max_tokens: usize) -> Completion {
    llm.generate(&[prompt], &sampled(max_tokens)).unwrap().remove(0)
}

#[test]
fn a_restart_finds_what_was_computed_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let prompt = "x".repeat(100);
    let first = ask(&fake(folder.path(), "m"), &prompt, 8);
    assert_eq!(first.usage.cached_tokens, 0);
    let llm = fake(folder.path(), "m");
    assert!(llm.disk_bytes() > 6 * 256);
    let second = ask(&llm, &prompt, 8);
    assert_eq!(second.usage.cached_tokens, 96);
    assert_eq!(second.choices, first.choices);
    drop(llm);
    // Another model finds nothing.
    assert_eq!(ask(&fake(folder.path(), "n"), &prompt, 8).usage.cached_tokens, 0);
}

#[test]
fn the_metrics_say_what_came_from_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    ask(&fake(folder.path(), "m"), &"x".repeat(100), 8);
    let server = Server::start(fake(folder.path(), "m"), ServerConfig::new("fake"));
    let body = json!({"prompt": "x".repeat(100), "max_tokens": 8, "temperature": 0});
    let answer = server.ok(COMPLETIONS, &body);
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 96);
    let metrics = server.text("/metrics", &[]).1;
    for (name, value) in
        [("vllm:prefix_cache_hits_total", 96), ("paceline:prefix_cache_disk_hits_total", 96)]
    {
        let line = metrics.lines().find(|line| line.starts_with(name)).unwrap();
        assert!(line.ends_with(&format!(" {value}")), "{line}");
    }
}

/// Prompts of some 200 tokens, of which each two share nearly all.
fn prompts() -> Vec<String> {
    let story = |i: usize| {
        let beginning = format!("Story number {}. Once upon a time, there was a keeper. ", i / 2);
        let middle = format!("Every day {} ships passed the lighthouse. ", i / 2 + 3).repeat(20);
        format!("{beginning}{middle}On day {i}, ")
    };
    (0..6).map(story).collect()
}

/// SmolLM2 without a disk and with a cold, a warm and, in little memory, a busy one: the same tokens and
/// the same bits of their log-probabilities.
#[test]
fn the_disk_changes_no_bit() {
    let Some(path) = cached("smollm2-135m") else { return };
    let folder = tempfile::tempdir().unwrap();
    let usual = || Llm::builder(&path).kv_memory(64 << 20);
    let on_disk = |builder: Builder| builder.kv_disk(folder.path(), 256 << 20);
    let prompts = prompts();
    let answers = |builder: Builder| {
        let llm = builder.build().expect("the model loads");
        // One after the other: who comes at the same time hits nothing.
        let ask = |prompt: &String| bits(&ask(&llm, prompt, 12));
        let answers: Vec<_> = prompts.iter().map(ask).collect();
        (answers, llm.stats())
    };
    let (expected, _) = answers(usual());
    let (cold, stats) = answers(on_disk(usual()));
    assert_eq!((&cold, stats.tokens_restored), (&expected, 0), "cold");
    let (warm, stats) = answers(on_disk(usual()));
    assert_eq!(warm, expected, "warm");
    assert!(stats.tokens_restored > 400, "{stats:?}");
    // Room for hardly two stories: each drives out one before.
    let (busy, stats) = answers(on_disk(usual().kv_memory(9 << 20)).threads(1));
    assert_eq!(busy, expected, "little memory");
    assert!(stats.tokens_restored > 400, "{stats:?}");
    // Other types of K and V are another cache.
    let q8 = on_disk(usual()).kv_types(paceline::KvType::Q8_0, paceline::KvType::Q8_0);
    let (_, stats) = answers(q8);
    assert_eq!(stats.tokens_restored, 0);
}

fn bits(completion: &Completion) -> Vec<(u32, u32)> {
    let choice = &completion.choices[0];
    let logprobs = choice.logprobs.as_ref().expect("they were asked for");
    let bits = logprobs.iter().map(|logprobs| logprobs.logprob.to_bits());
    choice.token_ids.iter().copied().zip(bits).collect()
}

/// `paceline serve` with the KV cache on disk, in so little memory that it has much to write.
struct Serving {
    child: Child,
    address: String,
    log: std::thread::JoinHandle<String>,
}

fn serve(mut command: Command) -> Serving {
    let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut banner = String::new();
    let address = loop {
        let line = lines.next().unwrap_or_else(|| panic!("it listens: {banner}")).unwrap();
        match line.split_once("listening on ") {
            Some((_, address)) => break address.to_owned(),
            None => banner += &(line + "\n"),
        }
    };
    let log = std::thread::spawn(move || {
        lines.map_while(Result::ok).fold(banner, |log, line| log + &line + "\n")
    });
    Serving { child, address, log }
}

impl Serving {
    /// The text of an answer; `None` if the server was killed meanwhile.
    fn ask(&self, prompt: &str) -> Option<String> {
        let body = json!({"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": true});
        let mut response =
            ureq::post(format!("{}/v1/completions", self.address)).send(body.to_string()).ok()?;
        let text = response.body_mut().read_to_string().ok()?;
        let answer: Value = serde_json::from_str(&text).ok()?;
        Some(answer["choices"][0]["text"].as_str()?.to_owned())
    }

    fn kill(&mut self) {
        signal(&self.child, "KILL");
        self.child.wait().unwrap();
    }

    /// Ends it in peace; what it has logged.
    fn stop(mut self) -> String {
        signal(&self.child, "TERM");
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
        self.log.join().unwrap()
    }
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").args([format!("-{name}"), child.id().to_string()]).status();
    assert!(status.unwrap().success());
}

const LITTLE: [&str; 8] =
    ["--port", "0", "--kv-memory", "9MiB", "--max-model-len", "512", "--kv-cache-dir", "kv"];

fn arguments<'a>(model: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["serve", model][..], &LITTLE, more].concat()
}

#[test]
fn killed_while_it_writes_it_answers_right_after_a_restart() {
    let Some(model) = cached("smollm2-135m") else { return };
    let model = model.to_str().unwrap();
    let home = Home::new();
    let start = || serve(home.command(arguments(model, &["--kv-cache-disk", "16MiB"])));
    let mut serving = start();
    let expected: Vec<Option<String>> =
        prompts().iter().map(|prompt| serving.ask(prompt)).collect();
    assert!(expected.iter().all(Option::is_some));
    serving.kill();
    for round in 0..6 {
        let mut serving = start();
        let n_asked = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| {
                for (prompt, expected) in prompts().iter().zip(&expected) {
                    n_asked.fetch_add(1, Ordering::SeqCst);
                    let answer = serving.ask(prompt);
                    assert!(answer.is_none() || answer == *expected, "round {round}: {answer:?}");
                }
            });
            // The blocks that one prompt drives out are written while the next one is computed.
            while n_asked.load(Ordering::SeqCst) < round.clamp(3, 6) && !asking.is_finished() {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(20 * round as u64));
            signal(&serving.child, "KILL");
            asking.join().unwrap();
        });
        serving.child.wait().unwrap();
        assert!(files(&home.path("kv")).len() > 1, "round {round}: nothing was written");
    }
    let serving = start();
    let last: Vec<Option<String>> = prompts().iter().map(|prompt| serving.ask(prompt)).collect();
    assert_eq!(last, expected);
    let log = serving.stop();
    assert!(log.contains("kv cache on disk: at most 16.8 MB in kv, "), "{log}");
    assert!(!log.contains("WARN"), "{log}");
    // Half-written files are gone at the next start.
    start().stop();
    assert!(files(&home.path("kv")).iter().all(|name| !name.ends_with(".tmp")));
}

fn files(folder: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => all.extend(files(&path)),
            false => all.push(path.display().to_string()),
        }
    }
    all
}

/// The system refuses to let a file grow, as it does when the disk is full.
#[test]
fn a_full_disk_is_one_line_and_no_wrong_answer() {
    let Some(model) = cached("smollm2-135m") else { return };
    let home = Home::new();
    let usual = home.command(arguments(model.to_str().unwrap(), &[]));
    let mut command = Command::new("sh");
    // Files of at most 100 blocks of 512 bytes; over it, an error instead of a signal.
    command.args(["-c", "trap '' XFSZ; ulimit -f 100; exec \"$0\" \"$@\""]);
    command.arg(usual.get_program()).args(usual.get_args()).current_dir(home.folder.path());
    for (name, value) in usual.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let serving = serve(command);
    let first: Vec<Option<String>> = prompts().iter().map(|prompt| serving.ask(prompt)).collect();
    let second: Vec<Option<String>> = prompts().iter().map(|prompt| serving.ask(prompt)).collect();
    assert!(first.iter().all(Option::is_some) && first == second);
    let log = serving.stop();
    let warnings: Vec<&str> = log.lines().filter(|line| line.contains("WARN")).collect();
    assert_eq!(warnings.len(), 1, "{log}");
    assert!(warnings[0].contains("--kv-cache-dir kv: "), "{log}");
    assert!(warnings[0].contains("nothing is kept on disk from now on"), "{log}");
}

#[test]
fn what_cannot_be_kept_is_said_at_once() {
    let home = Home::new();
    let refused = |args: &[&str], parts: &[&str]| {
        home.run(["serve", "nothing.gguf"].iter().chain(args)).refused_with(parts);
    };
    refused(&["--kv-cache-disk", "1GiB"], &["--kv-cache-dir"]);
    refused(
        &["--kv-cache-dir", "kv", "--kv-cache-disk", "50%"],
        &["'50%'", "--kv-cache-disk", "4GiB"],
    );
    for flag in ["--no-prefix-cache", "--no-kv-cache"] {
        refused(&["--kv-cache-dir", "kv", flag], &["--kv-cache-dir", "prefix cache"]);
    }
    let Some(model) = cached("smollm2-135m") else { return };
    let model = model.to_str().unwrap();
    home.file("kv", "a file");
    home.run(arguments(model, &[])).fails_with(&["--kv-cache-dir kv"]);
    let args = ["run", model, "Hi", "-n", "1", "--kv-cache-dir", "disk"];
    home.run(args.iter().chain(&["--kv-cache-disk", "1KiB"]))
        .fails_with(&["--kv-cache-disk 1024", "less than one block"]);
    home.run(args).succeeds();
    let lock = std::fs::File::open(home.path("disk/lock")).unwrap();
    lock.lock().unwrap();
    home.run(args).fails_with(&["--kv-cache-dir disk", "another process"]);
    drop(lock);
    // What one run has computed, the next one reads.
    let again = home.run(args).succeeds().err;
    assert!(!again.contains("(0 cached)"), "{again}");
}
