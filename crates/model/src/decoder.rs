//! The forward pass, written once for every architecture that [`ModelMeta`] can describe: pre-norm,
//! grouped-query attention and a gated feed-forward layer. The metadata say which tensors exist and
//! what value an op gets, never in which order the ops run; a family that needs another order gets
//! its own file beside this one.

use crate::batch::Batch;
use crate::cost::Cost;
use crate::meta::ModelMeta;
use crate::weights::{Weights, WeightsError};
use crate::{KvMemoryError, Model, ModelSpec};
use paceline_kernels::{
    Acts, AttentionParams, AttentionSpan, Cpu, KvCache, KvLayout, Linear, Mat, QMat, RopeAngles,
    RopeScaling, RopeTable,
};
use std::ops::Range;

const RESERVED: &str = "reserve_kv comes before the first step";

/// A transformer decoder on the CPU.
pub struct Decoder {
    meta: ModelMeta,
    spec: ModelSpec,
    cpu: Cpu,
    weights: DecoderWeights,
    ropes: Vec<RopeTable>,
    kv_layout: KvLayout,
    kv: Option<KvCache>,
    scratch: Scratch,
}

/// The weights of a decoder, packed.
pub(crate) struct DecoderWeights {
    embedding: QMat,
    layers: Vec<Layer>,
    output_norm: Vec<f32>,
    /// The vocabulary projection; `None` when it is the embedding.
    head: Option<QMat>,
}

struct Layer {
    /// Attention reaches back this many positions, the own one included; `None` is all.
    window: Option<usize>,
    /// Index of the layer's rotary embedding.
    rope: usize,
    attn_norm: Vec<f32>,
    q: Projection,
    k: Projection,
    v: Projection,
    /// Norms of each head of q and of k.
    qk_norm: Option<[Vec<f32>; 2]>,
    o: QMat,
    attn_post_norm: Option<Vec<f32>>,
    ffn_norm: Vec<f32>,
    gate: QMat,
    up: QMat,
    down: QMat,
    ffn_post_norm: Option<Vec<f32>>,
}

struct Projection {
    weight: QMat,
    bias: Option<Vec<f32>>,
}

/// Buffers of one step, kept between steps.
struct Scratch {
    /// The position of each row.
    positions: Vec<usize>,
    /// For each rotary embedding, the angles of the rows.
    angles: Vec<RopeAngles>,
    /// `[T, D]`: the residual stream.
    x: Mat,
    /// `[T, D]`: the normed residual, as the weights read it.
    normed: Acts,
    /// `[T, H * E]`, and `[T, K * E]` twice.
    q: Mat,
    k: Mat,
    v: Mat,
    /// `[T, H * E]`: attention's output.
    mixed: Acts,
    /// `[T, F]`: the middle of the feed-forward layer.
    hidden: Acts,
    /// `[T, D]`: a sub-layer's output, where a norm comes before the residual.
    sub: Mat,
    /// The spans of the rows whose logits are wanted.
    output_spans: Vec<AttentionSpan>,
    /// A range of those rows of `x`, and its normed form.
    range: Mat,
    range_normed: Acts,
}

impl Decoder {
    /// A decoder without a KV cache yet, whose blocks will have `kv_block_bytes`.
    pub(crate) fn new(
        meta: ModelMeta,
        weights: DecoderWeights,
        cpu: Cpu,
        kv_layout: KvLayout,
        kv_block_bytes: usize,
    ) -> Decoder {
        let rope = &meta.rope;
        let global = RopeTable::new(rope.dim, rope.base, rope.scaling);
        let mut ropes = vec![match &rope.divisors {
            Some(divisors) => global.divided_by(divisors),
            None => global,
        }];
        let local = rope.local_base;
        ropes.extend(local.map(|base| RopeTable::new(rope.dim, base, RopeScaling::None)));
        let spec = ModelSpec {
            vocab_len: meta.vocab_len,
            context_len: meta.context_len,
            kv_block_bytes,
            block_len: kv_layout.block_len,
            cost: weights.cost(&meta, &kv_layout),
        };
        let scratch = Scratch::new(&meta, &weights, ropes.len());
        Decoder { meta, spec, cpu, weights, ropes, kv_layout, kv: None, scratch }
    }

