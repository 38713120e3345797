//! GGUF, versions 2 and 3, little-endian.
//!
//! ```text
//! "GGUF" | version u32 | n_tensors u64 | n_entries u64
//! entries: key string | type u32 | value                       string = length u64 | bytes
//! tensors: name string | n_dims u32 | dims u64 × n_dims | type u32 | offset u64
//! padding to the alignment | data of the tensors, each at an aligned offset from here
//! ```
//!
//! Source: the GGUF specification in ggml's `docs/gguf.md`. Nothing in a file is trusted: every
//! length is checked against the bytes that remain before anything is allocated for it, so that a
//! file costs memory in proportion to its size at most.

use super::error::{Fault, FileError, shown};
use super::mmap::Bytes;
use super::value::{Array, Metadata, Strings, Value};
use super::{TensorInfo, TensorView, check_overlap};
use paceline_kernels::DType;
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The first bytes of every GGUF file.
pub(super) const MAGIC: &[u8; 4] = b"GGUF";

/// Bytes to which tensors are aligned when `general.alignment` does not say.
const DEFAULT_ALIGNMENT: u64 = 32;
/// Files have pages of kilobytes at most; this only keeps sums in range.
const MAX_ALIGNMENT: u64 = 1 << 30;
/// ggml has no tensor of more dimensions.
const MAX_DIMS: u32 = 4;
/// The specification's limit for keys. Tensor names are shorter still.
const MAX_NAME_BYTES: usize = 65_535;
/// Arrays in arrays are allowed and used by nobody: refuse to recurse further than this.
const MAX_ARRAY_DEPTH: usize = 4;

/// A GGUF file: metadata and tensors, the latter not copied out of the map.
#[derive(Debug)]
pub struct GgufFile {
    path: PathBuf,
    bytes: Bytes,
    version: u32,
    alignment: usize,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
}

impl GgufFile {
    /// Maps and parses a file. Weights are checked for their place and size only.
    ///
    /// # Errors
    /// If the file cannot be read or is no valid GGUF file of version 2 or 3.
    pub fn open(path: &Path) -> Result<GgufFile, FileError> {
        let bytes = Bytes::map(path).map_err(|error| Fault::Io(error).at(path))?;
        GgufFile::parse(path.to_owned(), bytes)
    }

    /// Parses the contents of a file that is in memory.
    ///
    /// # Errors
    /// As [`GgufFile::open`].
    pub fn from_bytes(bytes: Vec<u8>) -> Result<GgufFile, FileError> {
        GgufFile::parse(PathBuf::from("<memory>"), bytes.into())
    }

    pub(super) fn parse(path: PathBuf, bytes: Bytes) -> Result<GgufFile, FileError> {
        match Head::read(&bytes) {
            Ok(Head { version, alignment, metadata, tensors, index }) => {
                Ok(GgufFile { path, bytes, version, alignment, metadata, tensors, index })
            }
            Err(fault) => Err(fault.at(&path)),
        }
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The version of the format, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Bytes to which the tensors are aligned.
    pub fn alignment(&self) -> usize {
        self.alignment
    }

    /// The metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// A tensor by name.
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        self.index.get(name).map(|&i| self.tensors[i].view(&self.bytes))
    }

    /// The bytes of a tensor, a whole number of blocks of its type.
    pub fn tensor_bytes(&self, name: &str) -> Option<&[u8]> {
        self.tensor(name).map(|tensor| tensor.bytes)
    }

    pub(super) fn views(&self) -> impl ExactSizeIterator<Item = TensorView<'_>> {
        self.tensors.iter().map(|info| info.view(&self.bytes))
    }
}

/// All of a file but the weights.
struct Head {
    version: u32,
    alignment: usize,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
}

impl Head {
    fn read(bytes: &[u8]) -> Result<Head, Fault> {
        let mut reader = Reader { bytes, position: 0, place: "the header".to_owned() };
        if reader.array::<4>()? != *MAGIC {
            return Err(Fault::NotAModel);
        }
        let version = reader.u32()?;
        match version {
            2 | 3 => {}
            _ if version.swap_bytes() <= 0xffff => return Err(Fault::BigEndian),
            _ => return Err(Fault::GgufVersion(version)),
        }
        let n_tensors = reader.u64()?;
        let n_entries = reader.u64()?;

        // The smallest entry: a key of no bytes, a type, one byte.
        reader.claim(n_entries, 8 + 4 + 1)?;
        let mut metadata = Metadata::default();
        for i in 0..n_entries {
            reader.place = format!("metadata entry {i}");
            let key = reader.name("a key")?;
            reader.place = format!("the value of {}", shown(&key));
            let value_type = reader.u32()?;
            let value = reader.value(value_type)?;
            if !metadata.insert(key, value) {
                return Err(reader.corrupt("is there twice"));
            }
        }

        let alignment = match metadata.get_u64("general.alignment")? {
            None => DEFAULT_ALIGNMENT,
            Some(alignment) if alignment.is_power_of_two() && alignment <= MAX_ALIGNMENT => {
                alignment
            }
            Some(alignment) => {
                reader.place = "general.alignment".to_owned();
                let problem = match alignment > MAX_ALIGNMENT {
                    true => format!("more than {MAX_ALIGNMENT}"),
                    false => "which is no power of two".to_owned(),
                };
                return Err(reader.corrupt(format!("is {alignment}, {problem}")));
            }
        };

        reader.place = "the tensor list".to_owned();
        // The smallest tensor: a name of one byte, no dimensions, a type, an offset.
        reader.claim(n_tensors, 8 + 1 + 4 + 4 + 8)?;
        let mut tensors = Vec::new();
        let mut index = HashMap::new();
        for i in 0..n_tensors {
            reader.place = format!("tensor {i}");
            let tensor = reader.tensor()?;
            if index.insert(tensor.name.clone(), tensors.len()).is_some() {
                return Err(reader.corrupt("is there twice"));
            }
            tensors.push(tensor);
        }

        let data_start = (reader.position as u64).next_multiple_of(alignment);
        place_tensors(&mut tensors, data_start, alignment, bytes.len() as u64)?;
        Ok(Head { version, alignment: alignment as usize, metadata, tensors, index })
    }
}

