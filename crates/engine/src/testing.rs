//! [`FakeModel`] and [`FakeVocab`]: everything that an engine needs, without arithmetic.

use crate::block_pool::mix;
use crate::sample::noise::philox4x32;
use crate::text::Vocab;
use paceline_model::{Batch, Cost, KvMemoryError, Mat, Model, ModelSpec, TokenId};
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// What one slot of the fake KV cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    token: TokenId,
    position: usize,
    /// Of all tokens up to this one, as K and V of a real model depend on them.
    prefix: u64,
}

/// Bytes of a slot outside of the cache.
const SLOT_BYTES: usize = 16;

impl Slot {
    fn to_bytes(self) -> [u8; SLOT_BYTES] {
        let mut bytes = [0; SLOT_BYTES];
        bytes[..4].copy_from_slice(&self.token.to_le_bytes());
        bytes[4..8].copy_from_slice(&(self.position as u32).to_le_bytes());
        bytes[8..].copy_from_slice(&self.prefix.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: [u8; SLOT_BYTES]) -> Slot {
        let number = u128::from_le_bytes(bytes);
        let [token, position] = [number as u32, (number >> 32) as u32];
        Slot { token, position: position as usize, prefix: (number >> 64) as u64 }
    }
}

/// Pseudo-random numbers, the same each time (the multiplier of Knuth's MMIX).
#[derive(Clone, Debug)]
pub struct Lcg(pub u64);

impl Lcg {
    /// One of `0..n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % n as u64) as usize
    }
}

/// For each step the `(position, rows)` of each span.
pub type StepLog = Vec<Vec<(usize, usize)>>;

/// A model whose logits are a hash of the tokens that a row reads through its block table.
///
/// Any mistake in scheduling, sharing, preemption or drafting makes a row read other tokens, so it
/// changes the logits; a slot that is unwritten, of another position or of another prefix is a
/// panic. With [`FakeModel::periodic`] the text tends to repeat, so that drafts come true.
pub struct FakeModel {
    spec: ModelSpec,
    /// Makes the token of that many positions ago likely.
    period: Option<usize>,
    slots: Vec<Option<Slot>>,
    outputs: Vec<(u64, Option<TokenId>)>,
    log: Arc<Mutex<StepLog>>,
}

impl FakeModel {
    /// A model of `vocab_len` tokens and blocks of `block_len`.
    pub fn new(vocab_len: usize, block_len: usize, context_len: usize) -> FakeModel {
        FakeModel {
            spec: ModelSpec {
                vocab_len,
                context_len,
                kv_block_bytes: block_len * SLOT_BYTES,
                block_len,
                cost: Cost::default(),
            },
            period: None,
            slots: Vec::new(),
            outputs: Vec::new(),
            log: Arc::default(),
        }
    }

    /// Makes the token of `period` positions ago the likely next one, three times in four.
    pub fn periodic(mut self, period: usize) -> FakeModel {
        self.period = Some(period);
        self
    }

    /// What the steps have computed so far.
    pub fn log(&self) -> Arc<Mutex<StepLog>> {
        self.log.clone()
    }
}

impl Model for FakeModel {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn reserve_kv(&mut self, n_blocks: usize) -> Result<(), KvMemoryError> {
        self.slots = vec![None; n_blocks * self.spec.block_len];
        Ok(())
    }

