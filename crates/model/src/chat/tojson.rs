//! The `tojson` filter as transformers defines it: Python's `json.dumps(ensure_ascii=False)`.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};
use std::fmt::Write;

/// Nesting at which a value is refused; `serde_json` refuses more in a request.
const MAX_DEPTH: usize = 128;

struct Style {
    ensure_ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

/// `value | tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false)`
pub(super) fn tojson(state: &State, value: &Value, args: Kwargs) -> Result<String, Error> {
    let indent = match args.get::<Option<Value>>("indent")? {
        None => None,
        Some(indent) if indent.is_none() => None,
        Some(indent) => Some(match (indent.as_str(), indent.as_usize()) {
            (Some(text), _) => text.to_owned(),
            (None, Some(n)) if n <= 64 => " ".repeat(n),
            _ => return Err(invalid("tojson: indent must be a string or at most 64")),
        }),
    };
    let (item_separator, key_separator) = match args.get::<Option<Value>>("separators")? {
        Some(pair) if !pair.is_none() => {
            let part = |i: usize| pair.get_item_by_index(i).map(|part| part.to_string());
            (part(0)?, part(1)?)
        }
        _ if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        _ => (", ".to_owned(), ": ".to_owned()),
    };
    let style = Style {
        ensure_ascii: args.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        indent,
        item_separator,
        key_separator,
        sort_keys: args.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    args.assert_all_used()?;
    let mut out = String::new();
    style.write(state, value, 0, &mut out)?;
    Ok(out)
}

fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

impl Style {
    fn write(
        &self,
        state: &State,
        value: &Value,
        depth: usize,
        out: &mut String,
    ) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(invalid("tojson: the value is nested too deeply"));
        }
        state.consume_fuel(1)?;
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => write_number(value, out),
            ValueKind::String => self.write_string(state, value.as_str().unwrap_or(""), out)?,
            ValueKind::Seq | ValueKind::Iterable => {
                out.push('[');
                let mut n = 0;
                for item in value.try_iter()? {
                    self.separate(n, depth + 1, out);
                    self.write(state, &item, depth + 1, out)?;
                    n += 1;
                }
                self.close(n, depth, ']', out);
            }
            ValueKind::Map => {
                out.push('{');
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                for (n, key) in keys.iter().enumerate() {
                    self.separate(n, depth + 1, out);
                    self.write_key(state, key, out)?;
                    out.push_str(&self.key_separator);
                    self.write(state, &value.get_item(key)?, depth + 1, out)?;
                }
                self.close(keys.len(), depth, '}', out);
            }
            kind => return Err(invalid(format!("tojson: {kind} is not JSON serializable"))),
        }
        Ok(())
    }

    fn write_key(&self, state: &State, key: &Value, out: &mut String) -> Result<(), Error> {
        let text = match key.kind() {
            ValueKind::String => return self.write_string(state, key.as_str().unwrap_or(""), out),
            ValueKind::None => "null".to_owned(),
            ValueKind::Bool => key.is_true().to_string(),
            ValueKind::Number => {
                let mut text = String::new();
                write_number(key, &mut text);
                text
            }
            kind => return Err(invalid(format!("tojson: a key must be a string, not {kind}"))),
        };
        self.write_string(state, &text, out)
    }

    fn separate(&self, n_before: usize, depth: usize, out: &mut String) {
        if n_before > 0 {
            out.push_str(&self.item_separator);
        }
        self.new_line(depth, out);
    }

    fn close(&self, n_items: usize, depth: usize, bracket: char, out: &mut String) {
        if n_items > 0 {
            self.new_line(depth, out);
        }
        out.push(bracket);
    }

    fn new_line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(indent.as_str(), depth));
        }
    }

    fn write_string(&self, state: &State, text: &str, out: &mut String) -> Result<(), Error> {
        state.consume_fuel(text.len() as u64 / 64)?;
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                '\0'..='\u{1f}' => push_escape(c as u16, out),
                // A sentinel has to stay what it is: see the guard.
                '\u{e000}'..='\u{f8ff}' | '\u{fdd0}'..='\u{fdef}' => out.push(c),
                c if self.ensure_ascii && !c.is_ascii() => {
                    c.encode_utf16(&mut [0; 2]).iter().for_each(|&unit| push_escape(unit, out));
                }
                c => out.push(c),
            }
        }
        out.push('"');
        Ok(())
    }
}

fn push_escape(unit: u16, out: &mut String) {
    let _ = write!(out, "\\u{unit:04x}");
}

fn write_number(value: &Value, out: &mut String) {
    match f64::try_from(value.clone()) {
        Ok(float) if !value.is_integer() => match () {
            () if float.is_nan() => out.push_str("NaN"),
            () if float == f64::INFINITY => out.push_str("Infinity"),
            () if float == f64::NEG_INFINITY => out.push_str("-Infinity"),
            () => out.push_str(&float_repr(float)),
        },
        _ => {
            let _ = write!(out, "{value}");
        }
    }
}

/// A float as Python writes it: 1.0, 1e-05, 1.5e+16.
pub(super) fn float_repr(float: f64) -> String {
    if float == 0.0 || !float.is_finite() || (1e-4..1e16).contains(&float.abs()) {
        return format!("{float:?}").to_lowercase();
    }
    let text = format!("{float:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    format!("{digits}e{sign}{exponent:0>2}")
}
