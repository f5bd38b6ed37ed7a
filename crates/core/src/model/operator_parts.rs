//! Serialization of operators as a form name, such as `dense` or `diagonal`, and a flat list of parameters. Both
//! determine the content hash.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::operator::{Matrix, Operator};
use super::rms_norm::RmsNorm;
use super::slice::elements;
use crate::error::{Error, Result};

const DENSE: &str = "dense";
const DIAGONAL: &str = "diagonal";
const AFFINE: &str = "affine";
const BIAS: &str = "bias";
/// Prefix of the names of low-rank forms, followed by the rank.
const LOW_RANK: &str = "rank-";
/// Prefix of the names of normed forms, followed by `-unweighted` if the norm has no weight and `-affine` if the
/// operator has a bias.
const NORMED_FORM: &str = "normed";
const UNWEIGHTED_SUFFIX: &str = "-unweighted";
const BIAS_SUFFIX: &str = "-affine";

impl Operator {
    /// Returns the form name and the parameters: the epsilon and weight of the norm if there is one, then the row-major
    /// matrix, diagonal or low-rank factors, and finally the bias if there is one.
    pub fn parts(&self) -> Result<(String, Vec<f32>)> {
        let mut values = Vec::from_iter(self.eps());
        for tensor in self.parameters() {
            values.extend_from_slice(&elements(tensor)?);
        }
        Ok((self.form(), values))
    }

    /// Hashes the result of [`Self::parts`].
    pub(super) fn content_hash(&self) -> Result<[u8; 32]> {
        let mut hash = Sha256::new();
        hash.update(self.form());
        self.eps().into_iter().for_each(|eps| hash.update(eps.to_le_bytes()));
        for tensor in self.parameters() {
            elements(tensor)?.iter().for_each(|value| hash.update(value.to_le_bytes()));
        }
        Ok(hash.finalize().into())
    }

    fn form(&self) -> String {
        match &self.matrix {
            Matrix::Identity => BIAS.to_owned(),
            Matrix::Normed { norm, .. } => normed_form(norm.weighted, self.has_bias()),
            Matrix::Dense(_) => if self.has_bias() { AFFINE } else { DENSE }.to_owned(),
            Matrix::Diagonal(_) => DIAGONAL.to_owned(),
            Matrix::LowRank { up, .. } => format!("{LOW_RANK}{}", up.dims()[0]),
        }
    }

    /// Returns the epsilon of the norm, if there is one.
    fn eps(&self) -> Option<f32> {
        if let Matrix::Normed { norm, .. } = &self.matrix { Some(norm.eps) } else { None }
    }

    /// Restores an operator from the result of [`Self::parts`].
    ///
    /// # Errors
    /// Fails if the form is unknown or the number of values does not match it.
    pub fn from_parts(form: &str, mut values: Vec<f32>) -> Result<Arc<Self>> {
        let count = values.len();
        let count_error = || Error::damaged("an operator has the wrong number of values").at(form).found(count);
        match form {
            DENSE => Self::dense(
                (Some(count.isqrt()).filter(|channels| channels * channels == count)).ok_or_else(count_error)?,
                values,
            ),
            DIAGONAL => Self::diagonal(values),
            BIAS => Self::bias_only(values),
            AFFINE => {
                // Solve C² + C = count, so C is the integer square root of count.
                let channels = count.isqrt();
                if channels * channels + channels != count {
                    return Err(count_error());
                }
                let bias = values.split_off(channels * channels);
                Self::affine(channels, values, bias)
            }
            normed if normed.starts_with(NORMED_FORM) => {
                let (weighted, has_bias) = parse_normed(normed).ok_or_else(|| unknown_form_error(normed))?;
                let vectors = usize::from(weighted) + usize::from(has_bias);
                // Solve 1 + C² + vectors·C = count: C² + 2C < (C + 1)², so C is the integer square root of count − 1.
                let channels = count.saturating_sub(1).isqrt();
                if 1 + channels * channels + vectors * channels != count {
                    return Err(count_error());
                }
                let bias = has_bias.then(|| values.split_off(count - channels));
                let matrix = values.split_off(values.len() - channels * channels);
                let weight = weighted.then(|| values.split_off(1));
                Self::normed(RmsNorm { eps: values[0], weight }, channels, matrix, bias)
            }
            other => {
                let rank = other.strip_prefix(LOW_RANK).and_then(|rank| rank.parse::<usize>().ok());
                let rank = rank.filter(|&rank| rank > 0).ok_or_else(|| unknown_form_error(other))?;
                if !count.is_multiple_of(2) || !(count / 2).is_multiple_of(rank) {
                    return Err(count_error());
                }
                let up = values.split_off(count / 2);
                Self::low_rank(count / 2 / rank, values, up)
            }
        }
    }
}

fn normed_form(weighted: bool, has_bias: bool) -> String {
    format!("{NORMED_FORM}{}{}", if weighted { "" } else { UNWEIGHTED_SUFFIX }, if has_bias { BIAS_SUFFIX } else { "" })
}

/// Parses the form name of a normed operator. Returns whether the norm has a weight and whether the operator has a
/// bias.
fn parse_normed(form: &str) -> Option<(bool, bool)> {
    let forms = [(true, false), (true, true), (false, false), (false, true)];
    forms.into_iter().find(|&(weighted, has_bias)| normed_form(weighted, has_bias) == form)
}

fn unknown_form_error(form: &str) -> Error {
    Error::damaged("unknown operator form").found(format!("`{form}`"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::operator::tests::{affine_forms, normed_forms};

    #[test]
    fn operator_parts_round_trip_and_damaged_parts_fail() {
        let mut keys = Vec::new();
        for operator in affine_forms().into_iter().chain(normed_forms()) {
            let (form, mut values) = operator.parts().unwrap();
            let back = Operator::from_parts(&form, values.clone()).unwrap();
            // The epsilon of a norm does not count as a parameter.
            let parameters = values.len() - usize::from(operator.is_normed());
            assert_eq!((back.key(), back.parameter_count()), (operator.key(), parameters), "{form}");
            keys.push(back.key());
            values.push(1.0);
            assert!(["diagonal", "bias"].contains(&&*form) || Operator::from_parts(&form, values).is_err(), "{form}");
        }
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 9, "two forms must not share a key");
        for form in ["rank-0", "rank-x", "sparse", "normed-x"] {
            assert!(Operator::from_parts(form, vec![1.0; 4]).is_err(), "{form}");
        }
    }
}
