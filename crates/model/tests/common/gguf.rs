//! Writes small GGUF files.

use paceline_kernels::DType;
use paceline_model::file::{Array, Value};

/// A GGUF file in the making. The fields can be set to nonsense.
#[derive(Clone)]
pub struct Gguf {
    pub magic: [u8; 4],
    pub version: u32,
    pub n_entries: Option<u64>,
    pub n_tensors: Option<u64>,
    pub alignment: usize,
    pub entries: Vec<(Vec<u8>, Vec<u8>)>,
    pub tensors: Vec<Tensor>,
}

/// A tensor in the making, its dimensions innermost first as in the file.
#[derive(Clone)]
pub struct Tensor {
    pub name: Vec<u8>,
    pub dims: Vec<u64>,
    pub type_id: u32,
    /// Counted from the start of the data; the next aligned place if absent.
    pub offset: Option<u64>,
    pub data: Vec<u8>,
}

impl Default for Gguf {
    fn default() -> Gguf {
        Gguf {
            magic: *b"GGUF",
            version: 3,
            n_entries: None,
            n_tensors: None,
            alignment: 32,
            entries: Vec::new(),
            tensors: Vec::new(),
        }
    }
}

impl Gguf {
    /// Adds an entry.
    pub fn with(mut self, key: &str, value: Value) -> Gguf {
        self.entries.push((key.into(), encode(&value)));
        self
    }

    /// Puts a value in the place of the one with the same key, or adds it.
    pub fn set(mut self, key: &str, value: Value) -> Gguf {
        self = self.without(key);
        self.with(key, value)
    }

    /// Removes an entry.
    pub fn without(mut self, key: &str) -> Gguf {
        self.entries.retain(|(k, _)| k != key.as_bytes());
        self
    }

    /// Adds an entry from bytes.
    pub fn with_raw(mut self, key: &[u8], type_id: u32, bytes: &[u8]) -> Gguf {
        self.entries.push((key.to_vec(), [&type_id.to_le_bytes(), bytes].concat()));
        self
    }

    /// Adds a tensor of shape `[out, in]` or `[n]`.
    pub fn with_tensor(mut self, name: &str, dtype: DType, shape: &[usize], data: &[u8]) -> Gguf {
        let dims = shape.iter().rev().map(|&dim| dim as u64).collect();
        let (type_id, data) = (dtype.info().ggml_id, data.to_vec());
        self.tensors.push(Tensor { name: name.into(), dims, type_id, offset: None, data });
        self
    }

    /// The file's bytes; they end with the last tensor.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.n_tensors.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.n_entries.unwrap_or(self.entries.len() as u64).to_le_bytes());
        for (key, value) in &self.entries {
            out.extend(string(key));
            out.extend(value);
        }
        let mut data = Vec::new();
        for tensor in &self.tensors {
            pad(&mut data, self.alignment);
            out.extend(string(&tensor.name));
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(tensor.type_id.to_le_bytes());
            out.extend(tensor.offset.unwrap_or(data.len() as u64).to_le_bytes());
            data.extend(&tensor.data);
        }
        pad(&mut out, self.alignment);
        out.extend(data);
        out
    }
}

fn pad(out: &mut Vec<u8>, alignment: usize) {
    out.resize(out.len().next_multiple_of(alignment), 0);
}

fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes()[..], bytes].concat()
}

/// The type and the bytes of a value.
fn encode(value: &Value) -> Vec<u8> {
    let (type_id, bytes) = match value {
        Value::U8(x) => (0_u32, x.to_le_bytes().to_vec()),
        Value::I8(x) => (1, x.to_le_bytes().to_vec()),
        Value::U16(x) => (2, x.to_le_bytes().to_vec()),
        Value::I16(x) => (3, x.to_le_bytes().to_vec()),
        Value::U32(x) => (4, x.to_le_bytes().to_vec()),
        Value::I32(x) => (5, x.to_le_bytes().to_vec()),
        Value::F32(x) => (6, x.to_le_bytes().to_vec()),
        Value::Bool(x) => (7, vec![u8::from(*x)]),
        Value::String(x) => (8, string(x)),
        Value::Array(x) => (9, encode_array(x)),
        Value::U64(x) => (10, x.to_le_bytes().to_vec()),
        Value::I64(x) => (11, x.to_le_bytes().to_vec()),
        Value::F64(x) => (12, x.to_le_bytes().to_vec()),
    };
    [&type_id.to_le_bytes()[..], &bytes].concat()
}

fn encode_array(array: &Array) -> Vec<u8> {
    let (type_id, items): (u32, Vec<u8>) = match array {
        Array::U8(items) => (0, items.clone()),
        Array::I8(items) => (1, items.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Array::U16(items) => (2, items.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Array::I16(items) => (3, items.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Array::U32(items) => (4, items.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Array::I32(items) => (5, items.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Array::F32(items) => (6, items.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Array::Bool(items) => (7, items.iter().map(|&x| u8::from(x)).collect()),
        Array::Strings(items) => (8, items.iter().flat_map(string).collect()),
        Array::Arrays(items) => (9, items.iter().flat_map(encode_array).collect()),
        Array::U64(items) => (10, items.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Array::I64(items) => (11, items.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Array::F64(items) => (12, items.iter().flat_map(|x| x.to_le_bytes()).collect()),
    };
    [&type_id.to_le_bytes()[..], &(array.len() as u64).to_le_bytes(), &items].concat()
}
