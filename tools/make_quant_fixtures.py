#!/usr/bin/env python3
"""Writes crates/kernels/tests/data/quant/<TYPE>.bin with the reference implementation of the block
formats: PyPI `gguf` 0.19 and numpy. Run from the repository root.

A file is, in little-endian words:

    u32 n, u32 n_encode
    bytes of n values                     decode must turn these
    n f32                                 into these
    n_encode f32                          encode must turn these (none for types without an encoder)
    bytes of n_encode values              into these
"""

from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type, quants

OUT = Path("crates/kernels/tests/data/quant")
TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4"]
TYPES += ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"]
ENCODED = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]

# Offsets of the f16 scales in a block.
SCALES = {
    "Q8_0": [0],
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "IQ4_NL": [0],
    "MXFP4": [],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ4_XS": [0],
}


def random_blocks(rng, name):
    """Blocks of random bytes with finite scales of every kind."""
    block_len, block_bytes = GGML_QUANT_SIZES[Type[name]]
    if name == "F32":
        return rng.standard_normal(256).astype(np.float32).view(np.uint8)
    if name in ("F16", "BF16"):
        words = rng.integers(0, 1 << 16, 256, dtype=np.uint16)
        exponent = np.uint16(0x7C00 if name == "F16" else 0x7F80)
        words = np.where(words & exponent == exponent, words & ~exponent, words)
        return words.astype(np.uint16).view(np.uint8)
    blocks = rng.integers(0, 256, (24 if block_len == 32 else 6, block_bytes), dtype=np.uint8)
    for offset in SCALES[name]:
        d = rng.standard_normal(len(blocks)).astype(np.float16) * np.float16(0.01)
        d[:5] = [0.0, -0.0, 6e-8, 65504.0, -65504.0]
        blocks[:, offset : offset + 2] = d.reshape(-1, 1).view(np.uint8)
    if name == "MXFP4":
        # Exponents of subnormal, small, plain and the largest scales.
        blocks[:10, 0] = [0, 1, 2, 3, 100, 127, 128, 250, 251, 252]
        blocks[10:, 0] = rng.integers(110, 140, len(blocks) - 10)
    return blocks.reshape(-1)


def values_to_encode(rng):
    """Rows of 32 values, plain and awkward."""
    ties = np.arange(-16, 16) / 2
    rows = [rng.standard_normal(32) * scale for scale in (1e-6, 1e-3, 0.02, 1, 30, 1e4)]
    rows += [rng.standard_normal(32).astype(np.float16) for _ in range(8)]
    rows += [np.zeros(32), -np.zeros(32), np.ones(32), -np.ones(32), ties, -ties, ties * 127 / 8]
    rows += [np.abs(rng.standard_normal(32)), -np.abs(rng.standard_normal(32))]
    rows += [np.where(np.arange(32) == 5, -3.0, np.where(np.arange(32) == 9, 3.0, 0.5))]
    return np.stack(rows).astype(np.float32)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    for name in TYPES:
        rng = np.random.default_rng(1)
        encoded = random_blocks(rng, name)
        decoded = quants.dequantize(encoded, Type[name]).astype("<f4")
        values = values_to_encode(rng) if name in ENCODED else np.zeros((0, 32), np.float32)
        code = quants.quantize(values, Type[name]) if values.size else np.zeros(0, np.uint8)
        header = np.array([decoded.size, values.size], "<u4")
        parts = [header, encoded, decoded, values.astype("<f4"), code]
        (OUT / f"{name}.bin").write_bytes(b"".join(part.tobytes() for part in parts))


if __name__ == "__main__":
    main()
