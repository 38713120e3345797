//! How requests begin and end: stops, limits, aborts, choices, log-probabilities, configurations.

use paceline_engine::sample::processors::History;
use paceline_engine::sample::{Place, Sampler};
use paceline_engine::testing::{FakeModel, FakeVocab};
use paceline_engine::{
    Engine, EngineConfig, EngineError, Event, FinishReason, Logprobs, Request, RequestId,
    SamplingParams, Speculate, Stop, Usage, Vocab,
};
use paceline_model::{Batch, Mat, Model, TokenId};
use std::sync::Arc;

const V: usize = 300;
const B: usize = 4;

fn engine(config: EngineConfig) -> Engine {
    let model = FakeModel::new(V, B, 256);
    Engine::new(Box::new(model), Arc::new(FakeVocab::new(V)), config).unwrap()
}

fn roomy() -> EngineConfig {
    EngineConfig { n_blocks: 500, ..EngineConfig::default() }
}

fn add(engine: &mut Engine, prompt: &[TokenId], params: &SamplingParams) -> RequestId {
    engine.add(Request::new(prompt.to_vec(), params.clone(), 1, engine.limits()).unwrap())
}

/// What one choice got.
#[derive(Debug, Default, PartialEq)]
struct Output {
    tokens: Vec<TokenId>,
    text: String,
    logprobs: Vec<Logprobs>,
    prompt_logprobs: Vec<Logprobs>,
    finish: Option<(FinishReason, Option<Stop>, Usage)>,
}

/// Runs to the end; the outputs of a request of `n` choices.
fn run(engine: &mut Engine, id: RequestId, n: usize) -> Vec<Output> {
    let mut outputs: Vec<Output> = (0..n).map(|_| Output::default()).collect();
    while engine.has_work() {
        for event in engine.step() {
            match event {
                Event::PromptLogprobs { id: i, logprobs, .. } if i == id => {
                    outputs[0].prompt_logprobs.extend(logprobs);
                }
                Event::Token { id: i, choice, token, text, logprobs } if i == id => {
                    outputs[choice].tokens.push(token);
                    outputs[choice].text += &text;
                    outputs[choice].logprobs.extend(logprobs);
                }
                Event::Finished { id: i, choice, reason, stop, usage } if i == id => {
                    outputs[choice].finish = Some((reason, stop, usage));
                }
                _ => {}
            }
        }
    }
    outputs
}

fn run_one(params: &SamplingParams) -> Output {
    let mut engine = engine(roomy());
    let id = add(&mut engine, &[10, 20, 30], params);
    run(&mut engine, id, 1).remove(0)
}

/// Makes a token the certain choice.
fn only(token: TokenId) -> Vec<(TokenId, f32)> {
    vec![(token, 100.0)]
}

fn params(logit_bias: Vec<(TokenId, f32)>) -> SamplingParams {
    SamplingParams { logit_bias, max_tokens: Some(6), ..SamplingParams::default() }
}

#[test]
fn an_end_token_ends_and_is_reported_without_text() {
    let output = run_one(&params(only(FakeVocab::EOS)));
    assert_eq!(output.tokens, [FakeVocab::EOS]);
    assert_eq!(output.text, "");
    let usage = Usage { prompt_tokens: 3, completion_tokens: 1, cached_tokens: 0 };
    let stop = Some(Stop::Eos(FakeVocab::EOS));
    assert_eq!(output.finish, Some((FinishReason::Stop, stop, usage)));
}

#[test]
fn ignore_eos_goes_on_to_max_tokens() {
    let output = run_one(&SamplingParams { ignore_eos: true, ..params(only(FakeVocab::EOS)) });
    assert_eq!(output.tokens, [FakeVocab::EOS; 6]);
    assert_eq!(output.text, "");
    assert_eq!(output.finish.unwrap().0, FinishReason::Length);
}

#[test]
fn min_tokens_bans_all_end_tokens_until_then() {
    let a = b'a' as TokenId;
    let bias = vec![(FakeVocab::EOS, 100.0), (a, 50.0), (299, 90.0)];
    let output = run_one(&SamplingParams {
        min_tokens: 3,
        stop_token_ids: vec![299],
        stop: vec!["a".into(), "aa".into()],
        ..params(bias)
    });
    assert_eq!(output.tokens, [a, a, a, FakeVocab::EOS]);
    assert_eq!(output.text, "aaa");
}

