//! Any bytes as a GGUF file: an error or a file whose parts are where they should be.
#![no_main]

use libfuzzer_sys::fuzz_target;
use paceline_model::file::{GgufFile, ModelFile};
use paceline_model::meta::ModelMeta;

fuzz_target!(|bytes: &[u8]| {
    let Ok(file) = GgufFile::from_bytes(bytes.to_vec()) else { return };
    for info in file.tensors() {
        let tensor = file.tensor(&info.name).expect("a listed tensor is found");
        assert_eq!(tensor.dtype.n_bytes(tensor.n_values()), Some(tensor.bytes.len()));
    }
    for (key, value) in file.metadata().iter() {
        assert_eq!(file.metadata().get(key).map(|found| std::ptr::eq(found, value)), Some(true));
        assert!(value.brief(60).len() < 1000);
    }
    if let Err(error) = ModelMeta::read(&ModelFile::Gguf(file)) {
        assert!(!error.to_string().contains('\n'));
    }
});
