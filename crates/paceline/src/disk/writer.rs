//! [`Writer`]: the thread that writes blocks, so that no step waits for the disk.

use super::{Shared, block, create_folder, warn};
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::SystemTime;

/// Memory of the blocks that wait to be written.
const QUEUE_BYTES: usize = 64 << 20;

/// The most blocks that wait, however small.
const QUEUE_LEN: usize = 1024;

/// A block to be written.
pub struct Job {
    /// Its path below the folder.
    pub name: String,
    pub header: Vec<u8>,
    pub bytes: Vec<u8>,
    pub used: SystemTime,
}

pub struct Writer {
    shared: Arc<Shared>,
    jobs: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub fn start(shared: Arc<Shared>, block_bytes: usize) -> io::Result<Writer> {
        let (jobs, queue) = sync_channel((QUEUE_BYTES / block_bytes.max(1)).clamp(1, QUEUE_LEN));
        let of_thread = shared.clone();
        let thread = std::thread::Builder::new()
            .name("kv disk".to_owned())
            .spawn(move || run(&of_thread, &queue))?;
        Ok(Writer { shared, jobs: Some(jobs), thread: Some(thread) })
    }

    /// Puts a block in the queue; if that is full, waits or drops it.
    pub fn write(&self, job: Job, wait: bool) {
        let Some(jobs) = &self.jobs else { return };
        let name = job.name.clone();
        self.shared.index().begin(&name);
        let sent = if wait { jobs.send(job).is_ok() } else { jobs.try_send(job).is_ok() };
        if !sent {
            self.shared.index().end(&name);
        }
    }
}

impl Drop for Writer {
    /// Waits until all is written.
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // Its panic, if there was one, has been printed.
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared, queue: &Receiver<Job>) {
    for job in queue {
        if !shared.index().is_off {
            write(shared, &job).unwrap_or_else(|error| {
                shared.index().is_off = true;
                warn(&format!(
                    "--kv-cache-dir {}: {error}; nothing is kept on disk from now on",
                    shared.folder.display()
                ));
            });
        }
        shared.index().end(&job.name);
    }
}

fn write(shared: &Shared, job: &Job) -> io::Result<()> {
    let n_bytes = block::file_bytes(job.header.len(), job.bytes.len());
    loop {
        let Some(oldest) = shared.index().oldest_for(n_bytes) else { break };
        shared.index().remove(&oldest);
        match fs::remove_file(shared.path(&oldest)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    if !shared.index().has_room(n_bytes) {
        return Ok(());
    }
    let path = shared.path(&job.name);
    let partial = path.with_extension("tmp");
    let written = write_file(&partial, &path, job);
    if written.is_err() {
        // What is left of it, the next start removes.
        let _ = fs::remove_file(partial);
    }
    written?;
    shared.index().insert(&job.name, n_bytes, job.used);
    Ok(())
}

/// Writes a file under another name first: a reader never sees half of it. That the system may lose it
/// with the power is no harm, so nothing waits for the disk itself.
fn write_file(partial: &Path, path: &Path, job: &Job) -> io::Result<()> {
    let mut options = File::options();
    options.create(true).truncate(true).write(true);
    let mut file = options.open(partial).or_else(|_| {
        partial.parent().map_or(Ok(()), create_folder)?;
        options.open(partial)
    })?;
    block::write(&mut file, &job.header, &job.bytes)?;
    file.set_modified(job.used)?;
    drop(file);
    fs::rename(partial, path)
}
