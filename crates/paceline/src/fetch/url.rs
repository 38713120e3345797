//! A file on a web server.

use super::{Partial, Progress, SourceError, copy};
use std::time::Duration;

/// Name lookup and connection together: what an unreachable server costs.
const REACH: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(3)];
/// The longest wait for an answer, or for more of one.
const ANSWER: Duration = Duration::from_secs(10);
const STALL: Duration = Duration::from_secs(60);

/// Appends the file at `url`, of `bytes` bytes if known, to `to`.
pub(super) fn fetch(
    url: &str,
    bytes: Option<u64>,
    to: &mut Partial,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), SourceError> {
    let source = |reason: String| SourceError::Source(format!("{url}: {reason}"));
    progress(Progress::Now(format!("downloading {url}")));
    let agent = ureq::Agent::config_builder()
        .timeout_resolve(Some(REACH[0]))
        .timeout_connect(Some(REACH[1]))
        .timeout_recv_response(Some(ANSWER))
        .timeout_per_read(Some(STALL))
        .user_agent(concat!("paceline/", env!("CARGO_PKG_VERSION")))
        .build()
        .new_agent();
    let response = agent.get(url).call().map_err(|error| {
        source(match error {
            ureq::Error::StatusCode(404) => "no such file there (404)".to_owned(),
            ureq::Error::StatusCode(status @ (401 | 403)) => {
                format!("the server wants a login or refuses ({status})")
            }
            ureq::Error::StatusCode(status) => format!("the server answered {status}"),
            ureq::Error::HostNotFound => "the host is not found".to_owned(),
            error => format!("cannot be reached ({error})"),
        })
    })?;
    let length = response.body().content_length();
    match (bytes, length) {
        (Some(bytes), Some(length)) if bytes != length => {
            return Err(source(format!("another file: {length} bytes instead of {bytes}")));
        }
        (None, Some(length)) => to.expect(length),
        _ => {}
    }
    copy(&mut response.into_body().into_reader(), url, to, progress)
}
