//! The error of a template that uses something unsupported.

use minijinja::{Error, ErrorKind};

/// Error of a template for an operation that is refused.
pub(crate) fn refused(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, what.into())
}