    /// Bytes of the packed weights.
    pub fn weight_bytes(&self) -> usize {
        let weights = &self.weights;
        let layers = weights.layers.iter().flat_map(Layer::matrices);
        layers.chain([&weights.embedding]).chain(&weights.head).map(QMat::n_bytes).sum()
    }

    /// The processor it computes on.
    pub fn cpu(&self) -> &Cpu {
        &self.cpu
    }
}

impl DecoderWeights {
    /// Takes the tensors that `meta` implies out of `weights`, which must hold no others.
    pub(crate) fn take(
        meta: &ModelMeta,
        mut weights: Weights<'_>,
    ) -> Result<DecoderWeights, WeightsError> {
        let w = &mut weights;
        let taken = DecoderWeights {
            embedding: w.matrix("token_embd.weight", meta.vocab_len, meta.d_model)?,
            layers: (0..meta.n_layers)
                .map(|i| Layer::take(meta, w, i))
                .collect::<Result<_, _>>()?,
            output_norm: w.norm("output_norm.weight", meta.d_model, meta.norm_offset)?,
            head: match meta.tie_word_embeddings {
                true => None,
                false => Some(w.matrix("output.weight", meta.vocab_len, meta.d_model)?),
            },
        };
        weights.finish()?;
        Ok(taken)
    }

    fn cost(&self, meta: &ModelMeta, kv_layout: &KvLayout) -> Cost {
        let matrices = || self.layers.iter().flat_map(Layer::matrices);
        let macs = |w: &QMat| w.n_out() * w.n_in();
        Cost {
            layer_bytes: matrices().map(QMat::n_bytes).sum(),
            layer_macs: matrices().map(macs).sum(),
            tail_macs: self.layers.last().map_or(0, |layer| {
                [&layer.o, &layer.gate, &layer.up, &layer.down].map(macs).iter().sum()
            }),
            head_bytes: self.head().n_bytes(),
            head_macs: macs(self.head()),
            windows: self.layers.iter().map(|layer| layer.window).collect(),
            kv_bytes: kv_layout.token_bytes(),
            attention_macs: 2 * meta.n_heads * meta.head_size,
        }
    }

    fn head(&self) -> &QMat {
        self.head.as_ref().unwrap_or(&self.embedding)
    }
}

impl Layer {
    fn take(meta: &ModelMeta, w: &mut Weights<'_>, i: usize) -> Result<Layer, WeightsError> {
        let (d, e) = (meta.d_model, meta.head_size);
        let (q_len, kv_len) = (meta.n_heads * e, meta.n_kv_heads * e);
        let name = |tensor: &str| format!("blk.{i}.{tensor}");
        let norm = |w: &mut Weights<'_>, tensor: &str, len: usize| {
            w.norm(&name(tensor), len, meta.norm_offset)
        };
        let post_norm = |w: &mut Weights<'_>, tensor: &str| {
            meta.tensors.post_norm.then(|| norm(w, tensor, d)).transpose()
        };
        let projection = |w: &mut Weights<'_>, tensor: &str, len: usize| {
            let weight = w.matrix(&name(&format!("{tensor}.weight")), len, d)?;
            let bias = meta.tensors.qkv_bias;
            let bias = bias.then(|| w.vector(&name(&format!("{tensor}.bias")), len)).transpose()?;
            Ok::<_, WeightsError>(Projection { weight, bias })
        };
        let window = meta.sliding_window.as_ref().filter(|window| window.layers[i]);
        Ok(Layer {
            window: window.map(|window| window.len),
            rope: usize::from(window.is_some() && meta.rope.local_base.is_some()),
            attn_norm: norm(w, "attn_norm.weight", d)?,
            q: projection(w, "attn_q", q_len)?,
            k: projection(w, "attn_k", kv_len)?,
            v: projection(w, "attn_v", kv_len)?,
            qk_norm: match meta.tensors.qk_norm {
                true => {
                    Some([norm(w, "attn_q_norm.weight", e)?, norm(w, "attn_k_norm.weight", e)?])
                }
                false => None,
            },
            o: w.matrix(&name("attn_output.weight"), d, q_len)?,
            attn_post_norm: post_norm(w, "post_attention_norm.weight")?,
            ffn_norm: norm(w, "ffn_norm.weight", d)?,
            gate: w.matrix(&name("ffn_gate.weight"), meta.ffn_len, d)?,
            up: w.matrix(&name("ffn_up.weight"), meta.ffn_len, d)?,
            down: w.matrix(&name("ffn_down.weight"), d, meta.ffn_len)?,
            ffn_post_norm: post_norm(w, "post_ffw_norm.weight")?,
        })
    }

    fn matrices(&self) -> [&QMat; 7] {
        let Layer { q, k, v, o, gate, up, down, .. } = self;
        [&q.weight, &k.weight, &v.weight, o, gate, up, down]
    }
}

