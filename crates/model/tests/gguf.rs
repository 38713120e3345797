//! GGUF files, good and bad.

mod common;

use common::gguf::{Gguf, Tensor};
use paceline_kernels::DType;
use paceline_model::file::{Array, Fault, GgufFile, KeyError, Strings, Value};
use proptest::prelude::*;

/// A small valid file; its last byte belongs to a tensor.
fn small() -> Gguf {
    let tokens: Strings = ["the", "", "of"].into_iter().collect();
    Gguf::default()
        .with("general.architecture", Value::String(b"llama".to_vec()))
        .with("tokens", Value::Array(Array::Strings(tokens)))
        .with("scores", Value::Array(Array::F32(vec![0.5, -1.0, 2.0])))
        .with("nested", Value::Array(Array::Arrays(vec![Array::U8(vec![1]), Array::I64(vec![2])])))
        .with("flag", Value::Bool(true))
        .with_tensor("norm", DType::F32, &[3], &[1; 12])
        .with_tensor("matrix", DType::Q8_0, &[2, 64], &[2; 2 * 2 * 34])
}

/// The error's text without the path.
fn error(file: &Gguf) -> String {
    let error = GgufFile::from_bytes(file.bytes()).unwrap_err();
    let message = error.to_string();
    assert!(!message.contains('\n'), "{message}");
    message.strip_prefix("<memory>: ").unwrap().to_owned()
}

#[test]
fn a_small_file_is_read() {
    let file = GgufFile::from_bytes(small().bytes()).unwrap();
    assert_eq!((file.version(), file.alignment(), file.metadata().len()), (3, 32, 5));
    let keys: Vec<&str> = file.metadata().iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["general.architecture", "tokens", "scores", "nested", "flag"]);
    let tokens = file.metadata().require_strings("tokens").unwrap();
    assert_eq!(tokens.iter().collect::<Vec<_>>(), [&b"the"[..], b"", b"of"]);
    assert_eq!((tokens.get(2), tokens.get(3)), (Some(&b"of"[..]), None));
    assert_eq!(file.metadata().require_f32s("scores"), Ok(&[0.5, -1.0, 2.0][..]));
    let matrix = file.tensor("matrix").unwrap();
    assert_eq!((matrix.shape, matrix.dtype, matrix.n_values()), (&[2, 64][..], DType::Q8_0, 128));
    assert_eq!(matrix.bytes, [2; 136]);
    assert_eq!(file.tensor_bytes("norm"), Some(&[1; 12][..]));
    assert!(file.tensor("other").is_none());
}

/// The file was written by PyPI `gguf`; see tools/make_gguf_fixtures.py for what is in it.
#[test]
fn every_type_is_read_as_the_reference_wrote_it() {
    let bytes = include_bytes!("../../../fuzz/corpus/gguf/values.gguf");
    for version in [3, 2] {
        let mut bytes = bytes.to_vec();
        bytes[4] = version;
        let file = GgufFile::from_bytes(bytes).unwrap();
        assert_eq!((file.version(), file.alignment()), (version.into(), 64));
        let strings = [&b"the"[..], b"", b"\xe2\x96", b"of"].into_iter().collect();
        let expected = [
            ("general.architecture", Value::String(b"none".to_vec())),
            ("general.alignment", Value::U32(64)),
            ("u8", Value::U8(200)),
            ("i8", Value::I8(-100)),
            ("u16", Value::U16(60000)),
            ("i16", Value::I16(-30000)),
            ("u32", Value::U32(4_000_000_000)),
            ("i32", Value::I32(-2_000_000_000)),
            ("u64", Value::U64(1 << 63)),
            ("i64", Value::I64(i64::MIN)),
            ("f32", Value::F32(0.5)),
            ("f64", Value::F64(1e300)),
            ("yes", Value::Bool(true)),
            ("no", Value::Bool(false)),
            ("string", Value::String("naïve 東京".into())),
            ("bytes", Value::String(vec![0xff, 0, 0xfe])),
            ("u8s", Value::Array(Array::U8(vec![1, 255]))),
            ("i8s", Value::Array(Array::I8(vec![-1, 127]))),
            ("u16s", Value::Array(Array::U16(vec![1, 65535]))),
            ("i16s", Value::Array(Array::I16(vec![-1, 32767]))),
            ("u32s", Value::Array(Array::U32(vec![1, u32::MAX]))),
            ("i32s", Value::Array(Array::I32(vec![-1, i32::MAX]))),
            ("u64s", Value::Array(Array::U64(vec![1, u64::MAX]))),
            ("i64s", Value::Array(Array::I64(vec![-1, i64::MAX]))),
            ("f32s", Value::Array(Array::F32(vec![0.25, -8.0]))),
            ("f64s", Value::Array(Array::F64(vec![0.125, -1e-300]))),
            ("bools", Value::Array(Array::Bool(vec![true, false, true]))),
            ("strings", Value::Array(Array::Strings(strings))),
            (
                "arrays",
                Value::Array(Array::Arrays(vec![Array::I32(vec![1, 2]), Array::I32(vec![3])])),
            ),
        ];
        let found: Vec<_> = file.metadata().iter().map(|(k, v)| (k, v.clone())).collect();
        assert_eq!(found, expected);

        let tensors: Vec<_> =
            file.tensors().iter().map(|t| (&t.name[..], t.dtype, &t.shape[..])).collect();
        let expected: [(&str, DType, &[usize]); 5] = [
            ("f32", DType::F32, &[2, 3]),
            ("f16", DType::F16, &[3, 2, 2]),
            ("q4_k", DType::Q4_K, &[2, 256]),
            ("q8_0", DType::Q8_0, &[3, 64]),
            ("iq3_s", DType::IQ3_S, &[1, 256]),
        ];
        assert_eq!(tensors, expected);
        let f32s: Vec<u8> = (0..6).flat_map(|i| (i as f32).to_le_bytes()).collect();
        assert_eq!(file.tensor_bytes("f32").unwrap(), f32s);
    }
}