    fn forward(&mut self, batch: &Batch) {
        let block_len = self.spec.block_len;
        self.outputs.clear();
        let mut wanted = batch.outputs.iter().peekable();
        let mut next_row = 0;
        // As in a real model: all rows are written before any is read.
        let slot_of =
            |blocks: &[u32], p: usize| blocks[p / block_len] as usize * block_len + p % block_len;
        for span in &batch.spans {
            assert_eq!(span.rows.start, next_row, "spans leave a gap");
            next_row = span.rows.end;
            let blocks = &batch.blocks[span.blocks.clone()];
            let mut prefix = match span.position.checked_sub(1) {
                None => 0,
                Some(before) => self.slots[slot_of(blocks, before)].expect("unwritten slot").prefix,
            };
            for (row, position) in span.rows.clone().zip(span.position..) {
                let token = batch.tokens[row];
                assert!(position < self.spec.context_len, "position outside the context");
                assert!((token as usize) < self.spec.vocab_len, "token outside the vocabulary");
                prefix = mix(prefix, token as u64);
                self.slots[slot_of(blocks, position)] = Some(Slot { token, position, prefix });
            }
        }
        assert_eq!(next_row, batch.tokens.len(), "rows outside all spans");
        for span in &batch.spans {
            let blocks = &batch.blocks[span.blocks.clone()];
            let mut prefix = 0;
            let mut read = Vec::new();
            for position in 0..span.position + span.rows.len() {
                let slot = self.slots[slot_of(blocks, position)].expect("unwritten slot");
                prefix = mix(prefix, slot.token as u64);
                assert_eq!(slot.position, position, "slot of another position");
                assert_eq!(slot.prefix, prefix, "slot of another prefix");
                read.push(slot.token);
                if position < span.position {
                    continue;
                }
                let row = span.rows.start + position - span.position;
                assert_eq!(slot.token, batch.tokens[row], "two spans write one slot");
                if wanted.next_if_eq(&&row).is_some() {
                    let likely = self.period.and_then(|period| {
                        let back = (position + 1).checked_sub(period)?;
                        (!prefix.is_multiple_of(4)).then_some(read[back])
                    });
                    self.outputs.push((prefix, likely));
                }
            }
        }
        assert!(wanted.next().is_none(), "outputs are not ascending rows of the batch");
        let spans = batch.spans.iter().map(|span| (span.position, span.rows.len())).collect();
        self.log.lock().expect("no test thread has failed").push(spans);
    }

    fn logits(&mut self, outputs: Range<usize>, logits: &mut Mat) {
        logits.set_rows(outputs.len());
        assert_eq!(logits.cols(), self.spec.vocab_len);
        for (t, &(prefix, likely)) in self.outputs[outputs].iter().enumerate() {
            let row = logits.row_mut(t);
            for (i, four) in row.chunks_mut(4).enumerate() {
                let words = philox4x32([i as u32, 0, 0, 0], [prefix as u32, (prefix >> 32) as u32]);
                for (l, word) in four.iter_mut().zip(words) {
                    *l = (word >> 8) as f32 * (8.0 / (1 << 24) as f32) - 4.0;
                }
            }
            if let Some(token) = likely {
                row[token as usize] += 9.0;
            }
        }
    }

    fn read_block(&self, block: u32, bytes: &mut Vec<u8>) {
        let start = block as usize * self.spec.block_len;
        for slot in &self.slots[start..start + self.spec.block_len] {
            bytes.extend(slot.expect("a block with an unwritten slot is kept").to_bytes());
        }
    }

    fn write_block(&mut self, block: u32, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.spec.kv_block_bytes);
        let (slots, _) = bytes.as_chunks();
        let start = block as usize * self.spec.block_len;
        for (slot, bytes) in self.slots[start..].iter_mut().zip(slots) {
            *slot = Some(Slot::from_bytes(*bytes));
        }
    }
}

/// A vocabulary of single bytes (ids `0..256`), an end token (256), a control token (257) and words
/// beyond.
pub struct FakeVocab {
    tokens: Vec<Vec<u8>>,
    eos: [TokenId; 1],
}

impl FakeVocab {
    /// The end token.
    pub const EOS: TokenId = 256;
    /// A control token that ends nothing.
    pub const CONTROL: TokenId = 257;

    /// A vocabulary of `vocab_len` tokens.
    pub fn new(vocab_len: usize) -> FakeVocab {
        let bytes = (0..=255u8).map(|b| vec![b]);
        let control = [b"<end>".to_vec(), b"<control>".to_vec()];
        let words = (258..).map(|id| format!(" w{id}é").into_bytes());
        let tokens = bytes.chain(control).chain(words).take(vocab_len).collect();
        FakeVocab { tokens, eos: [FakeVocab::EOS] }
    }
}

impl Vocab for FakeVocab {
    fn token_bytes(&self, id: TokenId) -> &[u8] {
        &self.tokens[id as usize]
    }

    fn is_control(&self, id: TokenId) -> bool {
        id == FakeVocab::EOS || id == FakeVocab::CONTROL
    }

    fn eos_ids(&self) -> &[TokenId] {
        &self.eos
    }
}