impl Projection {
    /// The projection into `y`.
    fn to<'a>(&'a self, y: &'a mut Mat) -> Linear<'a> {
        Linear { w: &self.weight, bias: self.bias.as_deref(), y, add: false }
    }
}

impl Scratch {
    fn new(meta: &ModelMeta, weights: &DecoderWeights, n_ropes: usize) -> Scratch {
        let (d, e) = (meta.d_model, meta.head_size);
        // The forms of activations that the matrices with these numbers read, in any layer.
        let forms = |numbers: &[usize]| {
            let read = weights.layers.iter().flat_map(|layer| {
                let matrices = layer.matrices();
                numbers.iter().map(move |&number| matrices[number].forms())
            });
            read.reduce(|a, b| a.or(b)).unwrap_or_default()
        };
        Scratch {
            positions: Vec::new(),
            angles: vec![RopeAngles::default(); n_ropes],
            x: Mat::zeros(0, d),
            normed: Acts::new(d, forms(&[0, 1, 2, 4, 5])),
            q: Mat::zeros(0, meta.n_heads * e),
            k: Mat::zeros(0, meta.n_kv_heads * e),
            v: Mat::zeros(0, meta.n_kv_heads * e),
            mixed: Acts::new(meta.n_heads * e, forms(&[3])),
            hidden: Acts::new(meta.ffn_len, forms(&[6])),
            sub: Mat::zeros(0, d),
            output_spans: Vec::new(),
            range: Mat::zeros(0, d),
            range_normed: Acts::new(d, weights.head().forms()),
        }
    }

    /// Leaves only the rows whose logits are wanted, in `x`, `q` and what follows from them.
    fn keep_outputs(&mut self, batch: &Batch) {
        self.x.keep_rows(&batch.outputs);
        self.q.keep_rows(&batch.outputs);
        self.sub.set_rows(batch.outputs.len());
        self.output_spans.clear();
        for span in &batch.spans {
            let first = batch.outputs.partition_point(|&row| row < span.rows.start);
            let end = batch.outputs.partition_point(|&row| row < span.rows.end);
            // Each run of consecutive rows is a span of its own.
            let wanted = &batch.outputs[first..end];
            let mut start = first;
            for run in wanted.chunk_by(|a, b| a + 1 == *b) {
                self.output_spans.push(AttentionSpan {
                    rows: start..start + run.len(),
                    position: span.position + run[0] - span.rows.start,
                    blocks: span.blocks.clone(),
                });
                start += run.len();
            }
        }
    }

    /// Makes room for the rows of a batch and notes their positions.
    fn begin(&mut self, batch: &Batch) {
        let Scratch { x, q, k, v, sub, .. } = self;
        for mat in [x, q, k, v, sub] {
            mat.set_rows(batch.n_rows());
        }
        self.positions.clear();
        for span in &batch.spans {
            self.positions.extend(span.position..span.position + span.rows.len());
        }
    }
}

impl Model for Decoder {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn reserve_kv(&mut self, n_blocks: usize) -> Result<(), KvMemoryError> {
        let bytes = self.spec.kv_block_bytes.saturating_mul(n_blocks);
        let kv = KvCache::new(self.kv_layout.clone(), n_blocks);
        self.kv = Some(kv.map_err(|_| KvMemoryError { bytes })?);
        Ok(())
    }

