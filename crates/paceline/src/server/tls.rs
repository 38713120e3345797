//! [`Tls`]: HTTPS, by rustls.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

/// A certificate with its key.
#[derive(Clone)]
pub struct Tls(pub(super) TlsAcceptor);

/// There is no HTTPS with these files.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file has no PEM of its kind.
    #[error("cannot read a {kind} from {}: {source}", path.display())]
    Pem {
        /// What it should hold.
        kind: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: pem::Error,
    },
    /// The two do not belong together, or are of a kind that is not supported.
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
        let wrong = |kind, path: &Path| {
            let path = path.to_owned();
            move |source| TlsError::Pem { kind, path, source }
        };
        let chain: Vec<CertificateDer> = CertificateDer::pem_file_iter(cert)
            .and_then(Iterator::collect)
            .map_err(wrong("certificate", cert))?;
        if chain.is_empty() {
            return Err(wrong("certificate", cert)(pem::Error::NoItemsFound));
        }
        let private = PrivateKeyDer::from_pem_file(key).map_err(wrong("private key", key))?;
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
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

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("Tls")
    }
}