#[test]
fn a_stop_token_has_text_only_if_asked() {
    let shown = SamplingParams { stop_token_ids: vec![280], ..params(only(280)) };
    let output = run_one(&shown);
    assert_eq!((output.tokens.as_slice(), output.text.as_str()), (&[280][..], ""));
    assert_eq!(output.finish.unwrap().1, Some(Stop::Token(280)));
    let output = run_one(&SamplingParams { include_stop_str_in_output: true, ..shown });
    assert_eq!(output.text, " w280é");
}

#[test]
fn a_stop_string_ends_across_tokens() {
    let x = b'x' as TokenId;
    let stop = vec!["yy".to_string(), "xxxx".to_string()];
    let output = run_one(&SamplingParams { stop: stop.clone(), ..params(only(x)) });
    assert_eq!((output.tokens.len(), output.text.as_str()), (4, ""));
    assert_eq!(output.finish.unwrap().1, Some(Stop::String("xxxx".into())));
    let include = SamplingParams { stop, include_stop_str_in_output: true, ..params(only(x)) };
    assert_eq!(run_one(&include).text, "xxxx");
    // Held back, then out of room: the text comes with the last token.
    let output = run_one(&SamplingParams { stop: vec!["x".repeat(7)], ..params(only(x)) });
    assert_eq!((output.text.as_str(), output.finish.unwrap().0), ("xxxxxx", FinishReason::Length));
}

#[test]
fn without_max_tokens_the_context_is_the_end() {
    let params = SamplingParams { ignore_eos: true, max_tokens: None, ..SamplingParams::default() };
    assert_eq!(run_one(&params).tokens.len(), 256 - 3);
}

#[test]
fn choices_share_the_prompt_and_differ() {
    let prompt: Vec<TokenId> = (0..41).collect();
    let params = SamplingParams {
        n: 4,
        max_tokens: Some(8),
        ignore_eos: true,
        seed: Some(3),
        ..SamplingParams::default()
    };
    let run_with = |config, params: &SamplingParams| {
        let mut engine = engine(config);
        let id = add(&mut engine, &prompt, params);
        let outputs = run(&mut engine, id, params.n);
        (outputs, *engine.stats())
    };
    let (outputs, stats) = run_with(roomy(), &params);
    for (choice, output) in outputs.iter().enumerate() {
        let cached = output.finish.as_ref().unwrap().2.cached_tokens;
        assert_eq!(cached, if choice == 0 { 0 } else { 40 });
        assert_eq!(output.tokens.len(), 8);
        assert!(outputs[..choice].iter().all(|other| other.tokens != output.tokens));
    }
    // 41 tokens once, the last token for each other choice.
    assert_eq!(stats.tokens_prefilled, 41 + 3);
    // Choice 0 is what n = 1 gives, and the cache changes nothing.
    let (alone, _) = run_with(roomy(), &SamplingParams { n: 1, ..params.clone() });
    assert_eq!(alone[0].tokens, outputs[0].tokens);
    let (uncached, _) = run_with(EngineConfig { prefix_cache: false, ..roomy() }, &params);
    for (a, b) in uncached.iter().zip(&outputs) {
        assert_eq!(a.tokens, b.tokens);
    }
}

#[test]
fn a_salt_keeps_the_caches_of_two_users_apart() {
    let prompt: Vec<TokenId> = (0..40).collect();
    let mut engine = engine(roomy());
    let mut cached = |salt: &str| {
        let params = SamplingParams { max_tokens: Some(1), ..SamplingParams::default() };
        let request = Request::new(prompt.clone(), params, 1, engine.limits()).unwrap();
        let id = engine.add(request.with_salt(salt));
        run(&mut engine, id, 1)[0].finish.as_ref().unwrap().2.cached_tokens
    };
    assert_eq!([cached("a"), cached("b"), cached("a"), cached("b")], [0, 0, 36, 36]);
}

/// A model that takes one token after the other, in one block.
struct Plain {
    model: FakeModel,
    position: usize,
    logits: Mat,
}

impl Plain {
    fn new(model: FakeModel) -> Plain {
        let mut plain = Plain { model, position: 0, logits: Mat::zeros(1, V) };
        plain.model.reserve_kv(1).unwrap();
        plain
    }

