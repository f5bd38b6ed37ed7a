//! Users who may say a text: which split of the corpora, or only the tasks.
//!
//! A text's words decide by their hash. So the splits share no paragraph and no scored question is ever printed in a
//! corpus, whatever order things are generated in, and nothing has to be remembered for it.

/// The owner of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Share {
    Train,
    Validation,
    Test,
    /// Held out of every corpus, to be asked in a task.
    Scored,
}

/// The owner of this text. Case, punctuation and spaces do not matter.
pub(super) fn share(text: &str) -> Share {
    match mixed(text) % 10 {
        0..=1 => Share::Scored,
        2 => Share::Validation,
        3 => Share::Test,
        _ => Share::Train,
    }
}

/// A number below `limit` (not 0) that depends on the text's words alone.
pub(super) fn drawn(text: &str, limit: usize) -> usize {
    ((mixed(text) >> 8) % limit as u64) as usize
}

/// FNV-1a over the lower-case words, then a finisher: FNV's low bits alone are too regular.
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
