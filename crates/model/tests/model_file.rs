//! Opening a path: what is accepted, and what is said of everything else.

use paceline_kernels::DType;
use paceline_model::file::{ModelFile, TensorTotal};
use safetensors::tensor::{Dtype, TensorView};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The error's text without the path of the folder.
fn error(folder: &TempDir, name: &str) -> String {
    let message = ModelFile::open(&folder.path().join(name)).unwrap_err().to_string();
    assert!(!message.contains('\n'), "{message}");
    message.replace(&format!("{}/", folder.path().display()), "")
}

/// Writes a safetensors file with the reference implementation.
fn write_safetensors(path: &Path, tensors: &[(&str, Dtype, &[usize], &[u8])]) {
    let tensors = tensors.iter().map(|&(name, dtype, shape, bytes)| {
        (name, TensorView::new(dtype, shape.to_vec(), bytes).unwrap())
    });
    safetensors::serialize_to_file(tensors, None, path).unwrap();
}

#[test]
fn a_file_that_is_no_model_is_named() {
    let folder = TempDir::new().unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    write("empty.gguf", b"");
    write("lfs.gguf", b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 5\n");
    write("page.gguf", b"\n<!DOCTYPE html><html>");
    write("model.bin", b"PK\x03\x04archive/data.pkl");
    write("old.bin", b"tjgg\x03\0\0\0");
    write("model.tar.gz", b"\x1f\x8b\x08\0");
    write("config.json", b"{\"a\": 1}");
    write("notes.txt", b"hello");
    write("short.gguf", b"GG");
    write_safetensors(&folder.path().join("a.safetensors"), &[("t", Dtype::F32, &[1], &[0; 4])]);
    for (name, expected) in [
        ("empty.gguf", "an empty file: download it again"),
        ("lfs.gguf", "a git-lfs pointer, not the file itself: fetch it with git lfs pull"),
        (
            "page.gguf",
            "a web page, not the file itself: use the address of the file, not of its page",
        ),
        ("a.safetensors", "a safetensors file alone: give its directory, with config.json"),
        (
            "model.bin",
            "a PyTorch checkpoint or a zip archive: use a .gguf file, or a directory with safetensors",
        ),
        ("old.bin", "a ggml file from before GGUF: convert the model again"),
        ("model.tar.gz", "a compressed file: unpack it first"),
        (
            "config.json",
            "a JSON file: give the directory that holds config.json and model.safetensors",
        ),
        (
            "notes.txt",
            "not a model: a .gguf file or a directory with config.json and safetensors is accepted",
        ),
        (
            "short.gguf",
            "not a model: a .gguf file or a directory with config.json and safetensors is accepted",
        ),
        ("absent.gguf", "No such file or directory (os error 2)"),
    ] {
        assert_eq!(error(&folder, name), format!("{name}: {expected}"));
    }
    assert!(ModelFile::open(Path::new("/dev/null")).unwrap_err().to_string().contains("regular"));
}

#[test]
fn a_part_of_a_split_model_is_named() {
    let folder = TempDir::new().unwrap();
    let key = b"split.count";
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    for n in [0, 1, key.len() as u64] {
        bytes.extend(n.to_le_bytes());
    }
    bytes.extend(key);
    bytes.extend([2, 0, 0, 0, 3, 0]);
    fs::write(folder.path().join("m-00001-of-00003.gguf"), bytes).unwrap();
    assert_eq!(
        error(&folder, "m-00001-of-00003.gguf"),
        "m-00001-of-00003.gguf: one part of a split model: join the parts first (llama-gguf-split --merge)"
    );
}

/// A directory with the files given.
fn model_dir(files: &[(&str, &str)]) -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let dir = folder.path().join("model");
    fs::create_dir(&dir).unwrap();
    for (name, text) in files {
        fs::write(dir.join(name), text).unwrap();
    }
    (folder, dir)
}

