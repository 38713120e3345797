//! A directory as Hugging Face ships models: `config.json` and safetensors.
//!
//! ```text
//! length u64 | JSON {"NAME": {"dtype", "shape", "data_offsets": [start, end]}, ..} | data
//! ```
//!
//! Offsets count from the start of the data. Source: the format's description in the
//! `safetensors` project. The header is read here and not by the crate of that name, whose errors
//! name no tensor and whose size check can overflow.

use super::error::{Fault, FileError, KeyError, shorten, shown};
use super::mmap::Bytes;
use super::{TensorInfo, TensorView, check_overlap};
use paceline_kernels::DType;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::path::{Component, Path, PathBuf};

/// The reference implementation's limit.
const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Configurations are a few kilobytes, indices a few hundred.
const MAX_CONFIG_BYTES: u64 = 4 << 20;
const MAX_INDEX_BYTES: u64 = 64 << 20;

/// A directory with `config.json` and weights in safetensors files, which are not copied out of
/// their maps.
#[derive(Debug)]
pub struct SafetensorsDir {
    path: PathBuf,
    config: Map<String, Value>,
    generation_config: Map<String, Value>,
    shards: Vec<Bytes>,
    /// Shard number and place of each tensor, in shard order, then file order.
    tensors: Vec<(usize, TensorInfo)>,
    index: HashMap<String, usize>,
}

impl SafetensorsDir {
    /// Maps and parses the files of a directory. Weights are checked for their place and size only.
    ///
    /// # Errors
    /// If a file is missing or malformed, or a tensor is not F32, F16 or BF16. The error names the
    /// file at fault.
    pub fn open(path: &Path) -> Result<SafetensorsDir, FileError> {
        let config_path = path.join("config.json");
        if !config_path.is_file() {
            return Err(Fault::NoConfig { hint: gguf_hint(path) }.at(path));
        }
        let config = read_object(&config_path)?;
        if let Some(method) = config.get("quantization_config").filter(|value| !value.is_null()) {
            let key = "quantization_config".to_owned();
            let method = method.get("quant_method").unwrap_or(method);
            let value = shorten(&method.to_string());
            let problem =
                "quantized safetensors are not supported; use F32, F16 or BF16".to_owned();
            return Err(KeyError::Value { key, value, problem }.at(&config_path));
        }
        let generation_path = path.join("generation_config.json");
        let generation_config = match generation_path.is_file() {
            true => read_object(&generation_path)?,
            false => Map::new(),
        };

        let mut dir = SafetensorsDir {
            path: path.to_owned(),
            config,
            generation_config,
            shards: Vec::new(),
            tensors: Vec::new(),
            index: HashMap::new(),
        };
        let single = path.join("model.safetensors");
        let index = path.join("model.safetensors.index.json");
        if single.is_file() {
            dir.add_shard(&single)?;
        } else if index.is_file() {
            dir.add_shards(&index)?;
        } else {
            let what = match path.join("pytorch_model.bin").exists()
                || path.join("pytorch_model.bin.index.json").exists()
            {
                true => "a directory with PyTorch weights only",
                false => "a directory without model.safetensors",
            };
            let way_out = "convert the weights to safetensors, or use a .gguf file";
            return Err(Fault::Recognised { what, way_out }.at(path));
        }
        if dir.tensors.is_empty() {
            let (what, way_out) = ("safetensors without a tensor", "fetch the model again");
            return Err(Fault::Recognised { what, way_out }.at(path));
        }
        Ok(dir)
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `config.json`.
    pub fn config(&self) -> &Map<String, Value> {
        &self.config
    }

    /// `generation_config.json`, empty if there is none.
    pub fn generation_config(&self) -> &Map<String, Value> {
        &self.generation_config
    }

    /// The path of `tokenizer.json`, if there is one.
    pub fn tokenizer_path(&self) -> Option<PathBuf> {
        Some(self.path.join("tokenizer.json")).filter(|path| path.is_file())
    }

    /// The path of `tokenizer_config.json`, if there is one.
    pub fn tokenizer_config_path(&self) -> Option<PathBuf> {
        Some(self.path.join("tokenizer_config.json")).filter(|path| path.is_file())
    }

    /// A tensor by name.
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        self.index.get(name).map(|&i| self.view(i))
    }