/// Turns ranges that count from the start of the data into ranges of the file, and checks them.
fn place_tensors(
    tensors: &mut [TensorInfo],
    data_start: u64,
    alignment: u64,
    file_bytes: u64,
) -> Result<(), Fault> {
    for tensor in tensors.iter_mut() {
        let place = || format!("tensor {}", shown(&tensor.name));
        let Range { start, end } = tensor.range.clone();
        if !(start as u64).is_multiple_of(alignment) {
            let problem = format!("starts at {start}, not aligned to {alignment}");
            return Err(Fault::Corrupt { place: place(), problem });
        }
        let need = (end - start) as u64;
        match data_start.checked_add(end as u64) {
            Some(end) if end <= file_bytes => {
                // Both fit in usize now: the file is mapped.
                tensor.range = (end - need) as usize..end as usize;
            }
            _ => {
                let left = file_bytes.saturating_sub(data_start.saturating_add(start as u64));
                return Err(Fault::CutOff { place: place(), need, left });
            }
        }
    }
    let mut by_start: Vec<&TensorInfo> = tensors.iter().collect();
    by_start.sort_by_key(|tensor| tensor.range.start);
    check_overlap(by_start.into_iter())
}

/// A position in the file, and the part being read for error messages.
struct Reader<'a> {
    bytes: &'a [u8],
    position: usize,
    place: String,
}

impl<'a> Reader<'a> {
    fn corrupt(&self, problem: impl Into<String>) -> Fault {
        Fault::Corrupt { place: self.place.clone(), problem: problem.into() }
    }

    /// Checks that `n_items` of at least `item_bytes` each can follow, before memory is spent on
    /// them. Returns the number as `usize`.
    fn claim(&self, n_items: u64, item_bytes: usize) -> Result<usize, Fault> {
        let left = self.bytes.len() - self.position;
        let need = n_items.saturating_mul(item_bytes as u64);
        if need > left as u64 {
            return Err(Fault::CutOff { place: self.place.clone(), need, left: left as u64 });
        }
        Ok(n_items as usize)
    }

