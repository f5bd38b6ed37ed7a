//! Windows of tokens: what a backbone is calibrated on, and what its perplexity is taken over.

/// Where a window begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Start {
    /// Index of the document (row) it was cut from; 0 where all rows are one text.
    pub document: usize,
    /// Index of its first token within that document.
    pub token: usize,
}

/// Windows of equal length, in the order in which they were drawn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Windows {
    /// The ids of all windows, one after another.
    pub ids: Vec<u32>,
    /// Tokens in a window, at least 2.
    pub length: usize,
    /// Where each window begins in the corpus.
    pub starts: Vec<Start>,
    /// Tokens of the corpus that the windows were cut from; under [`Rule::C4`](super::Rule::C4) of those documents that were drawn.
    pub corpus_tokens: usize,
    /// Bytes of the text that the predicted tokens stand for, which are all but the first of each window.
    pub bytes: usize,
}

/// Bytes of text from the end of a window's first token to the end of its last one.
pub(super) fn predicted_bytes(ends: &[usize]) -> usize {
    ends.last().zip(ends.first()).map_or(0, |(last, first)| last.saturating_sub(*first))
}

impl Windows {
    /// Number of windows.
    pub fn count(&self) -> usize {
        self.starts.len()
    }

    /// The ids of window `index`, below [`count`](Self::count).
    pub fn window(&self, index: usize) -> &[u32] {
        &self.ids[index * self.length..(index + 1) * self.length]
    }

    /// The windows in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u32]> {
        self.ids.chunks_exact(self.length)
    }
}

/// The last start that the reference allows in `tokens` tokens, `tokens − length − 1`; none when that is negative.
///
/// It is one less than would fit: the reference keeps room for the token after the window.
pub(super) fn last_start(tokens: usize, length: usize) -> Option<u64> {
    tokens.checked_sub(length)?.checked_sub(1).map(|last| last as u64)
}
