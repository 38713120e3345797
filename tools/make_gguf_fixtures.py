#!/usr/bin/env python3
"""Writes small GGUF files and a tensor list with the reference implementation, PyPI `gguf` 0.19.
Run from the repository root; the argument is the SmolLM2 file of the catalogue.

    fuzz/corpus/gguf/*.gguf                    seeds of the fuzz target, replayed as a test
    crates/model/tests/data/smollm2-135m.tsv   name, type, dimensions (ggml's order), offset,
                                               bytes and Adler-32 of every tensor
"""

import struct
import sys
import zlib
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFWriter
from gguf.constants import GGMLQuantizationType as Type
from gguf.constants import GGUFValueType as Kind

SEEDS = Path("fuzz/corpus/gguf")
DATA = Path("crates/model/tests/data")


def write(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def values(path):
    """Every type of value, and tensors of several types at an unusual alignment."""
    writer = GGUFWriter(path, "none")
    writer.add_custom_alignment(64)
    writer.add_uint8("u8", 200)
    writer.add_int8("i8", -100)
    writer.add_uint16("u16", 60000)
    writer.add_int16("i16", -30000)
    writer.add_uint32("u32", 4_000_000_000)
    writer.add_int32("i32", -2_000_000_000)
    writer.add_uint64("u64", 1 << 63)
    writer.add_int64("i64", -(1 << 63))
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 1e300)
    writer.add_bool("yes", True)
    writer.add_bool("no", False)
    writer.add_key_value("string", "na\u00efve \u6771\u4eac", Kind.STRING)
    writer.add_key_value("bytes", b"\xff\x00\xfe", Kind.STRING)
    for name, kind, items in [
        ("u8s", Kind.UINT8, [1, 255]),
        ("i8s", Kind.INT8, [-1, 127]),
        ("u16s", Kind.UINT16, [1, 65535]),
        ("i16s", Kind.INT16, [-1, 32767]),
        ("u32s", Kind.UINT32, [1, (1 << 32) - 1]),
        ("i32s", Kind.INT32, [-1, (1 << 31) - 1]),
        ("u64s", Kind.UINT64, [1, (1 << 64) - 1]),
        ("i64s", Kind.INT64, [-1, (1 << 63) - 1]),
        ("f32s", Kind.FLOAT32, [0.25, -8.0]),
        ("f64s", Kind.FLOAT64, [0.125, -1e-300]),
        ("bools", Kind.BOOL, [True, False, True]),
        ("strings", Kind.STRING, ["the", "", b"\xe2\x96", "of"]),
    ]:
        writer.add_key_value(name, items, Kind.ARRAY, kind)
    writer.add_array("arrays", [[1, 2], [3]])
    rng = np.random.default_rng(1)
    bytes_of = lambda n: rng.integers(0, 256, n, dtype=np.uint8)
    writer.add_tensor("f32", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("f16", np.arange(12, dtype=np.float16).reshape(3, 2, 2))
    writer.add_tensor("q4_k", bytes_of(288).reshape(2, 144), raw_dtype=Type.Q4_K)
    writer.add_tensor("q8_0", bytes_of(3 * 2 * 34).reshape(3, 68), raw_dtype=Type.Q8_0)
    writer.add_tensor("iq3_s", bytes_of(110).reshape(1, 110), raw_dtype=Type.IQ3_S)
    write(writer)


def llama(path):
    """A model of one layer without much sense, with a vocabulary."""
    writer = GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([chr(97 + i) for i in range(16)])
    writer.add_token_types([1] * 16)
    writer.add_token_merges(["a b", "c d"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    rng = np.random.default_rng(2)
    for name, shape in [
        ("token_embd", (16, 32)),
        ("output_norm", (32,)),
        ("blk.0.attn_norm", (32,)),
        ("blk.0.attn_q", (32, 32)),
        ("blk.0.attn_k", (16, 32)),
        ("blk.0.attn_v", (16, 32)),
        ("blk.0.attn_output", (32, 32)),
        ("blk.0.ffn_norm", (32,)),
    ]:
        if len(shape) == 1:
            writer.add_tensor(f"{name}.weight", np.ones(shape, dtype=np.float32))
        else:
            blocks = rng.integers(0, 60, (shape[0], 18), dtype=np.uint8)
            writer.add_tensor(f"{name}.weight", blocks, raw_dtype=Type.Q4_0)
    write(writer)


def vocabulary(path):
    """No tensors at all."""
    writer = GGUFWriter(path, "gemma3")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<pad>", "<eos>", "<bos>", "\u2581a"])
    writer.add_token_scores([0.0, -1.0, -2.0, -3.0])
    write(writer)


def tensor_list(model, path):
    with open(path, "w") as out:
        for tensor in GGUFReader(model).tensors:
            dims = ",".join(str(int(dim)) for dim in tensor.shape)
            adler = zlib.adler32(tensor.data.tobytes())
            row = [tensor.name, tensor.tensor_type.name, dims, tensor.data_offset]
            print(*row, tensor.n_bytes, adler, sep="\t", file=out)


SEEDS.mkdir(parents=True, exist_ok=True)
values(SEEDS / "values.gguf")
llama(SEEDS / "llama.gguf")
vocabulary(SEEDS / "vocabulary.gguf")

# Version 2 has the same layout. Others are refused, as is a big-endian file.
good = (SEEDS / "values.gguf").read_bytes()
(SEEDS / "version-2.gguf").write_bytes(good[:4] + struct.pack("<I", 2) + good[8:])
(SEEDS / "big-endian.gguf").write_bytes(good[:4] + struct.pack(">I", 3) + good[8:])
(SEEDS / "cut-off.gguf").write_bytes(good[:700])
(SEEDS / "huge-counts.gguf").write_bytes(good[:8] + b"\xff" * 16 + good[24:])
# An array of arrays of arrays ...
key = struct.pack("<Q", 1) + b"a"
nested = struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 40 + struct.pack("<IQB", 0, 1, 7)
(SEEDS / "nested.gguf").write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + key + nested)

if len(sys.argv) > 1:
    DATA.mkdir(parents=True, exist_ok=True)
    tensor_list(sys.argv[1], DATA / "smollm2-135m.tsv")
