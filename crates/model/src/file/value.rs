//! [`Metadata`]: the typed values at the head of a GGUF file.

use super::error::{KeyError, shown};
use std::collections::HashMap;

/// A metadata value.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // The variants are GGUF's types.
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    /// Bytes, UTF-8 by convention.
    String(Vec<u8>),
    Array(Array),
}

/// An array of values of one type.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // The variants are GGUF's types.
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    Strings(Strings),
    Arrays(Vec<Array>),
}

/// Many byte strings in one buffer. A vocabulary has hundreds of thousands.
///
/// ```text
/// bytes  | t h e | o f | a n d |      string i = bytes[ends[i - 1]..ends[i]]
/// ends           3     5       8
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Strings {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Strings {
    pub(super) fn with_capacity(n_strings: usize) -> Strings {
        Strings { bytes: Vec::new(), ends: Vec::with_capacity(n_strings) }
    }

    /// Adds a string at the end.
    pub fn push(&mut self, string: &[u8]) {
        self.bytes.extend_from_slice(string);
        self.ends.push(self.bytes.len());
    }

    /// Number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no string.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// String `i`, not necessarily UTF-8.
    pub fn get(&self, i: usize) -> Option<&[u8]> {
        let end = *self.ends.get(i)?;
        let start = i.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.bytes[start..end])
    }

    /// All strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> + Clone {
        (0..self.len()).map(|i| {
            let start = i.checked_sub(1).map_or(0, |before| self.ends[before]);
            &self.bytes[start..self.ends[i]]
        })
    }

    /// Bytes of all strings together.
    pub fn n_bytes(&self) -> usize {
        self.bytes.len()
    }
}

impl<S: AsRef<[u8]>> FromIterator<S> for Strings {
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> Strings {
        let mut out = Strings::default();
        strings.into_iter().for_each(|string| out.push(string.as_ref()));
        out
    }
}

/// Calls `$body` with the vector behind any variant but `Strings`.
macro_rules! with_items {
    ($array:expr, $items:ident => $body:expr, $strings:ident => $other:expr) => {
        match $array {
            Array::U8($items) => $body,
            Array::I8($items) => $body,
            Array::U16($items) => $body,
            Array::I16($items) => $body,
            Array::U32($items) => $body,
            Array::I32($items) => $body,
            Array::U64($items) => $body,
            Array::I64($items) => $body,
            Array::F32($items) => $body,
            Array::F64($items) => $body,
            Array::Bool($items) => $body,
            Array::Arrays($items) => $body,
            Array::Strings($strings) => $other,
        }
    };
}

impl Array {
    /// Number of items.
    pub fn len(&self) -> usize {
        with_items!(self, items => items.len(), strings => strings.len())
    }

    /// Whether there is no item.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The type of the items, as GGUF spells it.
    pub fn item_type_name(&self) -> &'static str {
        match self {
            Array::U8(_) => "uint8",
            Array::I8(_) => "int8",
            Array::U16(_) => "uint16",
            Array::I16(_) => "int16",
            Array::U32(_) => "uint32",
            Array::I32(_) => "int32",
            Array::U64(_) => "uint64",
            Array::I64(_) => "int64",
            Array::F32(_) => "float32",
            Array::F64(_) => "float64",
            Array::Bool(_) => "bool",
            Array::Strings(_) => "string",
            Array::Arrays(_) => "array",
        }
    }

    fn brief(&self, max_chars: usize) -> String {
        // Items are shown while they fit; each takes at least one character and a separator.
        let (mut out, mut n_shown) = (String::from("["), 0);
        let mut add = |item: String| {
            let fits = n_shown == 0 || out.len() + item.len() + 2 <= max_chars;
            if fits {
                out.push_str(if n_shown == 0 { "" } else { ", " });
                out.push_str(&item);
                n_shown += 1;
            }
            fits
        };
        match self {
            Array::Strings(strings) => {
                strings.iter().all(|string| add(brief_string(string, max_chars / 2)))
            }
            Array::Arrays(arrays) => arrays.iter().all(|array| add(array.brief(max_chars / 2))),
            Array::U8(items) => items.iter().all(|item| add(item.to_string())),
            Array::I8(items) => items.iter().all(|item| add(item.to_string())),
            Array::U16(items) => items.iter().all(|item| add(item.to_string())),
            Array::I16(items) => items.iter().all(|item| add(item.to_string())),
            Array::U32(items) => items.iter().all(|item| add(item.to_string())),
            Array::I32(items) => items.iter().all(|item| add(item.to_string())),
            Array::U64(items) => items.iter().all(|item| add(item.to_string())),
            Array::I64(items) => items.iter().all(|item| add(item.to_string())),
            Array::F32(items) => items.iter().all(|item| add(item.to_string())),
            Array::F64(items) => items.iter().all(|item| add(item.to_string())),
            Array::Bool(items) => items.iter().all(|item| add(item.to_string())),
        };
        if n_shown < self.len() {
            out.push_str(&format!(", … {} in all", self.len()));
        }
        out.push(']');
        out
    }
}

