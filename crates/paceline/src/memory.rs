//! How much memory the KV cache gets.

use std::fmt;
use std::fs;
use std::path::Path;
use std::str::FromStr;

const GIB: u64 = 1 << 30;

/// The most that the KV cache gets without being told.
const DEFAULT_LIMIT: u64 = 2 * GIB;

/// Memory for the KV cache: `2GiB`, `512MiB`, `1000000000` or a share of what is available, `50%`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KvMemory {
    /// This many bytes.
    Bytes(u64),
    /// This share of the memory that is available once the model is loaded, in (0, 1].
    Share(f64),
}

/// A text is no amount of memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no amount of memory: write 2GiB, 512MiB, a number of bytes, or a share like 50%")]
pub struct MemoryError(String);

impl FromStr for KvMemory {
    type Err = MemoryError;

    fn from_str(text: &str) -> Result<KvMemory, MemoryError> {
        let wrong = || MemoryError(text.to_owned());
        let trimmed = text.trim();
        if let Some(percent) = trimmed.strip_suffix('%') {
            let percent: f64 = percent.trim().parse().map_err(|_| wrong())?;
            return match percent > 0.0 && percent <= 100.0 {
                true => Ok(KvMemory::Share(percent / 100.0)),
                false => Err(wrong()),
            };
        }
        let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.');
        let (number, unit) = trimmed.split_at(digits.unwrap_or(trimmed.len()));
        let unit = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1u64,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "t" | "tib" => 1 << 40,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            _ => return Err(wrong()),
        };
        let bytes = number.parse::<f64>().map_err(|_| wrong())? * unit as f64;
        match bytes >= 1.0 && bytes <= (1u64 << 60) as f64 {
            true => Ok(KvMemory::Bytes(bytes as u64)),
            false => Err(wrong()),
        }
    }
}

impl From<u64> for KvMemory {
    fn from(bytes: u64) -> KvMemory {
        KvMemory::Bytes(bytes)
    }
}

impl fmt::Display for KvMemory {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            KvMemory::Bytes(bytes) => f.write_str(&binary(*bytes)),
            KvMemory::Share(share) => write!(f, "{}%", share * 100.0),
        }
    }
}

/// `1.5 GiB`
pub(crate) fn binary(bytes: u64) -> String {
    match bytes {
        _ if bytes >= GIB => format!("{:.1} GiB", bytes as f64 / GIB as f64),
        _ if bytes >= 1 << 20 => format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64),
        _ => format!("{:.1} KiB", bytes as f64 / 1024.0),
    }
}

/// The bytes to reserve for a KV cache: what was asked for; without that the least of 2 GiB, half of
/// the available memory, and `most`, what the engine can use at all.
pub(crate) fn kv_bytes(asked: Option<KvMemory>, most: u64, available: u64) -> u64 {
    match asked {
        Some(KvMemory::Bytes(bytes)) => bytes,
        Some(KvMemory::Share(share)) => (available as f64 * share) as u64,
        None => DEFAULT_LIMIT.min(available / 2).min(most),
    }
}

/// The memory that this process can still get: what the system has available, within the limit of
/// its control group. Where neither is known, as much as there can be.
pub(crate) fn available() -> u64 {
    let system = fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    });
    let group = group_available(Path::new("/sys/fs/cgroup"));
    system.into_iter().chain(group).min().unwrap_or(1 << 60)
}

/// What is left of a control group's memory (version 2).
fn group_available(folder: &Path) -> Option<u64> {
    let number = |file: &str| fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok();
    let (limit, used): (u64, u64) = (number("memory.max")?, number("memory.current")?);
    // Pages of files that were read count as used, and are given up when needed.
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let cached = stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.parse().ok());
    Some(limit.saturating_sub(used.saturating_sub(cached.unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read() {
        for (text, bytes) in [
            ("2GiB", 2 * GIB),
            ("1.5 gib", 3 * GIB / 2),
            ("512MiB", 512 << 20),
            ("512M", 512 << 20),
            ("1GB", 1_000_000_000),
            ("4096", 4096),
            ("100kB", 100_000),
        ] {
            assert_eq!(text.parse(), Ok(KvMemory::Bytes(bytes)), "{text}");
        }
        assert_eq!("50%".parse(), Ok(KvMemory::Share(0.5)));
        assert_eq!("100 %".parse(), Ok(KvMemory::Share(1.0)));
        for bad in [
            "",
            "GiB",
            "-1",
            "0",
            "0%",
            "101%",
            "nan%",
            "inf",
            "2XB",
            "1e3",
            "2 GiB more",
            "99999999TiB",
        ] {
            assert!(bad.parse::<KvMemory>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_default_is_the_least_of_three() {
        assert_eq!(kv_bytes(None, 10 * GIB, 100 * GIB), 2 * GIB);
        assert_eq!(kv_bytes(None, 10 * GIB, 3 * GIB), 3 * GIB / 2);
        assert_eq!(kv_bytes(None, GIB, 100 * GIB), GIB);
        assert_eq!(kv_bytes(Some(KvMemory::Share(0.5)), GIB, 8 * GIB), 4 * GIB);
        assert_eq!(kv_bytes(Some(KvMemory::Bytes(7)), GIB, GIB), 7);
    }

    #[test]
    fn the_limit_of_a_group_is_less_what_it_uses() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        assert_eq!(group_available(folder.path()), None);
        write("memory.max", "max\n");
        write("memory.current", "300\n");
        assert_eq!(group_available(folder.path()), None);
        write("memory.max", "1000\n");
        assert_eq!(group_available(folder.path()), Some(700));
        write("memory.stat", "anon 50\ninactive_file 250\n");
        assert_eq!(group_available(folder.path()), Some(950));
    }
}
