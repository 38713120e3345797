//! [`Tls`]: HTTPS, by rustls.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{self, ServerConfig};

/// A certificate with its key.
#[derive(Clone)]
pub struct Tls(pub(super) TlsAcceptor);

/// There is no HTTPS with these files.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file does not hold what it should.
    #[error("cannot read a {kind} from {}: {problem}", path.display())]
    File {
        /// What it should hold.
        kind: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it cannot be read.
        problem: String,
    },
    /// The two do not belong together.
    #[error("{} and {} cannot be used: {source}", cert.display(), key.display())]
    Pair {
        /// The file of the certificate.
        cert: PathBuf,
        /// The file of the key.
        key: PathBuf,
        /// Why.
        source: rustls::Error,
    },
}

impl Tls {
    /// Reads a chain of certificates, the server's own first, and its private key, both as PEM.
    ///
    /// # Errors
    /// If a file is not like this, or the two do not belong together.
    pub fn read(cert: &Path, key: &Path) -> Result<Tls, TlsError> {
        let wrong = |kind, path: &Path, problem| {
            let path = path.to_owned();
            TlsError::File { kind, path, problem }
        };
        let of_cert = |problem| wrong("certificate", cert, problem);
        let of_key = |problem| wrong("private key", key, problem);
        let chain: Vec<CertificateDer> = CertificateDer::pem_file_iter(cert)
            .and_then(Iterator::collect)
            .map_err(|error| of_cert(pem_problem(&error)))?;
        if chain.is_empty() {
            return Err(of_cert(pem_problem(&pem::Error::NoItemsFound)));
        }
        for certificate in &chain {
            ParsedCertificate::try_from(certificate)
                .map_err(|error| of_cert(format!("what it encodes is damaged: {error}")))?;
        }
        let private =
            PrivateKeyDer::from_pem_file(key).map_err(|error| of_key(pem_problem(&error)))?;
        let provider = ring::default_provider();
        provider
            .key_provider
            .load_private_key(private.clone_key())
            .map_err(|error| of_key(format!("it is damaged, or of no known kind: {error}")))?;
        let config = ServerConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private));
        let mut config = config.map_err(|source| TlsError::Pair {
            cert: cert.to_owned(),
            key: key.to_owned(),
            source,
        })?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Tls(Arc::new(config).into()))
    }
}

fn pem_problem(error: &pem::Error) -> String {
    match error {
        pem::Error::MissingSectionEnd { .. } => {
            "the file ends before the line -----END ..-----: it is cut off".to_owned()
        }
        pem::Error::IllegalSectionStart { .. } => "a line -----BEGIN ..----- is damaged".to_owned(),
        pem::Error::NoItemsFound => "there is none in it, as PEM".to_owned(),
        pem::Error::Io(error) => error.to_string(),
        other => other.to_string(),
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("Tls")
    }
}
