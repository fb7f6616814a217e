//! A server's certificate and key: read, or made once and kept.

use std::fmt;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use ring::hmac;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::{ALPN, Fingerprint, TlsError, provider};

/// Key and certificate in one file, so that there never is one without the other.
const IDENTITY_FILE: &str = "identity.pem";
/// The certificate alone, for handing to clients.
const CERTIFICATE_FILE: &str = "certificate.pem";

/// A server's certificate chain and key.
#[derive(Clone)]
pub struct Identity {
    key: Arc<CertifiedKey>,
    fingerprint: Fingerprint,
    /// Derived from the private key: what else the server must remember from one life to the next comes from it.
    secret: Secret,
}

type Secret = [u8; 32];

impl Identity {
    /// From PEM files: the certificate chain, leaf first, and its key (PKCS#8, PKCS#1 or SEC1).
    pub fn from_pem(certificate: &Path, key: &Path) -> Result<Identity, TlsError> {
        let chain = read_certificates(certificate)?;
        let pem = read(key)?;
        let private = PrivateKeyDer::from_pem_slice(&pem).map_err(|error| match error {
            pem::Error::NoItemsFound => TlsError::NoKey(key.to_owned()),
            other => TlsError::Pem { path: key.to_owned(), reason: other.to_string() },
        })?;
        let secret = blake3::derive_key("forebay 2026 what a server remembers over restarts", private.secret_der());
        let bad = |path: &Path, error: rustls::Error| TlsError::Certificate {
            path: path.to_owned(),
            reason: error.to_string(),
        };
        let signer = provider().key_provider.load_private_key(private).map_err(|error| bad(key, error))?;
        let fingerprint = Fingerprint::of(&chain[0]);
        let certified = CertifiedKey::new(chain, signer);
        match certified.keys_match() {
            Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {}
            Err(rustls::Error::InconsistentKeys(_)) => {
                return Err(TlsError::Mismatch { certificate: certificate.to_owned(), key: key.to_owned() });
            }
            Err(error) => return Err(bad(certificate, error)),
        }
        Ok(Identity { key: Arc::new(certified), fingerprint, secret })
    }

    /// The self-signed identity kept in `state_dir`, made for `names` (host names and addresses) at the first call. It
    /// stays the same ever after, so that clients can pin it; a damaged one is an error, not a new identity.
    pub fn self_signed(state_dir: &Path, names: &[String]) -> Result<Identity, TlsError> {
        let path = state_dir.join(IDENTITY_FILE);
        if !path.try_exists().map_err(|source| TlsError::Read { path: path.clone(), source })? {
            let pem = generate(names)?;
            fs::create_dir_all(state_dir)
                .and_then(|()| create_once(state_dir, &path, pem.as_bytes()))
                .map_err(|source| TlsError::Write { path: path.clone(), source })?;
        }
        fs::set_permissions(&path, Permissions::from_mode(0o600))
            .map_err(|source| TlsError::Write { path: path.clone(), source })?;
        let identity = Identity::from_pem(&path, &path)?;
        let copy = state_dir.join(CERTIFICATE_FILE);
        let pem = read(&path)?;
        let public = pem_part(&pem, "CERTIFICATE").ok_or_else(|| TlsError::NoCertificate(path.clone()))?;
        if fs::read(&copy).ok().as_deref() != Some(public.as_bytes()) {
            fs::write(&copy, public).map_err(|source| TlsError::Write { path: copy, source })?;
        }
        Ok(identity)
    }

    /// Of the leaf certificate.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// How a server on `address` names its connections and takes leave of those that an earlier life of it had: a client
    /// then learns at once that its connection is gone, instead of waiting out its idle timeout (RFC 9000, section 10.3).
    /// Another address makes another key, so that a server never ends the connections of one beside it.
    pub(in crate::h3) fn endpoint_config(&self, address: SocketAddr) -> quinn::EndpointConfig {
        let machine = fs::read("/etc/machine-id").unwrap_or_default();
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(address.to_string().as_bytes()).update(&[0]).update(&machine);
        let mut keys = hasher.finalize_xof();
        let (mut reset, mut names) = ([0; 64], [0; 8]);
        keys.fill(&mut reset);
        keys.fill(&mut names);
        let mut config = quinn::EndpointConfig::new(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &reset)));
        let names = u64::from_le_bytes(names);
        config.cid_generator(move || Box::new(quinn_proto::HashedConnectionIdGenerator::from_key(names)));
        config
    }

    pub(in crate::h3) fn server_config(&self) -> Result<quinn::crypto::rustls::QuicServerConfig, TlsError> {
        let setup = |error: &dyn fmt::Display| TlsError::Setup(error.to_string());
        let mut config = rustls::ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| setup(&error))?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(self.key.clone())));
        config.alpn_protocols = vec![ALPN.to_vec()];
        // What was sent in the first flight could be sent again by anyone: requests wait for the handshake.
        config.max_early_data_size = 0;
        config.try_into().map_err(|error| setup(&error))
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.fingerprint)
    }
}