    /// The logits after one more token.
    fn push(&mut self, token: TokenId) -> &[f32] {
        let mut batch = Batch::default();
        batch.push(&[token], self.position, &[0]);
        batch.outputs.push(0);
        self.model.forward(&batch);
        self.model.logits(0..1, &mut self.logits);
        self.position += 1;
        self.logits.row(0)
    }
}

/// The log-probability of each token of `tokens` from the second on.
fn reference(tokens: &[TokenId], n_top: usize) -> Vec<Logprobs> {
    let mut plain = Plain::new(FakeModel::new(V, 256, 256));
    let pairs = tokens.iter().zip(&tokens[1..]);
    let logprobs = |(&token, &next)| Sampler::default().logprobs(plain.push(token), next, n_top);
    pairs.map(logprobs).collect()
}

#[test]
fn a_token_is_the_documented_function() {
    let prompt: Vec<TokenId> = (0..21).map(|i| i * 11 % 256).collect();
    let params = SamplingParams {
        n: 2,
        seed: Some(0x1234_5678_9abc_def0),
        presence_penalty: 0.5,
        repetition_penalty: 1.2,
        top_p: 0.9,
        min_tokens: 10,
        max_tokens: Some(40),
        ..SamplingParams::default()
    };
    let mut engine = engine(roomy());
    let id = add(&mut engine, &prompt, &params);
    for (choice, output) in run(&mut engine, id, 2).into_iter().enumerate() {
        let mut plain = Plain::new(FakeModel::new(V, 256, 256));
        prompt[..20].iter().for_each(|&token| drop(plain.push(token).to_vec()));
        let (mut last, mut history) = (prompt[20], History::new(&prompt));
        for (i, &token) in output.tokens.iter().enumerate() {
            let place = Place { seed: 0x1234_5678_9abc_def0, choice, position: 21 + i };
            let banned = (i < 10).then_some(FakeVocab::EOS).into_iter();
            let logits = plain.push(last);
            last = Sampler::default().sample(logits, &params, &history, banned, place);
            history.push(last);
            assert_eq!(token, last, "choice {choice} token {i}");
        }
    }
}

#[test]
fn the_next_turn_finds_the_last_one_in_the_cache() {
    let prompt: Vec<TokenId> = (0..10).collect();
    for max_tokens in 1..12 {
        let params = SamplingParams {
            max_tokens: Some(max_tokens),
            ignore_eos: true,
            ..SamplingParams::default()
        };
        let mut cached = engine(roomy());
        let id = add(&mut cached, &prompt, &params);
        let answer = run(&mut cached, id, 1).remove(0).tokens;
        let turn = [&prompt[..], &answer, &[50, 51, 52]].concat();
        let id = add(&mut cached, &turn, &params);
        let hit = run(&mut cached, id, 1).remove(0);
        // The last token of an answer is never computed.
        let n_cached = (10 + max_tokens - 1) / B * B;
        assert_eq!(hit.finish.unwrap().2.cached_tokens, n_cached);
        let mut fresh = engine(roomy());
        let id = add(&mut fresh, &turn, &params);
        assert_eq!(run(&mut fresh, id, 1).remove(0).tokens, hit.tokens);
    }
}

#[test]
fn drafts_end_where_the_sequence_does() {
    let x = b'x' as TokenId;
    let config = EngineConfig { speculate: Speculate::Lookup { max_drafts: 8 }, ..roomy() };
    let run_with = |prompt_len: usize, params: &SamplingParams| {
        let mut engine = engine(config.clone());
        let id = add(&mut engine, &vec![x; prompt_len], params);
        let output = run(&mut engine, id, 1).remove(0);
        (output, engine.stats().drafts_accepted)
    };
    let endless = SamplingParams { max_tokens: None, ..params(only(x)) };
    for prompt_len in 4..14 {
        let (output, accepted) = run_with(prompt_len, &endless);
        assert_eq!((output.tokens.len(), output.text.len()), (256 - prompt_len, 256 - prompt_len));
        assert!(accepted > 200);
    }
    for len in 1..30 {
        let stop = SamplingParams { stop: vec!["x".repeat(len)], ..endless.clone() };
        let (output, _) = run_with(4, &stop);
        assert_eq!((output.tokens.len(), output.text.len()), (len, 0));
        let short = SamplingParams { max_tokens: Some(len), ..endless.clone() };
        let (output, _) = run_with(4, &short);
        assert_eq!((output.tokens.len(), output.text.len()), (len, len));
    }
    // An end token that was a draft.
    let end = FakeVocab::EOS;
    let mut engine = engine(config);
    let request = SamplingParams { max_tokens: Some(9), ..params(only(end)) };
    let id = add(&mut engine, &[end; 5], &SamplingParams { min_tokens: 1, ..request });
    assert_eq!(run(&mut engine, id, 1)[0].tokens.last(), Some(&end));
    assert!(engine.stats().tokens_decoded == 2);
}