    fn take(&mut self, n_bytes: u64) -> Result<&'a [u8], Fault> {
        let n_bytes = self.claim(n_bytes, 1)?;
        let taken = &self.bytes[self.position..self.position + n_bytes];
        self.position += n_bytes;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64)?);
        Ok(out)
    }

    fn u32(&mut self) -> Result<u32, Fault> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, Fault> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn string(&mut self) -> Result<&'a [u8], Fault> {
        let n_bytes = self.u64()?;
        self.take(n_bytes)
    }

    fn name(&mut self, what: &str) -> Result<String, Fault> {
        let bytes = self.string()?;
        match std::str::from_utf8(bytes) {
            Ok(name) if !name.is_empty() && name.len() <= MAX_NAME_BYTES => Ok(name.to_owned()),
            Ok("") => Err(self.corrupt(format!("has {what} of no bytes"))),
            Ok(_) => Err(self.corrupt(format!("has {what} of {} bytes", bytes.len()))),
            Err(_) => Err(self.corrupt(format!("has {what} that is not UTF-8"))),
        }
    }

    fn bool(&self, byte: u8) -> Result<bool, Fault> {
        match byte {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.corrupt(format!("has {byte} as a bool"))),
        }
    }

    fn value(&mut self, value_type: u32) -> Result<Value, Fault> {
        Ok(match value_type {
            0 => Value::U8(u8::from_le_bytes(self.array()?)),
            1 => Value::I8(i8::from_le_bytes(self.array()?)),
            2 => Value::U16(u16::from_le_bytes(self.array()?)),
            3 => Value::I16(i16::from_le_bytes(self.array()?)),
            4 => Value::U32(u32::from_le_bytes(self.array()?)),
            5 => Value::I32(i32::from_le_bytes(self.array()?)),
            6 => Value::F32(f32::from_le_bytes(self.array()?)),
            7 => {
                let [byte] = self.array()?;
                Value::Bool(self.bool(byte)?)
            }
            8 => Value::String(self.string()?.to_vec()),
            9 => Value::Array(self.items(1)?),
            10 => Value::U64(u64::from_le_bytes(self.array()?)),
            11 => Value::I64(i64::from_le_bytes(self.array()?)),
            12 => Value::F64(f64::from_le_bytes(self.array()?)),
            other => return Err(self.corrupt(format!("has the unknown value type {other}"))),
        })
    }

    fn items(&mut self, depth: usize) -> Result<Array, Fault> {
        let item_type = self.u32()?;
        let n_items = self.u64()?;
        Ok(match item_type {
            0 => Array::U8(self.numbers(n_items, u8::from_le_bytes)?),
            1 => Array::I8(self.numbers(n_items, i8::from_le_bytes)?),
            2 => Array::U16(self.numbers(n_items, u16::from_le_bytes)?),
            3 => Array::I16(self.numbers(n_items, i16::from_le_bytes)?),
            4 => Array::U32(self.numbers(n_items, u32::from_le_bytes)?),
            5 => Array::I32(self.numbers(n_items, i32::from_le_bytes)?),
            6 => Array::F32(self.numbers(n_items, f32::from_le_bytes)?),
            7 => {
                let bytes = self.take(n_items)?;
                Array::Bool(bytes.iter().map(|&byte| self.bool(byte)).collect::<Result<_, _>>()?)
            }
            8 => {
                let n_items = self.claim(n_items, 8)?;
                let mut strings = Strings::with_capacity(n_items);
                for _ in 0..n_items {
                    strings.push(self.string()?);
                }
                Array::Strings(strings)
            }
            9 if depth == MAX_ARRAY_DEPTH => {
                return Err(self.corrupt(format!("nests arrays deeper than {MAX_ARRAY_DEPTH}")));
            }
            9 => {
                // An array takes at least its type and its length.
                let n_items = self.claim(n_items, 4 + 8)?;
                Array::Arrays(
                    (0..n_items).map(|_| self.items(depth + 1)).collect::<Result<_, _>>()?,
                )
            }
            10 => Array::U64(self.numbers(n_items, u64::from_le_bytes)?),
            11 => Array::I64(self.numbers(n_items, i64::from_le_bytes)?),
            12 => Array::F64(self.numbers(n_items, f64::from_le_bytes)?),
            other => return Err(self.corrupt(format!("has the unknown item type {other}"))),
        })
    }

    fn numbers<T, const N: usize>(
        &mut self,
        n_items: u64,
        from_le_bytes: fn([u8; N]) -> T,
    ) -> Result<Vec<T>, Fault> {
        self.claim(n_items, N)?;
        let (items, _) = self.take(n_items * N as u64)?.as_chunks();
        Ok(items.iter().map(|&item| from_le_bytes(item)).collect())
    }

    /// One line of the tensor list. The range counts from the start of the data still.
    fn tensor(&mut self) -> Result<TensorInfo, Fault> {
        let name = self.name("a name")?;
        self.place = format!("tensor {}", shown(&name));
        let n_dims = self.u32()?;
        if n_dims > MAX_DIMS {
            return Err(self.corrupt(format!("has {n_dims} dimensions")));
        }
        let mut shape = Vec::new();
        let mut n_values = Some(1_usize);
        for _ in 0..n_dims {
            let dim = self.u64()?;
            if dim == 0 {
                return Err(self.corrupt("has a dimension of zero"));
            }
            let dim = usize::try_from(dim).ok();
            n_values = n_values.zip(dim).and_then(|(n_values, dim)| n_values.checked_mul(dim));
            shape.push(dim.unwrap_or(usize::MAX));
        }
        shape.reverse();
        let type_id = self.u32()?;
        let offset = self.u64()?;
        let Some(dtype) = DType::from_ggml_id(type_id) else {
            let dtype = format!("number {type_id}");
            return Err(Fault::TensorType { name: shown(&name), dtype });
        };
        let row_len = shape.last().copied().unwrap_or(1);
        let block_len = dtype.info().block_len;
        if !row_len.is_multiple_of(block_len) {
            let problem = format!("has rows of {row_len} values; {dtype} packs {block_len}");
            return Err(self.corrupt(problem));
        }
        let n_bytes = n_values.and_then(|n_values| dtype.n_bytes(n_values));
        let range = usize::try_from(offset).ok().zip(n_bytes).and_then(|(start, n_bytes)| {
            let end = start.checked_add(n_bytes)?;
            Some(start..end)
        });
        match range {
            Some(range) => Ok(TensorInfo { name, dtype, shape, range }),
            None => Err(self.corrupt(format!("has the impossible size {shape:?} at {offset}"))),
        }
    }
}