pub(super) fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let pem = read(path)?;
    let certificates = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| TlsError::Pem { path: path.to_owned(), reason: error.to_string() })?;
    if certificates.is_empty() {
        return Err(TlsError::NoCertificate(path.to_owned()));
    }
    Ok(certificates)
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|source| TlsError::Read { path: path.to_owned(), source })
}

fn generate(names: &[String]) -> Result<String, TlsError> {
    let failed = |error: rcgen::Error| TlsError::Generate(error.to_string());
    let key = rcgen::KeyPair::generate().map_err(failed)?;
    let mut params = rcgen::CertificateParams::new(names).map_err(failed)?;
    params.distinguished_name.push(rcgen::DnType::CommonName, "forebay");
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    params.key_usages = vec![rcgen::KeyUsagePurpose::DigitalSignature];
    let certificate = params.self_signed(&key).map_err(failed)?;
    Ok(format!("{}{}", key.serialize_pem(), certificate.pem()))
}

/// Makes `path` with `contents`, whole or not at all, unless it has come to exist meanwhile.
fn create_once(dir: &Path, path: &Path, contents: &[u8]) -> io::Result<()> {
    let draft = dir.join(format!("{IDENTITY_FILE}.{:016x}.tmp", fastrand::u64(..)));
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&draft)
        .and_then(|mut file| file.write_all(contents).and_then(|()| file.sync_all()))
        // Unlike a rename, a link does not replace what another process has made in the meantime.
        .and_then(|()| match fs::hard_link(&draft, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        });
    let _ = fs::remove_file(&draft);
    written?;
    File::open(dir)?.sync_all()
}

/// The first block of the given label, as it stands in the file.
fn pem_part<'a>(pem: &'a [u8], label: &str) -> Option<&'a str> {
    let text = std::str::from_utf8(pem).ok()?;
    let (begin, end) = (format!("-----BEGIN {label}-----"), format!("-----END {label}-----"));
    let start = text.find(&begin)?;
    let stop = start + text[start..].find(&end)? + end.len();
    Some(text.get(start..stop + 1).unwrap_or(&text[start..stop]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Vec<String> {
        vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()]
    }

    #[test]
    fn a_self_signed_identity_is_made_once_and_private() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("deep/state");
        let first = Identity::self_signed(&state, &names()).unwrap();
        let again = Identity::self_signed(&state, &["other".to_owned()]).unwrap();
        assert_eq!(first.fingerprint(), again.fingerprint());
        let mode = fs::metadata(state.join(IDENTITY_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let public = read_certificates(&state.join(CERTIFICATE_FILE)).unwrap();
        assert_eq!(Fingerprint::of(&public[0]), first.fingerprint());
        assert!(!fs::read_to_string(state.join(CERTIFICATE_FILE)).unwrap().contains("PRIVATE"));
        assert_eq!(fs::read_dir(&state).unwrap().count(), 2, "no drafts are left");
    }

    #[test]
    fn servers_started_together_agree_on_one_identity() {
        let dir = tempfile::tempdir().unwrap();
        let prints: Vec<_> = std::thread::scope(|scope| {
            let start = || Identity::self_signed(dir.path(), &names()).unwrap().fingerprint();
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(start)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(prints.iter().all(|print| *print == prints[0]));
    }

    #[test]
    fn what_is_wrong_with_the_files_is_said() {
        let dir = tempfile::tempdir().unwrap();
        Identity::self_signed(&dir.path().join("a"), &names()).unwrap();
        Identity::self_signed(&dir.path().join("b"), &names()).unwrap();
        let (a, b) = (dir.path().join("a").join(IDENTITY_FILE), dir.path().join("b").join(IDENTITY_FILE));
        let certificate = dir.path().join("a").join(CERTIFICATE_FILE);
        let empty = dir.path().join("empty");
        fs::write(&empty, "").unwrap();
        let garbage = dir.path().join("garbage");
        fs::write(&garbage, "-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n").unwrap();
        let check = |certificate: &Path, key: &Path| Identity::from_pem(certificate, key).unwrap_err();
        assert!(matches!(check(&a, &b), TlsError::Mismatch { .. }));
        assert!(matches!(check(&empty, &a), TlsError::NoCertificate(_)));
        assert!(matches!(check(&a, &certificate), TlsError::NoKey(_)));
        assert!(matches!(check(&garbage, &a), TlsError::Pem { .. }));
        assert!(matches!(check(&dir.path().join("none"), &a), TlsError::Read { .. }));
        // A damaged identity is not replaced: clients have pinned it.
        fs::write(&a, "damaged").unwrap();
        assert!(Identity::self_signed(&dir.path().join("a"), &names()).is_err());
    }
}
