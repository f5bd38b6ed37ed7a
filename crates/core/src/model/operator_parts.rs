//! Serialization of operators as a form name and a flat list of parameters.

use std::sync::Arc;

use super::operator::{Matrix, Operator};
use super::operator_form::{AFFINE, BIAS, DENSE, DIAGONAL, LOW_RANK, NORMED_FORM, normed_form, parse_normed};
use super::rms_norm::RmsNorm;
use super::slice::elements;
use crate::error::{Error, Result};

impl Operator {
    /// Returns the form name and the parameters: the epsilon and weight of the norm if there is one, then the row-major
    /// matrix, diagonal or low-rank factors, and finally the bias if there is one.
    pub fn parts(&self) -> Result<(String, Vec<f32>)> {
        let (form, mut values) = match &self.matrix {
            Matrix::Identity => (BIAS.to_owned(), Vec::new()),
            Matrix::Normed { norm, matrix } => {
                let weight = if norm.weighted { elements(&norm.weight)?.to_vec() } else { Vec::new() };
                let values = [&[norm.eps], &weight[..], &*elements(matrix)?].concat();
                (normed_form(norm.weighted, self.bias.is_some()), values)
            }
            Matrix::Dense(matrix) => {
                (if self.bias.is_some() { AFFINE } else { DENSE }.to_owned(), elements(matrix)?.to_vec())
            }
            Matrix::Diagonal(diagonal) => (DIAGONAL.to_owned(), elements(diagonal)?.to_vec()),
            Matrix::LowRank { down, up } => {
                let rank = up.dims()[0];
                (format!("{LOW_RANK}{rank}"), [&*elements(down)?, &*elements(up)?].concat())
            }
        };
        values.extend(self.bias()?.unwrap_or_default());
        Ok((form, values))
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