#[test]
fn prompt_logprobs_are_whole_whatever_happens() {
    let prompt: Vec<TokenId> = (0..50).map(|i| i * i % 256).collect();
    let plain =
        SamplingParams { max_tokens: Some(20), ignore_eos: true, ..SamplingParams::default() };
    let asking = SamplingParams { prompt_logprobs: Some(2), logprobs: Some(2), ..plain.clone() };
    let check = |output: &Output| {
        let all = [&prompt[..], &output.tokens].concat();
        let expected = reference(&all, 2);
        assert_eq!(output.prompt_logprobs, expected[..49]);
        assert_eq!(output.logprobs, expected[49..]);
    };
    // After a request that left the prompt in the cache, in chunks.
    let mut engine = engine(EngineConfig { max_num_batched_tokens: 16, ..roomy() });
    let id = add(&mut engine, &prompt, &plain);
    run(&mut engine, id, 1);
    let id = add(&mut engine, &prompt, &asking);
    let outputs = run(&mut engine, id, 1);
    check(&outputs[0]);
    assert_eq!(outputs[0].finish.as_ref().unwrap().2.cached_tokens, 0);
    // It leaves the prompt in the cache too.
    let id = add(&mut engine, &prompt, &plain);
    assert_eq!(run(&mut engine, id, 1)[0].finish.as_ref().unwrap().2.cached_tokens, 48);
}

#[test]
fn prompt_logprobs_survive_preemption_in_the_prompt() {
    let prompt: Vec<TokenId> = (0..60).map(|i| i * 7 % 256).collect();
    let asking = SamplingParams {
        prompt_logprobs: Some(0),
        max_tokens: Some(3),
        ignore_eos: true,
        ..SamplingParams::default()
    };
    let older =
        SamplingParams { max_tokens: Some(60), ignore_eos: true, ..SamplingParams::default() };
    // An older request grows while the prompt of the younger one is computed in small chunks.
    let mut preempted_in_prompt = false;
    for n_blocks in 17..22 {
        let config =
            EngineConfig { max_num_batched_tokens: 3, n_blocks, ..EngineConfig::default() };
        let mut engine = engine(config);
        add(&mut engine, &[1, 2], &older);
        engine.step();
        let id = add(&mut engine, &prompt, &asking);
        let (mut starts, mut logprobs, mut preempted) = (Vec::new(), Vec::new(), false);
        while engine.has_work() {
            let before = engine.stats().preemptions();
            for event in engine.step() {
                if let Event::PromptLogprobs { id: i, start, logprobs: new } = event {
                    assert_eq!(i, id);
                    starts.push((start, new.len()));
                    logprobs.extend(new);
                }
            }
            preempted |= engine.stats().preemptions() > before && logprobs.len() < 59;
        }
        let mut next = 1;
        for (start, len) in starts {
            assert_eq!(start, next);
            next += len;
        }
        assert_eq!(logprobs, reference(&prompt, 0));
        preempted_in_prompt |= preempted;
    }
    assert!(preempted_in_prompt);
}

