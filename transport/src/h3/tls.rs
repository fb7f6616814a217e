//! Who is who: the server's identity, and what a client takes as proof of it. TLS 1.3 and nothing else.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{self, cipher_suite};

mod identity;
mod verify;

pub use identity::Identity;
pub(super) use verify::{Anchors, Seen};

/// HTTP/3's name in the handshake (RFC 9114, section 3.1).
const ALPN: &[u8] = b"h3";

/// The SHA-256 of a certificate's DER bytes. Printed as `SHA256:` and 64 hexadecimal digits; read with or without the
/// prefix and colons, or in base64.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SHA256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Fingerprint {
    type Err = TlsError;

    fn from_str(text: &str) -> Result<Fingerprint, TlsError> {
        let bare = text.trim();
        let bare = match bare.get(..7) {
            Some(prefix) if prefix.eq_ignore_ascii_case("sha256:") => &bare[7..],
            _ => bare,
        };
        from_hex(bare)
            .or_else(|| from_base64(bare))
            .map(Fingerprint)
            .ok_or_else(|| TlsError::Fingerprint(text.to_owned()))
    }
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let mut digits = text.chars().filter(|&c| c != ':').map(|c| c.to_digit(16));
    let mut bytes = [0; 32];
    for byte in &mut bytes {
        *byte = (digits.next()?? << 4 | digits.next()??) as u8;
    }
    digits.next().is_none().then_some(bytes)
}

fn from_base64(text: &str) -> Option<[u8; 32]> {
    let text = text.trim_end_matches('=');
    // 32 bytes are 42 whole digits and one that carries 4 bits.
    if text.len() != 43 {
        return None;
    }
    let (mut bytes, mut filled, mut bits, mut held) = ([0; 32], 0, 0u32, 0);
    for c in text.bytes() {
        let digit = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(digit);
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes[filled] = (bits >> held) as u8;
            filled += 1;
        }
    }
    Some(bytes)
}

/// What a client takes as proof that a server is the one it means.
#[derive(Clone, Debug, Default)]
pub enum Trust {
    /// A certificate for the host's name that the system's certificate authorities vouch for.
    #[default]
    System,
    /// A certificate for the host's name that an authority (or the certificate itself) in this PEM file vouches for.
    CaFile(PathBuf),
    /// This very certificate, whatever its names and dates.
    Pinned(Fingerprint),
    /// Anything. Whoever uses it must say so each time.
    Insecure,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    #[error("{0:?} is not a SHA-256 fingerprint: SHA256: and 64 hexadecimal digits, or 44 of base64")]
    Fingerprint(String),
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot keep the server's identity at {path}: {source}")]
    Write { path: PathBuf, source: std::io::Error },
    #[error("{path} is not PEM: {reason}")]
    Pem { path: PathBuf, reason: String },
    #[error("no certificate in {0}")]
    NoCertificate(PathBuf),
    #[error("no private key in {0}")]
    NoKey(PathBuf),
    #[error("the key in {key} does not belong to the certificate in {certificate}")]
    Mismatch { certificate: PathBuf, key: PathBuf },
    #[error("a certificate in {path} cannot be used: {reason}")]
    Certificate { path: PathBuf, reason: String },
    #[error("the system has no certificate authorities to trust: name one, or the server's fingerprint ({0})")]
    NoRoots(String),
    #[error("cannot make a certificate: {0}")]
    Generate(String),
    #[error("TLS cannot be set up: {0}")]
    Setup(String),
}

impl Fingerprint {
    /// Of a certificate in DER.
    pub fn of(certificate: &[u8]) -> Fingerprint {
        let digest = ::ring::digest::digest(&::ring::digest::SHA256, certificate);
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest.as_ref());
        Fingerprint(bytes)
    }
}

/// What both ends encrypt with. AES with 128-bit keys comes first: where the processor helps, it costs the least.
fn provider() -> Arc<CryptoProvider> {
    let cipher_suites = vec![
        cipher_suite::TLS13_AES_128_GCM_SHA256,
        cipher_suite::TLS13_AES_256_GCM_SHA384,
        cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    Arc::new(CryptoProvider { cipher_suites, ..ring::default_provider() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_read_in_every_form_it_is_printed_in_elsewhere() {
        let print = Fingerprint::of(b"certificate");
        let hex: String = print.0.iter().map(|byte| format!("{byte:02x}")).collect();
        let colons = print.0.map(|byte| format!("{byte:02X}")).join(":");
        let base64 = "A".repeat(43);
        assert_eq!(print.to_string(), format!("SHA256:{hex}"));
        for form in [print.to_string(), hex.clone(), hex.to_uppercase(), colons.clone(), format!("sha256:{colons}")] {
            assert_eq!(form.parse::<Fingerprint>().unwrap(), print, "{form}");
        }
        assert_eq!(format!("SHA256:{base64}=").parse::<Fingerprint>().unwrap(), Fingerprint([0; 32]));
        // "test" hashed and encoded by another program.
        let other = "n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg=";
        assert_eq!(other.parse::<Fingerprint>().unwrap(), Fingerprint::of(b"test"));
        for wrong in ["", "SHA256:", &hex[1..], &format!("{hex}0"), &hex.replace('a', "g"), "SHA256:é", "A"] {
            assert!(wrong.parse::<Fingerprint>().is_err(), "{wrong:?}");
        }
    }
}