#[test]
fn a_file_cut_off_anywhere_is_an_error() {
    let bytes = small().bytes();
    assert!(GgufFile::from_bytes(bytes.clone()).is_ok());
    for len in 0..bytes.len() {
        let error = GgufFile::from_bytes(bytes[..len].to_vec()).unwrap_err();
        assert!(matches!(error.fault, Fault::CutOff { .. }), "{len}: {error}");
    }
}

#[test]
fn absurd_counts_are_refused_before_anything_is_allocated() {
    let n = |n: u64| n.to_le_bytes();
    for huge in [u64::MAX, 1 << 62, 1 << 40, 10_000] {
        let file = small();
        assert!(error(&Gguf { n_entries: Some(huge), ..file.clone() }).contains("needs"));
        assert!(error(&Gguf { n_tensors: Some(huge), ..file.clone() }).contains("needs"));
        let message = error(&file.clone().with_raw(b"text", 8, &n(huge)));
        assert!(message.starts_with("the value of text needs"), "{message}");
        for item_type in 0..=12_u32 {
            let array = [&item_type.to_le_bytes()[..], &n(huge)].concat();
            let message = error(&file.clone().with_raw(b"list", 9, &array));
            assert!(message.starts_with("the value of list needs"), "{message}");
        }
        let mut key = file.clone();
        key.entries.insert(0, (vec![], vec![]));
        let mut bytes = key.bytes();
        bytes[24..32].copy_from_slice(&n(huge));
        let message = GgufFile::from_bytes(bytes).unwrap_err().to_string();
        assert!(message.contains("metadata entry 0 needs"), "{message}");
    }
    let message = error(&Gguf { n_tensors: Some(u64::MAX), ..small() });
    assert!(message.starts_with("the tensor list needs 18446744073709551615 bytes and only"));
    assert!(message.ends_with("remain: the file is cut off or corrupt"));
}

#[test]
fn the_header_is_checked() {
    let message = |version| error(&Gguf { version, ..small() });
    assert_eq!(
        message(1),
        "GGUF version 1 is not supported (2 and 3 are): convert the model again"
    );
    assert_eq!(
        message(4),
        "GGUF version 4 is not supported (2 and 3 are): convert the model again"
    );
    let big_endian = "a big-endian GGUF file: convert the model for little-endian machines";
    assert_eq!(message(3_u32.swap_bytes()), big_endian);
    assert!(error(&Gguf { magic: *b"GGML", ..small() }).starts_with("not a model"));
}

