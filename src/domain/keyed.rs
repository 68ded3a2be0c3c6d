//! R17: names as hashes (HMAC-SHA256) under a key, by which a name can be known again and never read or tried out.
//!
//! What must hold: a hash of one kind never stands for a name of another, and the key shows itself nowhere but in its file.

use std::fmt;

use hmac::{Hmac, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

/// The hash of a name under the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KeyedHash([u8; 32]);

/// Why a text is no hash, or no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be 64 hex digits in lower case")]
pub struct BadHex;

/// The key of the hashes. It lies in the state folder only, and hides itself in `Debug`.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Key {
    bytes: [u8; 32],
    /// Keyed once, since a load hashes every session of the ledger.
    mac: Hmac<Sha256>,
}

impl Key {
    /// A key of these bytes, which must be random.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Self {
        // HMAC fills a short key up with zeros to one block; done here, nothing can fail.
        let mut block = [0; 64];
        block[..bytes.len()].copy_from_slice(&bytes);
        Self { bytes, mac: Hmac::new(&block.into()) }
    }

    /// Tells keys apart without giving them away.
    #[must_use]
    pub fn id(&self) -> KeyedHash {
        self.hash("key", "")
    }

    pub(super) fn hash(&self, kind: &str, name: &str) -> KeyedHash {
        let mut mac = self.mac.clone();
        mac.update(kind.as_bytes());
        mac.update(b":");
        mac.update(name.as_bytes());
        KeyedHash(mac.finalize().into_bytes().into())
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

fn to_hex(bytes: &[u8; 32]) -> String {
    let digit = |half: u8| char::from_digit(u32::from(half), 16).unwrap_or('0');
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

fn from_hex(text: &str) -> Result<[u8; 32], BadHex> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Ok(byte - b'0'),
        b'a'..=b'f' => Ok(byte - b'a' + 10),
        _ => Err(BadHex),
    };
    let mut bytes = [0; 32];
    if text.len() != 64 {
        return Err(BadHex);
    }
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Ok(bytes)
}

impl TryFrom<String> for KeyedHash {
    type Error = BadHex;
    fn try_from(text: String) -> Result<Self, BadHex> {
        from_hex(&text).map(Self)
    }
}
impl From<KeyedHash> for String {
    fn from(hash: KeyedHash) -> String {
        to_hex(&hash.0)
    }
}
impl TryFrom<String> for Key {
    type Error = BadHex;
    fn try_from(text: String) -> Result<Self, BadHex> {
        from_hex(&text).map(Self::new)
    }
}
impl From<Key> for String {
    fn from(key: Key) -> String {
        to_hex(&key.bytes)
    }
}
