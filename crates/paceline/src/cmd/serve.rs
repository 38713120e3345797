//! `paceline serve`: serves a model over HTTP until a signal comes.

use crate::args::Serve;
use crate::log;
use crate::open::{self, Opened};
use anyhow::Context;
use clap::ValueEnum;
use paceline::SamplingParams;
use paceline::server::{self, Keys, ServerConfig, Tls};
use paceline::units;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};

/// Tokens of a question and its answer, for a notion of how many fit.
const TYPICAL_LEN: usize = 512;

pub fn run(args: Serve) -> anyhow::Result<()> {
    args.engine.check()?;
    log::start(&args.log);
    // Before anything slow: that a file is missing or the port is taken should not need a model to be
    // loaded.
    let access = &args.access;
    let keys = access.api_key_file.as_deref().map(Keys::read).transpose();
    let keys = keys.context("--api-key-file")?.unwrap_or_default();
    let tls = match (&access.tls_cert, &access.tls_key) {
        (Some(cert), Some(key)) => Some(Tls::read(cert, key)?),
        _ => None,
    };
    let listener = listen(&args.host, args.port)?;
    let located = open::locate(args.model.as_deref())?;
    let opened = located.load(&args.engine, &SamplingParams::default())?;
    let name = args.served_model_name.clone().unwrap_or_else(|| opened.name.clone());
    let config = ServerConfig {
        defaults: opened.defaults(1.0),
        keys,
        tls,
        body_limit: (args.bounds.max_body as usize) << 20,
        max_queue: args.bounds.max_queue as usize,
        max_connections: args.bounds.max_connections as usize,
        grace: Duration::from_secs(args.bounds.grace),
        log_prompts: args.log.log_prompts,
        ..ServerConfig::new(name)
    };
    log_config(&args, &opened, &config);
    let address = listener.local_addr()?;
    if !address.ip().is_loopback() && config.keys.is_empty() {
        warn!("everybody who reaches {address} may ask: --api-key-file asks for keys");
    }
    // One thread for all connections, and few for long prompts: the cores are the model's.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let shutdown = signals()?;
        let scheme = if config.tls.is_some() { "https" } else { "http" };
        info!("listening on {scheme}://{address}");
        server::run(listener, opened.llm, config, shutdown).await;
        anyhow::Ok(())
    })?;
    info!("stopped");
    Ok(())
}

fn listen(host: &str, port: u16) -> anyhow::Result<TcpListener> {
    server::listen(host, port).map_err(|error| {
        let place = format!("cannot listen on {host}:{port}");
        match error.kind() {
            ErrorKind::AddrInUse => {
                anyhow::anyhow!("{place}: another program does; choose another --port")
            }
            ErrorKind::PermissionDenied => {
                anyhow::anyhow!("{place}: not permitted; choose a --port over 1023")
            }
            ErrorKind::AddrNotAvailable => {
                anyhow::anyhow!(
                    "{place}: this machine does not have that address; choose another --host"
                )
            }
            _ => anyhow::anyhow!("{place}: {error}"),
        }
    })
}

/// Completes at the first SIGINT or SIGTERM; the second ends the program at once.
fn signals() -> anyhow::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        info!("stopping: running requests may end; once more stops at once");
        tokio::spawn(async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            std::process::exit(130);
        });
    })
}

/// A choice as the flag spells it.
fn name_of(choice: &impl ValueEnum) -> String {
    choice.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Everything that was decided, on a few lines.
fn log_config(args: &Serve, opened: &Opened, config: &ServerConfig) {
    let engine = &args.engine;
    let limits = opened.llm.limits();
    let on = |off: bool| if off { "off" } else { "on" };
    info!(
        "model: {} ({}), loaded in {:.1} s",
        config.model_name,
        opened.path.display(),
        opened.load.as_secs_f64()
    );
    info!("compute: {} threads, {}", opened.n_threads, opened.isa);
    info!(
        "kv cache: {} for {} tokens ({} of the longest sequences, or {} of {TYPICAL_LEN} tokens), \
         K {}, V {}, blocks of {}, prefix cache {}",
        units::bytes(opened.llm.kv_bytes()),
        limits.kv_len,
        limits.kv_len / limits.max_model_len.min(limits.kv_len),
        limits.kv_len / TYPICAL_LEN,
        name_of(&engine.compute.kv_type_k),
        name_of(&engine.compute.kv_type_v),
        engine.compute.block_size,
        on(engine.no_prefix_cache),
    );
    if let Some(folder) = &engine.kv_cache_dir {
        info!(
            "kv cache on disk: at most {} in {}, {} there",
            units::bytes(engine.disk_bytes()),
            folder.display(),
            units::bytes(opened.llm.disk_bytes()),
        );
    }
    info!(
        "limits: {} tokens a sequence, {} sequences and {} tokens a step, speculation {}",
        limits.max_model_len,
        limits.max_num_seqs,
        engine.compute.max_num_batched_tokens,
        name_of(&engine.speculate),
    );
    let d = &config.defaults;
    info!(
        "sampling: temperature {}, top-k {}, top-p {}, min-p {}, repetition penalty {}",
        d.temperature, d.top_k, d.top_p, d.min_p, d.repetition_penalty,
    );
}