    fn forward(&mut self, batch: &Batch) {
        let Decoder { meta, cpu, weights, ropes, scratch: s, .. } = self;
        let kv = self.kv.as_mut().expect(RESERVED);
        let (eps, style) = (meta.rms_eps, meta.rope.style);
        let (mut spans, blocks) = (&batch.spans, &batch.blocks);
        s.begin(batch);
        for (rope, angles) in ropes.iter().zip(&mut s.angles) {
            cpu.rope_angles(rope, &s.positions, angles);
        }

        cpu.embed(&weights.embedding, &batch.tokens, meta.embedding_scale, &mut s.x);
        for (i, layer) in weights.layers.iter().enumerate() {
            // x += o . attention(rope(q . norm(x)), rope(k . norm(x)), v . norm(x))
            cpu.rms_norm(&s.x, &layer.attn_norm, eps, &mut s.normed);
            let mut qkv = [layer.q.to(&mut s.q), layer.k.to(&mut s.k), layer.v.to(&mut s.v)];
            cpu.linear(&s.normed, &mut qkv);
            if let Some([q_norm, k_norm]) = &layer.qk_norm {
                cpu.rms_norm_heads(&mut s.q, meta.head_size, q_norm, eps);
                cpu.rms_norm_heads(&mut s.k, meta.head_size, k_norm, eps);
            }
            cpu.rope(&s.angles[layer.rope], style, &mut s.q, meta.head_size);
            cpu.rope(&s.angles[layer.rope], style, &mut s.k, meta.head_size);
            cpu.store_kv(kv, i, &s.k, &s.v, spans, blocks);
            if i + 1 == weights.layers.len() {
                // From here on only those rows matter whose logits are wanted.
                s.keep_outputs(batch);
                spans = &s.output_spans;
            }
            let params = AttentionParams {
                scale: meta.attn_scale,
                window: layer.window,
                softcap: meta.attn_softcap,
            };
            cpu.attention(&s.q, kv, i, spans, blocks, &params, &mut s.mixed);
            let post_norm = layer.attn_post_norm.as_deref();
            add_linear(cpu, &s.mixed, &layer.o, post_norm, eps, &mut s.sub, &mut s.x);

            // x += down . (act(gate . norm(x)) * (up . norm(x)))
            cpu.rms_norm(&s.x, &layer.ffn_norm, eps, &mut s.normed);
            let gate_up = [&layer.gate, &layer.up];
            cpu.linear_gated(&s.normed, gate_up, meta.activation, &mut s.hidden);
            let post_norm = layer.ffn_post_norm.as_deref();
            add_linear(cpu, &s.hidden, &layer.down, post_norm, eps, &mut s.sub, &mut s.x);
        }
    }

    fn logits(&mut self, outputs: Range<usize>, logits: &mut Mat) {
        let Decoder { meta, cpu, weights, scratch: s, .. } = self;
        assert!(outputs.end <= s.x.rows(), "logits of rows that are no outputs");
        s.range.set_rows(outputs.len());
        for (i, output) in outputs.enumerate() {
            s.range.row_mut(i).copy_from_slice(s.x.row(output));
        }
        logits.set_rows(s.range.rows());
        cpu.rms_norm(&s.range, &weights.output_norm, meta.rms_eps, &mut s.range_normed);
        cpu.linear(&s.range_normed, &mut [store(weights.head(), logits)]);
        if let Some(cap) = meta.logit_softcap {
            cpu.softcap(cap, logits);
        }
    }

    fn read_block(&self, block: u32, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self.kv.as_ref().expect(RESERVED).block(block));
    }

    fn write_block(&mut self, block: u32, bytes: &[u8]) {
        self.kv.as_mut().expect(RESERVED).block_mut(block).copy_from_slice(bytes);
    }
}

/// `y = w . x`
fn store<'a>(w: &'a QMat, y: &'a mut Mat) -> Linear<'a> {
    Linear { w, bias: None, y, add: false }
}

/// `x += norm(w . acts)`, without the norm where the layer has none; `sub` is scratch `[T, D]`.
fn add_linear(
    cpu: &Cpu,
    acts: &Acts,
    w: &QMat,
    post_norm: Option<&[f32]>,
    eps: f32,
    sub: &mut Mat,
    x: &mut Mat,
) {
    match post_norm {
        None => cpu.linear(acts, &mut [Linear { w, bias: None, y: x, add: true }]),
        Some(norm) => {
            cpu.linear(acts, &mut [store(w, sub)]);
            cpu.rms_norm_add(sub, norm, eps, x);
        }
    }
}
