//! Webhook signatures: whether a body came from Stripe, and just now.

use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::domain::time::{Seconds, Timestamp};
use crate::secret::Secret;

/// How old a signature may be, and how far ahead: whoever overhears one must not use it for long.
const TOLERANCE: Seconds = Seconds(300);

/// Why a body is not believed. Nothing of it is repeated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// The header is something else.
    #[error("the header is no signature of Stripe's (`t=…,v1=…`): hand over `Stripe-Signature` as it came")]
    NotOne,
    /// No signature in it fits the body.
    #[error(
        "the signature does not fit: the body was changed on the way (hand it over byte for byte), or the secret is another \
         endpoint's, or somebody else sent this"
    )]
    Wrong,
    /// It fits, and is of another time.
    #[error(
        "the signature fits, and was made {0} by this machine's clock, more than 300 s: set the clock right, or hand events \
         over sooner"
    )]
    Time(String),
}

/// Checks the body of a webhook against its `Stripe-Signature` header: HMAC-SHA256 over `t.body`, any of its `v1`.
///
/// # Errors
/// [`SignatureError`].
pub fn check(header: &str, body: &[u8], secret: &Secret, now: Timestamp) -> Result<(), SignatureError> {
    let mut times = Vec::new();
    let mut signatures = Vec::new();
    for (name, value) in header.split(',').filter_map(|part| part.trim().split_once('=')) {
        match name {
            "t" => times.push(value),
            "v1" => signatures.push(value),
            _ => {}
        }
    }
    let [time] = times[..] else { return Err(SignatureError::NotOne) };
    let made = time.parse().ok().and_then(|seconds| Timestamp::from_unix(seconds).ok());
    let Some(made) = made.filter(|_| !signatures.is_empty()) else { return Err(SignatureError::NotOne) };
    // A key of any length will do, so that this cannot fail.
    let mac =
        Hmac::<Sha256>::new_from_slice(secret.expose().as_bytes()).map_err(|_| SignatureError::NotOne)?;
    let mac = mac.chain_update(time.as_bytes()).chain_update(b".").chain_update(body);
    // `verify_slice` takes the same time wherever the two differ.
    let fits =
        |signature: &&str| bytes(signature).is_some_and(|bytes| mac.clone().verify_slice(&bytes).is_ok());
    if !signatures.iter().any(fits) {
        return Err(SignatureError::Wrong);
    }
    let age = now - made;
    if age > TOLERANCE {
        return Err(SignatureError::Time(format!("{} s ago", age.0)));
    }
    if -age.0 > TOLERANCE.0 {
        return Err(SignatureError::Time(format!("{} s ahead", -age.0)));
    }
    Ok(())
}

/// What stands there in hexadecimal digits.
fn bytes(hex: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u32>> = hex.chars().map(|digit| digit.to_digit(16)).collect();
    let digits = digits.filter(|digits| digits.len() == 64)?;
    digits.chunks(2).map(|pair| u8::try_from(pair[0] * 16 + pair[1]).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = b"{\"id\":\"evt_1\"}";
    const MADE: i64 = 1_790_000_000;
    /// By `printf '1790000000.{"id":"evt_1"}' | openssl dgst -sha256 -hmac whsec_Sentinel_1`.
    const RIGHT: &str = "b5b25a96d64a187727ff6376c2ffbf7c5f3dee7a8ef79a9bb1a9161e03fee2bf";

    fn asked(header: &str, body: &[u8], later: i64) -> Result<(), SignatureError> {
        let now = Timestamp::from_unix(MADE + later).unwrap();
        check(header, body, &Secret::of("whsec_Sentinel_1"), now)
    }

    #[test]
    fn a_body_is_believed_if_any_of_its_signatures_fits_and_is_fresh() {
        let other = "0".repeat(64);
        for header in [
            format!("t={MADE},v1={RIGHT}"),
            format!("t={MADE}, v1={other}, v1={RIGHT}, v0=abc"),
            format!("v1={},t={MADE}", RIGHT.to_uppercase()),
        ] {
            for later in [0, 300, -300] {
                assert_eq!(asked(&header, BODY, later), Ok(()), "{header} {later}");
            }
        }
    }

    #[test]
    fn anything_else_is_not_believed() {
        let right = format!("t={MADE},v1={RIGHT}");
        let wrong = Err(SignatureError::Wrong);
        assert_eq!(asked(&right, b"{\"id\":\"evt_2\"}", 0), wrong);
        assert_eq!(asked(&right, b"{\"id\":\"evt_1\"}\n", 0), wrong, "a line break that an editor added");
        assert_eq!(asked(&format!("t={},v1={RIGHT}", MADE + 1), BODY, 0), wrong);
        for signature in [&RIGHT[..63], &RIGHT[1..], "", "zz", &format!("{RIGHT}00"), &"é".repeat(64)] {
            assert_eq!(asked(&format!("t={MADE},v1={signature}"), BODY, 0), wrong, "{signature}");
        }
        // A scheme of old, or of the test mode, is none.
        for header in ["", "t=", "v1=", RIGHT, &format!("t={MADE},v0={RIGHT}"), &format!("t=x,v1={RIGHT}")] {
            assert_eq!(asked(header, BODY, 0), Err(SignatureError::NotOne), "{header}");
        }
        let twice = format!("t={MADE},t=1,v1={RIGHT}");
        assert_eq!(asked(&twice, BODY, 0), Err(SignatureError::NotOne));
    }

    #[test]
    fn a_clock_that_differs_is_named_with_the_difference() {
        let right = format!("t={MADE},v1={RIGHT}");
        assert!(asked(&right, BODY, 412).unwrap_err().to_string().contains("made 412 s ago"));
        assert!(asked(&right, BODY, -301).unwrap_err().to_string().contains("made 301 s ahead"));
    }
}