#[test]
fn metadata_is_checked() {
    let with = |key: &str, value| error(&small().with(key, value));
    let raw = |key: &[u8], type_id, bytes: &[u8]| error(&small().with_raw(key, type_id, bytes));
    assert_eq!(with("flag", Value::U8(0)), "the value of flag is there twice: the file is corrupt");
    assert_eq!(raw(b"x", 7, &[2]), "the value of x has 2 as a bool: the file is corrupt");
    assert_eq!(
        raw(b"x", 13, &[]),
        "the value of x has the unknown value type 13: the file is corrupt"
    );
    assert_eq!(
        raw(b"x", 9, &[77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        "the value of x has the unknown item type 77: the file is corrupt"
    );
    assert!(raw(b"\xff", 0, &[0]).contains("has a key that is not UTF-8"));
    assert!(with("", Value::U8(0)).contains("has a key of no bytes"));
    assert!(with(&"k".repeat(65_536), Value::U8(0)).contains("has a key of 65536 bytes"));
    // A name cannot break the line or the terminal, nor make the message long.
    let message = raw(&[b"\n\x1b[31m", &[b'k'; 500][..]].concat(), 13, &[]);
    assert!(message.starts_with("the value of \\n\\u{1b}[31mkkk") && message.len() < 250);
}

#[test]
fn arrays_nest_to_a_limit() {
    let nested = |depth| (1..depth).fold(Array::U8(vec![7]), |array, _| Array::Arrays(vec![array]));
    let file = |depth| small().with("deep", Value::Array(nested(depth)));
    let read = GgufFile::from_bytes(file(4).bytes()).unwrap();
    assert_eq!(read.metadata().get("deep"), Some(&Value::Array(nested(4))));
    assert!(error(&file(5)).contains("nests arrays deeper than 4"));
    assert!(error(&file(200)).contains("nests arrays deeper than 4"));
}

#[test]
fn the_alignment_is_checked() {
    for good in [1_usize, 8, 4096] {
        let file = small().with("general.alignment", Value::U32(good as u32));
        let file = GgufFile::from_bytes(Gguf { alignment: good, ..file }.bytes()).unwrap();
        assert_eq!(file.tensor_bytes("matrix").unwrap(), [2; 136]);
    }
    for (bad, problem) in [
        (Value::U32(0), "is 0, which is no power of two"),
        (Value::U32(33), "is 33, which is no power of two"),
        (Value::U32(1 << 31), "is 2147483648, more than 1073741824"),
        (Value::U64(u64::MAX), "is 18446744073709551615, more than 1073741824"),
    ] {
        let message = error(&small().with("general.alignment", bad));
        assert!(message.contains(problem), "{message}");
    }
    let message = error(&small().with("general.alignment", Value::F32(32.0)));
    assert!(message.contains("expected a non-negative integer"), "{message}");
}

#[test]
fn tensors_are_checked() {
    let tensor = |dims: &[u64], type_id, offset| {
        let tensor =
            Tensor { name: b"t".to_vec(), dims: dims.to_vec(), type_id, offset, data: vec![] };
        let mut file = small();
        file.tensors.insert(0, tensor);
        error(&file)
    };
    let cases = [
        (tensor(&[4, 0], 0, None), "tensor t has a dimension of zero"),
        (tensor(&[1, 1, 1, 1, 1], 0, None), "tensor t has 5 dimensions"),
        (tensor(&[1; 4], 99, None), "tensor t has type number 99, which is not supported"),
        (tensor(&[4], 4, None), "tensor t has type number 4, which is not supported"),
        (tensor(&[48], 2, None), "tensor t has rows of 48 values; Q4_0 packs 32"),
        (tensor(&[1 << 32, 1 << 32], 0, None), "tensor t has the impossible size"),
        (tensor(&[1 << 62, 2], 24, None), "tensor t needs 9223372036854775808 bytes and only"),
        (tensor(&[u64::MAX], 0, None), "tensor t has the impossible size"),
        (tensor(&[4], 0, Some(u64::MAX - 31)), "tensor t needs 16 bytes and only 0 remain"),
        (tensor(&[32], 24, Some(u64::MAX - 31)), "tensor t has the impossible size"),
        (tensor(&[4], 0, Some(8)), "tensor t starts at 8, not aligned to 32"),
        (tensor(&[1000], 0, Some(0)), "tensor t needs 4000 bytes and only"),
        (tensor(&[4], 0, Some(1 << 20)), "tensor t needs 16 bytes and only 0 remain"),
        (tensor(&[4], 0, Some(32)), "tensor matrix overlaps tensor t"),
        (tensor(&[4], 0, Some(64)), "tensor t overlaps tensor matrix"),
    ];
    for (message, expected) in cases {
        assert!(message.starts_with(expected), "{message}\n{expected}");
    }
    let twice = small().with_tensor("norm", DType::F32, &[1], &[0; 4]);
    assert!(error(&twice).starts_with("tensor norm is there twice"));
    let nameless = small().with_tensor("", DType::F32, &[1], &[0; 4]);
    assert!(error(&nameless).contains("has a name of no bytes"));
}

#[test]
fn files_without_tensors_or_with_scalars_are_valid() {
    let mut bytes = Gguf::default().with("a", Value::U8(1)).bytes();
    bytes.truncate(24 + 8 + 1 + 4 + 1); // No padding, as there is no data.
    assert!(GgufFile::from_bytes(bytes).unwrap().tensors().is_empty());
    let scalar = Gguf::default().with_tensor("s", DType::F32, &[], &1_f32.to_le_bytes());
    let file = GgufFile::from_bytes(scalar.bytes()).unwrap();
    assert_eq!(file.tensor("s").unwrap().n_values(), 1);
}

#[test]
fn values_are_read_by_type() {
    let file = Gguf::default()
        .with("u8", Value::U8(200))
        .with("i16", Value::I16(-3))
        .with("u64", Value::U64(u64::MAX))
        .with("i64", Value::I64(1 << 40))
        .with("f64", Value::F64(0.5))
        .with("bytes", Value::String(vec![0xff]))
        .with("text", Value::String(b"x\ny".to_vec()))
        .with("list", Value::Array(Array::U32(vec![1, 2])));
    let file = GgufFile::from_bytes(file.bytes()).unwrap();
    let metadata = file.metadata();
    assert_eq!(metadata.get_u64("u8"), Ok(Some(200)));
    assert_eq!(metadata.get_u32("u8"), Ok(Some(200)));
    assert_eq!(metadata.get_i64("i16"), Ok(Some(-3)));
    assert_eq!(metadata.get_usize("i64"), Ok(Some(1 << 40)));
    assert_eq!(metadata.get_f32("u8"), Ok(Some(200.0)));
    assert_eq!(metadata.get_f32("f64"), Ok(Some(0.5)));
    assert_eq!(metadata.get_u64("absent"), Ok(None));

    let message = |error: KeyError| error.to_string();
    assert_eq!(
        message(metadata.get_u64("i16").unwrap_err()),
        "key i16 is the int16 -3, expected a non-negative integer"
    );
    assert_eq!(
        message(metadata.get_u32("i64").unwrap_err()),
        "key i64 is the int64 1099511627776, expected a non-negative 32-bit integer"
    );
    assert_eq!(
        message(metadata.get_i64("u64").unwrap_err()),
        "key u64 is the uint64 18446744073709551615, expected an integer up to 2^63 - 1"
    );
    assert_eq!(
        message(metadata.get_str("bytes").unwrap_err()),
        "key bytes is the string \"\u{fffd}\", expected a UTF-8 string"
    );
    assert_eq!(
        message(metadata.require_bool("text").unwrap_err()),
        "key text is the string \"x\\ny\", expected a bool"
    );
    assert_eq!(
        message(metadata.require_strings("list").unwrap_err()),
        "key list is an array of 2 uint32, expected an array of string"
    );
    assert_eq!(message(metadata.require_f32s("gone").unwrap_err()), "key gone is missing");
}

#[test]
fn values_are_shown_briefly() {
    let numbers = Value::Array(Array::I32((1..100).collect()));
    assert_eq!(numbers.brief(20), "[1, 2, 3, 4, 5, 6, 7, … 99 in all]");
    assert_eq!(Value::Array(Array::U8(vec![])).brief(20), "[]");
    assert_eq!(Value::Array(Array::Bool(vec![true, false])).brief(20), "[true, false]");
    assert_eq!(Value::String("é\n".repeat(100).into()).brief(4), "\"é\\né\\n…\"");
    assert_eq!(Value::F32(1e-5).brief(20), "0.00001");
    let tokens: Strings = ["a".repeat(50), "b".to_owned()].into_iter().collect();
    assert_eq!(Value::Array(Array::Strings(tokens)).brief(10), "[\"aaaaa…\", … 2 in all]");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// No change of a few bytes makes the reader panic, and what it accepts is inside the file.
    #[test]
    fn damaged_files_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
        is_cut in any::<bool>(),
    ) {
        let mut bytes = small().bytes();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if is_cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(file) = GgufFile::from_bytes(bytes) {
            for info in file.tensors() {
                let tensor = file.tensor(&info.name).unwrap();
                prop_assert_eq!(tensor.dtype.n_bytes(tensor.n_values()), Some(tensor.bytes.len()));
            }
            for (_, value) in file.metadata().iter() {
                prop_assert!(value.brief(30).chars().count() < 200);
            }
        }
    }

    /// Nor do the bits of any single byte, or any bytes after the magic.
    #[test]
    fn any_bytes_after_the_magic_never_panic(tail in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = GgufFile::from_bytes([b"GGUF\x03\0\0\0", &tail[..]].concat());
    }
}

#[test]
fn single_bits_never_panic() {
    let bytes = small().bytes();
    for bit in 0..bytes.len() * 8 {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let _ = GgufFile::from_bytes(bytes);
    }
}