#[test]
fn an_abort_frees_everything_at_once() {
    let prompt: Vec<TokenId> = (0..100).collect();
    let params = SamplingParams { n: 3, ignore_eos: true, ..SamplingParams::default() };
    // Waiting; in the prompt; with some choices running; running.
    for n_steps in [0, 1, 7, 9, 20] {
        let mut engine = engine(EngineConfig { max_num_batched_tokens: 16, ..roomy() });
        let other = add(&mut engine, &[5], &SamplingParams { n: 1, ..params.clone() });
        let id = add(&mut engine, &prompt, &params);
        for _ in 0..n_steps {
            engine.step();
        }
        engine.abort(id);
        engine.check();
        let used = engine.stats().kv_blocks_used;
        assert!(used <= (1 + n_steps) / B + 1, "{used} blocks are still used");
        // Before any further step: whoever looks now sees the other one alone.
        assert_eq!(engine.stats().n_running + engine.stats().n_waiting, 1);
        assert!(engine.has_work());
        let events = engine.step();
        let aborted = |event: &&Event| matches!(event, Event::Finished { id: i, reason: FinishReason::Abort, .. } if *i == id);
        assert_eq!(events.iter().filter(aborted).count(), 3);
        engine.abort(id);
        engine.abort(RequestId(77));
        engine.abort(other);
        assert_eq!(engine.stats().kv_blocks_used, 0);
        assert_eq!(engine.stats().n_running + engine.stats().n_waiting, 0);
        assert_eq!(engine.step().len(), 1);
        assert!(!engine.has_work());
        assert_eq!(engine.step(), []);
    }
}

/// A vocabulary that cannot say one of its tokens.
struct Fragile(FakeVocab);

impl Vocab for Fragile {
    fn token_bytes(&self, id: TokenId) -> &[u8] {
        assert!(id != 299, "a bomb");
        self.0.token_bytes(id)
    }

    fn is_control(&self, id: TokenId) -> bool {
        self.0.is_control(id)
    }

    fn eos_ids(&self) -> &[TokenId] {
        self.0.eos_ids()
    }
}

#[test]
fn a_panic_in_one_sequence_ends_that_one() {
    let calm = SamplingParams { seed: Some(4), ignore_eos: true, ..params(vec![(299, -100.0)]) };
    let mut alone = engine(roomy());
    let id = add(&mut alone, &[1, 2, 3], &calm);
    let expected = run(&mut alone, id, 1);

    let config = EngineConfig { speculate: Speculate::Lookup { max_drafts: 4 }, ..roomy() };
    let vocab = Arc::new(Fragile(FakeVocab::new(V)));
    let model = Box::new(FakeModel::new(V, B, 256));
    let mut fragile = Engine::new(model, vocab, config).unwrap();
    // The bomb may be the first token, or one that a draft has foreseen.
    for prompt in [[1; 9], [299; 9], [7; 9]] {
        let bomb = add(&mut fragile, &prompt, &params(only(299)));
        let id = add(&mut fragile, &[1, 2, 3], &calm);
        let mut failed = false;
        let mut calm_tokens = Vec::new();
        while fragile.has_work() {
            for event in fragile.step() {
                match event {
                    Event::Finished { id: i, reason, .. } if i == bomb => {
                        failed = reason == FinishReason::Error;
                    }
                    Event::Token { id: i, token, .. } if i == id => calm_tokens.push(token),
                    _ => {}
                }
            }
            fragile.check();
        }
        assert!(failed);
        assert_eq!(calm_tokens, expected[0].tokens);
        assert_eq!(fragile.stats().kv_blocks_used, 0);
    }
    add(&mut fragile, &[5; 50], &calm);
    fragile.step();
    fragile.reset();
    fragile.check();
    assert!(!fragile.has_work() && fragile.stats().kv_blocks_used == 0);
}

#[test]
fn an_engine_can_move_to_a_thread_of_its_own() {
    fn is_send<T: Send>() {}
    is_send::<Engine>();
}

#[test]
fn an_engine_refuses_settings_of_nothing() {
    let model = || Box::new(FakeModel::new(V, B, 256));
    let vocab = || Arc::new(FakeVocab::new(V)) as Arc<dyn Vocab>;
    for config in [
        EngineConfig { n_blocks: 0, ..roomy() },
        EngineConfig { max_num_seqs: 0, ..roomy() },
        EngineConfig { max_num_batched_tokens: 0, ..roomy() },
        EngineConfig { max_model_len: 0, ..roomy() },
        EngineConfig { n_blocks: usize::MAX, ..roomy() },
    ] {
        let error = Engine::new(model(), vocab(), config).err().expect("this must be refused");
        assert!(matches!(error, EngineError::Config { .. }));
    }
    let limits = engine(EngineConfig { max_num_batched_tokens: 5, ..roomy() }).limits().clone();
    assert_eq!((limits.max_num_seqs, limits.max_model_len, limits.kv_len), (5, 256, 2000));
}
