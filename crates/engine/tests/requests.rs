//! What is refused, and with which words.

use paceline_engine::{InvalidRequest, Limits, Request, SamplingParams};
use paceline_model::TokenId;

const LIMITS: Limits = Limits { vocab_len: 100, max_model_len: 50, kv_len: 40, max_num_seqs: 8 };

fn request(prompt: &[TokenId], params: SamplingParams) -> Result<Request, InvalidRequest> {
    Request::new(prompt.to_vec(), params, 1, &LIMITS)
}

/// The field and the message of a refusal.
fn refusal(params: SamplingParams) -> (&'static str, String) {
    let error = request(&[1, 2], params).expect_err("this must be refused");
    (error.field(), error.to_string())
}

/// Checks that every value is refused with the field's name in the message, and nothing else is.
macro_rules! check {
    ($field:ident, good: $good:expr, bad: $bad:expr) => {
        for $field in $good {
            let params = SamplingParams { $field: $field.clone(), ..SamplingParams::default() };
            assert!(request(&[1, 2], params).is_ok(), "{} {:?}", stringify!($field), $field);
        }
        for $field in $bad {
            let params = SamplingParams { $field: $field.clone(), ..SamplingParams::default() };
            let (field, message) = refusal(params);
            assert_eq!(field, stringify!($field));
            assert!(message.starts_with(field) && message.contains("must be"), "{message}");
            assert!(!message.contains('\n'));
        }
    };
}

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

#[test]
fn every_parameter_has_its_range() {
    check!(temperature, good: [0.0, 1e-30, 2.0, 100.0], bad: [-0.1, 100.1, NAN, INF, -INF]);
    check!(top_k, good: [0, 1, usize::MAX], bad: [0usize; 0]);
    check!(top_p, good: [1e-9, 1.0], bad: [0.0, -1.0, 1.01, NAN, INF]);
    check!(min_p, good: [0.0, 1.0], bad: [-0.1, 1.01, NAN, INF]);
    check!(repetition_penalty, good: [0.01, 1.0, 2.0], bad: [0.0, -1.0, 101.0, NAN, INF]);
    check!(frequency_penalty, good: [-2.0, 2.0], bad: [-2.1, 2.1, NAN, INF]);
    check!(presence_penalty, good: [-2.0, 2.0], bad: [-2.1, 2.1, NAN, INF]);
    check!(
        logit_bias,
        good: [vec![], vec![(99, 100.0), (0, -100.0)]],
        bad: [vec![(100, 0.0)], vec![(1, 101.0)], vec![(1, NAN)], vec![(1, 0.0); 1025]]
    );
    let strings = |n: usize, len: usize| vec!["x".repeat(len); n];
    check!(
        stop,
        good: [strings(64, 1024)],
        bad: [strings(65, 1), strings(1, 1025), strings(1, 0)]
    );
    check!(stop_token_ids, good: [vec![0, 99]], bad: [vec![100], vec![1; 1025]]);
    check!(max_tokens, good: [None, Some(1), Some(38)], bad: [Some(0)]);
    check!(min_tokens, good: [0, 38], bad: [39, usize::MAX]);
    check!(logprobs, good: [None, Some(0), Some(100)], bad: [Some(101), Some(usize::MAX)]);
    check!(prompt_logprobs, good: [None, Some(0), Some(100)], bad: [Some(101)]);
    check!(n, good: [1, 8], bad: [0, 9, usize::MAX]);
}

#[test]
fn min_tokens_goes_up_to_max_tokens() {
    let params = |min_tokens| SamplingParams {
        min_tokens,
        max_tokens: Some(5),
        ..SamplingParams::default()
    };
    assert!(request(&[1], params(5)).is_ok());
    assert_eq!(
        refusal(params(6)).1,
        "min_tokens is 6: it must be at most 5, the tokens to generate"
    );
}

#[test]
fn prompts_must_exist_and_fit() {
    let error = |prompt: &[TokenId], max_tokens| {
        let params = SamplingParams { max_tokens, ..SamplingParams::default() };
        let error = request(prompt, params).expect_err("this must be refused");
        assert_eq!(error.field(), "prompt");
        error.to_string()
    };
    assert_eq!(error(&[], None), "prompt is empty: give at least one token");
    assert_eq!(error(&[1, 100], None), "prompt token 1 is 100: the vocabulary has 100 tokens");
    assert_eq!(
        error(&[1; 50], None),
        "prompt of 50 tokens plus 1 to generate (max_tokens) exceeds the context of 50 tokens: \
         shorten the prompt or lower max_tokens"
    );
    assert_eq!(
        error(&[1; 30], Some(11)),
        "prompt of 30 tokens plus 11 to generate (max_tokens) exceeds the KV cache of 40 tokens: \
         raise --kv-memory, shorten the prompt or lower max_tokens"
    );
    error(&[1; 30], Some(21));
    error(&[1], Some(usize::MAX));
    assert_eq!(request(&[1; 30], SamplingParams::default()).unwrap().max_len(), 40);
}

#[test]
fn the_seed_is_the_given_or_the_drawn_one() {
    let given = SamplingParams { seed: Some(9), ..SamplingParams::default() };
    assert_eq!(request(&[1], given).unwrap().seed(), 9);
    assert_eq!(request(&[1], SamplingParams::default()).unwrap().seed(), 1);
}
