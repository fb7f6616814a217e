//! What a client takes as proof.

use std::sync::{Arc, Mutex};

use quinn::crypto::rustls::NoInitialCipherSuite;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use super::identity::read_certificates;
use super::{ALPN, Fingerprint, TlsError, Trust, provider};

/// [`Trust`], with its files read.
#[derive(Clone, Debug)]
pub(in crate::h3) struct Anchors {
    check: Check,
    provider: Arc<CryptoProvider>,
}

#[derive(Clone, Debug)]
enum Check {
    Authorities(Arc<WebPkiServerVerifier>),
    Pinned(Fingerprint),
    Nothing,
}

/// What a server showed during a handshake, kept so that a refusal can be explained.
#[derive(Clone, Debug, Default)]
pub(in crate::h3) struct Seen(Arc<Mutex<Option<Verdict>>>);

/// A certificate's fingerprint, and why it was refused if it was.
type Verdict = (Fingerprint, Option<String>);

impl Seen {
    pub(in crate::h3) fn get(&self) -> Option<Verdict> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    fn set(&self, presented: Fingerprint, refused: Option<String>) {
        *self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some((presented, refused));
    }
}

impl Anchors {
    pub(in crate::h3) fn new(trust: &Trust) -> Result<Anchors, TlsError> {
        let provider = provider();
        let check = match trust {
            Trust::System => {
                let found = rustls_native_certs::load_native_certs();
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(found.certs);
                if roots.is_empty() {
                    let errors: Vec<_> = found.errors.iter().map(ToString::to_string).collect();
                    return Err(TlsError::NoRoots(errors.join("; ")));
                }
                authorities(roots, &provider)?
            }
            Trust::CaFile(path) => {
                let mut roots = RootCertStore::empty();
                for certificate in read_certificates(path)? {
                    let bad = |error: Error| TlsError::Certificate { path: path.clone(), reason: error.to_string() };
                    roots.add(certificate).map_err(bad)?;
                }
                authorities(roots, &provider)?
            }
            Trust::Pinned(fingerprint) => Check::Pinned(*fingerprint),
            Trust::Insecure => Check::Nothing,
        };
        Ok(Anchors { check, provider })
    }

    /// A configuration for one handshake, and where it notes what it saw.
    pub(in crate::h3) fn client_config(&self) -> Result<(quinn::crypto::rustls::QuicClientConfig, Seen), TlsError> {
        let seen = Seen::default();
        let verifier = Verifier { anchors: self.clone(), seen: seen.clone() };
        let mut config = rustls::ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| TlsError::Setup(error.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        config.alpn_protocols = vec![ALPN.to_vec()];
        let config = config.try_into().map_err(|error: NoInitialCipherSuite| TlsError::Setup(error.to_string()))?;
        Ok((config, seen))
    }
}

fn authorities(roots: RootCertStore, provider: &Arc<CryptoProvider>) -> Result<Check, TlsError> {
    let builder = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    Ok(Check::Authorities(builder.build().map_err(|error| TlsError::Setup(error.to_string()))?))
}

#[derive(Debug)]
struct Verifier {
    anchors: Anchors,
    seen: Seen,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let presented = Fingerprint::of(end_entity);
        let verdict = match &self.anchors.check {
            Check::Authorities(verifier) => {
                verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
            }
            Check::Pinned(wanted) if *wanted == presented => Ok(ServerCertVerified::assertion()),
            Check::Pinned(_) => Err(CertificateError::ApplicationVerificationFailure.into()),
            Check::Nothing => Ok(ServerCertVerified::assertion()),
        };
        let refused = verdict.as_ref().err().map(|error| match (&self.anchors.check, error) {
            (Check::Pinned(wanted), _) => format!("its fingerprint is not the pinned {wanted}"),
            (_, Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
                "no trusted authority vouches for it".into()
            }
            (_, other) => other.to_string(),
        });
        self.seen.set(presented, refused);
        verdict
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not spoken here".to_owned()))
    }

    /// Proof that the server has the certificate's key: asked for whatever is trusted.
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.anchors.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.anchors.provider.signature_verification_algorithms.supported_schemes()
    }
}