    /// All tensors, in the order of the shards' names and of the files.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = TensorView<'_>> {
        (0..self.tensors.len()).map(|i| self.view(i))
    }

    fn view(&self, i: usize) -> TensorView<'_> {
        let (shard, info) = &self.tensors[i];
        info.view(&self.shards[*shard])
    }

    fn add_shards(&mut self, index_path: &Path) -> Result<(), FileError> {
        let index: Index = read_json(index_path, MAX_INDEX_BYTES)?;
        let corrupt = |place, problem: String| Fault::Corrupt { place, problem }.at(index_path);
        // The index is untrusted: a shard's name must be a plain name, so that it stays inside.
        let names: BTreeSet<&str> = index.weight_map.values().map(String::as_str).collect();
        for &name in &names {
            let mut parts = Path::new(name).components();
            let plain = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None));
            if !plain || name.contains(['/', '\\', '\0']) {
                let problem = "is no plain file name".to_owned();
                return Err(corrupt(format!("the shard name \"{}\"", shown(name)), problem));
            }
        }
        for name in names {
            self.add_shard(&self.path.join(name))?;
        }
        for name in index.weight_map.keys() {
            if !self.index.contains_key(name) {
                let problem = "is in the index and in no shard".to_owned();
                return Err(corrupt(format!("tensor {}", shown(name)), problem));
            }
        }
        Ok(())
    }

    fn add_shard(&mut self, path: &Path) -> Result<(), FileError> {
        let bytes = Bytes::map(path).map_err(|error| Fault::Io(error).at(path))?;
        let tensors = read_header(&bytes).map_err(|fault| fault.at(path))?;
        for info in tensors {
            if self.index.insert(info.name.clone(), self.tensors.len()).is_some() {
                let place = format!("tensor {}", shown(&info.name));
                let problem = "is in another shard already".to_owned();
                return Err(Fault::Corrupt { place, problem }.at(path));
            }
            self.tensors.push((self.shards.len(), info));
        }
        self.shards.push(bytes);
        Ok(())
    }
}

/// The name of a GGUF file in the directory, for the error about a missing `config.json`.
fn gguf_hint(path: &Path) -> String {
    let names = std::fs::read_dir(path).into_iter().flatten().flatten().map(|file| file.path());
    match names.filter(|file| file.extension().is_some_and(|ext| ext == "gguf")).min() {
        Some(gguf) => format!("; did you mean {}?", gguf.display()),
        None => String::new(),
    }
}

#[derive(Deserialize)]
struct Index {
    weight_map: HashMap<String, String>,
}

fn read_object(path: &Path) -> Result<Map<String, Value>, FileError> {
    read_json(path, MAX_CONFIG_BYTES)
}

fn read_json<T: for<'a> Deserialize<'a>>(path: &Path, max_bytes: u64) -> Result<T, FileError> {
    let bytes = Bytes::map(path).map_err(|error| Fault::Io(error).at(path))?;
    if bytes.len() as u64 > max_bytes {
        let problem = format!("has {} bytes; at most {max_bytes} are read", bytes.len());
        return Err(Fault::Corrupt { place: "the file".to_owned(), problem }.at(path));
    }
    serde_json::from_slice(&bytes)
        .map_err(|error| Fault::Json(shorten(&error.to_string())).at(path))
}

