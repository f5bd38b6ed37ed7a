//! The paper's claims, as `claims.yaml` words them.

use std::sync::LazyLock;

use serde::Deserialize;

use super::checks::{CHECKS, ONLY};
use super::claim::{Claim, ClaimAxis, Needed};

/// A sentence of the paper, and the claims that it comes to.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sentence {
    says: String,
    #[serde(rename = "where")]
    place: String,
    of: Vec<String>,
    claims: Vec<ClaimEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClaimEntry {
    id: String,
    reading: Option<String>,
    over: Vec<ClaimAxis>,
    #[serde(default)]
    needed: Needed,
    only: Option<String>,
}

static CLAIMS: LazyLock<Vec<Claim>> = LazyLock::new(|| {
    let sentences: Vec<Sentence> = match serde_saphyr::from_str(include_str!("claims.yaml")) {
        Ok(sentences) => sentences,
        Err(error) => unreachable!("claims.yaml is a part of the program: {error}"),
    };
    sentences.into_iter().flat_map(Sentence::claims).collect()
});

/// All claims, in the order of the paper.
pub fn claims() -> impl Iterator<Item = &'static Claim> {
    CLAIMS.iter()
}

impl Sentence {
    /// Its texts live as long as the program.
    fn claims(self) -> impl Iterator<Item = Claim> {
        let (says, place): (&str, &str) = (self.says.leak(), self.place.leak());
        let artifacts: Vec<&str> = self.of.into_iter().map(|name| &*name.leak()).collect();
        let artifacts: &[&str] = artifacts.leak();
        self.claims.into_iter().map(move |entry| {
            let only = entry.only.as_deref().unwrap_or(ONLY[0].0);
            let only = ONLY.iter().find(|(name, _)| *name == only);
            let check = CHECKS.iter().find(|(id, _)| *id == entry.id);
            let (Some((_, only)), Some((id, check))) = (only, check) else {
                unreachable!("claims.yaml is a part of the program: {} has no check, or no such settings", entry.id)
            };
            Claim {
                id,
                artifacts,
                says,
                place,
                reading: entry.reading.map(|text| &*text.leak()),
                over: entry.over.leak(),
                needed: entry.needed,
                only: *only,
                check: *check,
            }
        })
    }
}
