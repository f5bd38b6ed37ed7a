//! LLM-Streamline: the one block whose input and output are most alike (design §6).

use serde::Deserialize;

use super::{Criterion, Selection};
use crate::calibrate::{Axis, Pair, Similarities};
use crate::error::{Error, Result};
use crate::options::{self, Options};

pub(super) const NAME: &str = "llm-streamline";

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    cosine: Cosine,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Cosine {
    /// What the reference code does.
    #[default]
    ChannelSeries,
    Token,
}

/// Starts `s` in `1..=L−n−1` (the first and the last layer stay); the highest mean cosine of `X_s` and `X_{s+n}`; the first maximum wins.
struct LlmStreamline {
    axis: Axis,
}

pub(super) fn build(options: &Options) -> Result<Box<dyn Criterion>> {
    let settings: Settings = options::read(NAME, options)?;
    let axis = match settings.cosine {
        Cosine::ChannelSeries => Axis::ChannelSeries,
        Cosine::Token => Axis::Token,
    };
    Ok(Box::new(LlmStreamline { axis }))
}

impl Criterion for LlmStreamline {
    fn check(&self, layers: usize, depth: usize) -> Result<()> {
        if depth + 2 <= layers {
            return Ok(());
        }
        Err(Error::bad_input(format!("`{NAME}` keeps the first and the last layer"))
            .expected(format!("a depth of at most {}, for {layers} layers", layers.saturating_sub(2)))
            .found(depth.to_string()))
    }

    fn pairs(&self, layers: usize, depth: usize) -> Vec<Pair> {
        (1..layers - depth).map(|from| Pair { axis: self.axis, from, to: from + depth }).collect()
    }

    fn boundaries(&self, layers: usize, depth: usize) -> Vec<usize> {
        self.pairs(layers, depth).iter().flat_map(|pair| [pair.from, pair.to]).collect()
    }

    fn select(&self, layers: usize, depth: usize, similarities: &Similarities) -> Result<Selection> {
        let scores = self
            .pairs(layers, depth)
            .into_iter()
            .map(|pair| match similarities.get(pair) {
                Some(score) if score.is_finite() => Ok((pair.from, score)),
                other => Err(Error::job("a similarity is missing or not finite")
                    .at(format!("layers {} and {}", pair.from, pair.to))
                    .found(format!("{other:?}"))),
            })
            .collect::<Result<Vec<_>>>()?;
        // The first maximum wins: only a strictly greater score replaces it.
        let best = scores.iter().copied().reduce(|best, next| if next.1 > best.1 { next } else { best });
        let (start, _) = best.ok_or_else(|| Error::job("no block to choose from").at(NAME))?;
        Ok(Selection { removed: (start..start + depth).collect(), scores })
    }
}