#[test]
fn a_directory_that_is_no_model_is_named() {
    let (folder, dir) = model_dir(&[("b.gguf", "x"), ("a.gguf", "x")]);
    assert_eq!(
        error(&folder, "model"),
        "model: a directory without config.json is not a model; did you mean model/a.gguf?"
    );
    fs::remove_file(dir.join("a.gguf")).unwrap();
    fs::remove_file(dir.join("b.gguf")).unwrap();
    assert_eq!(error(&folder, "model"), "model: a directory without config.json is not a model");

    fs::write(dir.join("config.json"), "{").unwrap();
    assert!(error(&folder, "model").starts_with("model/config.json: EOF while parsing"));
    fs::write(dir.join("config.json"), "").unwrap();
    assert!(error(&folder, "model").starts_with("model/config.json: EOF while parsing"));
    fs::write(dir.join("config.json"), format!("{{\"a\": {}", "[".repeat(100_000))).unwrap();
    assert!(error(&folder, "model").contains("recursion limit exceeded"));
    fs::write(dir.join("config.json"), "[]").unwrap();
    assert!(error(&folder, "model").contains("expected a map"));
    fs::write(dir.join("config.json"), " ".repeat(5 << 20)).unwrap();
    assert!(error(&folder, "model").contains("at most 4194304 are read"));
    fs::write(dir.join("config.json"), r#"{"quantization_config": {"quant_method": "awq"}}"#)
        .unwrap();
    assert_eq!(
        error(&folder, "model"),
        "model/config.json: key quantization_config is \"awq\": quantized safetensors are not supported; \
         use F32, F16 or BF16"
    );

    fs::write(dir.join("config.json"), "{}").unwrap();
    let way_out = "convert the weights to safetensors, or use a .gguf file";
    assert_eq!(
        error(&folder, "model"),
        format!("model: a directory without model.safetensors: {way_out}")
    );
    write_safetensors(&dir.join("model.safetensors"), &[]);
    assert_eq!(
        error(&folder, "model"),
        "model: safetensors without a tensor: fetch the model again"
    );
    fs::remove_file(dir.join("model.safetensors")).unwrap();
    fs::write(dir.join("pytorch_model.bin"), "").unwrap();
    assert_eq!(
        error(&folder, "model"),
        format!("model: a directory with PyTorch weights only: {way_out}")
    );
}

#[test]
fn one_file_is_read_as_the_reference_wrote_it() {
    let (_folder, dir) = model_dir(&[("config.json", "{}"), ("tokenizer.json", "{}")]);
    write_safetensors(
        &dir.join("model.safetensors"),
        &[
            ("matrix", Dtype::BF16, &[2, 3], &[7; 12]),
            ("norm", Dtype::F32, &[3], &[8; 12]),
            ("half", Dtype::F16, &[1, 1, 5], &[9; 10]),
        ],
    );
    let file = ModelFile::open(&dir).unwrap();
    let ModelFile::Safetensors(files) = &file else { panic!("not a directory") };
    assert_eq!(files.tokenizer_path(), Some(dir.join("tokenizer.json")));
    assert_eq!(files.tokenizer_config_path(), None);
    assert_eq!(file.tensors().count(), 3);
    let matrix = file.tensor("matrix").unwrap();
    assert_eq!(
        (matrix.dtype, matrix.shape, matrix.bytes),
        (DType::BF16, &[2, 3][..], &[7; 12][..])
    );
    let half = file.tensor("half").unwrap();
    assert_eq!((half.dtype, half.shape, half.bytes), (DType::F16, &[1, 1, 5][..], &[9; 10][..]));
    assert!(file.tensor("other").is_none());
    let total = TensorTotal { n_tensors: 1, n_values: 6, n_bytes: 12 };
    assert_eq!(file.totals()[&DType::BF16], total);
}

#[test]
fn a_safetensors_header_is_checked() {
    let (folder, dir) = model_dir(&[("config.json", "{}")]);
    let message = |header: &str| {
        let length = (header.len() as u64).to_le_bytes();
        let bytes = [&length[..], header.as_bytes(), &[0; 16]].concat();
        fs::write(dir.join("model.safetensors"), bytes).unwrap();
        error(&folder, "model").replace("model/model.safetensors: ", "")
    };
    let entry = |dtype: &str, shape: &str, offsets: &str| {
        message(&format!(
            r#"{{"t": {{"dtype": "{dtype}", "shape": {shape}, "data_offsets": {offsets}}}}}"#
        ))
    };
    let cases = [
        (entry("I32", "[1]", "[0, 4]"), "tensor t has type I32, which is not supported"),
        (entry("F8_E4M3", "[1]", "[0, 1]"), "tensor t has type F8_E4M3, which is not supported"),
        (entry("Q\\n9", "[1]", "[0, 1]"), "tensor t has type Q\\n9, which is not supported"),
        (
            entry("F32", "[1]", "[0, 8]"),
            "tensor t is F32 [1] and lies at 0..8: the file is corrupt",
        ),
        (
            entry("F32", "[1]", "[8, 4]"),
            "tensor t is F32 [1] and lies at 8..4: the file is corrupt",
        ),
        (entry("F32", "[0]", "[0, 0]"), "tensor t has a dimension of zero: the file is corrupt"),
        (
            entry("F32", "[8]", "[0, 32]"),
            "tensor t needs 32 bytes and only 16 remain: the file is cut off or corrupt",
        ),
        (
            entry("F16", "[9223372036854775807]", "[0, 18446744073709551614]"),
            "tensor t needs 18446744073709551614 bytes and only 16 remain: the file is cut off or corrupt",
        ),
        (
            entry("F32", "[4611686018427387904, 4]", "[0, 16]"),
            "tensor t is F32 [4611686018427387904, 4] and lies at 0..16: the file is corrupt",
        ),
    ];
    for (found, expected) in cases {
        assert_eq!(found, expected);
    }
    // Eight sizes of almost 2^61, whose sum overflows with the length of the header.
    let size = (1_u64 << 61) - 1;
    let entries = (0..8).map(|i| {
        let (start, end) = (i * size, (i + 1) * size);
        format!(r#""{i}": {{"dtype": "F16", "shape": [{size}], "data_offsets": [{start}, {end}]}}"#)
    });
    assert!(message(&format!("{{{}}}", entries.collect::<Vec<_>>().join(","))).contains("needs"));
    assert!(entry("F32", "[-1]", "[0, 4]").starts_with("tensor t: invalid value: integer `-1`"));
    assert!(entry("F32", "[1]", "[0]").starts_with("tensor t: invalid length 1"));
    assert!(message("[]").contains("expected an object of tensors"));
    let t = r#""t": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}"#;
    assert!(message(&format!("{{{t}, {t}}}")).starts_with("tensor t is there twice"));
    let u = r#""u": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}"#;
    assert!(message(&format!("{{{t}, {u}}}")).contains("overlaps tensor"));

    fs::write(dir.join("model.safetensors"), u64::MAX.to_le_bytes()).unwrap();
    assert!(error(&folder, "model").contains("the header needs 18446744073709551615 bytes"));
}

#[test]
fn shards_are_read_together() {
    let index = |map: &str| format!(r#"{{"metadata": {{}}, "weight_map": {map}}}"#);
    let (folder, dir) = model_dir(&[("config.json", "{}")]);
    write_safetensors(&dir.join("m-2.safetensors"), &[("b", Dtype::F32, &[1], &[2; 4])]);
    write_safetensors(
        &dir.join("m-1.safetensors"),
        &[("a", Dtype::F32, &[1], &[1; 4]), ("c", Dtype::F16, &[2], &[3; 4])],
    );
    let write =
        |map: &str| fs::write(dir.join("model.safetensors.index.json"), index(map)).unwrap();
    write(r#"{"a": "m-1.safetensors", "c": "m-1.safetensors", "b": "m-2.safetensors"}"#);
    let file = ModelFile::open(&dir).unwrap();
    let names: Vec<&str> = file.tensors().map(|tensor| tensor.name).collect();
    assert_eq!(names.len(), 3);
    assert_eq!(names[2], "b");
    for (name, byte) in [("a", 1), ("b", 2), ("c", 3)] {
        assert_eq!(file.tensor(name).unwrap().bytes, [byte; 4]);
    }

    write(r#"{"a": "m-1.safetensors", "d": "m-2.safetensors"}"#);
    assert_eq!(
        error(&folder, "model"),
        "model/model.safetensors.index.json: tensor d is in the index and in no shard: the file is corrupt"
    );
    for path in ["../secret.safetensors", "/etc/passwd", "a/b", "..", ".", "", "a\\\\b", "a\\u0000"]
    {
        write(&format!(r#"{{"a": "{path}"}}"#));
        let message = error(&folder, "model");
        assert!(message.contains("is no plain file name"), "{message}");
    }
    write(r#"{"a": "m-3.safetensors"}"#);
    assert_eq!(
        error(&folder, "model"),
        "model/m-3.safetensors: No such file or directory (os error 2)"
    );
    write_safetensors(&dir.join("m-3.safetensors"), &[("a", Dtype::F32, &[1], &[1; 4])]);
    write(r#"{"a": "m-1.safetensors", "b": "m-3.safetensors"}"#);
    assert_eq!(
        error(&folder, "model"),
        "model/m-3.safetensors: tensor a is in another shard already: the file is corrupt"
    );
}
