//! `paceline serve`: serves a model over HTTP until a signal comes.

use crate::args::Serve;
use crate::open::{self, Opened};
use anyhow::Context;
use clap::ValueEnum;
use paceline::server::{self, ServerConfig};
use paceline::units;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

pub fn run(args: Serve) -> anyhow::Result<()> {
    args.engine.check()?;
    // Before anything slow: that the port is taken should not need a model to be loaded.
    let listener = listen(&args.host, args.port)?;
    let opened = open::locate(args.model.as_deref())?.load(&args.engine)?;
    let name = args.served_model_name.clone().unwrap_or_else(|| opened.name.clone());
    let config = ServerConfig {
        defaults: opened.defaults(1.0),
        body_limit: (args.max_body as usize) << 20,
        grace: Duration::from_secs(args.grace),
        ..ServerConfig::new(name)
    };
    print_config(&args, &opened, &config);
    let address = listener.local_addr()?;
    // One thread for all connections: the cores are the model's.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let shutdown = signals()?;
        eprintln!("listening on http://{address}");
        server::run(listener, opened.llm, config, shutdown).await.context("the server failed")
    })?;
    eprintln!("stopped");
    Ok(())
}

fn listen(host: &str, port: u16) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind((host, port)).map_err(|error| {
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
    })?;
    listener.set_nonblocking(true)?;
    Ok(listener)
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
        eprintln!("stopping: running requests may end; once more stops at once");
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
fn print_config(args: &Serve, opened: &Opened, config: &ServerConfig) {
    let engine = &args.engine;
    let limits = opened.llm.limits();
    let on = |off: bool| if off { "off" } else { "on" };
    eprintln!(
        "model: {} ({}), loaded in {:.1} s",
        config.model_name,
        opened.path.display(),
        opened.load.as_secs_f64()
    );
    eprintln!("compute: {} threads, {}", opened.n_threads, opened.isa);
    eprintln!(
        "kv cache: {} for {} tokens, K {}, V {}, blocks of {}, prefix cache {}",
        units::bytes(opened.llm.kv_bytes()),
        limits.kv_len,
        name_of(&engine.compute.kv_type_k),
        name_of(&engine.compute.kv_type_v),
        engine.compute.block_size,
        on(engine.no_prefix_cache),
    );
    eprintln!(
        "limits: {} tokens a sequence, {} sequences and {} tokens a step, speculation {}",
        limits.max_model_len,
        limits.max_num_seqs,
        engine.compute.max_num_batched_tokens,
        name_of(&engine.speculate),
    );
    let d = &config.defaults;
    eprintln!(
        "sampling: temperature {}, top-k {}, top-p {}, min-p {}, repetition penalty {}",
        d.temperature, d.top_k, d.top_p, d.min_p, d.repetition_penalty,
    );
}
