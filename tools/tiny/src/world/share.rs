//! Assignment of texts to a split of the corpora, or to the tasks only.
//!
//! A text is assigned by the hash of its words. Splits therefore share no paragraph, and no corpus contains a scored
//! question, independent of the generation order and without bookkeeping.

/// Part of the data to which a text belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Share {
    Train,
    Validation,
    Test,
    /// Reserved for tasks, and excluded from all corpora.
    Scored,
}

/// Returns the share of a text, ignoring case, punctuation and spaces.
pub(super) fn share(text: &str) -> Share {
    match mixed(text) % 10 {
        0..=1 => Share::Scored,
        2 => Share::Validation,
        3 => Share::Test,
        _ => Share::Train,
    }
}

/// Returns a number below `limit` (not 0) that only depends on the text's words.
pub(super) fn drawn(text: &str, limit: usize) -> usize {
    ((mixed(text) >> 8) % limit as u64) as usize
}

/// Hashes the lower-case words with FNV-1a and a finalizer, because the low bits of FNV alone are too regular.
fn mixed(text: &str) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut eat = |byte: u8| hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let mut between = true;
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() {
            eat(byte.to_ascii_lowercase());
            between = false;
        } else if !between {
            eat(b' ');
            between = true;
        }
    }
    if !between {
        eat(b' ');
    }
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_words_count() {
        assert_eq!(mixed("The cat, sat"), mixed(" the cat  sat."));
        assert_ne!(mixed("the cat sat"), mixed("the cats at"));
    }

    #[test]
    fn shares_have_their_sizes() {
        let of = |wanted| (0..10_000).filter(|number| share(&format!("text {number}")) == wanted).count();
        assert!((5700..6300).contains(&of(Share::Train)));
        assert!((900..1100).contains(&of(Share::Test)));
        assert!((1850..2150).contains(&of(Share::Scored)));
    }
}
