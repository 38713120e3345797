//! Block formats against bytes and numbers of the reference implementation
//! (`tools/make_quant_fixtures.py`).

use paceline_kernels::{DType, QMat, quant};

struct Fixture {
    encoded: Vec<u8>,
    decoded: Vec<f32>,
    /// Empty for types without an encoder.
    to_encode: Vec<f32>,
    code: Vec<u8>,
}

fn fixture(dtype: DType) -> Fixture {
    let path = format!("{}/tests/data/quant/{dtype}.bin", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut rest = &bytes[..];
    let mut take = |n_bytes: usize| rest.split_off(..n_bytes).expect("a whole fixture");
    let counts = take(8);
    let count =
        |i: usize| u32::from_le_bytes(counts[4 * i..4 * i + 4].try_into().unwrap()) as usize;
    let fixture = Fixture {
        encoded: take(dtype.n_bytes(count(0)).unwrap()).to_vec(),
        decoded: floats(take(4 * count(0))),
        to_encode: floats(take(4 * count(1))),
        code: if count(1) > 0 { rest.to_vec() } else { Vec::new() },
    };
    assert!(fixture.decoded.len() >= 256);
    fixture
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn computing() -> impl Iterator<Item = DType> {
    DType::ALL.iter().copied().filter(|&dtype| quant::computes(dtype))
}

#[test]
fn decoded_values_are_those_of_the_reference() {
    for dtype in computing() {
        let fixture = fixture(dtype);
        let mut values = vec![0.0; fixture.decoded.len()];
        quant::decode(dtype, &fixture.encoded, &mut values).unwrap();
        assert_eq!(bits(&values), bits(&fixture.decoded), "{dtype}");
    }
}

#[test]
fn encoded_bytes_are_those_of_the_reference() {
    let mut n_encoders = 0;
    for dtype in computing() {
        let fixture = fixture(dtype);
        if fixture.to_encode.is_empty() {
            continue;
        }
        n_encoders += 1;
        let mut bytes = vec![0; fixture.code.len()];
        quant::encode(dtype, &fixture.to_encode, &mut bytes).unwrap();
        let block_bytes = dtype.info().block_bytes;
        for (i, code) in fixture.code.chunks_exact(block_bytes).enumerate() {
            assert_eq!(&bytes[i * block_bytes..][..block_bytes], code, "{dtype}, block {i}");
        }
    }
    assert_eq!(n_encoders, 8);
}

#[test]
fn rows_out_of_the_tiles_are_those_of_the_reference() {
    for dtype in computing() {
        let fixture = fixture(dtype);
        let block_len = dtype.info().block_len;
        // One block a row, a few blocks a row, one row.
        for n_in in [block_len, 2 * block_len, fixture.decoded.len()] {
            let n_out = fixture.decoded.len() / n_in;
            for pack in [QMat::pack, QMat::pack_float] {
                let weight = pack(dtype, n_out, n_in, &fixture.encoded).unwrap();
                assert!(weight.forms().float != weight.forms().int8);
                for (i, decoded) in fixture.decoded.chunks_exact(n_in).enumerate() {
                    let mut values = vec![0.0; n_in];
                    weight.row(i, &mut values);
                    assert_eq!(bits(&values), bits(decoded), "{dtype} {n_out} x {n_in}, row {i}");
                }
            }
        }
    }
}
