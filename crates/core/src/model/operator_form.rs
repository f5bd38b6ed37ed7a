//! Names of operator forms, such as `dense` and `diagonal`, and content hashes of operators.

use sha2::{Digest, Sha256};

pub(super) const DENSE: &str = "dense";
pub(super) const DIAGONAL: &str = "diagonal";
pub(super) const AFFINE: &str = "affine";
pub(super) const BIAS: &str = "bias";
/// Prefix of the names of low-rank forms, followed by the rank.
pub(super) const LOW_RANK: &str = "rank-";
/// Prefix of the names of normed forms, followed by `-unweighted` if the norm has no weight and `-affine` if the
/// operator has a bias.
pub(super) const NORMED_FORM: &str = "normed";
const UNWEIGHTED_SUFFIX: &str = "-unweighted";
const BIAS_SUFFIX: &str = "-affine";

pub(super) fn normed_form(weighted: bool, has_bias: bool) -> String {
    format!("{NORMED_FORM}{}{}", if weighted { "" } else { UNWEIGHTED_SUFFIX }, if has_bias { BIAS_SUFFIX } else { "" })
}

/// Parses the form name of a normed operator. Returns whether the norm has a weight and whether the operator has a
/// bias.
pub(super) fn parse_normed(form: &str) -> Option<(bool, bool)> {
    let forms = [(true, false), (true, true), (false, false), (false, true)];
    forms.into_iter().find(|&(weighted, has_bias)| normed_form(weighted, has_bias) == form)
}

/// Hashes a form name together with its parameters.
pub(super) fn hash_parameters<const N: usize>(form: &str, parameters: [&Vec<f32>; N]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(form);
    for value in parameters.into_iter().flatten() {
        hash.update(value.to_le_bytes());
    }
    hash.finalize().into()
}