fn brief_string(bytes: &[u8], max_chars: usize) -> String {
    // Cut before decoding: a chat template can be long.
    let head = &bytes[..bytes.len().min(max_chars * 4)];
    let text = String::from_utf8_lossy(head);
    let mut out: String = text.chars().take(max_chars).flat_map(char::escape_debug).collect();
    if head.len() < bytes.len() || text.chars().nth(max_chars).is_some() {
        out.push('…');
    }
    format!("\"{out}\"")
}

impl Value {
    /// The type, as GGUF spells it, e.g. `uint32` or `array of string`.
    pub fn type_name(&self) -> String {
        let name = match self {
            Value::U8(_) => "uint8",
            Value::I8(_) => "int8",
            Value::U16(_) => "uint16",
            Value::I16(_) => "int16",
            Value::U32(_) => "uint32",
            Value::I32(_) => "int32",
            Value::U64(_) => "uint64",
            Value::I64(_) => "int64",
            Value::F32(_) => "float32",
            Value::F64(_) => "float64",
            Value::Bool(_) => "bool",
            Value::String(_) => "string",
            Value::Array(array) => return format!("array of {}", array.item_type_name()),
        };
        name.to_owned()
    }

    /// The value on one line of about `max_chars` characters, strings quoted and escaped, long
    /// values cut off with `…`.
    pub fn brief(&self, max_chars: usize) -> String {
        match self {
            Value::U8(value) => value.to_string(),
            Value::I8(value) => value.to_string(),
            Value::U16(value) => value.to_string(),
            Value::I16(value) => value.to_string(),
            Value::U32(value) => value.to_string(),
            Value::I32(value) => value.to_string(),
            Value::U64(value) => value.to_string(),
            Value::I64(value) => value.to_string(),
            Value::F32(value) => value.to_string(),
            Value::F64(value) => value.to_string(),
            Value::Bool(value) => value.to_string(),
            Value::String(bytes) => brief_string(bytes, max_chars),
            Value::Array(array) => array.brief(max_chars),
        }
    }

    /// The value if it is an integer of any width.
    fn integer(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(value) => value.into(),
            Value::I8(value) => value.into(),
            Value::U16(value) => value.into(),
            Value::I16(value) => value.into(),
            Value::U32(value) => value.into(),
            Value::I32(value) => value.into(),
            Value::U64(value) => value.into(),
            Value::I64(value) => value.into(),
            _ => return None,
        })
    }
}

/// The metadata of a GGUF file, in file order, each key once.
///
/// A `get_` method returns `None` for an absent key and an error for a value of another type, so
/// that nothing in a file is ignored by accident; a `require_` method takes absence as an error too.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

macro_rules! required {
    ($($require:ident is $get:ident as $type:ty;)*) => {$(
        #[doc = concat!("As [`Metadata::", stringify!($get), "`], of a key that must be there.")]
        ///
        /// # Errors
        /// If the key is absent or its value has another type.
        pub fn $require(&self, key: &str) -> Result<$type, KeyError> {
            self.$get(key)?.ok_or_else(|| KeyError::Missing { key: shown(key) })
        }
    )*};
}