/// The tensors of one file, in the order of their data.
pub(super) fn read_header(bytes: &[u8]) -> Result<Vec<TensorInfo>, Fault> {
    let file_bytes = bytes.len() as u64;
    let cut_off = |place: String, need: u64, left: u64| Fault::CutOff { place, need, left };
    let header = || "the header".to_owned();
    let Some((length, rest)) = bytes.split_first_chunk() else {
        return Err(cut_off(header(), 8, file_bytes));
    };
    let header_bytes = u64::from_le_bytes(*length);
    if header_bytes > rest.len() as u64 {
        return Err(cut_off(header(), header_bytes, rest.len() as u64));
    }
    if header_bytes > MAX_HEADER_BYTES {
        let problem = format!("has {header_bytes} bytes; at most {MAX_HEADER_BYTES} are read");
        return Err(Fault::Corrupt { place: header(), problem });
    }
    let (json, data) = rest.split_at(header_bytes as usize);
    let Header(entries) =
        serde_json::from_slice(json).map_err(|error| Fault::Json(shorten(&error.to_string())))?;

    let data_start = bytes.len() - data.len();
    let mut tensors = Vec::with_capacity(entries.len());
    for (name, entry) in entries {
        let place = || format!("tensor {}", shown(&name));
        let corrupt = |problem: String| Fault::Corrupt { place: place(), problem };
        let dtype = match &entry.dtype[..] {
            "F32" => DType::F32,
            "F16" => DType::F16,
            "BF16" => DType::BF16,
            other => {
                return Err(Fault::TensorType { name: shown(&name), dtype: shown(other) });
            }
        };
        let n_values = entry.shape.iter().try_fold(1_usize, |n, &dim| n.checked_mul(dim));
        let n_bytes = n_values.and_then(|n_values| dtype.n_bytes(n_values));
        let (start, end) = entry.data_offsets;
        if end > data.len() {
            let left = data.len().saturating_sub(start);
            return Err(cut_off(place(), end.saturating_sub(start) as u64, left as u64));
        }
        if n_bytes.is_none() || n_bytes != end.checked_sub(start) {
            let shape = shorten(&format!("{:?}", entry.shape));
            return Err(corrupt(format!("is {dtype} {shape} and lies at {start}..{end}")));
        }
        if n_bytes == Some(0) {
            return Err(corrupt("has a dimension of zero".to_owned()));
        }
        let range = data_start + start..data_start + end;
        tensors.push(TensorInfo { name, dtype, shape: entry.shape, range });
    }
    tensors.sort_by_key(|tensor| tensor.range.start);
    check_overlap(tensors.iter())?;
    Ok(tensors)
}

/// A header's tensors, each name once.
struct Header(HashMap<String, Entry>);

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (usize, usize),
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Header, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut entries = HashMap::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    let entry: Entry = map.next_value().map_err(|error| {
                        A::Error::custom(format!("tensor {}: {error}", shown(&name)))
                    })?;
                    if entries.contains_key(&name) {
                        let twice = format!("tensor {} is there twice", shown(&name));
                        return Err(A::Error::custom(twice));
                    }
                    entries.insert(name, entry);
                }
                Ok(Header(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::tensor::{Dtype, TensorView};

    /// A small file by the reference implementation.
    fn small() -> Vec<u8> {
        let view =
            |dtype, shape: &[usize]| TensorView::new(dtype, shape.to_vec(), &[1; 8]).unwrap();
        let tensors = [("a", view(Dtype::F32, &[2])), ("b", view(Dtype::BF16, &[1, 4]))];
        safetensors::serialize(tensors, None).unwrap()
    }

    #[test]
    fn a_file_cut_off_anywhere_is_an_error() {
        let bytes = small();
        assert_eq!(read_header(&bytes).unwrap().len(), 2);
        for len in 0..bytes.len() {
            let fault = read_header(&bytes[..len]).unwrap_err();
            assert!(matches!(fault, Fault::CutOff { .. }), "{len}: {fault}");
        }
    }

    #[test]
    fn single_bits_never_panic_nor_lead_outside() {
        let bytes = small();
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let infos = read_header(&bytes).unwrap_or_default();
            let file = Bytes::from(bytes);
            for info in infos {
                let view = info.view(&file);
                assert_eq!(view.dtype.n_bytes(view.n_values()), Some(view.bytes.len()));
            }
        }
    }
}