impl Metadata {
    /// Adds an entry at the end; `false` if the key is there already.
    pub fn insert(&mut self, key: String, value: Value) -> bool {
        let fresh = !self.index.contains_key(&key);
        if fresh {
            self.index.insert(key.clone(), self.entries.len());
            self.entries.push((key, value));
        }
        fresh
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All entries in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The raw value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&i| &self.entries[i].1)
    }

    fn get_as<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, KeyError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match read(value) {
            Some(found) => Ok(Some(found)),
            None => Err(KeyError::Type { key: shown(key), expected, found: describe(value) }),
        }
    }

    /// A string that must be UTF-8.
    ///
    /// # Errors
    /// If the value is no string or not UTF-8.
    pub fn get_str(&self, key: &str) -> Result<Option<&str>, KeyError> {
        self.get_as(key, "a UTF-8 string", |value| match value {
            Value::String(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        })
    }

    /// An integer of any width that is not negative.
    ///
    /// # Errors
    /// If the value is no integer or negative.
    pub fn get_u64(&self, key: &str) -> Result<Option<u64>, KeyError> {
        self.get_as(key, "a non-negative integer", |value| value.integer()?.try_into().ok())
    }

    /// An integer of any width.
    ///
    /// # Errors
    /// If the value is no integer or over 2^63 - 1.
    pub fn get_i64(&self, key: &str) -> Result<Option<i64>, KeyError> {
        self.get_as(key, "an integer up to 2^63 - 1", |value| value.integer()?.try_into().ok())
    }

    /// An integer of any width that fits in 32 bits, such as a token id.
    ///
    /// # Errors
    /// If the value is no integer, negative or too large.
    pub fn get_u32(&self, key: &str) -> Result<Option<u32>, KeyError> {
        self.get_as(key, "a non-negative 32-bit integer", |value| value.integer()?.try_into().ok())
    }

    /// An integer of any width that is not negative.
    ///
    /// # Errors
    /// If the value is no integer, negative or too large for this machine.
    pub fn get_usize(&self, key: &str) -> Result<Option<usize>, KeyError> {
        self.get_as(key, "a non-negative integer", |value| value.integer()?.try_into().ok())
    }

    /// A number: float of either width, or integer.
    ///
    /// # Errors
    /// If the value is no number.
    pub fn get_f32(&self, key: &str) -> Result<Option<f32>, KeyError> {
        self.get_as(key, "a number", |value| match value {
            Value::F32(value) => Some(*value),
            Value::F64(value) => Some(*value as f32),
            value => value.integer().map(|value| value as f32),
        })
    }

    /// A truth value.
    ///
    /// # Errors
    /// If the value has another type.
    pub fn get_bool(&self, key: &str) -> Result<Option<bool>, KeyError> {
        self.get_as(key, "a bool", |value| match value {
            Value::Bool(value) => Some(*value),
            _ => None,
        })
    }

    /// An array of byte strings.
    ///
    /// # Errors
    /// If the value has another type.
    pub fn get_strings(&self, key: &str) -> Result<Option<&Strings>, KeyError> {
        self.get_as(key, "an array of string", |value| match value {
            Value::Array(Array::Strings(strings)) => Some(strings),
            _ => None,
        })
    }

    /// An array of 32-bit floats.
    ///
    /// # Errors
    /// If the value has another type.
    pub fn get_f32s(&self, key: &str) -> Result<Option<&[f32]>, KeyError> {
        self.get_as(key, "an array of float32", |value| match value {
            Value::Array(Array::F32(items)) => Some(&items[..]),
            _ => None,
        })
    }

    /// An array of 32-bit signed integers.
    ///
    /// # Errors
    /// If the value has another type.
    pub fn get_i32s(&self, key: &str) -> Result<Option<&[i32]>, KeyError> {
        self.get_as(key, "an array of int32", |value| match value {
            Value::Array(Array::I32(items)) => Some(&items[..]),
            _ => None,
        })
    }

    required! {
        require_str is get_str as &str;
        require_u64 is get_u64 as u64;
        require_u32 is get_u32 as u32;
        require_usize is get_usize as usize;
        require_f32 is get_f32 as f32;
        require_bool is get_bool as bool;
        require_strings is get_strings as &Strings;
        require_f32s is get_f32s as &[f32];
        require_i32s is get_i32s as &[i32];
    }
}

/// The type, and of a number the value as well, for an error message.
fn describe(value: &Value) -> String {
    match value {
        Value::Array(array) => format!("an array of {} {}", array.len(), array.item_type_name()),
        value => format!("the {} {}", value.type_name(), value.brief(40)),
    }
}
